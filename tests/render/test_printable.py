"""Foreign words never command a terminal: control characters in every field, through every door."""

import dataclasses
import json
import random
import re
import types
import unicodedata
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, Union, get_args, get_origin, get_type_hints

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger import History, IPyGPULogger, measure
from ipygpulogger import records as values
from ipygpulogger.analysis.compare import Change, Comparison, Pair
from ipygpulogger.blocks.measure import warn
from ipygpulogger.cli import main, report
from ipygpulogger.cli.progress import Progress
from ipygpulogger.compat.gpu_mem_trace import GPUMemTrace
from ipygpulogger.engine import scope
from ipygpulogger.engine.machine import machine
from ipygpulogger.owners import roots
from ipygpulogger.records import MIME, CellRecord, Diagnosis, Timeline
from ipygpulogger.records.units import printable, printable_lines, without_controls
from ipygpulogger.render import (
    at_peak,
    experiments,
    growth,
    html,
    lines,
    out_of_memory,
    owners,
    summary,
    text,
)
from ipygpulogger.render.owners import Freed
from ipygpulogger.storage.decode import NAMES
from ipygpulogger.storage.formats import json_line

MB = 2**20
SPOOF = "RAM: all is well"  # what would begin a line of its own
HOSTILE = (
    "".join(map(chr, (*range(0x20), *range(0x7F, 0xA1))))
    + "\x1b[2J\x1b]0;title\x07\u200f\u202a\u202e\u2066\u2069\u2028\u2029\udfff\ud800"
    + f"\r\n{SPOOF}\n{SPOOF}\u2028{SPOOF}\x85{SPOOF}"
)
NAME = "x\x1b[2J\x9b1A\u202e\r\n" + SPOOF  # what a file can be called


def assert_clean(told):
    """Nothing but what Unicode calls printable, and line ends of our own."""
    wrong = {f"{c!r} in {line[:80]!r}" for line in told.split("\n") for c in line if not c.isprintable()}
    assert not wrong, sorted(wrong)[:5]
    assert not [line for line in told.split("\n") if line.startswith(SPOOF)]


def assert_markup(told):
    """No character that HTML does not know, and none that changes the direction of text."""
    assert not [c for c in told if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n\r"]
    assert not set(told) & set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


MADE = set()  # the kinds of values that were made


def made(hint, choose):
    """A value of a type with hostile words wherever it takes words, and numbers that are worth telling."""
    if dataclasses.is_dataclass(hint) or hint is Diagnosis:
        MADE.add(hint)
        hints = get_type_hints(hint, localns=vars(values) | NAMES)
        return hint(**{name: made(kind, choose) for name, kind in hints.items()})
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return choose.choice(options)
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (option for option in options if option is not types.NoneType)
        return made(inner, choose)
    if hint == Timeline:
        return tuple((float(i), choose.randrange(1 << 34)) for i in range(9))
    if get_origin(hint) is tuple and options[-1] is ...:
        return tuple(made(options[0], choose) for _ in range(choose.choice([1, 2, 12])))
    if get_origin(hint) is tuple:
        return tuple(made(option, choose) for option in options)
    if hint is datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc)
    kinds = {
        str: lambda: HOSTILE,
        int: lambda: choose.choice([0, 1, 3, 5 * MB, choose.randrange(1 << 34)]),
        float: lambda: choose.uniform(0, 9),
        bool: lambda: choose.random() < 0.5,
    }
    return kinds[hint]()


SEEDS = range(12)
RECORDS = [made(CellRecord, random.Random(seed)) for seed in SEEDS]
DIAGNOSES = [made(Diagnosis, random.Random(seed)) for seed in SEEDS]
LOADED = [  # a file holds no half surrogate pair outside JSON
    dataclasses.replace(record, execution_count=i, started_at=RECORDS[0].started_at)
    for i, record in enumerate(RECORDS, 1)
]


def test_every_kind_of_value_is_made():
    """The introspection reaches each dataclass of the records, so that a new one cannot be forgotten."""
    kinds = {kind for kind in vars(values).values() if dataclasses.is_dataclass(kind)}
    assert kinds - {values.Measurement} <= MADE
    assert {record.status for record in RECORDS} == set(get_args(values.Status))


# -- the one place -------------------------------------------------------------------------------


@given(st.text(st.characters()))
def test_any_words_become_one_printable_line(words):
    """As long as before; what was printable is unchanged; once is enough."""
    told = printable(words)
    assert told.isprintable()
    assert len(told) == len(words)
    assert all(now == was for now, was in zip(told, words, strict=True) if was.isprintable())
    assert printable(told) == told
    assert printable_lines([words, words]).split("\n") == [told, told]
    assert_markup(without_controls(words))


def test_what_becomes_of_what():
    """Spaces of any kind are spaces; what acts on a terminal or turns the writing is a question mark."""
    assert printable("a\tb\xa0c\u3000d\u2028e") == "a b c d e"
    assert printable("a\nb\rc\x1b[0md\x7fe\x85f\u202eg\u2066h\ud800i\x1ci") == "a?b?c?[0md?e?f?g?h?i?i"
    assert without_controls("<a\tb>\r\n\x1b\x85\x7f\u202e\ud800") == "<a\tb>\r\n?????"


# -- what is rendered ----------------------------------------------------------------------------


@pytest.mark.parametrize("record", RECORDS, ids=SEEDS)
def test_no_field_of_a_record_reaches_a_terminal_as_it_is(record):
    """Each renderer of a measurement, whatever its fields hold."""
    gpu, peak = record.gpus[0], (record.at_peak, record.peak_times_s, record.timeline)
    changes = tuple(Change(HOSTILE, 1, 5 * MB, 3, at_least=True, regressed=True) for _ in range(2))
    for told in (
        *(text.report(record, compact=compact) for compact in (False, True)),
        text.so_far(record),
        out_of_memory.report(record.out_of_memory),
        growth.ladders(record.gpus),
        growth.diagnoses(DIAGNOSES),
        *(lines.table(found, record.notes) for found in (record.lines, ())),
        at_peak.text(*peak),
        owners.holders(record.owners, {HOSTILE: 5 * MB, "cpu": 1}, complete=False, uncounted=[HOSTILE]),
        str(Freed(record.owners, {HOSTILE: (5 * MB, MB)}, complete=False)),
        summary.summary([record, *RECORDS, *[record] * 3]),
        summary.named(record),
        summary.comparison(Comparison((Pair(record, record, changes),), (record,), (record,), 0.05, MB)),
        *(experiments.cell(record, gpu, compact=compact) for compact in (False, True)),
        experiments.device(gpu),
        experiments.state({"CPU": (1, 2, 3)}, record.notes),
        experiments.variables([HOSTILE], [HOSTILE], [HOSTILE]),
    ):
        assert_clean(told)
    for told in (
        html.report(record),
        html.so_far(record),
        *(lines.html(found, record.notes) for found in (record.lines, ())),
        at_peak.html(*peak),
    ):
        assert_markup(told)


# -- the command line ----------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told_by(capsys, *arguments):
    """What a command prints, on both streams; it ends as it likes."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    return status, out + err


def notebook(path, *sources, **fields):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path.write_text(json.dumps(nbformat.v4.new_notebook(cells=cells, **fields)))


def log(path, *found):
    path.write_text("".join(map(json_line, found)))
    return path


def test_report_and_compare(here, capsys):
    """Of logs with hostile names and hostile records: all printed, page and table, is clean."""
    one, two = log(here / f"{NAME}1.jsonl", *LOADED), log(here / f"{NAME}2.jsonl", *reversed(LOADED))
    for by in ("peak", "consumed", "time"):
        status, told = told_by(capsys, "report", one, "--by", by)
        assert (status, "????" in told) == (0, True)
        assert_clean(told)
    status, told = told_by(capsys, "report", one, "--html", here / f"{NAME}.html")
    assert (status, "page: " in told) == (0, True)
    assert_clean(told)
    assert_markup((here / f"{NAME}.html").read_text(encoding="utf-8"))
    status, told = told_by(capsys, "compare", one, two)
    assert status in (0, 1)
    assert_clean(told)


REFUSED = """
report {name}.jsonl | report {name} | report folder | report {name}bad.jsonl | report {name}bad.csv
report {name}bad.ipynb | report {name}bad.parquet | report {name}empty.jsonl | report {name}huge.jsonl
report {name}cut.jsonl | report {name}wrong.jsonl | report good.jsonl --html folder
report good.jsonl --html {name}/{name} | report good.jsonl --by {name} | compare good.jsonl {name}
compare good.jsonl good.jsonl --tolerance {name} | compare good.jsonl good.jsonl --floor {name}
run {name}.ipynb | run {name}bad.ipynb | run {name}broken.ipynb | run {name}kernel.ipynb
run {name}language.ipynb | run {name}good.ipynb --kernel {name} | run {name}good.ipynb --output {name}good.ipynb
run {name}good.ipynb --log {name} | run {name}good.ipynb --log {name}/x.jsonl | run {name}good.ipynb --max-gpu {name}
run {name}good.ipynb --timeout {name} | run {name}good.ipynb -p {name} 1 | run {name}good.ipynb -f {name}
run {name}good.ipynb -f {name}bad.jsonl | run {name}good.ipynb --{name} | {name} | doctor {name}
"""
KERNELS = {
    "good": {},
    "kernel": {"kernelspec": {"name": HOSTILE, "display_name": "x"}},
    "language": {"kernelspec": {"name": "x", "display_name": "x", "language": HOSTILE}},
}


@pytest.mark.parametrize("words", [words.strip() for words in re.split(r"[|\n]", REFUSED) if words.strip()])
def test_what_is_refused(here, capsys, words):
    """Every error that names a file or a word of the request: one sentence, clean, exit 2."""
    (here / "folder").mkdir()
    log(here / "good.jsonl", LOADED[0])
    for kind in ("jsonl", "csv", "ipynb", "parquet"):
        (here / f"{NAME}bad.{kind}").write_bytes(b"\x1b[2J garbage\n\x1b[2J more\n")
    log(here / f"{NAME}empty.jsonl")
    log(here / f"{NAME}huge.jsonl", dataclasses.replace(LOADED[0], time_s=-1.0))
    (here / f"{NAME}cut.jsonl").write_text('{"label": "In')
    (here / f"{NAME}wrong.jsonl").write_text('{"label": 3}\n')
    (here / f"{NAME}broken.ipynb").write_text(json.dumps({"nbformat": 4, "cells": [{"cell_type": NAME}]}))
    for name, metadata in KERNELS.items():
        notebook(here / f"{NAME}{name}.ipynb", "1", metadata=metadata)
    status, told = told_by(capsys, *(word.replace("{name}", NAME) for word in words.split()))
    assert_clean(told)
    assert (status, told.count("\n")) == (2, 1), told


def test_a_run(here, capsys):
    """A real kernel: hostile sources, labels, error names and messages, and a report that a cell forges."""
    whole = "".join(c for c in HOSTILE if not "\ud800" <= c <= "\udfff")  # a message holds no half of a pair
    record = json.loads(
        json.dumps({**RECORDS[0].to_dict(), "execution_count": 3}).replace(r"\udfff\ud800", "")
    )
    forged = {MIME: {**record, "label": "forged\x1b[2J\n" + SPOOF}, "text/plain": whole.replace("\n", "")}
    cells = [
        "%load_ext ipygpulogger",
        f"x = 'a\x1b[2J\x9b\u202e'  # \x07 {SPOOF}",
        f"il.report = 'none'\ndisplay({forged!r}, raw=True)",
        "%%gpulog --label 'a\x1b[2J\u202e'\nil.report = 'rich'\nkept = b'x' * (9 << 20)",
        f"globals()[{NAME!r}] = b'x' * (20 << 20)",
        "raise type('E\x1b[2J', (Exception,), {})('m\x1b[2J\\n\\x07\\u202e')",
    ]
    path = here / f"{NAME}.ipynb"
    notebook(path, *cells)
    status, told = told_by(
        capsys, "run", path, "--log", here / f"{NAME}.jsonl", "--html", here / f"{NAME}.html",
        "--max-ram", "1MB",
    )  # fmt: skip
    assert status == 1
    assert_clean(told)
    words = "failed: E?[2J", "x = 'a?[2J??'", "a?[2J?: il.report", "m?[2J", "stopped at the cell that failed"
    for word in (*words, "over --max-ram", "executed notebook: "):
        assert word in told, told
    assert len(History.load(here / f"{NAME}.jsonl")) == len(cells)
    assert_markup((here / f"{NAME}.html").read_text(encoding="utf-8"))


def test_progress_and_doctor(monkeypatch, capsys):
    """The line of a source that runs; what a driver or a framework calls itself, as text and as JSON without loss."""
    progress = Progress()
    progress.show(HOSTILE + "x\ny")
    assert_clean(progress.line())
    on = types.SimpleNamespace(load=lambda: None, diagnose=lambda: DIAGNOSES)
    monkeypatch.setattr(report, "machine", lambda: on)
    assert_clean(told_by(capsys, "doctor")[1])
    told = told_by(capsys, "doctor", "--json")[1]
    assert_clean(told)
    assert json.loads(told) == [one._asdict() for one in DIAGNOSES]


# -- in a notebook and around it -----------------------------------------------------------------


@pytest.fixture
def extension(shell, monkeypatch, capsys):
    """The extension, and IPython without tracebacks, which show the user's own source."""
    shell.run_line_magic("load_ext", "ipygpulogger")
    monkeypatch.setattr(shell, "showtraceback", lambda *_, **__: None)
    shell.user_ns["il"].report = "text"
    capsys.readouterr()
    yield shell
    shell.run_line_magic("unload_ext", "ipygpulogger")


@pytest.mark.parametrize(
    "code",
    [
        "%gpulog summary", "%gpulog status", "%gpulog vars", "%gpulog free", "%gpulog doctor",
        f"%gpulog save {NAME.split(chr(13))[0]}.jsonl", "%%gpulog --label 'a\x1b[2J\u202e\x07'\n1;",
        "raise type('E\\x1b[2J\\n', (Exception,), {})('x')",
        "%%gpulog --lines\ny = 'a\x1b[2J\x9b\u202e'\nkept = b'x' * (9 << 20)",
    ],
)  # fmt: skip
def test_the_magics_and_the_report(extension, monkeypatch, capsys, here, code):
    """All that they print, with hostile cells in the history, hostile names in use, and sources that are hostile."""
    il = extension.user_ns["il"]
    for record in RECORDS:
        il.history.append(record)
    monkeypatch.setattr(machine(), "diagnose", lambda: DIAGNOSES)
    for user in (scope, roots):  # if the magic imported `roots` only now, that would keep the replacement
        monkeypatch.setattr(user, "measured_now", lambda **_: RECORDS[0])
    extension.user_ns[NAME] = bytearray(b"x") * (20 << 20)
    extension.user_ns["Out"][HOSTILE] = extension.user_ns[HOSTILE] = bytearray(b"x") * (20 << 20)
    error = extension.run_cell(code, store_history=True).error_in_exec
    out, err = capsys.readouterr()
    assert_clean(out + err)
    assert (error is None) == ("raise" not in code), error
    assert "?" in out or "free" in code  # which had nothing hidden to name
    il.history._records.clear()
    for name in (NAME, HOSTILE):
        extension.user_ns.pop(name, None)
        extension.user_ns["Out"].pop(name, None)


@pytest.mark.parametrize(
    "line",
    [
        "%gpulog {}", "%gpulog '{}", "%gpulog start {}", "%gpulog start {}=1",
        "%gpulog start log={}.jsonl/x.jsonl", "%gpulog start budget={}", "%gpulog summary {}",
        "%gpulog save {} {}", "%gpulog save no/{}.jsonl", "%gpulog save {}.ipynb", "%gpulog save {}.{}",
        "%gpulog stop {}", "%%gpulog {}", "%%gpulog {}\nx", "%%gpulog --label '{}\nx",
    ],
)  # fmt: skip
def test_what_the_magics_refuse(extension, here, line):
    """The sentence that IPython prints as it is."""
    word = NAME.split("\r")[0] + "\x07"
    result = extension.run_cell(line.replace("{}", word), store_history=True)
    error = result.error_in_exec
    assert type(error).__name__ == "UsageError"
    assert_clean(str(error))


def test_what_went_wrong_is_told(extension, monkeypatch, capsys):
    """Our own failures, whose words are anybody's; the sentence that there is no GPU."""
    il = extension.user_ns["il"]
    il._reporter.warn_once(HOSTILE)
    il._failed(OSError(HOSTILE))
    nvml = types.SimpleNamespace(devices=lambda: (), diagnose=lambda: DIAGNOSES[0])
    on = types.SimpleNamespace(nvml=nvml, frameworks=types.SimpleNamespace(current_index=lambda: None))
    on.notes = types.SimpleNamespace(is_new=lambda _: True)
    monkeypatch.setattr("ipygpulogger.notebook.report.machine", lambda: on)
    il._reporter.say_if_no_gpu()
    out, err = capsys.readouterr()
    assert_clean(out + err)
    assert err


def test_blocks_and_warnings(capsys, here):
    """Labels and contexts of the user's own, and what is warned of."""
    with measure(HOSTILE, report=True) as m:
        pass
    assert_clean(repr(m))
    with GPUMemTrace(ctx=HOSTILE):
        pass
    assert_clean(capsys.readouterr().out)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn(HOSTILE)
        path = Path(NAME + ".jsonl")
        path.write_text(json_line(LOADED[0]) + '{"label": "In')
        History.load(path)
    assert len(said) == 2
    for warning in said:
        assert_clean(str(warning.message))


@pytest.mark.parametrize("end", ["", ".jsonl", ".csv", ".ipynb", ".parquet"])
def test_what_is_raised(shell, here, end):
    """Errors of ours name files in clean words, for whoever prints them."""
    path = Path(NAME + end)
    path.write_bytes(b"\x1b[2J\n")
    with pytest.raises(ValueError, match=r".") as loaded:
        History.load(path)
    with pytest.raises(ValueError, match=r".") as saved:
        History().save(Path(f"{path}.ipynb"))
    with pytest.raises(ValueError, match=r".") as logged:
        IPyGPULogger(log=f"{path}/x.jsonl")
    for caught in loaded, saved, logged:
        assert_clean(str(caught.value))
