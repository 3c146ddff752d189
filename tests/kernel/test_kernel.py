"""Cells in a real Jupyter kernel: what only a kernel does, and that all of it is right there too."""

import re
from contextlib import contextmanager

import ipykernel
import pytest
from kernels import LEFT, NOTHING_LEFT, SERVANTS

MB = 2**20
REPORT = re.compile(
    r"^RAM: Consumed Peaked  Used Total in (?P<time>\d+\.\d{3})s \((?P<label>[^\n]*)\)\n"
    r"Gen:    (?P<consumed>[ \d-]{5})  (?P<peaked>[ \d]{5})    [ \d]{5} MB(?P<after>[^\n]*)\n",
    re.MULTILINE,
)
SUBSHELLS = pytest.mark.skipif(ipykernel.version_info[0] < 7, reason="ipykernel has subshells since 7.0")


def labels(printed):
    """The cells that reports speak of, in the order of printing; every table must keep the format."""
    found = [match["label"] for match in REPORT.finditer(printed)]
    assert len(found) == printed.count("RAM: ") == printed.count("Gen: ")
    return found


def last(kernel):
    """The last record, as plain values."""
    return kernel.value("{**il.record.to_dict(), 'records': len(il.history)}")


BEGIN = SERVANTS, "from ipygpulogger import IPyGPULogger"


@contextmanager
def nothing_left(kernel):
    """In the kernel nothing of ours runs before a test and after it."""
    yield
    for name in ("il", "other"):
        kernel.run(f"if {name!r} in dir(): {name}.stop(); del {name}", silent=True)
    assert kernel.value(LEFT) == NOTHING_LEFT


@contextmanager
def logger(kernel):
    """The same with a logger `il` that prints; it was started by no cell."""
    ran = kernel.run("il = IPyGPULogger().start()", silent=True)
    assert ran.status == "ok", ran.reply
    assert labels(ran.stdout) == []
    with nothing_left(kernel):
        yield


pytestmark = pytest.mark.kernel(shared=True, begin=BEGIN, around=logger)
without_a_logger = pytest.mark.kernel(shared=True, begin=BEGIN, around=nothing_left)


def test_the_report_follows_the_cells_own_output(kernel):
    """The report is the last of the cell's outputs and belongs to it, after Out[]."""
    ran = kernel.run("print('mine')\n6 * 7")
    assert ran.result == "42"
    assert ran.kinds[:2] == ["stream", "execute_result"]
    assert set(ran.kinds[2:]) == {"stream"}
    assert ran.stdout.startswith("mine\nRAM:")
    assert labels(ran.stdout) == [f"In [{ran.reply['execution_count']}]"]
    assert ran.stderr == ""


FORK = "pid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0);"
CODES = dict.fromkeys(
    ("# only a comment", "await asyncio.sleep(0)", "!true", "%%bash\ntrue", "%%time\nx = 1")
)
CODES |= dict.fromkeys(("%timeit -n1 -r1 pass", "%%html\n<b>x</b>", "%reset -f array", FORK))
CODES |= {
    "1 +": "SyntaxError",
    "%nosuch": "UsageError",
    "import sys; sys.exit(3)": "SystemExit",
    "await asyncio.sleep(0); 1 / 0": "ZeroDivisionError",
    "await asyncio.wait_for(asyncio.sleep(60), 0)": "TimeoutError",
}


@pytest.mark.parametrize(("code", "error"), CODES.items())
@pytest.mark.filterwarnings("ignore")
def test_each_kind_of_cell_has_one_report(kernel, code, error):
    """One report and one record, with the cell's number and how it ended."""
    ran = kernel.run(code)
    assert len(labels(ran.stdout)) == 1
    record = last(kernel)
    assert (record["records"], record["status"], record["error"]) == (1, "error" if error else "ok", error)
    assert record["label"] == f"In [{ran.reply['execution_count']}]"
    assert record["source"] == code.splitlines()[0]


@pytest.mark.parametrize("sleep", ["time.sleep", "await asyncio.sleep"])
def test_an_interrupted_cell_says_so(kernel, tmp_path, sleep):
    """The kernel's own interrupt: one report marked so, and the next cell is whole again."""
    flag = tmp_path / "under way"
    kernel.run(f"path = {str(flag)!r}", silent=True)
    asked = kernel.send(f"open(path, 'w').close()\nwhile True: {sleep}(0.01)")
    kernel.wait_for(flag.exists)
    kernel.manager.interrupt_kernel()
    ran = kernel.wait(asked)
    records = kernel.value("[(r.status, r.error, r.label.partition('In')[0]) for r in il.history]")
    error = "CancelledError" if "await" in sleep else "KeyboardInterrupt"
    assert records == [["interrupted", error, ""]]
    (match,) = REPORT.finditer(ran.stdout)
    assert match["after"].endswith("  interrupted")
    ran = kernel.run("x = 1")
    (match,) = REPORT.finditer(ran.stdout)
    assert "interrupted" not in match["after"]


# -- start and stop ------------------------------------------------------------------------------


@without_a_logger
def test_the_extension_comes_and_goes(kernel):
    """Load, one display a cell of the user's, none of a quiet one, reload, unload: nothing left."""
    assert kernel.run("%load_ext ipygpulogger").displays == []
    for code in ("x = 1", "1 / 0", "await asyncio.sleep(0)", "%reload_ext ipygpulogger", "x = 2"):
        ran = kernel.run(code)
        assert len(ran.displays) == (not code.startswith("%"))
        assert labels(ran.stdout) == []
    assert kernel.value("len(il.history)") == 2
    kernel.run("il.quiet = '10MB'")
    assert kernel.run("x = 1").kinds == []
    assert kernel.run("6 * 7").kinds == ["execute_result"]
    assert len(kernel.run("kept = bytearray(b'x') * (30 << 20)").displays) == 1
    assert kernel.run("1 / 0").kinds == ["error", "display_data"]
    assert kernel.run("%%gpulog\nx = 1").kinds == ["display_data"]
    assert kernel.run("%unload_ext ipygpulogger").kinds == []
    assert kernel.run("x = 1").kinds == []
    assert kernel.value("'il' in globals()") is False
    assert kernel.run("%gpulog status").reply["ename"] == "UsageError"


# -- subshells -----------------------------------------------------------------------------------


@SUBSHELLS
def test_cells_of_a_subshell_have_their_own_reports(kernel):
    """Short cells on a subshell while a long one runs: each has its own record, label and time."""
    subshell = kernel.subshell()
    kernel.run("go = threading.Event()", silent=True)
    long = kernel.send("print('under way')\nassert go.wait(60)")
    kernel.wait_for_print(long, "under way")
    first = kernel.run("short = 1", subshell=subshell)
    second = kernel.run("1 / 0", subshell=subshell)
    third = kernel.run("%%capture inner\nx = 1", subshell=subshell)
    fourth = kernel.run("go.set()", subshell=subshell)
    long = kernel.wait(long)
    records = kernel.value("[[r.label, r.source, r.time_s, r.error] for r in il.history]")
    by_source = {source: (label, error) for label, source, _, error in records}
    times_s = {source: time_s for _, source, time_s, _ in records}
    assert len(records) == len(by_source) == 5
    sent = [
        m["content"]
        for ran in (long, first, second, third, fourth)
        for m in ran.messages
        if "code" in m["content"]
    ]
    # IPython before 9 counts a cell at its end: the first on the subshell has the long one's number.
    shown = {one["code"].partition("\n")[0]: f"In [{one['execution_count']}]" for one in sent}
    assert by_source == {
        source: (shown[source], "ZeroDivisionError" if source == "1 / 0" else None) for source in shown
    }
    assert times_s["print('under way')"] > times_s["1 / 0"]
    for ran, source in zip((long, first, second, third), shown, strict=False):
        assert labels(ran.stdout) == [shown[source]]


# -- the numbers ---------------------------------------------------------------------------------


def test_500_cells_leave_500_records_and_nothing_else(kernel):
    """Threads, files and callbacks as at the start; a record stays small whatever its cell was."""
    state = (
        "[sorted(t.name for t in threading.enumerate()), len(os.listdir('/proc/self/fd')),"
        " {event: len(found) for event, found in get_ipython().events.callbacks.items()}]"
    )
    kinds = [
        "x = {n}",
        "1 / 0",
        "# {n}",
        "%%capture\nx = {n}",
        "await asyncio.sleep(0)",
        "1 +",
        "big = '{big}'",
        "",
    ]
    told = sum({"": 0}.get(kinds[n % len(kinds)], 1) for n in range(500))
    kernel.run("__import__('gc').freeze()", silent=True)  # the start's objects, which each cell would look at
    kernel.run("x = 1")
    before = kernel.value(state)
    asked = [kernel.send(kinds[n % len(kinds)].format(n=n, big="x" * 20_000)) for n in range(500)]
    for one in asked:
        kernel.wait(one)
    assert kernel.value(state) == before
    assert kernel.value("len(il.history)") == told + 1
    size = "len(__import__('pickle').dumps(list(il.history))) / len(il.history)"
    assert kernel.value(size) < 1024
    assert kernel.value("max(len(__import__('pickle').dumps(r)) for r in il.history)") < 2048


# -- with a GPU ----------------------------------------------------------------------------------


@pytest.mark.kernel(gpu=True)
def test_with_a_gpu_the_row_comes_with_its_use_and_the_thread_goes_with_stop(kernel, gpu):
    """A device is shown once this process uses it; one sampler serves every cell and ends with stop()."""
    sampler = "[t.name for t in threading.enumerate() if 'ipygpulogger' in t.name]"
    ran = kernel.run(
        "import threading, os\nfrom ipygpulogger import IPyGPULogger\nil = IPyGPULogger().start()"
    )
    assert "GPU" not in ran.stdout
    # As if CUDA's library were loaded.
    kernel.run("import ipygpulogger.sources.nvidia.driver as d; d.absent = lambda: False")
    pid = kernel.value("os.getpid()")
    row = gpu.dev[0].add_process(pid, 512 << 20)
    ran = kernel.run("x = 1")
    assert re.search(r"^GPU:        0      0      512 MB", ran.stdout, re.MULTILINE)
    row.used = 768 << 20
    kernel.run("%config IPyGPULogger.devices = 'all'")
    ran = kernel.run("x = 2")
    assert re.search(r"^GPU0:       0      0      768 MB", ran.stdout, re.MULTILINE)
    assert re.search(r"^GPU1:       0      0        0 MB", ran.stdout, re.MULTILINE)
    for code in ("1 / 0", "%%capture\nx = 1", "await __import__('asyncio').sleep(0)"):
        kernel.run(code)
        assert kernel.value(sampler) == ["ipygpulogger sampler"]
    assert kernel.run("il.stop()").stdout == "ipygpulogger stopped: 8 cells recorded.\n"
    assert kernel.value(sampler) == []
