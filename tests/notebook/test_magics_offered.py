"""%gpulog where only `IPyGPULogger().start()` was called: whom it is about, and that what we tell people works."""

import ast
import re
from pathlib import Path

import pytest
from reports import run

import ipygpulogger
from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine

ROOT = Path(ipygpulogger.__file__).parent
PAGES = [ROOT.parent / "README.md", *sorted((ROOT.parent / "docs").glob("*.md"))]
COMMAND = re.compile(
    r"%{1,2}gpulog(?! has| left out)(?: (?:--)?[a-z]+(?:[= ](?:PATH|TEXT|peak|True)(?![\w=]))?)?"
)


def traces(shell):
    """All of a shell that the magics change; completion's list is one from IPython 8.6 on, another before."""
    lists = "custom_matchers", "magic_arg_matchers"
    return {
        "magics": {kind: dict(names) for kind, names in shell.magics_manager.magics.items()},
        "transforms": list(shell.input_transformer_manager.line_transforms),
        "completion": [[m.__name__ for m in getattr(shell.Completer, name, ())] for name in lists],
        "configurables": list(shell.configurables),
        "machine": (set(machine().scopes), set(machine().scopes.loggers)),
        "callbacks": {event: list(callbacks) for event, callbacks in shell.events.callbacks.items()},
    }


def about(shell):
    """The logger that %gpulog is about."""
    return shell.magics_manager.magics["line"]["gpulog"].__self__.logger


@pytest.fixture
def shell(shell):
    """The shell, without a logger at the end."""
    run(shell, "%unload_ext ipygpulogger")  # IPython brings in its own magics at their first use
    yield shell
    for one in list(shell.configurables):
        if isinstance(one, IPyGPULogger):
            one.stop()
    run(shell, "%unload_ext ipygpulogger")


def test_unloading_leaves_nothing(shell, capsys):
    """%unload_ext: as if it had never been loaded."""
    before = traces(shell)
    run(shell, "%load_ext ipygpulogger")
    run(shell, "pass")
    assert traces(shell) != before
    capsys.readouterr()
    run(shell, "%unload_ext ipygpulogger")
    assert capsys.readouterr() == ("", "")
    assert traces(shell) == before
    assert "il" not in shell.user_ns
    ipygpulogger.unload_ipython_extension(shell)  # not loaded: nothing happens
    assert traces(shell) == before


@pytest.mark.parametrize(
    "ways", [["il.stop()"], ["%gpulog stop", "il.stop()"], ["%gpulog stop", "%gpulog start", "il.stop()"]]
)
def test_it_comes_with_start_and_goes_with_stop(shell, capsys, ways):
    """`il.start()` alone brings %gpulog, about il; %gpulog stop keeps it, il.stop() leaves no trace."""
    before = traces(shell)
    il = shell.user_ns["il"] = IPyGPULogger(report="none")
    assert traces(shell) == before
    assert not run(shell, "%gpulog status").success
    run(shell, "il.start()")
    assert about(shell) is il
    assert run(shell, "%gpulog status").success
    capsys.readouterr()
    for way in ways:
        assert run(shell, way).success
        if way.startswith("%"):
            assert about(shell) is il
            assert il.running == way.endswith("start")
    assert traces(shell) == before
    assert not run(shell, "%gpulog status").success
    il.stop()
    assert traces(shell) == before


def test_of_two_it_is_about_the_one_started_last(shell):
    """And about the other again, once that one has been stopped; an interrupted `stop` can be repeated."""
    before = traces(shell)
    first, second = IPyGPULogger(report="none").start(), IPyGPULogger(report="none").start()
    assert about(shell) is second
    first.start()  # runs already: nothing changes
    assert about(shell) is second
    run(shell, "%gpulog stop")
    assert (first.running, second.running) == (True, False)
    second.stop()
    assert about(shell) is first
    second.start()
    first.stop()
    assert about(shell) is second
    transforms = shell.input_transformer_manager.line_transforms
    assert [one.__name__ for one in transforms].count("first_line") == 1
    second.stop()
    assert traces(shell) == before


@pytest.mark.parametrize("earlier", [True, False])
def test_with_the_extension_it_is_about_its_own(shell, earlier):
    """Whoever starts before or after it; unloaded, it is about the other, or gone."""
    before = traces(shell)
    other = IPyGPULogger(report="none")
    if earlier:
        other.start()
    run(shell, "%load_ext ipygpulogger")
    other.start()
    il = shell.user_ns["il"]
    assert about(shell) is il is not other
    run(shell, "il.stop()")
    assert about(shell) is il
    run(shell, "%unload_ext ipygpulogger")
    assert about(shell) is other
    other.stop()
    assert traces(shell) == before


# -- what we tell people to type ------------------------------------------------------------------------


def told():
    """Every command of %gpulog in a text of ours, and where: the packages that may print it, the README and the pages."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for command in COMMAND.findall(node.value):
                    found.setdefault(command, set()).add(path.parent.name)
    for page in PAGES:
        for command in COMMAND.findall(page.read_text(encoding="utf-8").replace("[", "").replace("]", "")):
            found.setdefault(command, set()).add(page.name)
    return found


TOLD = {command: where for command, where in told().items() if command not in ("%gpulog", "%%gpulog")}


@pytest.mark.parametrize("command", sorted(TOLD), ids=lambda command: f"{command} ({min(TOLD[command])})")
def test_what_we_say_works_as_typed(shell, tmp_path, command):
    """In a shell in which nothing but `IPyGPULogger().start()` was called."""
    run(shell, "from ipygpulogger import IPyGPULogger\nil = IPyGPULogger(report='none').start()")
    run(shell, "x = 1")
    typed = command.replace("PATH", f"'{tmp_path}/run.jsonl'")
    if command in ("%gpulog save", "%gpulog snapshot", "%gpulog load"):
        typed += f" '{tmp_path}/run.jsonl'"
    if command == "%gpulog measure":
        typed += " z = 1"
    if "load" in command:
        shell.user_ns["il"].history.save(tmp_path / "run.jsonl")
    ran = run(shell, f"{typed}\ny = 2" if command.startswith("%%") else typed)
    error = ran.error_before_exec or ran.error_in_exec
    without_torch = "snapshot" in command and "torch" in str(error)  # then it writes nothing
    without_notebook = "panel" in command and "it needs a notebook" in str(error)
    assert ran.success or without_torch or without_notebook, (command, TOLD[command], error)
    shell.user_ns["il"].stop()
