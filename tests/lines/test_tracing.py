"""Beside other tools: coverage, debuggers, users' own monitors keep all their events, and nothing of ours stays."""

import linecache
import sys
import threading

import pytest
from memory import MB, Block, held_transient

from ipygpulogger.lines.line_profiler import LineProfiler, backend

MONITORING = sys.version_info >= (3, 12)
monitoring = pytest.mark.skipif(not MONITORING, reason="sys.monitoring came with Python 3.12")
tracing_alone = pytest.mark.skipif(MONITORING, reason="before Python 3.12")

PROGRAM = """\
def f(n):
    return n + 1
kept = Block(16)
total = 0
for i in range(3):
    total = f(total)
held_transient(24)
"""


def program(filename):
    linecache.cache[filename] = len(PROGRAM), None, PROGRAM.splitlines(keepends=True), filename
    return compile(PROGRAM, filename, "exec"), {"Block": Block, "held_transient": held_transient}


def lines_of(filename):
    return LineProfiler(lambda frame: frame.f_code.co_filename == filename)


def check(lines):
    found = {usage.lineno: usage for usage in lines.result(lambda _: ("", 0))}
    assert found[3].gen.consumed_bytes / MB == pytest.approx(16, abs=2)
    assert found[7].gen.peaked_bytes / MB == pytest.approx(24, abs=2)
    assert [found[number].hits for number in sorted(found)] == [1, 3, 1, 1, 4, 3, 1]


class Debugger:
    """What pdb and coverage's Python tracer do: a tracer that follows every line."""

    def __init__(self, filename):
        self.filename, self.seen = filename, []

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename != self.filename:
            return None
        if event == "line":
            self.seen.append(frame.f_lineno)
        return self

    def run(self, code, names):
        old = sys.gettrace()
        sys.settrace(self)
        try:
            exec(code, names)
            assert sys.gettrace() is self
        finally:
            sys.settrace(old)
        return self.seen


def test_a_debugger_sees_all_it_would_without_us():
    """A tracer set before us keeps every event; before 3.12 we leave the thread to it, and say so."""
    bare = Debugger("<bare>").run(*program("<bare>"))
    code, names = program("<debugged>")
    lines, debugger = lines_of("<debugged>"), Debugger("<debugged>")
    old = sys.gettrace()
    sys.settrace(debugger)
    try:
        lines.start()
        exec(code, names)
        lines.stop()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(old)
    assert debugger.seen == bare
    if MONITORING:
        check(lines)
        assert lines.notes(lambda _: ("", 0)) == ()
    else:
        assert lines.result(lambda _: ("", 0)) == ()
        (note,) = lines.notes(lambda _: ("", 0))
        assert "another tool traces this thread" in note
        assert "3.12" in note


def test_a_debugger_that_comes_later_stays():
    """`pdb.set_trace()` in the middle takes over; our end leaves it in place."""
    code, names = program("<later>")
    lines, debugger = lines_of("<later>"), Debugger("<later>")
    lines.start()
    old = sys.gettrace()
    sys.settrace(debugger)
    exec(code, names)
    lines.stop()
    assert sys.gettrace() is debugger
    sys.settrace(None if not MONITORING else old)
    assert debugger.seen
    if MONITORING:
        check(lines)
    else:
        assert any("taken over" in note for note in lines.notes(lambda _: ("", 0)))


@tracing_alone
def test_no_trace_function_stays():
    """`threading.settrace` of somebody else is left alone, and frames that go on have none of ours."""
    theirs = lambda *_: None  # noqa: E731
    threading.settrace(theirs)
    try:
        lines = LineProfiler(lambda frame: frame.f_code is measured.__code__)

        def measured():
            assert sys._getframe().f_trace is not None
            assert threading.gettrace() is theirs
            lines.stop()
            assert sys._getframe().f_trace is None

        lines.start()
        measured()
        assert threading.gettrace() is theirs
    finally:
        threading.settrace(None)
    assert sys.gettrace() is None


@monitoring
def test_users_monitors_keep_all_their_events():
    """Another tool's events, and what it disabled or not, are the same with us as without."""
    api = sys.monitoring

    def watched(filename, measured):
        code, names = program(filename)
        seen = []

        def line(its, number):
            if its.co_filename == filename:
                seen.append(number)

        api.use_tool_id(2, "theirs")
        api.register_callback(2, api.events.LINE, line)
        api.set_events(2, api.events.LINE)
        lines = lines_of(filename)
        try:
            if measured:
                lines.start()
            exec(code, names)
            lines.stop()
            exec(code, names)
        finally:
            api.set_events(2, 0)
            api.register_callback(2, api.events.LINE, None)
            api.free_tool_id(2)
        return seen, lines

    bare, _ = watched("<their own>", measured=False)
    seen, lines = watched("<with us>", measured=True)
    assert seen == bare
    check(lines)


@monitoring
def test_ids_are_never_stolen():
    """With every id taken nothing is measured, one sentence says why, and the owners keep theirs."""
    api = sys.monitoring
    taken = [number for number in (2, 3, 4, 5) if api.get_tool(number) is None]
    for number in taken:
        api.use_tool_id(number, "theirs")
    try:
        lines = lines_of("<none>")
        lines.start()
        exec(*program("<none>"))
        lines.stop()
        assert [api.get_tool(number) for number in taken] == ["theirs"] * len(taken)
    finally:
        for number in taken:
            api.free_tool_id(number)
    assert lines.result(lambda _: ("", 0)) == ()
    (note,) = lines.notes(lambda _: ("", 0))
    assert "monitoring ids" in note


@monitoring
def test_the_next_owner_of_our_id_sees_everything():
    """What we disabled in library code is enabled again for whoever has the id next."""
    api, (code, names) = sys.monitoring, program("<ours>")
    lines = lines_of("<elsewhere>")
    lines.start()
    number = next(number for number in range(6) if api.get_tool(number) == "ipygpulogger")
    exec(code, names)  # nobody wants it: disabled
    lines.stop()
    assert api.get_tool(number) is None
    seen = []
    api.use_tool_id(number, "next")
    api.register_callback(number, api.events.PY_START, lambda its, _: seen.append(its.co_name))
    api.set_events(number, api.events.PY_START)
    try:
        exec(code, names)
    finally:
        api.set_events(number, 0)
        api.register_callback(number, api.events.PY_START, None)
        api.free_tool_id(number)
    assert seen.count("f") == 3


@monitoring
def test_library_code_is_not_slowed_down():
    """Of code that nobody wants one start is told, and no line."""
    import json

    asked = []
    lines = LineProfiler(lambda frame: asked.append(frame.f_code) is not None)
    lines.start()
    for _ in range(50):
        json.dumps({"a": [1, 2, 3]}, indent=1)
    lines.stop()
    names = [code.co_qualname for code in asked if code.co_filename.endswith("encoder.py")]
    assert len(names) == len(set(names))
    assert names


def test_code_that_only_looks_alike_is_told_apart():
    """Two cells of the same text are two, though their code objects compare equal; then nothing of them is kept."""
    (one, names), (other, _) = program("<twin 1>"), program("<twin 2>")
    lines = LineProfiler(lambda frame: frame.f_code.co_filename in ("<twin 1>", "<twin 2>"))
    lines.start()
    exec(one, names)
    exec(other, names)
    lines.stop()
    found = lines.result(lambda name: (name, 0))
    assert {usage.place for usage in found} == {"<twin 1>", "<twin 2>"}
    assert [usage.hits for usage in found if usage.lineno == 3] == [1, 1]
    assert not (backend.subscribers or backend._followed or backend._unwanted)


@pytest.mark.parametrize("core", ["ctrace", "pytrace", "sysmon"])
def test_coverage_keeps_working(core, tmp_path):
    """Each core of coverage.py finds the same lines with us as without."""
    import os
    import subprocess

    pytest.importorskip("coverage")
    if core == "sysmon" and not MONITORING:  # coverage refuses it there; the lane `monitoring` runs it
        pytest.skip("sys.monitoring came with Python 3.12")
    (tmp_path / "prog.py").write_text(
        "def f(n):\n    if n > 5:\n        return 0\n    return n\nfor i in range(3):\n    f(i)\n"
    )
    script = (
        "import sys, coverage\n"
        "from ipygpulogger.lines.line_profiler import LineProfiler\n"
        "cov = coverage.Coverage(data_file=None)\n"
        "lines = LineProfiler(lambda frame: frame.f_code.co_filename.endswith('prog.py'))\n"
        "cov.start()\n"
        "if sys.argv[1] == 'measured': lines.start()\n"
        "import prog\n"
        "lines.stop()\n"
        "cov.stop()\n"
        "print(sorted(cov.get_data().lines(prog.__file__)), len(lines.result(lambda _: ('', 0))))\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "COVERAGE_CORE": core, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    bare, ours = (
        subprocess.check_output([sys.executable, "-c", script, how], env=env, cwd=tmp_path, text=True)
        for how in ("bare", "measured")
    )
    assert ours.split("]")[0] == bare.split("]")[0] == "[1, 2, 4, 5, 6"
    assert (int(ours.split("]")[1]) > 0) == MONITORING
