"""The files that hold records: .jsonl, .csv, .parquet, and the notebooks (.ipynb) that display them.

A reader yields plain values; `decode.record_from` makes records of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ..records import CPU
from ..records.cell_record import GROUP_MIME, MIME, TEST, CellRecord, line_code, process_of
from ..records.process import ProcessRecord
from ..records.units import printable
from ..runtime.errors import write_file
from .decode import from_json, types_of

_BEGINS = b'{"label": '  # every line that `json_line` writes
IN_METADATA = "ipygpulogger"  # the name in a cell's metadata under which its record is
_NAMES = re.compile(r"(?:(?:^|, )[^\W\d][\w.]*(?:\[\d+\])?)+(?: and \d+ more)?(?: \(deleted\))?")
_FIRST = 3  # columns of .csv before the figures: label, started_at, time_s
_EMPTY = dict.fromkeys(("source", "code", "main_line"), "")  # texts that an empty field of a .csv stands for
_CUT_SHORT = "this line was cut short and is left out"

_Found = Iterator[tuple[str, Any]]  # a place in the file, and plain values or, as text, why there are none


def save(path: Path, records: Iterable[CellRecord], *, log_source: bool = False) -> None:
    """Write records to a file of the kind that its name says; `History.save` has the rules."""
    kind = path.suffix.lower()
    _check_kind(path, _WRITTEN)
    kept = records if log_source else map(without_source, records)
    make: dict[str, Any] = {".csv": _csv, ".parquet": _parquet}
    write_file(path, make[kind](*flat(kept)) if kind in make else "".join(map(json_line, kept)))


def read(path: Path) -> _Found:
    """Yield what a file holds: each place, such as "line 3", with a record's values as JSON has them.

    A text in place of the values says why there are none. `History.load` has the rules.
    """
    _check_kind(path, _READERS)
    yield from _READERS[path.suffix.lower()](path)


def json_line(record: CellRecord) -> str:
    """Return a record's line in a log; pure ASCII, so that a cut never splits a character."""
    return json.dumps(record.to_dict()) + "\n"


def without_source(record: CellRecord) -> CellRecord:
    """Return a record without text of the user's code: names stay, and what `line_code` makes of a line."""
    oom, process = record.out_of_memory, process_of(record)
    changed: dict[str, Any] = {"main_line": "", "code": line_code(record), "at_peak": _named(record.at_peak)}
    changed["lines"] = tuple(replace(line, source="") for line in record.lines)
    if not (record.cell_id or "").startswith(TEST):  # which has the name of its file
        changed["source"] = ""
    changed["out_of_memory"] = oom and replace(oom, alive=_named(oom.alive))
    if process is not None and (process.worker or "").startswith("engine "):  # of ipyparallel
        label = record.label if record.label.startswith("In [") else "request"
        changed |= {"label": label, "process": replace(process, task=process.task and "request")}
    return replace(record, **changed)


def _named(rows: Any) -> Any:
    """Return rows of `AtPeak` of which each is called after its place, if its name may be a line."""
    return tuple(r if _NAMES.fullmatch(r.name) else replace(r, name=r.place or r.name) for r in rows)


def own_record(cell: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the values of a code cell's own record, of its report or its metadata; None without either.

    The records of cells nested in it or captured earlier, and metadata of an earlier execution, have other
    execution counts. Where a tool removed the cell's own count, a single report is its own.
    """
    count, kept = cell.get("execution_count"), cell.get("metadata", {}).get(IN_METADATA)
    found = [output.get("data", {}).get(MIME) for output in cell.get("outputs", ())]
    reports = [values for values in found if isinstance(values, Mapping)]
    own = [values for values in reports if count in (None, values.get("execution_count"))]
    if own and (count is not None or len(own) == 1):
        return own[-1]
    is_kept = isinstance(kept, Mapping) and count in (None, kept.get("execution_count"))
    return kept if is_kept else None


def shows_processes(cell: Mapping[str, Any]) -> bool:
    """Return whether a notebook's code cell displays what other processes measured."""
    return any(GROUP_MIME in output.get("data", {}) for output in cell.get("outputs", ()))


def _read_jsonl(path: Path) -> _Found:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip(b" \t\r"):
            continue
        values: Any = _CUT_SHORT
        try:
            values = from_json(line)
        except (ValueError, RecursionError):
            is_cut = line[: len(_BEGINS)] == _BEGINS[: len(line)]
            if not is_cut and line.strip(b" \t\r\0"):  # zeros: after a power cut, in place of the last lines
                raise ValueError(f"{path}, line {number}: this is no JSON") from None
        yield f"line {number}", values


def _read_ipynb(path: Path) -> _Found:
    try:
        cells = [dict(cell) for cell in from_json(path.read_bytes())["cells"]]
        records = [(own_record(cell), cell.get("id")) for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(f"{path} is not a notebook, or is too old or damaged") from None
    for number, (values, name) in enumerate(records, 1):
        if values is not None:
            # Tools that execute a notebook in a batch do not send the cell's id to the kernel.
            yield f"code cell {number}", {**values, "cell_id": values.get("cell_id") or name}


# -- .csv and .parquet: a record is a row, a figure of it a column -----------------------------------


def flat(records: Iterable[CellRecord]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return records as rows, and the columns that any of them fills, such as "gen.peak.lo_bytes".

    "gen.consumed_bytes" and "cuda:0.needed_bytes" follow from others, and are not read again.
    """
    rows, sums = list[dict[str, Any]](), {"gen.consumed_bytes": 0, "gen.needed_bytes": 0}
    for record in records:
        memories = {"gen" if device == CPU else device: usage for device, usage in record.memories().items()}
        figures = {f"{name}.consumed_bytes": usage.consumed_bytes for name, usage in memories.items()}
        figures |= {f"{name}.needed_bytes": usage.needed_bytes for name, usage in memories.items()}
        rows.append({**dict(_leaves_of(record.to_dict())), **figures})
        sums |= figures
    filled = set().union(*rows) if rows else {path for path in _leaves() if not path.startswith("process.")}
    columns = [path for path in _leaves() if path in filled]
    by_device = sorted(sums, key=lambda path: (len(path.partition(".")[0]), path))  # cuda:10 after cuda:2
    return rows, [*columns[:_FIRST], *by_device, *columns[_FIRST:]]


def _csv(rows: list[dict[str, Any]], columns: list[str]) -> str:
    import csv
    import io

    table = io.StringIO()
    writer = csv.writer(table)
    rows = [{**row, **{path: row.get(path) or None for path in _EMPTY}} for row in rows]
    writer.writerows([columns, *([_cell(row.get(path)) for path in columns] for row in rows)])
    return table.getvalue()


def _cell(value: Any) -> str:
    """Return a value as text: as JSON if we could misread it or a spreadsheet would take it for a formula."""
    if value is None:
        return ""
    if isinstance(value, str) and value.isprintable() and value and value[0] not in '"=+-@':
        return value
    return json.dumps(value)


def _read_csv(path: Path) -> _Found:
    import csv

    with path.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets write a byte order mark
        reader = csv.reader(file)
        try:
            columns = next(reader, [])
            if "label" not in columns:
                raise ValueError(f"{path} has no column 'label'")
            for cells in reader:
                if cells:
                    row = {path: cell or _EMPTY.get(path) for path, cell in zip(columns, cells, strict=False)}
                    where = f"line {reader.line_num}"
                    yield where, _nested(row, f"{path}, {where}")
        except (csv.Error, UnicodeDecodeError):
            raise ValueError(f"{path} is not a readable CSV file") from None


def _parquet(rows: list[dict[str, Any]], columns: list[str]) -> bytes:
    pyarrow, parquet = _pyarrow()
    texts = (str, tuple)  # numbers stay what they are
    table = {
        path: [_cell(value) if isinstance(value := row.get(path), texts) else value for row in rows]
        for path in columns
    }
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(table), sink)
    return bytes(sink.getvalue())


def _read_parquet(path: Path) -> _Found:
    _, parquet = _pyarrow()
    with path.open("rb") as file:
        try:
            rows = parquet.read_table(file).to_pylist()
        except Exception:  # pyarrow raises many types, with messages of several lines
            raise ValueError(f"{path} is not a parquet file") from None
    for number, row in enumerate(rows, 1):
        where = f"row {number}"
        yield where, _nested(row, f"{path}, {where}")


def _pyarrow() -> tuple[Any, Any]:
    with suppress(ImportError):
        import pyarrow as pa
        from pyarrow import parquet

        if int(pa.__version__.partition(".")[0]) >= 15:  # others may load a pickle in a file: CVE-2023-47248
            return pa, parquet
    raise ImportError("a .parquet file needs pyarrow 15 or later: pip install 'ipygpulogger[parquet]'")


@cache
def _leaves() -> dict[str, Any]:
    """Return every figure of a record outside lists: its path, such as "gen.peak.lo_bytes", and its type."""
    return dict(_walk(ProcessRecord, ""))


def _walk(kind: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, hint in types_of(kind).items():
        inner = next((option for option in (hint, *get_args(hint)) if is_dataclass(option)), None)
        if inner is None or get_origin(hint) is tuple:
            yield before + name, hint
        else:
            yield from _walk(inner, f"{before}{name}.")


def _leaves_of(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = before + name
        if isinstance(value, dict):
            yield from _leaves_of(value, f"{path}.")
        elif path in _leaves():  # a missing part, such as children, has no figures
            yield path, value


def _nested(row: dict[str, Any], where: str) -> Any:
    """Return the nested values of a row; foreign columns are ignored, and so is what is not known."""
    found: dict[str, Any] = {}
    for path, cell in row.items():
        hint = _leaves().get(path)
        if hint is None or cell is None:
            continue
        is_text = get_origin(hint) is Literal or hint in (str, str | None, datetime)
        try:  # what `_cell` wrote
            value = from_json(cell) if isinstance(cell, str) and (cell[:1] == '"' or not is_text) else cell
        except (ValueError, RecursionError):
            raise ValueError(f"{where}: {path} is no JSON") from None
        *parents, name = path.split(".")
        holder = found
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[name] = value
    return found


_READERS: dict[str, Callable[[Path], _Found]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".ipynb": _read_ipynb,
}
_WRITTEN = [kind for kind in _READERS if kind != ".ipynb"]


def _check_kind(path: Path, kinds: Iterable[str]) -> None:
    *first, last = kinds
    if path.suffix.lower() not in (*first, last):
        raise ValueError(printable(f"{path} must be named {', '.join(first)} or {last}"))
