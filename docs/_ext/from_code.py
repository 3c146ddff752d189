"""What the pages show of the code itself: the help of commands, and the packages inside the package.

Those are read from the source text; nothing is imported for them.
"""

import ast
import io
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest import mock

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

PACKAGE = Path(__file__).parents[2] / "ipygpulogger"


def command_help(command):
    """What ``ipygpulogger COMMAND --help`` prints."""
    from ipygpulogger.cli import main

    said = io.StringIO()
    here = mock.patch.dict("os.environ", COLUMNS="90", NO_COLOR="1")
    with here, redirect_stdout(said), suppress(SystemExit):
        main([*command.split(), "--help"])
    return said.getvalue().rstrip()


def magic_help():
    """The docstring of ``%gpulog``, which ``%gpulog?`` shows in a notebook."""
    from ipygpulogger.notebook.magics import GpulogMagics

    return GpulogMagics.gpulog.__doc__


def packages():
    """The packages inside the package: their name, their sentence and those they import, lowest first."""
    found = {
        path.parent.name: (_sentence(path), _imported(path.parent))
        for path in sorted(PACKAGE.glob("*/__init__.py"))
    }
    rest, done = dict(found), []
    while rest:
        floor = sorted(name for name, (_, below) in rest.items() if not below & rest.keys() - {name})
        if not floor:
            raise ValueError(f"the packages import each other in a circle: {', '.join(rest)}")
        done += [(name, rest[name][0], sorted(rest[name][1] & found.keys() - {name})) for name in floor]
        for name in floor:
            del rest[name]
    return done


def files(package):
    """The files of a package and what each is: in the words of the package's own table, else in its own."""
    listed = dict(_rows(ast.get_docstring(_parsed(PACKAGE / package / "__init__.py")) or ""))
    there = sorted(path.stem for path in (PACKAGE / package).glob("[!_]*.py"))
    own = {name: _sentence(PACKAGE / package / f"{name}.py") for name in there}
    first = [(name, says) for name, says in listed.items() if name in own]
    return first + [(name, says) for name, says in own.items() if name not in listed]


def folders(package):
    """A package and the folders in it."""
    inside = sorted(path.parent.relative_to(PACKAGE) for path in (PACKAGE / package).glob("*/__init__.py"))
    return [package, *map(str, inside)]


def _rows(docstring):
    """The first column of each simple table of a docstring, and the others."""
    width = 0
    for line in docstring.splitlines():
        if border := re.match(r"(=+)  +=+", line):
            width = len(border[1])
        elif not line.strip():
            width = 0
        elif width:
            yield line[:width].strip(), ": ".join(re.split("  +", line[width:].strip()))


def _parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _sentence(path):
    """The first paragraph of a file's docstring, on one line."""
    return " ".join((ast.get_docstring(_parsed(path)) or "").partition("\n\n")[0].split())


def _imported(package):
    """The first name below the root in each import that runs; type checkers' own are left out."""
    found = set()
    for path in package.rglob("*.py"):
        up = len(path.relative_to(PACKAGE).parts)  # the level that leads out of the package
        for node in _runtime(_parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.level == up:
                found |= {node.module.partition(".")[0]} if node.module else {one.name for one in node.names}
    return found


def _runtime(node):
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _runtime(child)


class CommandHelp(SphinxDirective):
    """``{command-help} run``."""

    optional_arguments = 1

    def run(self):
        return [_literal(command_help(" ".join(self.arguments)))]


class MagicHelp(SphinxDirective):
    """``{magic-help}``."""

    def run(self):
        return [_literal(magic_help())]


class Packages(SphinxDirective):
    """``{packages}``: a table of them, the lowest first."""

    def run(self):
        found = [(f"`{name}/`", says, ", ".join(below) or "-") for name, says, below in packages()]
        return [_table(("package", "what it is", "imports"), (12, 58, 30), found)]


class Files(SphinxDirective):
    """``{files}``: a table for each package, and each folder in one, that has files."""

    def run(self):
        done = []
        for folder in (one for package, _, _ in packages() for one in folders(package)):
            if found := files(folder):
                rows = [(f"`{folder}/{name}.py`", says) for name, says in found]
                done += [nodes.rubric("", f"{folder}/"), _table(("file", "what it is"), (30, 70), rows)]
        return done


def _table(head, widths, rows):
    table = nodes.table("", nodes.tgroup("", cols=len(head)))
    group = table[0]
    group += [nodes.colspec(colwidth=width) for width in widths]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, rows))
    return table


def _row(cells):
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *_inline(cell))) for cell in cells))


def _inline(words):
    for i, part in enumerate(re.split(r"`+([^`]+)`+", words)):
        if part:
            yield nodes.literal("", part) if i % 2 else nodes.Text(part)


def _literal(words):
    block = nodes.literal_block(words, words)
    block["language"] = "text"
    return block


def as_downloads(_app, _page, source):
    """A page's links to Markdown outside of docs/, which a code host shows, become downloads on the site."""
    source[0] = re.sub(r"\]\((\.\./[^)#]+\.md)\)", r"](<path:\1>)", source[0])


def setup(app):
    app.connect("source-read", as_downloads)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("magic-help", MagicHelp)
    app.add_directive("packages", Packages)
    app.add_directive("files", Files)
    return {"parallel_read_safe": True}
