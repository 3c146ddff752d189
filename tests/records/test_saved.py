"""A file read row by row: the same answers as with all records at hand, in little memory."""

import contextlib
import json
import os
import random
import tempfile
import threading
import tracemalloc
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made import UNSHRUNK, plain, records

from ipygpulogger import History
from ipygpulogger.records import DeviceUsage, Heap, Peak, RamUsage
from ipygpulogger.records.compare import Compared, compare
from ipygpulogger.records.course import Course
from ipygpulogger.records.decode import record_from
from ipygpulogger.records.fold import Fold
from ipygpulogger.records.formats import json_line
from ipygpulogger.records.growing import Growing
from ipygpulogger.records.last_runs import LastRuns
from ipygpulogger.records.process import Process, ProcessRecord
from ipygpulogger.records.ranking import Ranking
from ipygpulogger.records.row import Row, record_of
from ipygpulogger.records.saved import Saved
from ipygpulogger.records.scan import scan
from ipygpulogger.records.spread import quantiles
from ipygpulogger.render import summary

MB = 2**20
BEGIN = datetime(2026, 11, 1, tzinfo=timezone.utc)
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60, phases=UNSHRUNK)


# -- the pattern ---------------------------------------------------------------------------------------


@slow
@given(records() | records().map(lambda record: ProcessRecord.of(record, Process("h", 7, worker="w"))))
def test_a_line_has_the_figures_of_its_record(record):
    """Of any record's line: just its figures, or nothing; what the pattern takes, the decoder takes."""
    line = json_line(record).encode()
    row = scan(line, 7)
    assert row in (None, Row.of(record_from(json.loads(line)), 7))


def test_usual_lines_need_no_decoding():
    """A line as a run writes it is matched: with devices, owners, time series and escapes, or none of them."""
    device = DeviceUsage(
        1, 2, Peak(3, None, "sampled"), 1, 'a "card"', "GPU-1", timeline=((0.5, 4), (1.0, 5))
    )
    found = [
        plain(),
        plain(gpus=(device, replace(device, index=0, uuid=None, attributed=False)), cell_id=None),
        plain(
            gen=RamUsage(1, 2, Peak(3, 9, "bounded", 4096), Heap(5, 6), Heap(7, 8), ((1.5, 3),)), time_s=5e-06
        ),
        plain(source="x = '\u2713 \\ \ud800'", notes=("a", "b"), gpulog_only=True, execution_count=None),
        plain(owners=(), status="error", error="ValueError", between=(("cpu", -5),)),
        ProcessRecord.of(plain(source=""), Process('no"de', 7, 0, "engine 0", "train")),
        ProcessRecord.of(plain(gpus=(device,)), Process("node", 7)),
    ]
    for record in found:
        line = json_line(record).encode()
        assert scan(line, 3) == scan(line[:-1], 3) == Row.of(record, 3)


@pytest.mark.parametrize("missing", ["gpulog_only", "between", "out_of_memory", "notes"])
def test_lines_of_earlier_versions(missing):
    """A field that a version before did not write has its default."""
    values = {name: value for name, value in plain().to_dict().items() if name != missing}
    row = scan(json.dumps(values).encode(), 0)
    assert row in (None, Row.of(record_from(values), 0))
    assert row is not None or missing == "gpulog_only"


LINE = json_line(
    plain(gpus=(DeviceUsage(1, 2, Peak(3, 3, "exact"), 0, "x", timeline=((0.5, 4),)),), notes=("a",))
).encode()
PARTS = [
    b"",
    b"-",
    b"1",
    b"0",
    b'"',
    b"\\",
    b"null",
    b"NaN",
    b",",
    b", ",
    b"{",
    b"}",
    b"[",
    b"]",
    b".5",
    b"9" * 19,
    b"\xff",
]


@settings(deadline=None, max_examples=400)
@given(st.integers(0, len(LINE)), st.integers(0, 30), st.sampled_from(PARTS))
def test_what_the_pattern_takes_is_a_record(at, cut, put):
    """Of a line with anything in place of any part of it: nothing, unless it is a record with these figures."""
    line = LINE[:at] + put + LINE[at + cut :]
    row = scan(line, 0)
    if row is not None:
        assert row == Row.of(record_from(json.loads(line)), 0)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"gpus": [{', '"gpus": [, {'),
        ("2026-11-21T", "2026-13-21T"),
        ('"status": "ok"', '"status": "fine"'),
        ('"index": 0', '"index": -1'),
        ('"lo_bytes": 3', f'"lo_bytes": {2**63}'),
        ('"time_s": 0.5', '"time_s": -0.5'),
        ('"time_s": 0.5', '"time_s": 00.5'),
        ('"notes": ["a"]', '"notes": ["\\x"]'),
    ],
)
def test_what_is_wrong_is_left_to_the_decoder(was, becomes):
    """It says what is wrong, in the sentence that it always had."""
    line = LINE.replace(was.encode(), becomes.encode(), 1)
    assert line != LINE
    assert scan(line, 0) is None


# -- the answers ---------------------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, MB // 2, MB, 3 * MB // 2, 2 * MB, 5 * MB, 9 * MB])


@st.composite
def cells(draw):
    """A cell that resembles others: few ids, lines and sizes, so that there are ties, reruns and leaks."""
    before, after = draw(SIZES), draw(SIZES)
    lo_bytes = draw(SIZES)
    hi_bytes = draw(st.sampled_from([lo_bytes, lo_bytes + 9 * MB, None]))
    peak = Peak(
        lo_bytes, hi_bytes, "sampled" if hi_bytes is None else "exact", draw(st.sampled_from([0, 3 * MB]))
    )
    count = draw(st.integers(1, 4))
    return plain(
        gen=RamUsage(before, after, peak, Heap(0, 0), Heap(0, draw(SIZES))),
        gpus=tuple(
            DeviceUsage(
                draw(SIZES), draw(SIZES), Peak(draw(SIZES), None, "sampled"), index, "x", uuid,
                attributed=draw(st.sampled_from([True, True, False])),
            )
            for index, uuid in draw(st.lists(st.sampled_from([(0, None), (0, "a"), (1, None)]), max_size=2))
        ),
        label=f"In [{count}]",
        execution_count=draw(st.sampled_from([count, count, None])),
        cell_id=draw(st.sampled_from(["a", "b", None])),
        source=draw(st.sampled_from(["x", "y", "%z"])),
        started_at=BEGIN + timedelta(seconds=draw(st.integers(0, 5))),
        time_s=draw(st.sampled_from([0.5, 1.0])),
        status=draw(st.sampled_from(["ok", "error"])),
        gpulog_only=draw(st.sampled_from([False, False, False, True])),
    )  # fmt: skip


def anywhere(cell):
    """The cell, in this kernel or in one of few other processes."""
    processes = [Process("a", 1, 0), Process("a", 2, 1), Process("b", 1, worker='w"\u2713', task="\ud800t")]
    return st.sampled_from([None, None, *processes]).map(
        lambda process: cell if process is None else ProcessRecord.of(cell, process)
    )


def growing_cells():
    """Runs of few cells, most of which grow."""

    def made(grown):
        size, found = 0, []
        for count, (step, cell_id, restarts) in enumerate(grown, 1):
            size += step
            found.append(
                plain(
                    gen=RamUsage(size - step, size, Peak(size, size, "exact")),
                    gpus=(DeviceUsage(size - step, size, Peak(size, size, "exact"), 0, "x"),)
                    * (count % 3 > 0),
                    execution_count=1 if restarts else count,
                    started_at=BEGIN + timedelta(seconds=count),
                    cell_id=cell_id,
                )
            )
        return found

    step = st.sampled_from([2 * MB, 3 * MB, 2 * MB, 0])
    return st.lists(
        st.tuples(step, st.sampled_from("ab"), st.integers(0, 9).map(lambda n: not n)), max_size=16
    ).map(made)


def growing_processes():
    """The same runs, each in one of two processes, or in this kernel."""
    return growing_cells().flatmap(lambda found: st.tuples(*map(anywhere, found)).map(list))


RUNS = st.lists(cells() | cells().flatmap(anywhere), max_size=12) | growing_cells() | growing_processes()


@settings(deadline=None, max_examples=150)
@given(RUNS, st.sampled_from(["peak", "consumed", "time"]), st.sampled_from(["jsonl", "csv"]))
def test_the_ranking_is_that_of_the_history(found, by, kind):
    """Text and HTML are to the letter those of all records, ranked; and so are the cells that may leak."""
    history = History(found)
    with tempfile.TemporaryDirectory() as folder:
        history.save(Path(folder) / f"run.{kind}")
        saved = Saved(Path(folder) / f"run.{kind}")
        growing, ranking = Growing(), Ranking(by)
        for row in saved:
            growing.add(row)
            ranking.add(row)
        suspects = growing.suspects()
        ranked = ranking.ranked(saved.record, suspects)
        assert [[saved.record(run) for run in runs] for runs in suspects] == list(
            map(list, history.suspects())
        )
        saved.close()
    told = history.rank(by), by, history.suspects()
    assert summary.ranking(ranked) == summary.summary(*told)
    assert summary.ranking_html(ranked) == summary.html(*told)


@settings(deadline=None, max_examples=150)
@given(RUNS, RUNS)
def test_the_comparison_is_that_of_the_records(base, new):
    """Pairs, changes, new and removed cells of two logs are those of their records."""
    with tempfile.TemporaryDirectory() as folder:
        sides, names = [], {}
        for name, found in (("base", base), ("new", new)):
            path = Path(folder) / f"{name}.jsonl"
            History(found).save(path)
            sides.append((Saved(path), LastRuns(names)))
            for row in sides[-1][0]:
                sides[-1][1].add(row)
        (was, runs), (now, later) = sides
        compared = Compared(runs, later, 0.05, MB)
        found = compared.comparison(was.record, now.record)
        folded = compared.comparison(was.record, now.record, at_most=0)
        was.close(), now.close()
    assert found == compare(base, new)
    assert folded.counts is None or (
        (folded.counts.pairs, folded.counts.regressed, folded.counts.new, folded.counts.removed)
        == (len(found.pairs), len(found.regressed), len(found.new), len(found.removed))
    )
    if folded.counts is not None:
        assert folded.pairs == found.regressed
        assert folded.counts.unsure == sum(pair.alike > 1 for pair in found.regressed)


def test_quantiles_are_figures_of_cells():
    """The median, what 90 and 99 of 100 do not exceed, and the most: each is some cell's, never between two."""
    assert quantiles(range(1, 101)) == [50, 90, 99, 100]
    assert quantiles(range(1, 1001)) == [500, 900, 990, 1000]
    assert quantiles([7]) == [7, 7, 7, 7]


# -- the memory ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_log(tmp_path_factory):
    """Five thousand cells."""
    draw, path = random.Random(1), tmp_path_factory.mktemp("long") / "run.jsonl"
    device = DeviceUsage(
        MB, 2 * MB, Peak(3 * MB, 3 * MB, "exact"), 0, "card", total_bytes=99 * MB, used_bytes=MB
    )
    with path.open("w") as file:
        for number in range(5000):
            size = draw.randrange(500 * MB)
            file.write(
                json_line(
                    plain(
                        gen=RamUsage(
                            size, size, Peak(size + number, size + number, "exact"), Heap(1, 2), Heap(3, 4)
                        ),
                        gpus=(device,),
                        label=f"In [{number}]",
                        execution_count=number,
                        cell_id=f"cell-{number}",
                        source=f"x{number % 50} = {number}",
                        started_at=BEGIN + timedelta(seconds=number),
                    )
                )
            )
    return path


def held_bytes(action):
    """The most memory that an action held beyond what was held before, and what it returned."""
    tracemalloc.start()
    try:
        kept = action()
        return tracemalloc.get_traced_memory()[1], kept
    finally:
        tracemalloc.stop()


def test_rows_are_not_kept(long_log):
    """Each answer is gathered in a fraction of the memory that the records take."""
    scan(LINE, 0)  # the patterns are made once
    records_bytes, _ = held_bytes(lambda: History.load(long_log))

    def gathered(part):
        with contextlib.closing(Saved(long_log)) as saved:
            for row in saved:
                part.add(row)

    for part in (Growing(), Ranking("peak"), LastRuns({}), Fold()):
        part_bytes, _ = held_bytes(lambda part=part: gathered(part))
        assert part_bytes < records_bytes / 4, part


def test_a_pipe_is_read_like_a_file(long_log, tmp_path):
    """Of what cannot be read twice, the cells that are shown are there all the same."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(long_log.read_bytes()))
    writer.start()
    saved = Saved(pipe)
    rows = list(saved)
    writer.join()
    assert saved.record(rows[4321].origin).label == "In [4321]"
    saved.close()


def _with_a_device_twice():
    """A record that names one device twice, the higher peak first."""
    peaks = Peak(MB, MB, "exact"), Peak(0, 0, "exact")
    return plain(gpus=tuple(DeviceUsage(0, 0, peak, index=0, name="x", uuid=None) for peak in peaks))


@settings(deadline=None, max_examples=60)
@given(st.lists(cells(), min_size=1, max_size=60), st.floats(0.001, 20))
@example([_with_a_device_twice(), plain()], 1.0)
def test_a_course_has_the_peaks_and_ends_of_its_cells(found, longest_s):
    """However cells share stretches: the highest peak of each memory is there, and what the last cell left."""
    course = Course()
    course.longest_s = longest_s
    for record in found:
        course.add(Row.of(record))
    drawn = course.cells(record_of)
    shown = {id(record) for record in drawn}
    for key in {memory.key for record in found for memory in Row.of(record).all()}:

        def peaks(records, key=key):
            return [m.lo_bytes for record in records for m in Row.of(record).all() if m.key == key]

        assert max(peaks(drawn)) == max(peaks(found))
    assert {id(record) for record in found} & shown
    whole = [record for record in drawn if all(record is not one for one in found)]
    assert all(record.time_s <= longest_s + 1e-3 for record in whole)
    assert min(record.started_at for record in drawn) == min(record.started_at for record in found)
