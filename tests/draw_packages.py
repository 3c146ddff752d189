"""Draw docs/packages.svg from the table of packages in test_architecture.py: ``python tests/draw_packages.py``.

A package stands one layer above the highest that it imports. An import that others imply is left out. The colours
read on a light and on a dark page, for a page may be either whatever the system says.
"""

import sys
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "packages.svg"
WIDTH, LEFT, ROW, BOX = 800, 150, 76, (108, 34)
PLACES = {  # from left to right, in columns: what belongs together stands together
    "runtime": 2.25,
    "records": 3.75,
    "sources": 2,
    "analysis": 4.5,
    "allocator": 1,
    "engine": 3,
    "storage": 4.5,
    "owners": 2,
    "lines": 3,
    "render": 4.5,
    "breakdown": 1.5,
    "estimation": 1,
    "blocks": 3,
    "notebook": 4.5,
    "verify": 1,
    "cluster": 2,
    "callbacks": 3,
    "compat": 4.5,
    "cli": 1,
    "utils": 4.5,
}
BANDS = {  # what the layers from this one up are for, the lowest first
    0: "Values, behaviour",
    1: "Read, compare",
    2: "Measure, store",
    3: "Explain, show",
    5: "What users call",
    6: "Built on these",
}


def drawn(imports):
    """The picture of a table that says which packages each package imports."""
    below = {name: below_of(name, imports) for name in imports}
    needed = {
        name: {one for one in direct if not any(one in below[other] for other in direct)}
        for name, direct in imports.items()
    }
    layer = {}
    for name in sorted(imports, key=lambda name: len(below[name])):
        layer[name] = 1 + max((layer[one] for one in imports[name]), default=-1)
    rows = max(layer.values()) + 1
    style = 'font-family="system-ui, sans-serif" font-size="14"'
    tip = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {rows * ROW}" width="{WIDTH}" {style}>',
        "<title>The packages in layers; each arrow points to a package that is imported</title>",
        f'<defs><marker id="tip" {tip} orient="auto"><path d="M0,0.5L8,4L0,7.5z" fill="#808080"/></marker></defs>',
    ]
    ends = [*list(BANDS)[1:], rows]
    for shade, (first, end) in enumerate(zip(BANDS, ends, strict=True)):
        top, height = (rows - end) * ROW, (end - first) * ROW
        parts += [
            f'<rect y="{top}" width="{WIDTH}" height="{height}" fill="#808080" fill-opacity="{0.14 if shade % 2 else 0.06}"/>',
            f'<text x="14" y="{top + height / 2 + 5:g}" fill="#808080">{BANDS[first]}</text>',
        ]
    centres = {
        name: (LEFT + (PLACES[name] - 0.5) * (WIDTH - LEFT) / 5, (rows - layer[name] - 0.5) * ROW)
        for name in imports
    }
    for name in imports:
        parts += [arrow(centres[name], centres[one]) for one in sorted(needed[name])]
    for name, (x, y) in centres.items():
        box = f'x="{x - BOX[0] / 2:g}" y="{y - BOX[1] / 2:g}" width="{BOX[0]}" height="{BOX[1]}" rx="6"'
        parts += [
            f'<rect {box} fill="#426a95"/>',
            f'<text x="{x:g}" y="{y + 5:g}" fill="#ffffff" text-anchor="middle">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def below_of(name, imports):
    """The packages that a package imports, and those that these import, and so on."""
    return set().union(imports[name], *(below_of(one, imports) for one in imports[name]))


def arrow(start, end):
    """A curve from the lower edge of a box to the upper edge of another."""
    (x, y), (to_x, to_y) = start, end
    y, to_y = y + BOX[1] / 2, to_y - BOX[1] / 2 - 1
    bend = (to_y - y) / 2
    path = f"M{x:g},{y:g}C{x:g},{y + bend:g} {to_x:g},{to_y - bend:g} {to_x:g},{to_y:g}"
    return f'<path d="{path}" fill="none" stroke="#808080" stroke-width="1.5" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    from test_architecture import FOLDERS

    PICTURE.write_text(drawn(FOLDERS), encoding="utf-8", newline="\n")
    sys.stdout.write(f"{PICTURE}\n")
