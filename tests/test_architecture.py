"""The house's own rules (the map is in the package's docstring), held by walking its imports."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ipygpulogger

ROOT = Path(ipygpulogger.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# From the ground up. A file may import what stands before it, never beside or after it.
ORDER = [
    "units",
    "runtime",
    "runtime.clock",
    "records",
    "schema",
    "budget",
    "timeline",
    "runtime.wrappers",
    "runtime.collector",
    "runtime.signals",
    "runtime.output",
    "runtime.calls",
    "watcher",
    "resets",
    "driver",
    "sources",
    "sources.process",
    "sources.nvml",
    "sources.torch",
    "sources.jax",
    "sources.cupy",
    "sources.tensorflow",
    "sources.rmm",
    "sources.host",
    "peaks",
    "sampler",
    "holdings",
    "machine",
    "devicewatch",
    "scope",
    "gap",
    "dispatcher",
    "monitoring",
    "settrace",
    "tracing",
    "rows",
    "visits",
    "lines",
    "frames",
    "referents",
    "claims",
    "reach",
    "owners",
    "letgo",
    "garbage",
    "libraries",
    "growth",
    "runtime.files",
    "history",
    "log",
    "compare",
    "render",
    "render.lines",
    "render.owners",
    "render.text",
    "render.plot",
    "render.html",
    "render.summary",
    "render.page",
    "render.experiments",
    "shell",
    "live",
    "request",
    "celllines",
    "oom",
    "tracebacks",
    "autopsy",
    "logger",
    "device",
    "dataframes",
    "trace",
    "linetrace",
    "epochs",
    "callbacks",
    "callbacks.mem",
    "callbacks.lightning",
    "callbacks.transformers",
    "callbacks.keras",
    "experiments",
    "utils",
    "utils.standard",
    "utils.mem",
    "utils.ipython",
    "magics",
    "parameters",
    "run",
    "arguments",
    "cli",
    "",
]
SPEAKERS = {
    "runtime.output",
    "logger",
    "trace",
    "linetrace",
    "epochs",
    "experiments",
    "magics",
    "cli",
}  # the rooms that print or display
STANDARD = set(sys.stdlib_module_names)
OUTSIDE = {  # what else a room may import at its top
    "logger": {"traitlets"},
    "callbacks.mem": {"fastai", "fastcore"},
    "callbacks.lightning": {"lightning"},
    "callbacks.transformers": {"transformers"},
    "callbacks.keras": {"keras"},
    "magics": {"IPython"},
}


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


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
            known = {name_of(file) for file in FILES}
            yield from ((one if one in known else module, True) for one in names)


def test_every_file_has_its_place():
    """The order above names every file of the package and nothing else."""
    assert sorted(map(name_of, FILES)) == sorted(ORDER)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_arrows_go_down_only(path):
    """A room imports only what stands below it."""
    place = ORDER.index(name_of(path))
    for module, ours in imports(path):
        if ours:
            assert ORDER.index(module) < place, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_foreign_at_the_top(path):
    """Frameworks and IPython are imported where they are used, not when a file is."""
    allowed = STANDARD | OUTSIDE.get(name_of(path), set())
    for module, ours in imports(path, top_only=True):
        assert ours or module.partition(".")[0] in allowed, f"{name_of(path)} imports {module}"


def test_sources_do_not_know_each_other():
    """A source imports no other source and nothing of the engine."""
    below = {
        "units",
        "runtime.clock",
        "records",
        "runtime.signals",
        "runtime.wrappers",
        "watcher",
        "resets",
        "driver",
        "sources",
    }
    for path in (ROOT / "sources").glob("*.py"):
        for module, ours in imports(path):
            assert not ours or module in below, f"{name_of(path)} imports {module}"


def test_renderers_know_records_and_units_alone():
    """What is shown depends on nothing but what was measured."""
    for path in (ROOT / "render").glob("*.py"):
        for module, ours in imports(path):
            assert not ours or module in {
                "records",
                "units",
                "render.lines",
                "render.text",
                "render.plot",
                "render.html",
                "render.summary",
            }, f"{name_of(path)} imports {module}"


def test_the_engine_does_not_know_ipython():
    """Everything below the shell works outside IPython."""
    for path in FILES:
        if ORDER.index(name_of(path)) < ORDER.index("logger"):
            assert not [module for module, _ in imports(path) if module.partition(".")[0] == "IPython"]


def test_only_the_speakers_speak():
    """print and display stand in the logger, the tracer, the magics and the command line alone."""
    for path in FILES:
        calls = [
            n.func.id
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        ]
        if name_of(path) not in SPEAKERS:
            assert not {"print", "display"} & set(calls), name_of(path)


def test_only_its_owner_looks_at_the_memory_of_the_process():
    """What a look reports once, a foreign reset or a sampler's highest, is lost to open scopes on any other way."""
    for path in FILES:
        assert name_of(path) == "peaks" or "process.counter.look(" not in path.read_text(), name_of(path)


def test_importing_is_light():
    """`import ipygpulogger` brings no framework, no IPython, no driver binding, and starts nothing."""
    program = (
        "import sys, threading, ipygpulogger\n"
        "heavy = {'torch', 'pynvml', 'numpy', 'pandas', 'IPython', 'nbclient', 'nbformat', 'rich', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)), threading.active_count())"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[] 1"


def test_the_light_import_test_can_fail():
    """A meta-test: the same question about a module that does import numpy answers otherwise."""
    program = "import sys, numpy; print('numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "True"


def test_one_clock():
    """Nobody asks Python's own clocks, which users' tests freeze, but the one room that knows of that."""
    frozen = {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns"}
    clocks = {f"time.{name}" for name in frozen} | {"datetime.now", "datetime.utcnow", "datetime.today"}
    for path in FILES:
        asked = {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        assert name_of(path) == "runtime.clock" or not asked & clocks, name_of(path)
        assert "from time import" not in path.read_text(), name_of(path)


def test_public_names():
    """What the package promises is there, and nothing unnamed."""
    for name in ipygpulogger.__all__:
        assert getattr(ipygpulogger, name)
    assert re.match(r"\d+\.\d+\.\d+", ipygpulogger.__version__)
    with pytest.raises(AttributeError, match="no_such_name"):
        ipygpulogger.no_such_name  # noqa: B018
