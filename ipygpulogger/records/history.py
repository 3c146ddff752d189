"""The records of a notebook's cells, in the order they finished: ranked, saved, loaded."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints, overload

from .decode import ImpossibleNumberError, from_json, is_utf8, record_from
from .units import MB, printable
from .values import MIME, CellRecord, growing_names

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable

    import pandas as pd

    from .values import Usage

_LEAK_RUNS = 3  # that many in a row, each of them more than this: no warm-up, and no accident
_LEAK_BYTES = MB
_BEGINS = b'{"label": '  # a line of ours
_CUT_SHORT = "this line was cut short and is left out"


class History(Sequence[CellRecord]):
    """The finished cells; about a kilobyte each, whatever the cell was."""

    def __init__(self, records: Sequence[CellRecord] = ()) -> None:
        self._records: list[CellRecord] = list(records)

    def append(self, record: CellRecord) -> None:
        """A cell has finished."""
        self._records.append(record)

    @overload
    def __getitem__(self, index: int) -> CellRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CellRecord]: ...
    def __getitem__(self, index: int | slice) -> CellRecord | Sequence[CellRecord]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[CellRecord]:
        return iter(tuple(self._records))

    def __repr__(self) -> str:
        return f"<History: {len(self)} cells>"

    # -- which cells matter ------------------------------------------------------------------------

    def rank(self, by: str = "peak") -> list[CellRecord]:
        """The records, the worst first; equal ones in the order they finished.

        Cells that hold nothing but this package's own magics are left out.

        Args:
            by: "peak": what the cell itself needed at its peak, above what was in use before it: the most on
                any one device, where memory ends first; then, of cells that needed less than 1 MB there and
                of equals, the most RAM. "consumed": the most that RAM or any one device grew by. "time".

        Raises:
            ValueError: Another word.
        """
        if by not in _WORST:
            raise ValueError(f"rank by {', '.join(map(repr, _WORST))}, not {by!r}")
        return sorted((record for record in self if not record.gpulog_only), key=_WORST[by], reverse=True)

    def suspects(self) -> list[tuple[CellRecord, ...]]:
        """The cells that may leak.

        A cell is suspected when each of its last three runs or more consumed more than 1 MB, of RAM or of
        one device, and left more than 1 MB more in use than the run before had. So a cell whose memory is
        given back between its runs is none, nor one whose first run alone fills a cache, nor one that was
        mended since. RAM that malloc merely keeps is not counted. The same cell means the same name by the
        front end and the same first line, in the same kernel; where the front end gives no names, as in a
        terminal, a cell that begins with a magic such as ``%%time`` is never known again. Cells that hold
        nothing but this package's own magics are none.

        Returns:
            For each its last runs, oldest first, as many as grew.
        """
        runs: dict[Hashable, list[CellRecord]] = {}
        for kernel, record in _kernels(self):
            if (cell := _known_by(record)) is not None:
                runs.setdefault((kernel, cell), []).append(record)
        return [found for cell in runs.values() if len(found := _grown(cell)) >= _LEAK_RUNS]

    def marked(self, record: CellRecord) -> CellRecord:
        """A record about to be appended; if its cell is a suspect from now on, a note says so."""
        cell = _known_by(record)
        if cell is None or not record.grown():
            return record
        runs = _grown([*(one for one in self if _known_by(one) == cell), record])
        if len(runs) < _LEAK_RUNS:
            return record
        names = ", ".join(growing_names(runs))
        note = f"grew in each of its last {len(runs)} runs{names and ': '}{names}"
        return replace(record, notes=(*record.notes, note))

    # -- kept elsewhere ----------------------------------------------------------------------------

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values for JSON, one dict a cell: bytes, seconds, ISO 8601 times."""
        return [record.to_dict() for record in self]

    def to_pandas(self) -> pd.DataFrame:
        """One row a cell; nested figures become columns such as ``gen.peak.lo_bytes``.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'ipygpulogger[pandas]'") from error
        rows, columns = self._flat()
        return pd.DataFrame(rows, columns=columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the records to a .jsonl, .csv or .parquet file, in place of an older one.

        It is written whole or not at all. The columns of .csv and .parquet are those of `to_pandas`, with
        lists as JSON.

        Raises:
            ValueError: The name ends otherwise.
            ImportError: pyarrow is not installed, and the file is .parquet.
            OSError: It cannot be written.
        """
        from ..runtime.files import write  # with all that makes temporary files, which few cells need

        path = Path(path)
        kind = path.suffix.lower()
        if kind == ".ipynb":
            name = printable(str(path))
            raise ValueError(f"{name} is a notebook's name; records are saved as .jsonl, .csv or .parquet")
        _check_kind(path, _WRITTEN)
        if kind == ".jsonl":
            write(path, "".join(map(json_line, self)))
        else:
            write(path, (_csv if kind == ".csv" else _parquet)(*self._flat()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what `save` wrote, a log, or the records that a saved notebook (.ipynb) keeps of its cells.

        Left out, each with a warning: a line that a killed kernel or a full disk cut short, and a record
        with a number that no machine can have measured.

        Raises:
            ValueError: The name ends otherwise, or it does not hold records; says where.
            ImportError: pyarrow is not installed, and the file is .parquet.
            OSError: It cannot be read.
        """
        path = Path(path)
        _check_kind(path, _READERS)
        records, problems = [], []
        with _no_collection():
            try:
                for where, found in _READERS[path.suffix.lower()](path):
                    if isinstance(found, str):
                        problems.append(f"{path}, {where}: {found}")
                        continue
                    try:
                        records.append(record_from(found))
                    except ImpossibleNumberError as error:
                        problems.append(f"{path}, {where}: {error}; it is left out")
                    except ValueError as error:
                        raise ValueError(f"{path}, {where}: {error}") from None
            except ValueError as error:
                raise ValueError(printable(str(error))) from None
        for problem in problems:
            warnings.warn(printable(problem), stacklevel=2)
        return cls(records)

    def _flat(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The records as rows, and the columns that any of them fills."""
        rows = [dict(_leaves_of(values)) for values in self.to_dicts()]
        filled = set().union(*rows) if rows else _leaves()
        return rows, [path for path in _leaves() if path in filled]


def json_line(record: CellRecord) -> str:
    """A record's line in a log; ASCII, so that a cut never leaves half a character."""
    return json.dumps(record.to_dict()) + "\n"


def own_report(cell: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a code cell of a notebook displays as its own report, by MIME type; None without one.

    A cell may also show the records of cells nested in it, or captured earlier: those have another
    number. Where a tool took the number from the cell, a report that stands alone is its own.
    """
    count = cell.get("execution_count")
    data = [output.get("data", {}) for output in cell.get("outputs", ())]
    told = [bundle for bundle in data if isinstance(bundle.get(MIME), Mapping)]
    if count is None:
        return told[0] if len(told) == 1 else None
    return next((b for b in reversed(told) if b[MIME].get("execution_count") == count), None)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without collecting garbage: all that is made here stays, and to look through it takes long."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


# -- ranked ----------------------------------------------------------------------------------------


def _by_peak(record: CellRecord) -> tuple[int, int]:
    on_devices = max((gpu.needed_bytes for gpu in record.gpus if gpu.attributed), default=0)
    return on_devices if on_devices >= MB else 0, record.gen.needed_bytes


def _by_consumed(record: CellRecord) -> int:
    return max(usage.consumed_bytes for usage in _rows(record).values())


_WORST: dict[str, Callable[[CellRecord], Any]] = {
    "peak": _by_peak,
    "consumed": _by_consumed,
    "time": lambda record: record.time_s,
}


def _rows(record: CellRecord) -> dict[Hashable, Usage]:
    """RAM, and each device whose figures are this process's."""
    devices: dict[Hashable, Usage] = {
        (gpu.backend, gpu.index, gpu.uuid): gpu for gpu in record.gpus if gpu.attributed
    }
    return {"RAM": record.gen, **devices}


def _kernels(records: Iterable[CellRecord]) -> Iterator[tuple[int, CellRecord]]:
    """The records with the number of their kernel: in a later cell the count begins anew in another one."""
    kernel, last = 0, None
    for record in records:
        if record.execution_count is not None:
            if last is None or record.execution_count > (last.execution_count or 0):
                last = record
            elif record.started_at > last.started_at:  # else cells that ran at the same time
                kernel, last = kernel + 1, record
        yield kernel, record


def _known_by(record: CellRecord) -> Hashable:
    """By what a cell is known again when it runs again; None for one that never is."""
    named = record.cell_id is not None or not record.source.startswith("%")
    return (record.cell_id, record.source) if named and not record.gpulog_only else None


def _grown(runs: list[CellRecord]) -> tuple[CellRecord, ...]:
    """The last of a cell's runs, as many as grew, where most of them did."""
    return max((_growing(runs, row) for row in _rows(runs[-1])), key=len)


def _growing(runs: list[CellRecord], row: Hashable) -> tuple[CellRecord, ...]:
    """The last of a cell's runs, as many as consumed and left more behind than the one before."""
    count = 0
    for i in reversed(range(len(runs))):
        usage = _rows(runs[i]).get(row)
        if usage is None or _consumed_bytes(runs[i], usage) <= _LEAK_BYTES:
            break
        count += 1
        before = _rows(runs[i - 1]).get(row) if i else None
        if before is None or usage.after_bytes - before.after_bytes <= _LEAK_BYTES:
            break
    return tuple(runs[len(runs) - count :])


def _consumed_bytes(record: CellRecord, usage: Usage) -> int:
    kept_bytes = max(0, record.gen.newly_kept_bytes) if usage is record.gen else 0
    return usage.consumed_bytes - kept_bytes


# -- files -----------------------------------------------------------------------------------------

_Found = Iterator[tuple[str, Any]]  # where it stands, and plain values; or a text: why there are none


def _read_jsonl(path: Path) -> _Found:
    lines = path.read_bytes().split(b"\n")
    for number, text in enumerate(lines, 1):
        where = f"line {number}"
        if not text.strip(b" \t\r\0"):
            if b"\0" in text:  # what a power cut leaves of a file that had just grown
                yield where, _CUT_SHORT
            continue
        try:
            yield where, from_json(text)
        except (ValueError, RecursionError):
            # Half a line ends the file, or has an empty one behind it, which `log.Log` puts there.
            ends = number == len(lines) or (number < len(lines) - 1 and not lines[number])
            if not ends or text[: len(_BEGINS)] != _BEGINS[: len(text)]:
                raise ValueError(f"{path}, {where}: this is no JSON") from None
            yield where, _CUT_SHORT


def _read_ipynb(path: Path) -> _Found:
    try:
        cells = [dict(cell) for cell in from_json(path.read_bytes())["cells"]]
        reports = [(own_report(cell), cell.get("id")) for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(f"{path} is no notebook, or an old or a broken one") from None
    for number, (report, name) in enumerate(reports, 1):
        if report is not None:
            values = report[MIME]
            # What executes a notebook in a batch does not tell the kernel the cell's name.
            yield f"code cell {number}", {**values, "cell_id": values.get("cell_id") or name}


def _csv(rows: list[dict[str, Any]], columns: list[str]) -> str:
    import csv
    import io

    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(path)) for path in columns] for row in rows)
    return table.getvalue()


def _cell(value: Any) -> str:
    """A value in a table of texts: what may be misread, by us or by a spreadsheet, as JSON."""
    if value is None:
        return ""
    if isinstance(value, str) and value.isprintable() and value and value[0] not in '"=+-@':
        return value
    return json.dumps(value)


def _read_csv(path: Path) -> _Found:
    import csv

    with path.open(encoding="utf-8-sig", newline="") as file:  # a spreadsheet may have put its mark before
        reader = csv.reader(file)
        try:
            columns = next(reader, [])
            if "label" not in columns:
                raise ValueError(f"{path} has no column 'label'")
            for cells in reader:
                if cells:
                    row = dict(zip(columns, cells, strict=False))
                    where = f"line {reader.line_num}"
                    yield where, _nested(row, _value, f"{path}, {where}")
        except (csv.Error, UnicodeDecodeError):
            raise ValueError(f"{path} is no table of texts") from None


def _value(cell: str, hint: Any) -> Any:
    """The value that `_cell` wrote."""
    if not cell:
        return None
    if _of_text(hint) and not cell.startswith('"'):
        return cell
    return from_json(cell)


def _parquet(rows: list[dict[str, Any]], columns: list[str]) -> bytes:
    pyarrow, parquet = _pyarrow()
    table = {path: [_packed(row.get(path)) for row in rows] for path in columns}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(table), sink)
    return bytes(sink.getvalue())


def _packed(value: Any) -> Any:
    """A value in a table of values: lists, and texts that are no UTF-8 or look like JSON, as JSON."""
    if isinstance(value, tuple):
        return json.dumps(value)
    if isinstance(value, str) and (value.startswith('"') or not is_utf8(value)):
        return json.dumps(value)
    return value


def _read_parquet(path: Path) -> _Found:
    pyarrow, parquet = _pyarrow()
    content = path.read_bytes()
    try:
        rows = parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except Exception:  # one of many kinds, of several lines
        raise ValueError(f"{path} is no parquet file") from None
    for number, row in enumerate(rows, 1):
        where = f"row {number}"
        yield where, _nested(row, _unpacked, f"{path}, {where}")


def _unpacked(value: Any, hint: Any) -> Any:
    if isinstance(value, str) and (not _of_text(hint) or value.startswith('"')):
        return from_json(value)
    return value


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("a .parquet file needs pyarrow: pip install 'ipygpulogger[parquet]'") from error
    return pa, parquet


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


# -- flat ------------------------------------------------------------------------------------------


@cache
def _leaves() -> dict[str, Any]:
    """Every figure of a record that stands in no list: its path, such as gen.peak.lo_bytes, and its type."""
    return dict(_walk(CellRecord, ""))


def _walk(kind: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(kind, localns={"datetime": datetime}).items():
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
        elif path in _leaves():  # a part that is not there, such as children, has none
            yield path, value


def _nested(row: dict[str, Any], read: Callable[[Any, Any], Any], where: str) -> dict[str, Any]:
    """The values of a row; columns that are not ours are passed over."""
    found: dict[str, Any] = {}
    empty = []
    for path, cell in row.items():
        hint = _leaves().get(path)
        if hint is None:
            continue
        try:
            value = read(cell, hint)
        except (ValueError, RecursionError):
            raise ValueError(f"{where}: {path} is no JSON") from None
        *parents, name = path.split(".")
        if value is None:
            empty.append((parents, name))
        else:
            holder = found
            for parent in parents:
                holder = holder.setdefault(parent, {})
            holder[name] = value
    for parents, name in empty:  # of a part that is there: None, which its default may not be
        holder = found
        for parent in parents:
            holder = holder.get(parent, {})
        holder[name] = None
    return found


def _of_text(hint: Any) -> bool:
    return get_origin(hint) is Literal or hint in (str, str | None, datetime)
