"""``pytest --gpulog``: tests that need memory of known size, run by a pytest within this one."""

import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from memory import MB

from ipygpulogger import History, pytest_plugin
from ipygpulogger.analysis import notable
from ipygpulogger.blocks.measure import Measure
from ipygpulogger.cli import main
from ipygpulogger.engine import scope as scopes
from ipygpulogger.engine.machine import machine
from ipygpulogger.render import summary
from ipygpulogger.sources.system import linux
from ipygpulogger.storage import decode

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent
INSTALLED = any(one.name == "ipygpulogger" for one in entry_points(group="pytest11"))
PLUGIN = [] if INSTALLED else ["-p", "ipygpulogger.pytest_plugin"]

# What every program of these tests begins with: memory of so many MB, straight from the kernel.
BLOCK = """
import asyncio, mmap, os, pytest, sys, unittest
KEPT = []
def block(mb):
    made = mmap.mmap(-1, mb << 20)
    made[::4096] = b"\\1" * (mb << 8)
    return made
def need(mb):
    block(mb).close()
"""

RUNS_COROUTINES = """
import asyncio, inspect
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        return asyncio.run(pyfuncitem.obj()) or True
"""


@pytest.fixture
def run(pytester):
    """Run a program of tests, in this process or another."""

    def run(program, *options, another=False, **how):
        pytester.makepyfile(test_it=BLOCK + program)
        if not Path("conftest.py").exists():
            pytester.makeconftest(RUNS_COROUTINES)
        start = pytester.runpytest_subprocess if another else pytester.runpytest_inprocess
        quiet = () if any("asyncio" in option for option in options) else ("-p", "no:asyncio")
        return start(*PLUGIN, "-p", "no:cacheprovider", *quiet, *options, **how)

    return run


def needed(path="log.jsonl"):
    """What each test and each fixture of a log needed of RAM, in MB."""
    return {record.label: round(record.gen.needed_bytes / MB) for record in History.load(path)}


def outcomes(result):
    found = result.parseoutcomes()
    return {name.rstrip("s"): count for name, count in found.items() if name not in ("warnings", "warning")}


def test_the_entry_point_names_the_plugin():
    """So that installing the package is enough."""
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nipygpulogger = "ipygpulogger.pytest_plugin"\n' in text


def test_nothing_is_imported_or_measured_unless_asked_for(run):
    """The plugin has options and markers then, and costs two small modules."""
    program = """
    @pytest.mark.memory_budget(ram="1MB")
    @pytest.mark.no_leak("1MB", warmups=2)
    def test_it():
        ours = {name for name in sys.modules if name.startswith("ipygpulogger")}
        assert ours <= {"ipygpulogger", "ipygpulogger.pytest_plugin"}
        assert not {"torch", "pynvml", "psutil", "IPython", "traitlets"} & set(sys.modules)
        need(8)
        assert not KEPT
        KEPT.append(1)
    """.replace("\n    ", "\n")
    result = run(program, "--strict-markers", another=True)
    assert outcomes(result) == {"passed": 1}
    assert "memory" not in result.stdout.str()


EVERY = """
@pytest.fixture(scope="session")
def whole():
    made = block(96)
    yield
    need(36)
    made.close()
@pytest.fixture(scope="module")
def model(whole):
    made = block(128)
    yield
    made.close()
@pytest.fixture
def data(model):
    made = block(32)
    yield
    made.close()
    need(56)  # of which 32 were in use
@pytest.fixture(scope="class")
def shared(request):
    request.getfixturevalue("whole")
    need(40)
@pytest.fixture(scope="module", params=[52, 60])
def each(request):  # the first is torn down while the second test is set up
    yield
    need(request.param)
@pytest.fixture(scope="module")
def late(): need(44)
@pytest.fixture
def early(request):
    need(28)
    request.getfixturevalue("late")
def test_early(early): pass
def test_quiet(): pass
def test_each(each): pass
def test_64(): need(64)
@pytest.mark.parametrize("size", [8, 16])
def test_sized(size, data): need(size)
class TestClass:
    def test_method(self, shared): KEPT.append(block(4))
    def test_moves(self, tmp_path):
        os.chdir(tmp_path)
        need(12)
class TestCase(unittest.TestCase):
    def setUp(self): need(20)
    def test_case(self): need(10)
def test_forks():
    if not (pid := os.fork()):
        need(48)
        os._exit(0)
    os.waitpid(pid, 0)
    need(6)
"""
TRUTH = {
    "late (module)": 44,
    "test_early, setup": 28,
    "test_early": 0,
    "test_quiet": 0,
    "test_each[52]": 0,
    "test_each[60]": 0,
    "each[0] (module), teardown": 52,
    "each[1] (module), teardown": 60,
    "test_64": 64,
    "test_sized[8]": 8,
    "test_sized[16]": 16,
    "test_sized[8], setup": 32,
    "test_sized[16], setup": 32,
    "test_sized[8], teardown": 24,
    "test_sized[16], teardown": 24,
    "whole (session)": 96,
    "whole (session), teardown": 36,
    "model (module)": 128,
    "shared (class)": 40,
    "test_method": 4,
    "test_moves": 12,
    "test_case": 20,
    "test_forks": 6,
}


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
@pytest.mark.parametrize("options", [[], ["-p", "no:xdist"], ["-n", "2", "--dist", "loadfile"]], ids=" ".join)
def test_every_figure_is_exact(run, options):
    """Of a test, of its setup and teardown without the fixtures that tests share, and of those of each of these."""
    result = run(EVERY, "--gpulog-log", "log.jsonl", *options, another=True)
    assert outcomes(result) == {"passed": 11}
    found = needed()
    assert found.keys() == TRUTH.keys()
    ids = {record.cell_id: record.label for record in History.load("log.jsonl")}
    assert ids["test:test_it.py::test_early, setup"] == "test_early, setup"
    assert ids["test:test_it.py::TestClass::test_moves, call"] == "test_moves"
    assert {name for name, mb in found.items() if abs(mb - TRUTH[name]) > 1} == set()
    shown = result.stdout.str()
    table = shown[shown.index("memory that tests") :]
    assert re.findall(r"^(\S+ ?\S*) +RAM", table, re.MULTILINE)[:2] == ["model (module)", "whole (session)"]
    assert "test_quiet" not in table
    assert "not measured" not in shown


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
def test_as_many_are_shown_as_asked_for(run):
    """And the key of the ini file switches it on."""
    result = run(EVERY, "--gpulog-top", "2", "-o", "gpulog=true")
    result.stdout.fnmatch_lines(["model (module)*", "whole (session)*", "and 17 more"])


def test_a_test_that_needs_nothing_has_no_row(run):
    """That is said in place of a table."""
    run("def test_it(): pass", "--gpulog").stdout.fnmatch_lines(["none of them is known to have needed 1 MB"])


@pytest.mark.usefixtures("fresh_mark")
def test_an_expected_failure_is_not_called_one(run):
    """As pytest does not count it as failed; its figures are shown."""
    # The tested project's own marker: a failure that its author expects.
    result = run("@pytest.mark.xfail\ndef test_it():\n    need(8)\n    assert 0", "--gpulog")
    assert outcomes(result) == {"xfailed": 1}
    result.stdout.fnmatch_lines(["test_it * 8 *"])
    result.stdout.no_fnmatch_line("*failed:*")


BUDGETS = {
    '@pytest.mark.memory_budget(ram="8MB")': "failed",
    '@pytest.mark.memory_budget(ram="20MB")': "passed",
    '@pytest.mark.memory_budget(gpu="1MB")': "passed",
    # The tested project expects that its test goes over its budget: strict, so that a pass would fail.
    '@pytest.mark.xfail(strict=True)\n@pytest.mark.memory_budget(ram="8MB")': "xfailed",
}


KINDS = {
    "function": "{marker}\ndef test_it(): {body}",
    "method": "class TestIt:\n    {marker}\n    def test_it(self): {body}",
    "case": "class TestIt(unittest.TestCase):\n    {marker}\n    def test_it(self): {body}",
    "coroutine": "{marker}\nasync def test_it(): {body}",
}


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("marker", BUDGETS)
def test_a_budget_is_of_what_the_call_needs(run, marker, kind):
    """Neither of what was in use before, nor of what a fixture needs; the failure says by how much."""
    before = "KEPT.append(block(24))\n@pytest.fixture(autouse=True)\ndef dear(): need(20)\n"
    indent = "\n    " if "class" in KINDS[kind] else "\n"
    test = KINDS[kind].format(marker=marker.replace("\n", indent), body="need(16)")
    result = run(before + test, "--gpulog")
    assert outcomes(result) == {BUDGETS[marker]: 1}
    if BUDGETS[marker] == "failed":
        sentence = r"test_it needed 1[67] MB of RAM, [89] MB more than its budget of 8 MB"
        result.stdout.re_match_lines([sentence, r"RAM: Consumed Peaked  Used Total in .*\(test_it\)"])


LEAKS = {  # by what each run does: what comes of it
    "KEPT.append(block(4))": "Each run grew by more than 1 MB: test_it *: 3 runs, +4 MB each",
    "need(4)": "",
    "KEPT or KEPT.append(block(4))": "",  # a cache
    "KEPT.append(KEPT and block(4))": "Each run grew by more than 1 MB: test_it *: 3 runs, +4 MB each",
    "loop = [block(4)]; loop.append(loop)": "",  # garbage is no leak
    "KEPT.append(len(KEPT) % 2 and block(4))": "The growth of test_it is not known: it grew in some of its last 10 runs only",
    "KEPT.append(1); 1 / (4 - len(KEPT))": "The growth of test_it is not known: run 4 failed: ZeroDivisionError: *",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", LEAKS)
def test_a_leak_is_what_every_run_leaves(run, body, kind):
    """The test's call is run again until that is known; what is not known is said, and fails nothing."""
    said = LEAKS[body]
    if kind == "case" and "4 - len" in body:
        said = "Each"  # a case of unittest keeps its error for its report, which fails
    result = run(KINDS[kind].format(marker="@pytest.mark.no_leak", body=body), "--gpulog")
    assert outcomes(result) == {"failed" if said.startswith("Each") else "passed": 1}
    if said == LEAKS[body] != "":
        result.stdout.fnmatch_lines([said])
    elif not said:
        result.stdout.no_fnmatch_line("*not known*")


# How the tested project's own test ends in its second run; none of this test is skipped.
@pytest.mark.parametrize("end", ["pytest.fail('no')", "pytest.skip('no')", "sys.exit('no')"])
def test_a_further_run_that_ends_early_changes_no_result(run, end):
    """Neither to failed nor to skipped: `pytest.raises` fails by what is no `Exception`, too."""
    program = f"@pytest.mark.no_leak\ndef test_it():\n    KEPT.append(1)\n    if KEPT[1:]: {end}"
    result = run(program, "--gpulog")
    assert outcomes(result) == {"passed": 1}
    result.stdout.fnmatch_lines(["The growth of test_it is not known: run 2 failed: *: no"])


WRONG = {
    "memory_budget(rom='1GB')": "memory_budget takes ram and gpu",
    "memory_budget('1GB')": "memory_budget takes ram and gpu",
    "memory_budget()": "memory_budget takes ram and gpu",
    "memory_budget(ram='many')": "'many' is not a memory size: write a size such as 10GB, 512MB or 4096B",
    "memory_budget(gpu=2)": "'2' has no unit: write a size such as 10GB, 512MB or 4096B",
    "no_leak(warmups=-1)": "no_leak takes size and warmups",
    "no_leak(warmups='one')": "invalid literal for int() with base 10: 'one'",
    "no_leak('1')": "'1' has no unit: write a size such as 10GB, 512MB or 4096B",
    "no_leak('1MB', 2, '3MB')": "no_leak takes size and warmups",
}


@pytest.mark.parametrize("marker", WRONG)
def test_a_wrong_marker_is_refused(run, marker):
    """In one sentence, before the test runs; it is an error of that test alone."""
    program = f"@pytest.mark.{marker}\ndef test_it(): print('ran')\ndef test_other(): pass"
    result = run(program, "--gpulog")
    assert outcomes(result) == {"passed": 1, "error": 1}
    assert f"\n{WRONG[marker]}; write it as @pytest.mark." in result.stdout.str()
    assert "ran" not in result.stdout.str()
    assert outcomes(run(program)) == {"passed": 2}


@pytest.mark.parametrize(
    ("name", "why"),
    [("log.txt", "must be named .jsonl"), (".", "is a folder"), ("no/log.jsonl", "there is no folder")],
)
def test_a_log_that_cannot_be_written_is_refused(run, name, why):
    """Before the first test."""
    result = run("def test_it(): open('ran', 'w')", "--gpulog-log", name)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --gpulog-log: *{why}*"])
    assert not Path("ran").exists()


def test_a_log_that_goes_away_is_said_once(run):
    """The tests go on, and their figures are shown."""
    Path("logs").mkdir()
    program = "import shutil\ndef test_it(): shutil.rmtree('logs'), need(16)\ndef test_other(): pass"
    result = run(program, "--gpulog-log", "logs/log.jsonl")
    assert outcomes(result) == {"passed": 2}
    result.stdout.fnmatch_lines(["test_it*", "*log.jsonl is not written: FileNotFoundError*"])
    assert result.stdout.str().count("is not written") == 1
    result.stdout.no_fnmatch_line("*is not measured*")


def test_collecting_alone_leaves_an_older_log(run):
    """As nothing takes its place; and there is no table of nothing."""
    Path("log.jsonl").write_text("older")
    result = run("def test_it(): pass", "--gpulog-log", "log.jsonl", "--collect-only")
    assert Path("log.jsonl").read_text() == "older"
    result.stdout.no_fnmatch_line("*memory that tests*")


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
def test_a_test_that_became_dearer_fails_the_comparison(run, capsys):
    """Whatever ran before it: tests are matched by id, and compared by what they need."""
    one, other = (
        "def test_one(): KEPT.append(block(64))\n",
        "@pytest.mark.parametrize('mb', [16, {}])\ndef test_other(mb): need(mb)\n",
    )
    logs = []
    for program in (
        one + other.format(32),
        other.format(32) + one,
        one + other.format(32).replace("need(mb)", "need(2 * mb)"),
    ):
        logs.append(f"log{len(logs)}.jsonl")
        run(program, "--gpulog-log", logs[-1])
    capsys.readouterr()
    assert main(["compare", *logs[:2]]) == 0
    assert main(["compare", *logs[1::-1]]) == 0
    assert main(["compare", logs[1], logs[2]]) == 1
    said = capsys.readouterr().out
    assert "test_other[32]: test_it.py" in said
    assert "2 of 3 tests grew" in said
    assert main(["report", logs[0]]) == 0
    assert "test_other[32]" in capsys.readouterr().out


FAULTS = {  # by what fails: when it does, of its calls
    **dict.fromkeys(
        [(scopes.Scope, "open"), (scopes.Scope, "_read_peaks"), (scopes.Scope, "result")], (1, 2, 3, 5, None)
    ),
    **dict.fromkeys(
        [(linux, "faults_and_mark"), (linux, "resident_and_mark_bytes"), (linux, "reset_mark")], (2, None)
    ),
    **dict.fromkeys(
        [
            (notable, "overdrawn"),
            (decode, "record_from"),
            (summary, "summary"),
            (pytest_plugin, "_settle"),
            (Measure, "__enter__"),
            (Measure, "__exit__"),
        ],
        (1,),
    ),
}


@pytest.mark.parametrize(
    ("place", "number"),
    [(one, number) for one in FAULTS for number in FAULTS[one]],
    ids=lambda one: getattr(one, "__getitem__", lambda _: str(one))(1),
)
@pytest.mark.usefixtures("fresh_mark")
def test_an_error_of_ours_fails_no_test(run, fresh_machine, monkeypatch, place, number):
    """In setup, call, teardown, the next run, or at each; what is unknown for it is said at the end."""
    calls, own = [], getattr(*place)

    def fails(*args, **kwargs):
        calls.append(1)
        if armed and number in (None, len(calls)):
            raise OSError(5, "injected")
        return own(*args, **kwargs)

    armed = []
    monkeypatch.setattr(*place, fails)
    monkeypatch.setattr(scopes, "measured_now", lambda: (armed.append(1), calls.clear()))
    result = run(
        "@pytest.mark.memory_budget(ram='1GB')\n@pytest.mark.no_leak\ndef test_it(): need(8)", "--gpulog"
    )
    assert outcomes(result) == {"passed": 1}
    assert armed
    if place[0] is not linux:
        result.stdout.fnmatch_lines(["*is not measured: *injected*"])
    assert "KeyError" not in result.stdout.str()
    assert not machine().scopes


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
@pytest.mark.parametrize("options", [["--gpulog"], ["--gpulog-log", "log.jsonl"]], ids=" ".join)
def test_a_phase_that_needs_nothing_has_no_figures_made(run, monkeypatch, options):
    """It costs two looks at the mark; a log has a line for each test."""
    labels, own = [], scopes.Scope.result
    monkeypatch.setattr(
        scopes.Scope, "result", lambda *args, **how: (labels.append(args[2]), own(*args, **how))[1]
    )
    result = run("def test_one(): pass\ndef test_two(): need(8)\ndef test_three(): pass", *options)
    assert outcomes(result) == {"passed": 3}
    measured = ["test_two"] if options == ["--gpulog"] else ["test_one", "test_two", "test_three"]
    assert [label for label in labels if label.startswith("test_")] == measured


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
def test_a_mark_that_cannot_be_read_any_more_is_said(run, fresh_machine, monkeypatch):
    """Also of a test that needed nothing before that: what it needed is not known."""
    own = linux.faults_and_mark
    monkeypatch.setattr(linux, "broken", False, raising=False)
    monkeypatch.setattr(linux, "faults_and_mark", lambda: {}["injected"] if linux.broken else own())
    program = """
from ipygpulogger.sources.system import linux
def test_breaks(): linux.broken = True
def test_other(): pass
"""
    result = run(program, "--gpulog")
    assert outcomes(result) == {"passed": 2}
    result.stdout.fnmatch_lines(["test_breaks is not measured: *injected*; test_breaks, teardown is not *"])


@pytest.mark.usefixtures("fresh_mark")
def test_an_interrupted_run_has_its_table(run):
    """Of the tests that ran."""
    result = run(
        "def test_one(): need(64)\ndef test_two(): raise KeyboardInterrupt", "--gpulog", no_reraise_ctrlc=True
    )
    result.stdout.fnmatch_lines(["test_one *RAM*64*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not machine().scopes


def test_it_ends_at_the_first_failure_in_the_debugger(pytester):
    """As without us."""
    pytester.makepyfile(
        BLOCK + "@pytest.mark.memory_budget(ram='1MB')\ndef test_one(): need(8)\ndef test_two(): pass"
    )
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--gpulog", "-x", "--pdb"]
    result = pytester.run(*command, stdin=b"c\n")
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["*(Pdb)*", "test_one *RAM*8*"])


def test_doctests_are_measured(run, pytester):
    """As other tests are; in a process of their own, as they leave a `_` in the builtins."""
    pytester.makefile(".md", readme=">>> len(b'x' * (64 << 20)) >> 20\n64")
    result = run("", "--gpulog-log", "log.jsonl", "--doctest-glob=*.md", another=True)
    assert outcomes(result) == {"passed": 1}
    assert needed() == {"readme.md": 64}


ELSEWHERE = """
import json, os
from _pytest.runner import runtestprotocol
def log(item, report): item.ihook.pytest_runtest_logreport(report=report)
"""
FORKED = """
def pytest_runtest_protocol(item, nextitem):
    hook, config = item.config.hook, item.config
    receive, send = os.pipe()
    if not (pid := os.fork()):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        sent = [hook.pytest_report_to_serializable(config=config, report=one) for one in reports]
        os.write(send, json.dumps(sent).encode())
        os._exit(0)
    os.close(send)
    received = json.loads(open(receive).read())
    os.waitpid(pid, 0)
    for one in received:
        log(item, hook.pytest_report_from_serializable(config=config, data=one))
    return True
"""
RERUN = """
def pytest_report_teststatus(report): return ("rerun", "R", "RERUN") if report.outcome == "rerun" else None
def pytest_runtest_protocol(item, nextitem):
    for more in (True, False):
        item._initrequest()
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            report.outcome = "rerun" if report.failed and more else report.outcome
            log(item, report)
            if report.outcome == "rerun":
                break
        else:
            return True
    return True
"""
SECOND = (
    "def test_it():\n    KEPT.append(1)\n    need(64 if len(KEPT) == 2 else 32)\n    assert len(KEPT) == 2"
)


@pytest.mark.linux("nothing forks there", "macos")
@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=" ".join)
@pytest.mark.parametrize(
    ("conftest", "program"), [(FORKED, "def test_it(): need(64)"), (RERUN, SECOND)], ids=["forked", "rerun"]
)
def test_a_test_may_run_elsewhere_and_again(run, pytester, conftest, program, options):
    """In a fork, whose reports come as pytest packs them; of several runs the last one counts."""
    pytester.makeconftest(ELSEWHERE + conftest)
    result = run(program, "--gpulog-log", "log.jsonl", *options, another=True)
    assert outcomes(result) == {"passed": 1, **({"rerun": 1} if conftest == RERUN else {})}
    assert needed() == {"test_it": 64}
    result.stdout.fnmatch_lines(["test_it *RAM*64*"])


@pytest.mark.parametrize(("plugin", "options", "program"), [
    ("pytest_asyncio", ["--asyncio-mode=auto"], "@pytest.fixture\nasync def dear(): need(32)\n@pytest.mark.no_leak\nasync def test_it(dear): need(64)"),
    ("anyio", [], "@pytest.mark.anyio\n@pytest.mark.no_leak\nasync def test_it(): need(64)\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'"),
    ("pytest_rerunfailures", ["--reruns", "2"], SECOND),
])  # fmt: skip
def test_it_works_with(run, pytester, plugin, options, program):
    """Other plugins that run tests in their own way."""
    pytest.importorskip(plugin)
    pytester.makeconftest("")
    result = run(program, "--gpulog-log", "log.jsonl", *options, another=True)
    assert outcomes(result) == {"passed": 1, **({"rerun": 1} if "--reruns" in options else {})}
    assert needed()["test_it"] == 64
    assert "not known" not in result.stdout.str()


@pytest.mark.torch
@pytest.mark.parametrize("options", [["--gpulog"], ["--gpulog-peak"]], ids=" ".join)
def test_each_device_has_its_row_and_its_budget(run, kernel_env, monkeypatch, options):
    """With what was alive at the peak, if asked for."""
    program = """
import torch
@pytest.fixture
def model(): return torch.empty(96 << 20, dtype=torch.uint8, device="cuda")
@pytest.mark.memory_budget(gpu="32MB")
def test_it(model): torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
@pytest.mark.no_leak
def test_leaks(): KEPT.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))
"""
    for name, value in kernel_env.items():
        monkeypatch.setenv(name, value)
    result = run(program, *options, another=True)
    assert outcomes(result) == {"failed": 2}
    result.stdout.re_match_lines(
        [
            r"test_it needed 64 MB of cuda:0, 32 MB more than its budget of 32 MB",
            r"Each run grew by more than 1 MB: test_leaks .*: 3 runs, \+4 MB on GPU each",
            r"(test_it, setup)? +GPU +96 +96 .*",
            r"test_it +GPU +0 +64.*",
        ]
    )
    assert ("temporaries" in result.stdout.str()) == (options == ["--gpulog-peak"])
