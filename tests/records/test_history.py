"""The history: ranked, suspected of leaks, saved, loaded; and the log that grows by a line a cell."""

import builtins
import dataclasses
import errno
import gc
import json
import math
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import warnings
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import GPUS, SIZES, UNSHRUNK, plain, records
from pyarrow import parquet
from traitlets import TraitError

from ipygpulogger import History, IPyGPULogger
from ipygpulogger.records import (
    MIME,
    ChildrenUsage,
    DeviceUsage,
    Heap,
    LineUsage,
    Metric,
    OutOfMemory,
    Owner,
    Peak,
    RamUsage,
    Usage,
    growing_names,
)
from ipygpulogger.records import log as logs
from ipygpulogger.records.embed import embedded
from ipygpulogger.records.formats import json_line, own_report
from ipygpulogger.records.log import Log
from ipygpulogger.render import html, text
from ipygpulogger.render.summary import summary
from ipygpulogger.runtime import files as whole_files

MB = 2**20
SAVED = ("jsonl", "csv", "parquet")
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25, phases=UNSHRUNK)


def ram(before_mb, after_mb, peak_mb=None, **more):
    peak_bytes = max(before_mb, after_mb, peak_mb or 0) * MB
    return RamUsage(before_mb * MB, after_mb * MB, Peak(peak_bytes, peak_bytes, "exact"), **more)


def gpu(before_mb, after_mb, peak_mb=None, index=0, **more):
    peak_bytes = max(before_mb, after_mb, peak_mb or 0) * MB
    peak = Peak(peak_bytes, peak_bytes, "exact")
    return DeviceUsage(before_mb * MB, after_mb * MB, peak, index, "GPU", **more)


def cells(*usages, source="x = f()", cell_id="a", after=None):
    """Runs of one cell in one kernel: of RAM, or of a device."""
    first = len(after or ()) + 1
    start = plain().started_at
    return [
        *(after or ()),
        *(
            plain(
                **({"gpus": (usage,)} if isinstance(usage, DeviceUsage) else {"gen": usage}),
                source=source,
                cell_id=cell_id,
                execution_count=number,
                label=f"In [{number}]",
                started_at=start + timedelta(seconds=number),
            )
            for number, usage in enumerate(usages, first)
        ),
    ]


def labels(found):
    return [record.label for record in found]


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SAVED)
@slow
@given(found=st.lists(records(), max_size=4))
def test_what_is_saved_is_loaded(tmp_path_factory, kind, found):
    """Whatever the records: every one comes back equal, in order, from every kind of file."""
    path = tmp_path_factory.mktemp("saved") / f"run.{kind}"
    History(found).save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(History.load(path)) == found


@pytest.mark.parametrize("kind", SAVED)
def test_saving_replaces_the_file_whole(tmp_path, kind):
    """An older file is replaced, through a link too; names may be text, capitals do not matter."""
    path = tmp_path / f"run.{kind.upper()}"
    History([plain(1), plain(2)]).save(str(path))
    link = tmp_path / f"link.{kind}"
    link.symlink_to(path)
    History([plain(3)]).save(link)
    assert link.is_symlink()
    assert list(History.load(str(path))) == [plain(3)]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_saved_harms_nothing(tmp_path, monkeypatch, kind, fault):
    """A full disk or an interrupt at any step: the older file is as it was, and nothing is left beside it."""
    path = tmp_path / f"run.{kind}"
    History([plain(1)]).save(path)

    def fail(*_):
        raise fault

    for broken in ("fdopen", "umask"):
        with monkeypatch.context() as patch:
            patch.setattr(whole_files.os, broken, fail)
            with pytest.raises(type(fault)):
                History([plain(2)]).save(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert list(History.load(path)) == [plain(1)]


@pytest.mark.parametrize("name", ["run.json", "run", "run.jsonl.gz", ".csv"])
def test_other_kinds_of_files_are_refused_in_one_sentence(tmp_path, name):
    """An ending that says nothing to us names those that do, and nothing is written."""
    with pytest.raises(ValueError, match=r"^\S+ must be named \.jsonl, \.csv or \.parquet$"):
        History([plain()]).save(tmp_path / name)
    with pytest.raises(ValueError, match=r"^\S+ must be named \.jsonl, \.csv, \.parquet or \.ipynb$"):
        History.load(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_no_notebook_is_overwritten_with_records(tmp_path):
    """Records are loaded from a notebook and never saved over one."""
    path = tmp_path / "precious.ipynb"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"^\S+ is a notebook's name; records are saved as [^\n]+$"):
        History([plain()]).save(path)
    assert path.read_text() == "{}"


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    """One sentence with the command; an older file stays. And so does `to_pandas` without pandas."""
    path = tmp_path / "run.parquet"
    path.write_text("older")
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.partition(".")[0] in ("pyarrow", "pandas"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    for attempt in (History([plain()]).save, History.load):
        with pytest.raises(
            ImportError, match=r"^a \.parquet file needs pyarrow: pip install 'ipygpulogger\[parquet\]'$"
        ):
            attempt(path)
    with pytest.raises(ImportError, match=r"pip install 'ipygpulogger\[pandas\]'$"):
        History().to_pandas()
    monkeypatch.undo()
    assert path.read_text() == "older"


@pytest.mark.parametrize("found", [[], [plain(1)], [plain(1), plain(2, gpus=(gpu(1, 2),), notes=("a", "b"))]])
def test_tables_have_the_columns_of_to_pandas(tmp_path, found):
    """A frame, a .csv and a .parquet have the same columns, in the same order, and the same figures."""
    history = History(found)
    frame = history.to_pandas()
    history.save(tmp_path / "run.csv")
    history.save(tmp_path / "run.parquet")
    for other in (pd.read_csv(tmp_path / "run.csv"), pd.read_parquet(tmp_path / "run.parquet")):
        assert list(other.columns) == list(frame.columns)
        for name in ("label", "gen.before_bytes", "gen.peak.lo_bytes", "time_s", "status"):
            assert (
                list(other[name]) == list(frame[name]) == [_leaf(record.to_dict(), name) for record in found]
            )
    if found:
        assert list(frame["gpus"]) == [record.to_dict()["gpus"] for record in found]


def _leaf(values, path):
    for name in path.split("."):
        values = values[name]
    return values


def test_a_spreadsheet_finds_no_formula(tmp_path):
    """No cell of a .csv begins as a formula does; what began so comes back all the same."""
    found = [
        plain(source=text, label=text, error=text) for text in ("=1+1", "+1", "-1", "@x", "\t=1", '"=1"', "")
    ]
    path = tmp_path / "run.csv"
    History(found).save(path)
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column in frame:
        assert not [cell for cell in frame[column] if cell[:1] in tuple("=+-@\t")]
    assert list(History.load(path)) == found


def test_a_table_that_somebody_else_touched(tmp_path):
    """Columns of others are passed over, empty lines too, and so is the mark a spreadsheet puts before."""
    path = tmp_path / "run.csv"
    History([plain(1), plain(2)]).save(path)
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join(["\ufeffmine," + head, *("7," + row for row in rows), "", ""]))
    assert list(History.load(path)) == [plain(1), plain(2)]


# -- what is no log ------------------------------------------------------------------------------

GARBAGE = {
    "binary": bytes(range(256)) * 9,
    "words": b"hello\nworld\n",
    "a word": b"hello",
    "a number": b"5",
    "null": b"null",
    "an array": b"[1, 2]",
    "a notebook cut short": b'{"cells": [{"cell_type": "code",',
    "another table": b"a,b\n1,2\n",
    "deep": b"[" * 100_000,
    "lone quote": b'label,started_at\n"x',
    "NUL": b"label\n\0\n",
    "cells": b'{"cells": 3}',
    "cells of nothing": b'{"cells": [null]}',
    "outputs of nothing": b'{"cells": [{"cell_type": "code", "outputs": [1]}]}',
    "data of nothing": b'{"cells": [{"cell_type": "code", "outputs": [{"data": 1}]}]}',
    "a report of nothing": json.dumps(
        {
            "cells": [
                {
                    "cell_type": "code",
                    "execution_count": 1,
                    "outputs": [{"data": {MIME: {"execution_count": 1}}}],
                }
            ]
        }
    ).encode(),
}


@pytest.mark.parametrize("kind", [*SAVED, "ipynb"])
@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_in_one_sentence(tmp_path, kind, content):
    """What holds no records: `ValueError` in one line, which names the file."""
    path = tmp_path / f"run.{kind}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        History.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("kind", [*SAVED, "ipynb"])
@slow
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, kind, content):
    """Whatever a file holds: records, or one of the errors that are promised."""
    path = tmp_path_factory.mktemp("any") / f"run.{kind}"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            History.load(path)
        except ValueError as error:
            assert "\n" not in str(error).replace(str(path), "")


def test_what_is_not_there_or_is_a_folder(tmp_path):
    """The system's own errors."""
    for kind in (*SAVED, "ipynb"):
        with pytest.raises(FileNotFoundError):
            History.load(tmp_path / f"no.{kind}")
        (tmp_path / f"folder.{kind}").mkdir()
        with pytest.raises(IsADirectoryError):
            History.load(tmp_path / f"folder.{kind}")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_wrong_field_is_named_with_its_place(tmp_path, kind):
    """The file, the line or row, and the field."""
    path = tmp_path / f"run.{kind}"
    good, bad = plain(), dataclasses.replace(plain(), status="fine")
    History([good, bad, good]).save(path)
    place = {"jsonl": "line 2", "csv": "line 3", "parquet": "row 2"}[kind]
    with pytest.raises(ValueError, match=f", {place}: this is no record of a cell: status is none of ok, "):
        History.load(path)


# -- numbers that no machine has -----------------------------------------------------------------

HUGE = ["1e300", "NaN", "-Infinity", "1e999", str(2**63), str(-(2**63) - 1), "1" * 4000, "-" + "9" * 5000]
WHOLE = ["0.5", "7.0"]  # where a whole number is due
NEGATIVE = ["-1"]
FULL = plain(
    gen=RamUsage(1, 2, Peak(3, 4, "bounded", 5), Heap(6, 7), Heap(8, 9), ((0.5, 10), (1.5, 11))),
    gpus=(
        DeviceUsage(
            12,
            13,
            Peak(14, 15, "bounded", 16),
            index=0,
            name="x",
            **{
                name: 17
                for name in DeviceUsage.__dataclass_fields__
                if name.endswith("_bytes") and name not in ("before_bytes", "after_bytes")
            },
            reserved_peak=Peak(18, 18, "exact"),
            metrics=(Metric("energy", 19.5, "J"),),
            timeline=((0.5, 20),),
        ),
    ),
    children=ChildrenUsage(21, 22, Peak(23, 24, "bounded"), count=25),
    pinned=Usage(26, 27, Peak(28, 28, "exact")),
    execution_count=29,
    current_gpu=30,
    owners=(Owner("x", 31, "cpu", "variable"),),
    unexplained=(("cpu", 32),),
    lines=(LineUsage(33, "x", 34, 35.5, Usage(36, 37, Peak(38, 38, "exact")), risen=(("cpu", 39),)),),
    out_of_memory=OutOfMemory("cuda:0", 40, 41, 42, 43, 44, 45, 46, 47, (), ""),
)
NEVER_NEGATIVE = {
    *("time_s", "execution_count", "current_gpu", "gpus.0.index", "children.count"),
    *("gen.before_bytes", "gen.after_bytes", "gen.peak.lo_bytes", "gen.peak.precision_bytes"),
    *("children.before_bytes", "children.after_bytes", "children.peak.lo_bytes"),
    *("gen.heap_before.in_use_bytes", "gen.heap_after.kept_bytes", "lines.0.lineno", "lines.0.hits"),
    *(f"gpus.0.{name}_bytes" for name in ("total", "used", "free", "allocated", "reserved", "limit")),
}


def numbers_in(values, before=()):
    """The path of every number in plain values."""
    if isinstance(values, (dict, list, tuple)):
        for key, member in values.items() if isinstance(values, dict) else enumerate(values):
            yield from numbers_in(member, (*before, key))
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        yield before


def with_number(values, path, number):
    """A record's JSON with this number, as text, in that place."""
    values = json.loads(json.dumps(values))
    holder = values
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = "@"
    return json.dumps(values).replace('"@"', number)


def loaded_with_warnings(path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return list(History.load(path)), [str(warning.message) for warning in said]


NUMBERS = list(numbers_in(FULL.to_dict()))


def impossible_in(path):
    """The numbers that cannot stand at a path."""
    dotted = ".".join(map(str, path))
    is_time = dotted.endswith(("time_s", "value")) or (
        dotted.split(".")[-3:-2] == ["timeline"] and path[-1] == 0
    )
    return HUGE + ([] if is_time else WHOLE) + (NEGATIVE if dotted in NEVER_NEGATIVE else [])


def test_a_negative_number_is_looked_for_where_there_is_one():
    """The list of this test speaks of fields that exist."""
    assert {".".join(map(str, path)) for path in NUMBERS} >= NEVER_NEGATIVE


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_an_impossible_number_costs_its_record_alone(tmp_path, path):
    """Wherever it stands in a log: one sentence names the file and the line, and all other records load."""
    log = tmp_path / "run.jsonl"
    for number in impossible_in(path):
        bad = with_number(FULL.to_dict(), path, number)
        log.write_text(f"{json_line(plain(1))}{bad}\n{json_line(FULL)}{bad}\n{json_line(plain(2))}")
        found, said = loaded_with_warnings(log)
        assert found == [plain(1), FULL, plain(2)], number[:20]
        assert [re.match(r".*, line \d", line)[0] for line in said] == [f"{log}, line 2", f"{log}, line 4"]
        assert all(line.endswith("; it is left out") and len(line) < 300 for line in said)
        assert not any("\n" in line for line in said)


@pytest.mark.parametrize("number", HUGE + WHOLE + NEGATIVE)
def test_an_impossible_number_in_a_notebook_or_a_csv_file(tmp_path, number):
    """The same in a notebook's embedded records, devices as columns included, and in a table of texts."""
    good = plain(1, execution_count=2)
    many = embedded(
        plain(1, execution_count=2, gpus=tuple(dataclasses.replace(FULL.gpus[0], index=i) for i in range(40)))
    )
    notebook, table = tmp_path / "nb.ipynb", tmp_path / "run.csv"
    others = {i: embedded(dataclasses.replace(good, execution_count=i)) for i in (1, 3)}
    whole = json.dumps(
        {
            "cells": [
                code_cell(i, {"data": {MIME: others.get(i, {"execution_count": 2, "@": 0})}})
                for i in (1, 2, 3)
            ]
        }
    )
    for values, path in (
        (embedded(good), ("gen", "peak", "precision_bytes")),
        (many, ("gpu_columns", "index", 7)),
        (many, ("gpu_columns", "used_bytes")),
    ):
        bad = with_number(values, path, number)
        notebook.write_text(whole.replace('{"execution_count": 2, "@": 0}', bad))
        found, (said,) = loaded_with_warnings(notebook)
        assert [record.execution_count for record in found] == [1, 3]
        assert said.startswith(f"{notebook}, code cell 2: this is no record of a cell: g")
    History([good] * 3).save(table)
    head, first, _, last = table.read_text().splitlines()
    row = first.split(",")
    row[head.split(",").index("gen.after_bytes")] = number
    table.write_text("\n".join([head, first, ",".join(row), last]))
    found, (said,) = loaded_with_warnings(table)
    assert (found, said.startswith(f"{table}, line 3: this is no record of a cell: gen.after_bytes is ")) == (
        [good] * 2,
        True,
    )


@pytest.mark.parametrize("value", [-1, 0.5, math.nan, 1e300, Decimal(5), Decimal(2**70)])
def test_an_impossible_number_in_a_parquet_file(tmp_path, value):
    """A whole number costs its record alone; in a column of another type no size can be trusted."""
    path = tmp_path / "run.parquet"
    History([plain(1)] * 2).save(path)
    good, bad = parquet.read_table(path).to_pylist()
    bad["gen.after_bytes"] = value
    if not isinstance(value, int):
        good["gen.after_bytes"] = type(value)(good["gen.after_bytes"])
    parquet.write_table(pa.Table.from_pylist([good, bad]), path)
    found, said = loaded_with_warnings(path)
    assert found == [plain(1)] * isinstance(value, int)
    lost = [2] if isinstance(value, int) else [1, 2]
    assert [
        line.startswith(f"{path}, row {i}: this is no record of a cell: gen.after_bytes is ")
        for i, line in zip(lost, said, strict=True)
    ]


@slow
@given(
    st.sampled_from(NUMBERS),
    st.one_of(
        st.integers(), st.floats(), st.integers(-(10**400), 10**400), st.booleans(), st.text(max_size=3)
    ),
)
def test_any_number_is_read_or_costs_its_record_or_is_refused(tmp_path_factory, path, number):
    """Whatever stands where a number is due: every other record loads, or a ValueError names file and line."""
    log = tmp_path_factory.mktemp("any") / "run.jsonl"
    bad = with_number(FULL.to_dict(), path, json.dumps(number))
    log.write_text(f"{json_line(plain(1))}{bad}\n{json_line(plain(2))}")
    try:
        found, said = loaded_with_warnings(log)
    except ValueError as error:
        assert isinstance(number, (str, bool))
        assert str(error).startswith(f"{log}, line 2: this is no record of a cell: ")
    else:
        assert len(found) + len(said) == 3
        assert [found[0], found[-1]] == [plain(1), plain(2)]
        for record in found:
            text.report(record), html.report(record), summary([record], "peak", [])


# -- lines cut short -----------------------------------------------------------------------------


def test_a_line_cut_short_anywhere_is_left_out_and_said(tmp_path):
    """Of a file that ends at any byte of its last line, all others load, with a warning unless none is hurt."""
    path = tmp_path / "run.jsonl"
    lines = [json_line(plain(size)).encode() for size in (1, 2)]
    for end in range(len(lines[1]) + 1):
        path.write_bytes(lines[0] + lines[1][:end])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loaded = list(History.load(path))
        whole = end >= len(lines[1]) - 1  # but for the end of the line
        assert loaded == [plain(1), plain(2)][: 2 if whole else 1]
        told = [str(w.message) for w in said]
        assert told == (
            [] if whole or not end else [f"{path}, line 2: this line was cut short and is left out"]
        )
        assert all(w.filename == __file__ for w in said)


def test_a_log_goes_on_behind_a_line_cut_short(tmp_path):
    """After half a line the next record begins a new one, and only the half is lost."""
    path = tmp_path / "run.jsonl"
    whole = json_line(plain(2)).encode()
    for end in (1, 12, len(whole) // 2, len(whole) - 2):
        path.write_bytes(json_line(plain(1)).encode() + whole[:end])
        Log(path).append(plain(3))
        Log(path).append(plain(4))
        with pytest.warns(UserWarning, match="line 2: this line was cut short"):
            assert list(History.load(path)) == [plain(1), plain(3), plain(4)]


@pytest.mark.parametrize(
    "broken", [b"garbage\n", b'{"label": "In\n', b'{"label": 4}\n', b"garbage\n\n", b'{"cells\n\n']
)
def test_garbage_in_the_middle_is_refused_with_its_place(tmp_path, broken):
    """What no kill explains is not passed over."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(json_line(plain(1)).encode() + broken + json_line(plain(2)).encode())
    with pytest.raises(ValueError, match=r"run\.jsonl, line 2: "):
        History.load(path)


def test_loading_leaves_the_garbage_collector_as_it_was(tmp_path):
    """On or off, whether the file is good or bad."""
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    History([plain()]).save(good)
    bad.write_text("garbage\n")
    collects = gc.isenabled()
    try:
        for switch in (gc.disable, gc.enable):
            switch()
            History.load(good)
            with pytest.raises(ValueError, match="no JSON"):
                History.load(bad)
            assert gc.isenabled() == (switch is gc.enable)
    finally:
        (gc.enable if collects else gc.disable)()


def test_an_empty_log_is_an_empty_history(tmp_path):
    """A log before its first cell."""
    path = tmp_path / "run.jsonl"
    path.touch()
    assert len(History.load(path)) == 0


# -- the log -------------------------------------------------------------------------------------


def test_a_log_is_the_history_as_it_grows(tmp_path):
    """After each record the file holds all of them; a log of before is continued."""
    path = tmp_path / "run.jsonl"
    for i in range(3):
        log = Log(str(path))
        for j in range(3):
            assert log.append(plain(10 * i + j)) == 0
            assert [r.gen.after_bytes for r in History.load(path)][-1] == 10 * i + j
        log.close()
    assert len(History.load(path)) == 9


@pytest.mark.parametrize("name", ["folder", "no/run.jsonl"])
def test_a_log_that_cannot_be_is_refused_at_once(tmp_path, name):
    """A folder, or a file in no folder: `ValueError` in one sentence, and nothing is made."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        Log(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_log_that_may_not_be_written_is_refused_at_once(tmp_path, monkeypatch):
    """So is one in a place that is not ours."""
    monkeypatch.setattr(logs.os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"run.jsonl may not be written$"):
        Log(tmp_path / "run.jsonl")


def test_writers_do_not_mix_their_lines(tmp_path):
    """Four processes with two threads each write at once: every record is there, whole, each writer's in order."""
    path = tmp_path / "run.jsonl"
    program = (
        "import sys, threading; sys.path.insert(0, sys.argv[3])\n"
        "from made import plain; from ipygpulogger.records.log import Log\n"
        "def write(name):\n"
        "    log = Log(sys.argv[1])\n"
        "    for i in range(200): log.append(plain(i, label=name, notes=('n' * 3000,)))\n"
        "threads = [threading.Thread(target=write, args=[f'{sys.argv[2]} {i}']) for i in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    )
    here = str(Path(__file__).parents[1])
    running = [subprocess.Popen([sys.executable, "-c", program, str(path), str(i), here]) for i in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    found = {}
    for record in History.load(path):
        found.setdefault(record.label, []).append(record.gen.after_bytes)
    assert found == {f"{process} {thread}": list(range(200)) for process in range(4) for thread in range(2)}


def test_a_disk_that_fills_in_the_middle_of_a_line(tmp_path):
    """The system takes a part of a line and then no more: the record is lost, those around it are not."""
    path = tmp_path / "run.jsonl"
    log = Log(path)
    log.append(plain(1))
    size = path.stat().st_size
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for room in (10, 0):  # part of it, then none
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))
            with pytest.raises(OSError, match=r"No space left|too large"):
                log.append(plain(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.stat().st_size == size + 10
    assert log.append(plain(3)) == 2
    assert log.append(plain(4)) == 0
    with pytest.warns(UserWarning, match="line 2: this line was cut short"):
        assert list(History.load(path)) == [plain(1), plain(3), plain(4)]


def test_nothing_is_held_open(tmp_path):
    """Between two records the log holds no file, and an error leaves none."""
    folder = tmp_path / "logs"
    folder.mkdir()
    log = Log(folder / "run.jsonl")
    before = set(Path("/proc/self/fd").iterdir())
    log.append(plain(1))
    (folder / "run.jsonl").unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        log.append(plain(2))
    full = Log("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        full.append(plain(2))
    assert set(Path("/proc/self/fd").iterdir()) == before


# -- the logger's option -------------------------------------------------------------------------


@pytest.fixture
def il(shell, capsys, tmp_path):
    """A logger that writes as it goes."""
    il = IPyGPULogger(report="none", log=tmp_path / "run.jsonl").start()
    yield il
    il.stop()


def test_the_logger_writes_as_it_goes(shell, il, tmp_path, capsys):
    """After every cell, failed ones too, the file holds what the history holds; wherever cells went."""
    there = Path.cwd()
    for code in ("x = 1", "1 / 0", "import os; os.chdir('/')", "1 +"):
        shell.run_cell(code, store_history=True)
        assert list(History.load(tmp_path / "run.jsonl")) == list(il.history)
    os.chdir(there)
    assert len(il.history) == 4
    assert "ipygpulogger" not in capsys.readouterr().err


def test_a_vanished_folder_is_said_once_and_hurts_no_cell(shell, tmp_path, capsys):
    """Cells and history go on; when the folder is back the log goes on, and the gap is told."""
    folder = tmp_path / "logs"
    folder.mkdir()
    il = IPyGPULogger(log=folder / "run.jsonl").start()
    shell.run_cell("x = 1", store_history=True)
    folder.rename(tmp_path / "away")
    capsys.readouterr()
    for i in range(3):
        assert shell.run_cell(f"x = {i}", store_history=True).success
    told = capsys.readouterr()
    path = folder / "run.jsonl"
    assert told.err == f"ipygpulogger cannot write {path} and goes on trying: No such file or directory\n"
    assert told.out.count("RAM:") == 3
    (tmp_path / "away").rename(folder)
    for i in range(2):
        shell.run_cell(f"x = {i}", store_history=True)
    assert capsys.readouterr().err == f"ipygpulogger writes {path} again; 3 cells are missing in it.\n"
    il.stop()
    assert list(History.load(path)) == [il.history[0], *il.history[4:]]


def test_a_full_disk_is_said_once_and_hurts_no_cell(shell, tmp_path, capsys):
    """A device that is always full: one sentence, and every cell has its report."""
    (tmp_path / "run.jsonl").symlink_to("/dev/full")
    il = IPyGPULogger(log=str(tmp_path / "run.jsonl")).start()
    capsys.readouterr()
    for i in range(3):
        assert shell.run_cell(f"x = {i}", store_history=True).success
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert told.err.endswith("goes on trying: No space left on device\n")
    assert told.out.count("RAM:") == len(il.history) == 3
    il.stop()


def test_any_error_of_the_log_hurts_no_cell(shell, il, monkeypatch, capsys):
    """Whatever goes wrong in it: the cell runs through, the record is kept."""
    monkeypatch.setattr(logs, "json_line", lambda _: 1 / 0)
    assert shell.run_cell("x = 1", store_history=True).success
    assert len(il.history) == 1
    assert "goes on trying: ZeroDivisionError: division by zero" in capsys.readouterr().err


@pytest.mark.parametrize("value", [3, True, "", "run.csv", "no/such/run.jsonl", b"run.jsonl", "."])
def test_a_log_that_makes_no_sense_is_refused(shell, value):
    """Asked for explicitly: `ValueError` in one sentence, and no logger."""
    for attempt in (lambda: IPyGPULogger(log=value), lambda: IPyGPULogger.check({"log": value})):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            attempt()


def test_the_log_is_changed_while_it_runs(shell, il, tmp_path, capsys):
    """%config names another file, none, or one that cannot be: then it is said and nothing changes."""
    run = lambda code: shell.run_cell(code, store_history=True)  # noqa: E731
    other = tmp_path / "other.jsonl"
    run("x = 0")
    run(f"%config IPyGPULogger.log = {str(other)!r}")
    run("x = 1")
    with pytest.raises(TraitError, match=r"^there is no folder [^\n]+$"):
        il.log = "/no/such/run.jsonl"
    run("x = 2")
    run("%config IPyGPULogger.log = None")
    run("x = 3")
    assert list(History.load(tmp_path / "run.jsonl")) == [il.history[0]]
    assert list(History.load(other)) == list(il.history[1:4])
    assert len(il.history) == 6


# -- notebooks -----------------------------------------------------------------------------------


def report_of(record, *, full=False):
    data = {"text/plain": record.label, MIME: record.to_dict() if full else embedded(record)}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def code_cell(count, *outputs, name="n"):
    return {
        "cell_type": "code",
        "execution_count": count,
        "id": name,
        "outputs": list(outputs),
        "source": "",
        "metadata": {},
    }


def test_a_saved_notebook_is_its_own_log(tmp_path):
    """Every cell's own record, in order; those of nested or captured cells are not its own."""
    nested = plain(execution_count=None, label="nested")
    old = plain(execution_count=1, label="captured before")
    found = [plain(i, execution_count=i + 1, label=f"In [{i + 1}]") for i in range(4)]
    stream = {"output_type": "stream", "name": "stdout", "text": "hello"}
    notebook = {
        "nbformat": 4,
        "cells": [
            {"cell_type": "markdown", "source": "words"},
            code_cell(1, report_of(found[0])),
            code_cell(2, report_of(nested), stream, report_of(found[1])),
            code_cell(
                3, report_of(found[2], full=True), report_of(nested), report_of(old)
            ),  # settled where it began
            code_cell(4, report_of(nested)),
            code_cell(5, stream),
            code_cell(4, report_of(found[3])),
            code_cell(None),
        ],
    }
    path = tmp_path / "run.ipynb"
    path.write_text(json.dumps(notebook))
    assert list(History.load(path)) == found


def test_a_cell_without_a_number_keeps_a_report_that_stands_alone():
    """Where a tool took the numbers away; two reports cannot be told apart."""
    one, other = report_of(plain(1)), report_of(plain(2))
    assert own_report(code_cell(None, one)) == one["data"]
    assert own_report(code_cell(None, one, other)) is None
    assert own_report(code_cell(4, one, other)) == other["data"]


def test_a_record_without_a_name_has_that_of_the_notebook(tmp_path):
    """What executes notebooks in a batch tells the kernel no name; what does is believed."""
    path = tmp_path / "run.ipynb"
    reports = [report_of(plain(cell_id=name)) for name in (None, "theirs")]
    path.write_text(json.dumps({"cells": [code_cell(4, report, name="mine") for report in reports]}))
    assert [record.cell_id for record in History.load(path)] == ["mine", "theirs"]


# -- ranked --------------------------------------------------------------------------------------


def test_peaks_are_ranked_by_the_fullest_device_then_by_ram():
    """A device's memory ends first: the highest peak on any, those without one after them, RAM between equals."""
    found = [
        plain(label="ram", gen=ram(1, 1, 900)),
        plain(label="more ram", gen=ram(1, 1, 901)),
        plain(label="both", gen=ram(1, 1, 50), gpus=(gpu(1, 1, 100), gpu(1, 1, 300, index=1))),
        plain(label="first", gen=ram(1, 1, 1), gpus=(gpu(1, 1, 301),)),
        plain(label="equal", gen=ram(1, 1, 51), gpus=(gpu(1, 1, 300), gpu(1, 1, 299, index=1))),
        plain(label="nobody's", gen=ram(1, 1, 902), gpus=(gpu(0, 0, 999, attributed=False),)),
    ]
    assert labels(History(found).rank()) == ["first", "equal", "both", "nobody's", "more ram", "ram"]


def test_peaks_are_ranked_by_what_the_cell_itself_needed():
    """Above what was there before it: a trivial cell after a large one, or one that frees it, stands last."""
    found = [
        plain(label="load", gen=ram(100, 900, 950)),
        plain(label="trivial", gen=ram(900, 901)),
        plain(label="peaks", gen=ram(900, 900, 1000)),
        plain(label="gives back", gen=ram(1000, 200, 1050)),
        plain(label="train", gen=ram(200, 200), gpus=(gpu(500, 2500, 4000),)),
        plain(label="after", gen=ram(200, 202), gpus=(gpu(2500, 2500),)),
        plain(
            label="a byte",
            gen=ram(200, 200),
            gpus=(dataclasses.replace(gpu(2500, 2500), after_bytes=2500 * MB + 512),),
        ),
        plain(label="more", gen=ram(200, 201), gpus=(gpu(2500, 2501),)),
    ]
    expected = ["train", "more", "load", "peaks", "gives back", "after", "trivial", "a byte"]
    assert labels(History(found).rank()) == expected


@pytest.mark.parametrize("by", ["peak", "consumed", "time"])
def test_our_own_magics_are_not_ranked(by):
    """Whatever they needed or took: in the ranking is what the user's own code did; the history has them all."""
    ours = plain(label="ours", gen=ram(0, 900), time_s=99.0, gpulog_only=True, source="%gpulog free")
    history = History([ours, plain(label="theirs", source="%gpulog free"), ours])
    assert labels(history.rank(by)) == ["theirs"]
    assert len(history) == 3


def test_our_own_magics_are_no_suspects():
    """A cell of ours that grows each time is no leak of the user's code."""
    runs = cells(ram(0, 10), ram(10, 20), ram(20, 30))
    assert History(runs).suspects()
    ours = [dataclasses.replace(run, gpulog_only=True) for run in runs]
    assert not History(ours).suspects()
    assert History(ours[:2]).marked(ours[2]) == ours[2]


def test_consumption_is_ranked_by_what_grew_most():
    """Of RAM and the devices the one that grew most; what was given back comes last."""
    found = [
        plain(label="gives", gen=ram(50, 10)),
        plain(label="ram", gen=ram(0, 200)),
        plain(label="moved", gen=ram(400, 0), gpus=(gpu(0, 400),)),
        plain(label="second", gen=ram(0, 1), gpus=(gpu(5, 0), gpu(0, 201, index=1))),
        plain(label="nobody's", gen=ram(0, 1), gpus=(gpu(0, 999, attributed=False),)),
    ]
    assert labels(History(found).rank("consumed")) == ["moved", "second", "ram", "nobody's", "gives"]


@slow
@given(
    st.lists(records(gpus=GPUS, lines=st.just(()), notes=st.just(())), max_size=4),
    st.sampled_from(["peak", "consumed", "time"]),
)
def test_ranking_loses_nothing(found, by):
    """Every record once; ranking again, or backwards and again, changes no worse for better."""
    history = History(found)
    ranked = history.rank(by=by)
    assert sorted(map(id, ranked)) == sorted(id(record) for record in found if not record.gpulog_only)
    assert History(ranked).rank(by=by) == ranked
    if by == "time":
        assert [r.time_s for r in ranked] == sorted((r.time_s for r in ranked), reverse=True)
    assert list(history) == found


@pytest.mark.parametrize("by", ["size", "", None, "Peak"])
def test_another_rank_is_refused(by):
    """One sentence with the words that there are."""
    with pytest.raises(ValueError, match=r"^rank by 'peak', 'consumed', 'time', not "):
        History().rank(by=by)


# -- suspected -----------------------------------------------------------------------------------


def test_a_cell_that_grows_with_every_run_is_suspected():
    """Three runs, each of which consumed and left more: in RAM, or on one device of several."""
    grown = cells(ram(0, 100), ram(100, 220), ram(220, 330))
    assert History(grown).suspects() == [tuple(grown)]
    on_second = cells(*(gpu(b, a, index=1, uuid="u") for b, a in ((0, 2), (2, 4), (4, 6))))
    assert History(on_second).suspects() == [tuple(on_second)]


def owned(record, **sizes_mb):
    owners = (Owner(name, size_mb * MB, "cpu", "variable") for name, size_mb in sizes_mb.items())
    return dataclasses.replace(record, owners=tuple(owners))


def test_the_third_run_that_grows_is_marked():
    """With the names that grew in every run, the largest first; runs before and cells that grow once are not."""
    first, second, third, fourth = cells(ram(0, 100), ram(100, 220), ram(220, 330), ram(330, 340))
    history = History()
    for record in (owned(first, a=50, log=9, x=3), owned(second, log=90, a=20)):
        assert history.marked(record) is record
        history.append(record)
    marked = history.marked(owned(third, new=10, log=80, a=10))
    assert marked.notes[-1] == "grew in each of its last 3 runs: log, a"
    assert history.marked(third).notes[-1] == "grew in each of its last 3 runs"
    history.append(marked)
    assert history.marked(fourth).notes[-1] == "grew in each of its last 4 runs"
    assert history.marked(dataclasses.replace(third, cell_id="another")).notes == ()
    (shrunk,) = cells(ram(330, 200))
    assert history.marked(shrunk) is shrunk


def test_values_in_out_are_one_name():
    """`Out[4]`, `Out[5]`, `Out[6]`: what grows is `Out`; a traceback that is replaced is no growing name."""
    runs = [
        dataclasses.replace(
            record,
            owners=(
                Owner(f"Out[{record.execution_count}]", 9 * MB, "cpu", "output"),
                Owner("last traceback: f.x", 9 * MB, "cpu", "traceback"),
            ),
        )
        for record in cells(ram(0, 100), ram(100, 220), ram(220, 330))
    ]
    assert growing_names(runs) == ("Out",)
    assert growing_names([]) == ()


def test_only_the_runs_that_grew_are_told():
    """Runs before the growth are no part of it, however many."""
    found = cells(ram(0, 0), ram(0, 90), ram(10, 10), ram(10, 20), ram(20, 30), ram(30, 40), ram(40, 50))
    assert History(found).suspects() == [tuple(found[3:])]


@pytest.mark.parametrize(
    "runs",
    [
        [ram(0, 100), ram(100, 200)],  # twice only
        [ram(0, 500), ram(500, 500), ram(500, 500), ram(500, 500)],  # a cache filled once
        [ram(0, 100), ram(0, 100), ram(0, 100), ram(0, 100)],  # given back between
        [ram(0, 100), ram(100, 101), ram(101, 102), ram(102, 103)],  # a page or two
        [ram(0, 100), ram(100, 200), ram(200, 300), ram(300, 300)],  # mended since
        [ram(0, 100), ram(100, 300), ram(300, 400), ram(0, 100)],  # begun anew
        [ram(900, 800), ram(800, 700), ram(700, 600)],  # gives
        [
            gpu(0, 9, attributed=False),
            gpu(9, 19, attributed=False),
            gpu(19, 29, attributed=False),
        ],  # nobody's
        [gpu(0, 9, uuid="a"), gpu(9, 19, uuid="b"), gpu(19, 29, uuid="c")],  # three devices
    ],
)
def test_what_is_no_leak(runs):
    """Nothing that stops, comes back, or is nobody's own."""
    assert History(cells(*runs)).suspects() == []


def test_what_malloc_keeps_is_no_leak():
    """Growth that is freed memory in malloc's hands is not counted; the same growth in use is."""
    for kept, suspected in ((100, False), (0, True)):
        runs = [
            ram(100 * i, 100 * i + 100, heap_before=Heap(0, 0), heap_after=Heap(100 * MB, kept * MB))
            for i in range(3)
        ]
        assert bool(History(cells(*runs)).suspects()) is suspected


def test_cells_are_told_apart():
    """By their name and their first line: two that grow by turns are two suspects, three alike are none."""
    runs = [ram(i * 10, i * 10 + 10) for i in range(6)]
    mixed = [dataclasses.replace(record, cell_id="ab"[i % 2]) for i, record in enumerate(cells(*runs))]
    assert History(mixed).suspects() == [tuple(mixed[::2]), tuple(mixed[1::2])]
    for change in ("cell_id", "source"):
        found = [dataclasses.replace(record, **{change: str(i)}) for i, record in enumerate(cells(*runs))]
        assert History(found).suspects() == []
    nameless = [dataclasses.replace(record, cell_id=None) for record in cells(*runs)]
    assert History(nameless).suspects() == [tuple(nameless)]


def test_runs_in_different_kernels_are_no_leak():
    """A log of three kernels in which the cell ran once each, by chance a little higher each time."""
    start = plain().started_at
    found = []
    for kernel in range(3):
        for count in (1, 2):
            (record,) = cells(ram(0, 100 + 5 * kernel), cell_id=str(count))
            at = start + timedelta(hours=kernel, minutes=count)
            found.append(dataclasses.replace(record, execution_count=count, started_at=at))
    assert History(found).suspects() == []


def test_cells_at_the_same_time_are_of_one_kernel():
    """On subshells an earlier cell may end after a later one: the runs still count together."""
    found = cells(ram(0, 10), ram(10, 20), ram(20, 30))
    (long,) = cells(ram(0, 0), cell_id="long")
    long = dataclasses.replace(long, execution_count=0, started_at=long.started_at - timedelta(seconds=9))
    assert History([*found[:2], long, found[2]]).suspects() == [tuple(found)]


def test_a_history_holds_still_while_it_is_read():
    """Records that arrive from another thread while one is read change nothing of what is being read."""
    history = History([plain(i) for i in range(3)])
    for _ in history:
        thread = threading.Thread(target=history.append, args=[plain()])
        thread.start()
        thread.join()
    assert len(history) == 6


@given(SIZES)
def test_a_line_is_one_line(size_bytes):
    """Whatever a text holds, its line of a log has no other line end than its own, and is ASCII."""
    text = json_line(plain(size_bytes, source="a\r\n\u2028\x85é"))
    assert text.isascii()
    assert text.splitlines() == [text[:-1]]


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_a_power_cut_leaves(tmp_path, goes_on):
    """A tail of zeros, as a file system leaves it, costs a warning and no record; nor does a log that went on."""
    path = tmp_path / "cut.jsonl"
    good = cells(ram(1, 2), ram(2, 3))
    History(good).save(path)
    path.write_bytes(path.read_bytes() + bytes(4096))
    if goes_on:
        Log(path).append(good[0])
        good.append(good[0])
    with pytest.warns(UserWarning, match="line 3: this line was cut short and is left out"):
        assert list(History.load(path)) == good


def test_cells_without_a_name_that_begin_with_a_magic_are_no_suspects():
    """Three different cells under ``%%time`` in a terminal are not one cell that grows."""
    runs = [ram(100 * n, 100 * n + 100) for n in range(4)]
    assert History(cells(*runs)).suspects()
    assert History(cells(*runs, source="%%time", cell_id=None)).suspects() == []
