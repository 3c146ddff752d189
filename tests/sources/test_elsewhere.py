# ruff: noqa: PYI024 - the shapes are those of psutil, which makes them so
"""Systems that are not Linux, as far as Linux can tell: psutil's answers in their shapes, their consoles.

`nox -s elsewhere` runs the whole suite so; see tests/elsewhere/sitecustomize.py.
"""

import ast
import codecs
import os
import subprocess
import sys
import types
import warnings
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import nbformat
import psutil
import pytest
from command_line import made, saved
from memory import MB

import ipygpulogger
from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.records import Peak, RamUsage
from ipygpulogger.runtime.errors import IN_PLAIN_SIGNS
from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.system import linux, process
from ipygpulogger.sources.system.ram_limit import RamLimits

PACKAGE = Path(ipygpulogger.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
# `memory_info()` as psutil 7.2 has it on each system (psutil/_ntuples.py), and as its issue 2736 will have it.
WINDOWS = namedtuple(
    "pmem",
    "rss vms num_page_faults peak_wset wset peak_paged_pool paged_pool peak_nonpaged_pool nonpaged_pool pagefile"
    " peak_pagefile private",
)
MACOS = namedtuple("pmem", "rss vms pfaults pageins")
LATER_MACOS = namedtuple("pmem", "rss vms")
BSD = namedtuple("pmem", "rss vms text data stack")


class LaterWindows(namedtuple("pmem", "rss vms peak_rss peak_vms")):
    """The old name is an alias that warns."""

    __slots__ = ()

    @property
    def peak_wset(self):
        warnings.warn("peak_wset is deprecated, use peak_rss", DeprecationWarning, stacklevel=2)
        return self.peak_rss


def on(monkeypatch, platform, shape):
    """Have this process on another system; returns what it has resident, and the mark, to be set."""
    now = types.SimpleNamespace(rss=100 * MB, mark=100 * MB)

    def memory_info():
        known = {"rss": now.rss, "wset": now.rss, "peak_wset": now.mark, "peak_rss": now.mark}
        return shape(*(known.get(name, 7) for name in shape._fields))

    def no_proc(*_):
        raise FileNotFoundError(2, "No such file or directory")

    usage = types.SimpleNamespace
    resource = types.SimpleNamespace(
        RUSAGE_SELF=0, getrusage=lambda _: usage(ru_minflt=1, ru_majflt=0, ru_maxrss=now.mark)
    )
    monkeypatch.setattr(psutil, "Process", lambda: types.SimpleNamespace(memory_info=memory_info))
    monkeypatch.setattr(process, "sys", types.SimpleNamespace(platform=platform, maxsize=sys.maxsize))
    monkeypatch.setattr(linux, "resource", None if platform == "win32" else resource)
    monkeypatch.setattr(linux, "_UNIT_BYTES", 1 if platform == "darwin" else 1024)
    monkeypatch.setattr(linux, "resident_and_mark_bytes", no_proc)
    return now


SHAPES = [
    pytest.param("win32", WINDOWS, id="windows"),
    pytest.param("win32", LaterWindows, id="windows, later psutil"),
    pytest.param("darwin", MACOS, id="macos"),
    pytest.param("darwin", LATER_MACOS, id="macos, later psutil"),
]


@pytest.mark.parametrize(("platform", "shape"), SHAPES)
def test_a_mark_that_rose_is_the_peak(monkeypatch, platform, shape):
    """To the byte and exact; one that did not is the most that it can have been, and is called bounded."""
    now = on(monkeypatch, platform, shape)
    here = process.Process()
    tracker = PeakTracker(here.counter)
    assert (here.counter.peak_class, here.diagnose().state) == ("monotone", "bounded")
    rising = tracker.open()
    now.rss, now.mark = 130 * MB, 512 * MB + 4096
    tracker.close(rising)
    assert (rising.peak().lo_bytes, rising.peak().hi_bytes) == (512 * MB + 4096,) * 2
    assert (rising.peak().quality, rising.peak().precision_bytes) == ("exact", 0)
    still = tracker.open()
    now.rss = 140 * MB
    tracker.close(still)
    peak = still.peak()
    assert (peak.lo_bytes, peak.hi_bytes, peak.quality) == (140 * MB, 512 * MB + 4096, "bounded")
    assert still.before_bytes() == 130 * MB


def test_a_system_without_any_mark_is_sampled(monkeypatch):
    """On BSD psutil tells none: what is read is "at least"."""
    on(monkeypatch, "freebsd14", BSD)
    assert process.Process().diagnose().state == "sampled"


def test_a_psutil_that_fails_is_unavailable(monkeypatch):
    """Never a 0: one sentence says that memory cannot be read."""
    on(monkeypatch, "win32", WINDOWS)
    monkeypatch.setattr(psutil, "Process", lambda: types.SimpleNamespace(memory_info=lambda: None))
    with pytest.raises(Unavailable, match="psutil fails"):
        _ = process.Process().counter
    assert process.Process().diagnose().state == "absent"


def test_nothing_is_known_of_ended_children_without_resource(monkeypatch):
    """Windows has no such module."""
    monkeypatch.setattr(linux, "resource", None)
    assert process.children_ended() == process.Ended(0, 0)


def there(system, program, **env):
    """Run a program as on another system; what it printed."""
    path = os.pathsep.join([str(Path(__file__).parents[1] / "elsewhere"), *sys.path])
    env = {**os.environ, "SYSTEM": system, "PYTHONPATH": path, **env}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        env=env,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MEASURES = """
import mmap
from ipygpulogger import measure
from ipygpulogger.engine.machine import machine
from ipygpulogger.verify.system import facts

def blip(size_mb):
    with mmap.mmap(-1, size_mb << 20) as block:
        block[:: mmap.PAGESIZE] = b"1" * len(range(0, len(block), mmap.PAGESIZE))

with measure(): blip(1)
for size_mb in (300, 50):
    with measure() as m: blip(size_mb)
    peak = m.gen.peak
    print(round(m.gen.consumed_bytes / 2**20), peak.quality, (peak.hi_bytes - m.gen.before_bytes) >> 20)
found = facts()
print(found["system"], "|", found["RAM"], "|", found["RAM limit"])
"""


@pytest.mark.parametrize(("system", "name"), [("windows", "Windows 10"), ("macos", "Darwin 23.4.0")])
def test_blocks_elsewhere(system, name):
    """A block with a record is exact; a smaller one after it is bounded by it; the facts name the system."""
    first, second, facts = there(system, MEASURES).splitlines()
    consumed, quality, rose_mb = first.split()
    assert (int(consumed), quality) == (0, "exact")
    assert 298 <= int(rose_mb) <= 302
    consumed, quality, rose_mb = second.split()
    assert (int(consumed), quality) == (0, "bounded")
    assert 298 <= int(rose_mb) <= 302
    system, ram, limit = facts.split(" | ")
    assert system.startswith(name)
    assert "cannot be reset" in ram
    assert "(this machine) left, from psutil" in limit


def test_the_machines_ram_elsewhere(monkeypatch):
    """psutil says how much there is and how much is left; of a simulated machine nothing is asked."""
    monkeypatch.setattr(RamLimits, "read", lambda *_: b"")
    monkeypatch.setattr("ipygpulogger.sources.system.ram_limit.sys", types.SimpleNamespace(platform="win32"))
    memory = types.SimpleNamespace(total=64 << 30, available=10 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    limits = [one for one in RamLimits().all() if one.memory == "RAM"]
    assert [(one.name, one.limit_bytes, one.left_bytes) for one in limits] == [
        ("this machine", 64 << 30, 10 << 30)
    ]
    assert RamLimits("/nowhere").all() == []


# -- consoles: of Western Windows, of its older programs -----------------------------------------------------

CONSOLES = pytest.mark.parametrize("encoding", ["cp1252", "cp437"])


def said_by(words, encoding):
    """What a program writes to a console of this encoding, with its numbers of characters, if any."""
    env = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, *words], capture_output=True, env=env, check=False, timeout=120)
    said = done.stdout.decode(encoding) + done.stderr.decode(encoding)
    assert done.returncode == 0, said
    assert "UnicodeEncodeError" not in said
    assert not [line for line in said.splitlines() if r"\u" in line or r"\x" in line], said
    return said


@CONSOLES
def test_commands_on_a_console_of_windows(tmp_path, encoding):
    """What is printed has no character that the console lacks, and none of ours by its number."""
    peak = Peak(100 * MB, None, "sampled")
    log = saved(tmp_path / "log.jsonl", replace(made(source="x = 3"), gen=RamUsage(0, 0, peak)), made())
    notebook = tmp_path / "work.ipynb"
    cells = [nbformat.v4.new_code_cell("x = bytearray(40 << 20)"), nbformat.v4.new_code_cell("del x")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    module = ["-m", "ipygpulogger"]
    report = said_by([*module, "report", log], encoding)
    assert ("\u2265100" if encoding == "cp437" else ">=100") in report
    if encoding == "cp1252":
        assert "2 cells" in said_by([*module, "compare", log, log, "--all"], encoding)
        assert "RAM" in said_by([*module, "doctor"], encoding)
    assert "bytearray" in said_by([*module, "run", notebook, "--log", tmp_path / "new.jsonl"], encoding)


IN_A_SHELL = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
shell.run_line_magic("load_ext", "ipygpulogger")
il = shell.user_ns["il"]
il.report = "text"
shell.run_cell("x = [bytearray(40 << 20)]", store_history=True)
il.compact = True
shell.run_cell("y = bytearray(20 << 20)", store_history=True)
for words in ("summary", "plot", "vars", "status", "doctor", "free", "measure x.clear()"):
    shell.run_line_magic("gpulog", words)
from ipygpulogger.experiments import IPyExperimentsCPU
shell.user_ns["IPyExperimentsCPU"] = IPyExperimentsCPU
assert shell.run_cell("with IPyExperimentsCPU(): z = bytearray(20 << 20)", store_history=True).success
"""


@CONSOLES
def test_a_shell_on_a_console_of_windows(encoding):
    """No cell and no command fails because the console lacks a sign of ours."""
    said = said_by(["-c", IN_A_SHELL], encoding)
    assert "Consumed Peaked" in said
    assert "Experiment started" in said


def constants(path):
    """The text of a module that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if hasattr(node, "body")
        and isinstance(node.body, list)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = (
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return "".join(node.value for node in found if id(node) not in documented)


def test_each_sign_of_ours_has_a_plain_one():
    """Whatever the package may print: none is shown by its number in an encoding that lacks it."""
    for path in SOURCES:
        for sign in constants(path):
            if not sign.isascii() and sign.isprintable():
                plain = codecs.encode(sign, "ascii", IN_PLAIN_SIGNS)
                assert plain == b"\\" or b"\\" not in plain, sign


def test_what_a_user_wrote_is_shown_by_number():
    """A plain sign stands for ours alone."""
    assert "π \u2265 3".encode("ascii", IN_PLAIN_SIGNS) == rb"\u03c0 >= 3"


# -- files ----------------------------------------------------------------------------------------------------

OPENS = {"open", "fdopen", "read_text", "write_text", "TextIOWrapper", "NamedTemporaryFile", "TemporaryFile"}


def without_encoding(path):
    """The calls of a module that open a file as text and leave its encoding to the system."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        words = [ast.unparse(one) for one in (*node.args, *(word.value for word in node.keywords))]
        named = {word.arg for word in node.keywords} | (
            {"encoding"} if name == "read_text" and node.args else set()
        )
        binary = any(word[:1] in "'\"" and "b" in word and len(word) <= 5 for word in words)
        # `Scope`, `PeakTracker` and the C library have an `open`, too.
        ours = name == "open" and (owner in {"os", "self._c", "Image"} or not (words or owner == "path"))
        ours = ours or (
            name == "open" and named <= {"reset"} and not words[1:] and not any("'" in w for w in words)
        )
        if name in OPENS and "encoding" not in named and not binary and not ours and name != "TemporaryFile":
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"


def test_text_files_name_their_encoding():
    """Windows would read and write them in the console's."""
    assert [found for path in SOURCES for found in without_encoding(path)] == []


def test_python_finds_no_file_without_an_encoding(tmp_path):
    """With its own warning (PEP 597), in a run and what comes of it."""
    notebook, log, page = tmp_path / "work.ipynb", tmp_path / "log.jsonl", tmp_path / "page.html"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1")]), notebook)
    base = [sys.executable, "-X", "warn_default_encoding", "-m", "ipygpulogger"]
    for words in (["run", notebook, "--log", log, "--html", page], ["compare", log, log]):
        done = subprocess.run(
            [*base, *words], capture_output=True, encoding="utf-8", check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        warned = [
            line for line in done.stderr.splitlines() if "EncodingWarning" in line and str(PACKAGE) in line
        ]
        assert warned == []
