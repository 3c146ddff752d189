"""memray's tracker, shared by all recordings, and nothing of it left behind."""

import gc
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.system import memray as source
from ipygpulogger.sources.system.memray import Window, calls_of_memray

memray = pytest.importorskip("memray", reason="memray is not installed")

pytestmark = pytest.mark.skipif(
    sys.getprofile() is not None, reason="a profiler runs, and memray would take its place"
)
FREES = calls_of_memray().free, calls_of_memray().munmap
SIZES = {(n << 20) + n: n for n in range(1, 10)}  # those that no other code asks for


def asked(window):
    """The blocks of known sizes that a window has, in their order."""
    return [
        SIZES[event.size - 1]
        for event in window.events()
        if event.allocator not in FREES and event.size - 1 in SIZES
    ]


def ask(number):
    return bytearray((number << 20) + number)


@pytest.fixture(autouse=True)
def nothing_left():
    """After every test memray, the threads and the temporary folder are as they were."""
    entered = vars(memray.Tracker)["__enter__"]
    folders = set(Path(tempfile.gettempdir()).glob("ipygpulogger.*"))
    yield
    assert source._run is None
    assert vars(memray.Tracker)["__enter__"] is entered
    assert sys.getprofile() is None
    assert threading._profile_hook is None
    assert not {"_name", "_ident"} & set(vars(threading.Thread))
    assert set(Path(tempfile.gettempdir()).glob("ipygpulogger.*")) <= folders


def test_one_after_the_other():
    """Each has what was asked for between its beginning and end; one within another is refused."""
    first = Window()
    ask(1)
    with pytest.raises(Unavailable, match="recorded for another measurement that is open"):
        Window()
    first.end()
    ask(2)
    second = Window()
    ask(3)
    second.end()
    assert (asked(first), asked(second)) == ([1], [3])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for window in (first, second):
            window.drop()
            window.drop()
    assert not said  # as of a file that nobody closed


def test_a_tracker_begins_in_silence(monkeypatch):
    """Under some interpreters memray warns of symbols as it begins, on stderr: below the user's cell."""
    levels = []
    monkeypatch.setattr(memray, "set_log_level", levels.append, raising=False)
    Window().end()
    assert levels == [logging.ERROR, logging.WARNING]


def test_the_line_that_asks_is_known_in_every_thread():
    """Also in threads that ran before, and in those that start within."""
    go, done = threading.Event(), threading.Event()

    def earlier():
        go.wait()
        ask(6)
        done.set()

    thread = threading.Thread(target=earlier)
    thread.start()
    window = Window()
    go.set()
    done.wait()
    later = threading.Thread(target=ask, args=(7,))
    later.start()
    later.join()
    thread.join()
    window.end()
    found = {
        event.size: event.stack_trace()
        for event in window.events()
        if event.allocator not in FREES and event.size - 1 in SIZES
    }
    window.drop()
    asking = [[frame[0] for frame in stack[:2]] for stack in found.values()]
    assert asking == [["ask", "earlier"], ["ask", "run"]]


def test_a_tracker_of_the_users_comes_first(tmp_path):
    """It runs on where it was there before, and takes the place of ours where it comes later."""
    with memray.Tracker(tmp_path / "theirs"), pytest.raises(Unavailable, match="memray records already"):
        Window()
    window = Window()
    with memray.Tracker(tmp_path / "later"):
        ask(8)
    window.end()
    with pytest.raises(Unavailable, match="another tracker of memray was started"):
        list(window.events())
    window.drop()
    with memray.FileReader(tmp_path / "later") as reader:
        assert (8 << 20) + 9 in {record.size for record in reader.get_allocation_records()}


def test_profile_functions_of_the_users_stay():
    """With one installed nothing is recorded; one that is installed within is there afterwards."""

    def profile(*_):
        """Does nothing."""

    for install in (sys.setprofile, threading.setprofile):
        install(profile)
        try:
            with pytest.raises(Unavailable, match="profiler"):
                Window()
        finally:
            install(None)
        window = Window()
        install(profile)
        window.drop()
        try:
            assert profile in (sys.getprofile(), threading._profile_hook)
        finally:
            install(None)


def test_the_tracker_stops_before_its_file_fills_the_disk(monkeypatch):
    """And says so."""
    monkeypatch.setattr(source, "_TOO_MANY_BYTES", 1)
    monkeypatch.setattr(source, "_INTERVAL_S", 0.01)
    window = Window()
    source._run._stopped.wait(10)
    window.end()
    with pytest.raises(Unavailable, match="more allocations than can be read"):
        list(window.events())
    window.drop()


def test_what_is_read_is_in_proportion_to_the_time_measured(monkeypatch):
    """A file larger than that is not even opened: to open it takes as long as to read it."""
    window = Window()
    window.end()
    run = window._run
    monkeypatch.setattr(source, "_SURE_BYTES", os.fstat(run._file.fileno()).st_size - 1)
    monkeypatch.setattr(source, "_EACH_S_BYTES", 1)
    run._took_s = 2
    assert list(run.read())
    run._took_s = 0.5
    monkeypatch.delattr(memray, "FileReader")
    with pytest.raises(Unavailable, match="more allocations than can be read"):
        list(run.read())
    window.drop()


def test_a_window_that_is_forgotten_ends():
    """As after an interrupt; at the latest once the thread that watches the file looks next."""
    Window()
    gc.collect()
    end_s = time.monotonic() + 20
    while source._run is not None and time.monotonic() < end_s:
        time.sleep(0.01)
    assert source._run is None


FORK = """
import os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.system.memray import Window, calls_of_memray
outer, inner = Window(), None
child = os.fork()
if not child:
    try:
        list(outer.events())
    except Unavailable as reason:
        print(reason, flush=True)
    outer.drop()
    assert threading._profile_hook is None
    inner = Window()
else:
    assert os.waitpid(child, 0)[1] == 0
block = bytearray(1_234_567)
window = inner or outer
window.end()
print(sum(event.size == 1_234_568 for event in window.events()), flush=True)
window.drop()
"""


@pytest.mark.linux("nothing forks there", "macos")
def test_a_forked_child_records_its_own():
    """The tracker is the parent's, whose file and windows stay."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True
    )
    told = "What was alive at the peak in general RAM is not known: it was recorded in the process that forked this one."
    assert done.stdout.splitlines() == [told, "1", "1"]
    assert not done.stderr


@pytest.mark.linux(
    "memray opens its file by name; only on Linux does /proc name a file that is deleted already"
)
@pytest.mark.parametrize("signal", ["KILL", "INT"])
def test_nothing_remains_of_a_process_that_is_killed(tmp_path, signal):
    """On Linux the file has no name while it is written."""
    program = f"import os, signal; from ipygpulogger.sources.system.memray import Window; w = Window(); os.kill(os.getpid(), signal.SIG{signal})"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, env=env, check=False
    )
    assert done.returncode
    assert not list(tmp_path.iterdir())


def test_no_folder_for_temporary_files(monkeypatch, tmp_path):
    """One sentence says so, and nothing runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(Unavailable, match="not known: FileNotFoundError"):
        Window()
