"""The files that hold records: what is saved is loaded, and what is no such file is refused."""

import csv
import dataclasses
import errno
import io
import json
import os
import stat
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made import UNSHRUNK, plain, records
from sessions import cells, gpu, ram

from ipygpulogger import History
from ipygpulogger.records import MIME
from ipygpulogger.storage.embed import embedded
from ipygpulogger.storage.formats import IN_METADATA, flat, json_line, own_record
from ipygpulogger.storage.log import Log

SAVED = ("jsonl", "csv", "parquet")
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25, phases=UNSHRUNK)


@pytest.mark.parametrize("kind", SAVED)
@slow
@given(found=st.lists(records(), max_size=4))
def test_what_is_saved_is_loaded(tmp_path_factory, kind, found):
    """Whatever the records: every one comes back equal, in order, from every kind of file."""
    path = tmp_path_factory.mktemp("saved") / f"run.{kind}"
    History(found).save(path, log_source=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(History.load(path)) == found


@pytest.mark.parametrize("kind", SAVED)
def test_saving_replaces_the_file_whole(tmp_path, kind):
    """An older file is replaced; names may be text, capitals do not matter."""
    path = tmp_path / f"run.{kind.upper()}"
    History([plain(1), plain(2)]).save(str(path))
    History([plain(3)]).save(path, log_source=True)
    assert list(History.load(str(path))) == [plain(3)]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_saved_harms_nothing(tmp_path, monkeypatch, kind, fault):
    """A full disk or an interrupt at any step: the older file is as it was, and nothing is left beside it."""
    path = tmp_path / f"run.{kind}"
    History([plain(1)]).save(path, log_source=True)

    def fail(*_):
        raise fault

    def full(path, mode, *_):
        return type("Full", (io.FileIO,), {"write": fail})(path, mode)

    for step, broken in (("open", full), ("replace", fail)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, step, broken)
            with pytest.raises(type(fault)):
                History([plain(2)]).save(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert list(History.load(path)) == [plain(1)]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    """And no temporary one, which nobody has heard of."""
    path = tmp_path / "absent" / "run.csv"
    with pytest.raises(FileNotFoundError) as caught:
        History([plain()]).save(path)
    assert (caught.value.filename, caught.value.filename2) == (str(path), None)


@pytest.mark.parametrize("name", ["run.json", "run", "run.jsonl.gz", ".csv", "run.ipynb"])
def test_other_kinds_of_files_are_refused_in_one_sentence(tmp_path, name):
    """An ending that says nothing to us names those that do, and nothing is written."""
    with pytest.raises(ValueError, match=r"^\S+ must be named \.jsonl, \.csv or \.parquet$"):
        History([plain()]).save(tmp_path / name)
    if name != "run.ipynb":
        with pytest.raises(ValueError, match=r"^\S+ must be named \.jsonl, \.csv, \.parquet or \.ipynb$"):
            History.load(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_parquet_says_what_to_install(tmp_path, monkeypatch):
    """One sentence with the command; an older file stays. And so does `to_pandas` without pandas."""
    path = tmp_path / "run.parquet"
    path.write_text("older")
    for name in ("pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    for attempt in (History([plain()]).save, History.load):
        with pytest.raises(
            ImportError,
            match=r"^a \.parquet file needs pyarrow 15 or later: pip install 'ipygpulogger\[parquet\]'$",
        ):
            attempt(path)
    with pytest.raises(ImportError, match=r"pip install 'ipygpulogger\[pandas\]'$"):
        History().to_pandas()
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


@slow
@given(found=st.lists(records(), max_size=4))
@example(found=[])
def test_tables_have_what_was_consumed_and_needed(found):
    """Of RAM and of each device that is attributed to the process; empty where a cell does not have the device."""
    rows, columns = flat(found)  # pandas has no whole numbers beside empty places
    named = {"gen"} | {
        "gen" if device == "cpu" else device for record in found for device in record.memories()
    }
    in_order = [f"{name}.consumed_bytes" for name in sorted(named, key=lambda name: (len(name), name))]
    assert [name for name in columns if "consumed" in name] == in_order  # cuda:10 after cuda:2
    for row, record in zip(rows, found, strict=True):
        for device, usage in record.memories().items():
            name = "gen" if device == "cpu" else device
            assert row[f"{name}.consumed_bytes"] == usage.consumed_bytes
            assert row[f"{name}.needed_bytes"] == usage.needed_bytes


def test_an_empty_text_is_an_empty_field(tmp_path):
    """Without source no field of a .csv is a pair of quotes, and an empty text comes back as one."""
    found, path = [plain(1, source="", code="", main_line="", error=None)], tmp_path / "run.csv"
    History(found).save(path)
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert {row["source"], row["main_line"], row["code"], row["error"]} == {""}
    assert list(History.load(path)) == found


def test_a_spreadsheet_finds_no_formula(tmp_path):
    """No cell of a .csv begins as a formula does; what began so comes back all the same."""
    texts = ("=1+1", "+1", "-1", "@x", "\t=1", '"=1"', "")
    found = [plain(source=text, label=text, error=text) for text in texts]
    path = tmp_path / "run.csv"
    History(found).save(path, log_source=True)
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column in frame:
        assert not [cell for cell in frame[column] if cell[:1] in tuple("=+-@\t")]
    assert list(History.load(path)) == found


GARBAGE = {
    "binary": bytes(range(256)) * 9,
    "words": b"hello\nworld\n",
    "null": b"null",
    "an array": b"[1, 2]",
    "a notebook cut short": b'{"cells": [{"cell_type": "code",',
    "another table": b"a,b\n1,2\n",
    "deep": b"[" * 100_000,
    "lone quote": b'label,started_at\n"x',
    "NUL": b"label\n\0\n",
    "cells of nothing": b'{"cells": [null]}',
    "outputs of nothing": b'{"cells": [{"cell_type": "code", "outputs": [1]}]}',
    "data of nothing": b'{"cells": [{"cell_type": "code", "outputs": [{"data": 1}]}]}',
    "a report of nothing": json.dumps({"cells": [{"cell_type": "code", "execution_count": 1, "outputs": [
        {"data": {MIME: {"execution_count": 1}}}
    ]}]}).encode(),
}  # fmt: skip


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


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_wrong_field_is_named_with_its_place(tmp_path, kind):
    """The file, the line or row, and the field."""
    path = tmp_path / f"run.{kind}"
    good, bad = plain(), dataclasses.replace(plain(), status="fine")
    History([good, bad, good]).save(path)
    place = {"jsonl": "line 2", "csv": "line 3", "parquet": "row 2"}[kind]
    with pytest.raises(ValueError, match=f", {place}: not a valid cell record: status is none of ok, "):
        History.load(path)


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
        told = [] if whole or not end else [f"{path}, line 2: this line was cut short and is left out"]
        assert [str(w.message) for w in said] == told
        assert all(w.filename == __file__ for w in said)


@pytest.mark.parametrize("broken", [b"garbage\n", b'{"label": 4}\n', b"garbage\n\n", b'{"cells\n\n'])
def test_garbage_in_the_middle_is_refused_with_its_place(tmp_path, broken):
    """What no kill explains is not passed over."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(json_line(plain(1)).encode() + broken + json_line(plain(2)).encode())
    with pytest.raises(ValueError, match=r"run\.jsonl, line 2: "):
        History.load(path)


def report_of(record, *, full=False):
    data = {"text/plain": record.label, MIME: record.to_dict() if full else embedded(record)}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def code_cell(count, *outputs, name="n"):
    return {"cell_type": "code", "execution_count": count, "id": name, "outputs": list(outputs)}


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
            code_cell(3, report_of(found[2], full=True), report_of(nested), report_of(old)),
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
    assert own_record(code_cell(None, one)) == one["data"][MIME]
    assert own_record(code_cell(None, one, other)) is None
    assert own_record(code_cell(4, one, other)) == other["data"][MIME]


def test_a_record_without_a_name_has_that_of_the_notebook(tmp_path):
    """What executes notebooks in a batch tells the kernel no name; what does is believed."""
    path = tmp_path / "run.ipynb"
    reports = [report_of(plain(cell_id=name)) for name in (None, "theirs")]
    path.write_text(json.dumps({"cells": [code_cell(4, report, name="mine") for report in reports]}))
    assert [record.cell_id for record in History.load(path)] == ["mine", "theirs"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_a_power_cut_leaves(tmp_path, goes_on):
    """A tail of zeros, as a file system leaves it, costs a warning and no record; nor does a log that went on."""
    path = tmp_path / "cut.jsonl"
    good = cells(ram(1, 2), ram(2, 3))
    History(good).save(path, log_source=True)
    path.write_bytes(path.read_bytes() + bytes(4096))
    if goes_on:
        Log(path).append(good[0], log_source=True)
        good.append(good[0])
    with pytest.warns(UserWarning, match="line 3: this line was cut short and is left out"):
        assert list(History.load(path)) == good


def test_a_record_in_a_cells_metadata_is_loaded(tmp_path):
    """Beside reports, and with all outputs and counts stripped; not where the cell was executed again since."""
    one, other = plain(1), plain(2)
    of_one, count = {IN_METADATA: embedded(one)}, one.execution_count
    code = {"cell_type": "code", "outputs": [], "execution_count": count, "metadata": of_one}
    stripped = {**code, "execution_count": None, "metadata": {IN_METADATA: embedded(other)}}
    others = [{**code, "execution_count": count + 1}, {**code, "metadata": {IN_METADATA: "theirs"}}]
    cells_ = [code, stripped, *others, {"cell_type": "markdown", "metadata": of_one}]
    path = tmp_path / "nb.ipynb"
    path.write_text(json.dumps({"cells": cells_, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    assert list(History.load(path)) == [one, other]
