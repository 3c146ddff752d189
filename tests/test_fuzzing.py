"""Whatever is read from outside: a value or one clear refusal, in time that grows with the length."""

import json
import os
import signal
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.error import UsageError
from made import plain

from ipygpulogger import History
from ipygpulogger.cli import arguments
from ipygpulogger.cluster.arrivals import packed, unpacked
from ipygpulogger.notebook.cell import request_in, request_of, split_words
from ipygpulogger.notebook.completion import cell_and_size_in, offered, options_in, path_in, rank_in
from ipygpulogger.notebook.options import Threshold, UnknownOption
from ipygpulogger.owners import address_space
from ipygpulogger.records import Note
from ipygpulogger.records.process import Process, ProcessRecord
from ipygpulogger.records.units import parse_size, printable, without_controls
from ipygpulogger.sources.system import child_process, linux
from ipygpulogger.storage.decode import from_json, record_from
from ipygpulogger.storage.formats import json_line, save

EXAMPLES = int(os.environ.get("FUZZ", "50"))  # of each
PIECES = ["", "9" * 30, "nan", "kB", "{}", *'\0-é\n\t =,"[%\u2028\u0663']


def mutations(*examples):
    """Texts that differ from these examples in a few places, and any text."""

    @st.composite
    def mutated(draw):
        text = draw(st.sampled_from(examples))
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, len(text)))
            end = draw(st.integers(at, min(len(text), at + 20)))
            text = text[:at] + draw(st.sampled_from([*PIECES, text[at:end] * 2])) + text[end:]
        return text

    return mutated() | st.text(max_size=40)


def words(reader):
    return lambda text: reader(tuple(text.split(" ")))


def parsed(text):
    try:
        return arguments.parse(["run", "a.ipynb", *text.split(" ")])
    except SystemExit as ended:
        assert ended.code in (0, 2)
        return None


REFUSED = (ValueError, UnknownOption, UsageError)
SENT = packed(ProcessRecord.of(plain(), Process("node", 1, 2))).decode()
READERS = {  # and what each understands
    "size": (parse_size, "1.5 GiB"),
    "threshold": (Threshold.parse, "1min, 3 kB"),
    "line": (split_words, "start compact=True quiet='10MB 1s'"),
    "cell's options": (request_in, "--lines=f,Model.forward --peak=all --label 'a b'"),
    "cell": (request_of, "%%gpulog --lines --label x\nx = 1"),
    "options": (words(options_in), "compact=True metrics=energy budget=10GB lines=False"),
    "rank": (words(rank_in), "--by needed"),
    "cell and name": (words(cell_and_size_in), "4 batch"),
    "path": (words(lambda found: path_in("save", found)), "a.csv"),
    "tab key": (offered, "%gpulog start compact="),
    "command line": (parsed, "-p x 1 --max-gpu 10GB --timeout 90 --log a.jsonl -f a.json"),
    "value": (arguments.typed, "1e5"),
    "note": (Note.read, "over the budget of 10 MB"),
    "printable": (printable, "a\x1b[31mb"),
    "markup": (without_controls, "<b>\x00</b>"),
    "JSON": (from_json, json_line(plain())),
    "what a rank sends": (lambda text: unpacked(text.encode(errors="replace")), SENT),
}


def refused(read, text):
    """Read a text, which may be refused in words."""
    try:
        read(text)
    except REFUSED as error:
        assert str(error)
    except RecursionError:
        assert read is from_json  # as it says


@pytest.fixture
def anywhere(tmp_path, monkeypatch):
    """Nothing is written into the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_any_text_is_understood_or_refused(name, anywhere, capsys):
    """A refusal is an error of its kind, with words."""
    read, example = READERS[name]
    assert read(example) is not None
    settings(max_examples=EXAMPLES)(given(mutations(example))(lambda text: refused(read, text)))()


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="no alarm")
@pytest.mark.parametrize("name", READERS)
def test_a_long_text_takes_no_longer_than_its_length_asks(name, anywhere, capsys):
    """What is quadratic would hang at a text of 10,000 characters: the alarm comes after a minute."""
    read, example = READERS[name]
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(60)
    try:
        for piece in [*' 9("\\\n[<', "a,", "a ", "--x=", "10MB ", "1.", "%%gpulog ", "é\x1b", "kB:"]:
            refused(read, piece * (10_000 // len(piece)))
            refused(read, example + piece * 1000 + example)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


LINES = [
    *(
        "start compact=True quiet='10MB 1s' metrics=energy",
        "summary --by needed",
        "fit 4 batch",
        "save a.csv",
    ),
    *("load a.jsonl", "snapshot --failed a.pickle", "plot", "status", "vars --all", "help", "stop", "free"),
]


def test_any_line_of_the_magic_is_done_or_refused(shell, anywhere, capsys):
    """Commands and their options, with anything in them: one sentence, as IPython shows a wrong use."""
    shell.run_cell("%load_ext ipygpulogger")

    @settings(max_examples=EXAMPLES)
    @given(mutations(*LINES).filter(lambda line: "measure" not in line))
    def check(line):
        try:
            shell.run_line_magic("gpulog", line)
        except UsageError as error:
            assert str(error).startswith("%gpulog")
            assert "\n" not in str(error)

    check()
    shell.run_cell("%unload_ext ipygpulogger")


PROC = {
    "status": (linux.resident_and_mark_bytes, "/proc/self/status"),
    "statm": (linux.resident_bytes, "/proc/self/statm"),
    "stat": (linux.thread_count, "/proc/self/stat"),
    "a child's stat": (lambda: child_process._read_stat(1), "/proc/self/stat"),
    "smaps_rollup": (lambda: linux.rollup_bytes("self"), "/proc/self/smaps_rollup"),
    "children": (lambda: linux.children_of(os.getpid()), ""),
    "huge pages": (linux.largest_fault_bytes, ""),
    "CPUs": (linux.cpu_count, ""),
    "maps": (address_space.mapped_ranges, "/proc/self/maps"),
}


@pytest.mark.linux("there is no /proc")
@pytest.mark.parametrize("name", PROC)
def test_any_content_of_proc_is_a_number_or_an_error_of_its_kind(name, monkeypatch):
    """What the kernel's files may hold on other kernels: whole numbers, or OSError or ValueError."""
    read, path = PROC[name]
    example = Path(path).read_bytes()[:4000].decode("latin-1") if path else "0-3,5\n"
    content = [b""]
    monkeypatch.setattr(linux, "read", lambda _: content[0])
    monkeypatch.setattr(linux.Calls, "read_file", lambda *_, **__: content[0])
    monkeypatch.setattr(linux, "gil_held", linux.Calls)
    monkeypatch.setattr(address_space, "gil_held", linux.Calls)

    @settings(max_examples=EXAMPLES)
    @given(mutations(example, ""))
    def check(text):
        content[0] = text.encode("latin-1", errors="replace")
        try:
            read()
        except (OSError, ValueError):
            assert name != "maps"  # unknown places are no places

    check()


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just([]) | st.just({})
)


def replaced_in(draw, values):
    """The same values but one, anywhere in them."""
    if isinstance(values, (dict, list)) and values and draw(st.integers(0, 9)):
        changed = values.copy()
        key = draw(st.sampled_from(sorted(values) if isinstance(values, dict) else range(len(values))))
        changed[key] = replaced_in(draw, values[key])
        return changed
    return draw(VALUES)


NOTEBOOK = {
    "nbformat": 4,
    "metadata": {},
    "cells": [
        {
            "cell_type": "code",
            "id": "a",
            "execution_count": 4,
            "metadata": {"ipygpulogger": plain().to_dict()},
            "outputs": [{"data": {"application/vnd.ipygpulogger.v1+json": plain().to_dict()}}],
        }
    ],
}


@pytest.mark.parametrize("kind", [".ipynb", ".csv", ".jsonl"])
def test_a_damaged_file_is_read_or_refused(tmp_path, kind):
    """Of a file that we or a notebook wrote any part may be another: records, or one sentence with its name."""
    path = tmp_path / f"run{kind}"
    if kind != ".ipynb":
        save(path, [plain(), plain(error="x", notes=())])
        text = path.read_text("utf-8")
    whole = st.composite(lambda draw: json.dumps(replaced_in(draw, NOTEBOOK)))()

    @settings(max_examples=EXAMPLES)
    @given(whole if kind == ".ipynb" else mutations(text))
    def check(damaged):
        path.write_text(damaged, encoding="utf-8", errors="backslashreplace", newline="")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = History.load(path)
            except ValueError as error:
                assert str(path) in str(error)
                assert "\n" not in str(error)
            else:
                assert [record_from(one.to_dict()) for one in found] == list(found)

    check()
