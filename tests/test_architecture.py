"""The rules of the architecture, held by walking its imports; the package's docstring is its map."""

import ast
import graphlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from draw_packages import PICTURE, drawn

import ipygpulogger

ROOT = Path(ipygpulogger.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# The packages, from the ground up, and what each may import at run time. "experiments" and "__main__" are doors; "" is the package.
PACKAGES = {
    "runtime": "",
    "records": "",
    "analysis": "records",
    "storage": "analysis records runtime",
    "sources": "records runtime",
    "render": "analysis records storage",
    "engine": "records runtime sources",
    "lines": "engine records runtime sources",
    "owners": "engine records runtime sources",
    "allocator": "records runtime sources",
    "breakdown": "allocator engine owners records runtime sources",
    "estimation": "allocator breakdown engine records runtime sources",
    "blocks": "analysis breakdown engine lines records render runtime",
    "cluster": "analysis blocks engine records runtime storage",
    "notebook": "analysis breakdown engine lines owners records render runtime sources storage",
    "verify": "blocks engine estimation records runtime sources",
    "cli": "analysis breakdown engine lines records render runtime sources storage verify",
    "compat": "blocks engine notebook owners records render runtime",
    "callbacks": "blocks",
    "utils": "compat",
    "experiments": "compat utils",
    "pytest_plugin": "analysis blocks engine records render runtime storage",
    "__main__": "cli",
    "": "blocks estimation notebook records runtime storage",
}
FOLDERS = {name: below.split() for name, below in PACKAGES.items() if name and (ROOT / name).is_dir()}
SPEAKERS = {  # the files that print or display
    "runtime.errors",
    "notebook.report",
    "notebook.magics",
    "compat.experiment",
    "cli.streams",
}
ONLY_IN = {  # what is called or asked, and where
    "print|display": SPEAKERS,
    r"time\.((time|monotonic|perf_counter)(_ns)?)|datetime\.(now|utcnow|today)": {"runtime.clock"},
    r"(.*\.)?process\.counter\.observe": {"engine.peaks"},
    r"sys\.(version_info|hexversion)": {"engine.machine"},  # all else about Python is asked by what it does
}
WRITES_AN_ID = r"(backend|kind|cuda|key\[0\])\}?:\{"  # "cuda:0"
STANDARD = set(sys.stdlib_module_names)
OUTSIDE = {  # what else a module may import at its top
    "notebook.logger": {"traitlets"},
    "notebook.options": {"traitlets"},
    "callbacks.mem": {"fastai", "fastcore"},
    "callbacks.lightning": {"lightning"},
    "callbacks.transformers": {"transformers"},
    "callbacks.keras": {"keras"},
    "notebook.magics": {"IPython"},
    "notebook.completion": {"IPython"},
    "pytest_plugin": {"pytest"},
}


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def known():
    return {name_of(path) for path in FILES}


def imports(path, *, top_only=False):
    """(module, whether it is ours) for each import; those for type checkers alone do not count."""
    name = name_of(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    tops = {
        id(node)
        for statement in tree.body
        for node in (
            [statement, *statement.body] if isinstance(statement, (ast.If, ast.Try)) else [statement]
        )
    }
    for node in ast.walk(tree):
        if id(node) in skipped or (top_only and id(node) not in tops):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, False
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module, False
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            base = parts[: len(parts) - (node.level - 1)]
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [".".join(filter(None, [module, alias.name])) for alias in node.names]
            yield from ((one if one in known() else module, True) for one in names)
        elif not name and isinstance(node, ast.Constant) and re.fullmatch(r"\.[a-z_.]+", str(node.value)):
            yield node.value[1:], True  # the package's own public names, imported when they are asked for


def package_of(module):
    return module.partition(".")[0]


def arrows():
    """(importing file, imported file) for each import inside the package."""
    return {(name_of(path), module) for path in FILES for module, ours in imports(path) if ours}


def test_every_file_is_in_a_package():
    """The table names every package and nothing else."""
    assert {package_of(name_of(path)) for path in FILES} == set(PACKAGES)


def test_arrows_go_down_only(capsys):
    """A package imports only those that the table names: all of them, and all stand below it."""
    between = {(package_of(a), package_of(b)) for a, b in arrows() if package_of(a) != package_of(b)}
    assert between == {(package, below) for package, named in PACKAGES.items() for below in named.split()}
    order = list(PACKAGES)
    assert all(order.index(below) < order.index(package) for package, below in between)
    with capsys.disabled():
        print(f"\n{len(FILES)} files, {len(PACKAGES)} packages and doors, {len(between)} arrows between them")


def test_the_picture_is_of_the_table():
    """docs/packages.svg is what `python tests/draw_packages.py` draws today."""
    assert PICTURE.read_text(encoding="utf-8") == drawn(FOLDERS), "python tests/draw_packages.py"


def test_no_circle_of_files():
    """Inside a package the arrows have a direction too."""
    below = {name_of(path): set() for path in FILES}
    for a, b in arrows():
        below[a].add(b)
    assert list(graphlib.TopologicalSorter(below).static_order())


def test_no_file_is_long():
    """A file of more than 400 lines has two nouns."""
    long = {name_of(path) for path in FILES if len(path.read_text().splitlines()) > 400}
    assert not long


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_foreign_at_the_top(path):
    """Frameworks and IPython are imported where they are used, not when a file is."""
    allowed = STANDARD | OUTSIDE.get(name_of(path), set())
    for module, ours in imports(path, top_only=True):
        assert ours or module.partition(".")[0] in allowed, f"{name_of(path)} imports {module}"


def test_sources_do_not_know_each_other():
    """What one source of figures says does not depend on another."""
    frameworks = {f"sources.frameworks.{name}" for name in ("jax", "cupy", "tensorflow", "rmm")}
    counters = {"sources.system.process", "sources.nvidia.nvml", "sources.torch", *frameworks}
    for path in (ROOT / "sources").rglob("*.py"):
        name = name_of(path)
        own = {counter for counter in counters if f"{name}.".startswith(f"{counter}.")}
        known = {f"{module}." for module, ours in imports(path) if ours}
        for counter in counters - own if own else ():
            assert not [module for module in known if module.startswith(f"{counter}.")], name


def test_the_engine_does_not_know_ipython():
    """Everything but the notebook, and what migrants know of notebooks, works outside IPython."""
    for path in FILES:
        if package_of(name_of(path)) not in {"notebook", "compat", ""}:
            assert not [module for module, _ in imports(path) if module.partition(".")[0] == "IPython"]


def test_one_file_does_it():
    """What `ONLY_IN` names stands nowhere else: a look at the process's memory reports some things only once."""
    for path in FILES:
        text = path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        done = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        done |= {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        for pattern, owners in ONLY_IN.items():
            found = [one for one in done if re.fullmatch(pattern, one)]
            assert not found or name_of(path) in owners, f"{name_of(path)}: {found}"
        assert name_of(path) == "records.device_usage" or not re.search(WRITES_AN_ID, text), name_of(path)


def test_public_names():
    """What the package promises is there, and nothing unnamed."""
    for name in ipygpulogger.__all__:
        assert getattr(ipygpulogger, name)
    assert re.match(r"\d+\.\d+\.\d+", ipygpulogger.__version__)
    with pytest.raises(AttributeError, match="no_such_name"):
        ipygpulogger.no_such_name  # noqa: B018


def test_the_map_names_every_package():
    """The package's docstring is a map: a line for each package."""
    named = set(re.findall(r"^(\w+)(?:/|\.py)  ", ipygpulogger.__doc__, re.MULTILINE))
    assert named == set(PACKAGES) - {""}
