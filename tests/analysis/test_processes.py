"""Records of other processes in histories, files, comparisons and budgets: each keeps its process."""

from dataclasses import replace

import made
import pytest
from processes import of

from ipygpulogger import History
from ipygpulogger.analysis.compare import compare
from ipygpulogger.analysis.group import Group, Missing
from ipygpulogger.render import summary
from ipygpulogger.render.group import html
from ipygpulogger.render.summary import comparison

MIXED = [
    made.plain(),
    of({"rank": 0, "host": "=a"}, 100),
    of({"worker": "engine \u2713", "task": "t,\n\ud800", "host": "b"}, 200, on_gpu=50),
    made.plain(2),
]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_keeps_them(kind, tmp_path):
    """Each record with its process, between those of this kernel."""
    History(MIXED).save(tmp_path / f"run.{kind}", log_source=True)
    loaded = list(History.load(tmp_path / f"run.{kind}"))
    assert loaded == MIXED
    assert [type(record) for record in loaded] == [type(record) for record in MIXED]


@pytest.mark.parametrize(("records", "columns"), [(MIXED, 5), (MIXED[::3], 0), ([], 0)])
def test_a_table_has_their_columns_only_with_them(records, columns, tmp_path):
    """Files without processes are what they were."""
    History(records).save(tmp_path / "run.csv")
    head = (tmp_path / "run.csv").read_text().splitlines()[0].split(",")
    assert sum(name.startswith("process.") for name in head) == columns


def test_reports_name_the_process():
    """The title of a record, its `repr`, its text, its ranking."""
    record = of(3, 100, label="load")
    assert repr(record).startswith("<ProcessRecord load, rank 3, 2.000 s")
    found = summary.summary([record, made.plain()])
    assert "load, rank 3" in found
    assert "highest: RAM 600 MB, raised by load, rank 3" in found


def test_they_are_no_cells():
    """Counted apart, wherever records are counted."""
    for records, told in (
        (MIXED, "2 cells and 2 records of other processes"),
        (MIXED[1:2], "1 record of processes"),
        (MIXED[:1], "1 cell"),
    ):
        assert repr(History(records)) == f"<History: {told}>"
        assert told in History(records)._repr_html_()
        assert summary.summary(records).startswith(told)


# -- two runs ------------------------------------------------------------------------------------------


def grown(before, after):
    """What is told of each pair with a peak that grew: whose it is, and where."""
    return [
        (pair.after.process.named(), change.name)
        for pair in compare(before, after).regressed
        for change in pair.changes
        if change.regressed
    ]


def test_the_same_rank_is_compared():
    """The one rank that grew is named, though another needs more."""
    before = [made.plain(), *(of(rank, 100 * (rank + 1)) for rank in range(3))]
    after = [*before[:2], of(1, 290), before[3]]
    assert grown(before, after) == [("rank 1", "RAM")]
    told = comparison(compare(before, after))
    assert "In [1], rank 1: x" in told
    assert told.splitlines()[-1].startswith("1 of 4 cells grew")


def test_a_cell_of_a_rank_is_known_by_its_source():
    """Its number is another in each run; where there is no source, the label tells."""
    before, after = (
        [replace(of(0, 100, source=text), label=label) for text, label in run]
        for run in (
            [("x = 1", "In [2]"), ("y = 2", "In [3]"), ("", "load")],
            [("x = 1", "In [5]"), ("y = 2", "In [2]"), ("", "save"), ("", "load")],
        )
    )
    found = compare(before, after)
    pairs = [(one.before.label, one.after.label) for one in found.pairs]
    assert pairs == [("In [2]", "In [5]"), ("In [3]", "In [2]"), ("load", "load")]
    assert [one.label for one in found.new] == ["save"]


def test_another_rank_is_new():
    """Three ranks in place of two: the third has nothing to be compared with."""
    before, after = ([of(rank, 100) for rank in range(count)] for count in (2, 3))
    found = compare(before, after)
    assert (len(found.pairs), [one.rank for one in found.new], found.removed) == (2, [2], ())


def test_tasks_are_left_out():
    """Which worker runs a task, and how often, is the scheduler's choice."""
    tasks = [of({"task": "train", "pid": pid, "worker": f"tcp://{pid}"}, 100, source="") for pid in (1, 2)]
    found = compare([*tasks, made.plain()], [made.plain()])
    assert (len(found.pairs), found.new, found.removed) == (1, (), ())


def test_a_process_is_no_cell_of_the_kernel():
    """Records of other processes do not match those of the kernel, whatever their lines say."""
    own, elsewhere = made.plain(source="x", cell_id=None), replace(of(0, 100), cell_id=None)
    found = compare([own], [elsewhere])
    assert (found.pairs, len(found.new), len(found.removed)) == ((), 1, 1)


# -- groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "notes"), [([Missing("rank 1", "no answer")], []), ([], ["3 small tasks were only counted"])]
)
def test_a_group_without_records_is_not_nothing(missing, notes):
    """`if ranks:` holds where a rank is missing, and its table says so; its length stays that of the records."""
    group = Group("In [4]", (), missing, notes)
    assert group
    assert len(group) == 0
    assert list(group) == []
    told = missing[0].who if missing else notes[0]
    assert told in repr(group)
    assert told in html(group)


def test_a_group_that_tells_nothing_is_false():
    """Neither a record, nor a missing process, nor a note."""
    assert not Group("In [4]", ())
