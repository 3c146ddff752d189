"""The table of many processes: 80 columns, a bounded length, safe, and nobody who stands out is left out."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import UNSHRUNK
from processes import of
from reading import Reader

from ipygpulogger.analysis.group import Group, Missing
from ipygpulogger.records import Note, Peak, RamUsage
from ipygpulogger.records.process import Process
from ipygpulogger.render.group import html

MB = 2**20
LIMIT = 32 << 10  # bytes of HTML


def told(*records, **more):
    return repr(Group("In [4]", records, **more)).splitlines()


def test_the_whole_of_it():
    """A golden one: heads, a row for each process, who stands out, who is missing."""
    records = [of(rank, 100 * (rank + 1), on_gpu=2000 + 9 * rank, took_s=12.4) for rank in range(3)]
    assert told(*records, missing=[Missing("rank 3", "no answer within 30 s")], notes=["1 arrived late"]) == [
        "In [4]: 3 of 4 processes, 12.4 s; MB",
        "                  RAM                    GPU",
        "         Consumed Needed  Used  Consumed Needed  Used   Time",
        "  rank 0        0    100   500         0   2000   900 12.4 s",
        "  rank 1        0    200   500         0   2009   900 12.4 s",
        "* rank 2        0    300   500         0   2018   900 12.4 s",
        "RAM: rank 2 needed 300 MB, 1.5 times the median",
        "missing: rank 3 (no answer within 30 s)",
        "1 arrived late",
    ]


def test_hosts_and_tasks_have_columns_where_they_tell_processes_apart():
    """One host is not told; several are, and so are tasks."""
    assert "Host" not in told(of(0), of(1))[1]
    lines = told(of({"rank": 0, "host": "a"}), of({"rank": 1, "host": "b"}))
    assert re.search(r"Host +Consumed", lines[1])
    assert re.search(r"rank 1 +b +0", lines[3])
    lines = told(of({"worker": "w-1", "task": "train"}), of({"worker": "w-2", "task": "train"}))
    assert lines[0] == "In [4]: 2 tasks, 2.00 s; RAM in MB"
    assert re.search(r"w-2 +train +0", lines[3])


def test_how_each_ended():
    """A failure, a budget and a leak are marks; what is not exact is at least."""
    sampled = replace(of(2), gen=RamUsage(0, 0, Peak(7 * MB, None, "sampled")))
    over = of(1, 7, notes=(Note.read("Over budget on cuda:0: highest 2 of 1 MB"),))
    lines = told(of(0, 7, status="error", error="ValueError"), over, sampled)
    assert [line[0] for line in lines[2:5]] == ["*", "*", " "]
    assert re.search(r"rank 2 +0 +≥7 ", lines[4])
    assert lines[-2:] == ["rank 0: failed: ValueError", "rank 1: Over budget on cuda:0: highest 2 of 1 MB"]


def test_of_more_than_sixteen_the_most_notable_are_shown():
    """Those that failed, stand out or needed most have a row; the others are counted, beside the medians of all."""
    records = [of(rank, 100 + rank, took_s=5.0 if rank in (7, 900) else 2.0) for rank in range(1024)]
    records[3] = of(3, 103, status="error", error="ValueError")
    lines = told(*records, missing=[Missing(f"rank {rank}", "it died") for rank in range(1024, 1100)])
    assert lines[0] == "In [4]: 1,024 of 1,100 processes, 5.00 s; RAM in MB"
    shown = [3, 7, 900, *range(1011, 1024)]
    assert [line.split()[:3] for line in lines[2:18]] == [["*", "rank", str(rank)] for rank in shown]
    assert lines[18] == "and 1,008 more; medians: time 2.00 s, RAM needed 612 MB"
    assert "time: rank 7 took 5.00 s, 2.5 times the median; 1 more is over 1.2 times" in lines
    assert any("and 68 more (it died)" in line for line in lines)


def test_who_is_missing():
    """An empty group says who; tasks are not missing, however many their worker had: it is the worker that is."""
    nobody = told(missing=[Missing("engine 0", "it died")])
    assert nobody == ["In [4]: 0 of 1 process", "missing: engine 0 (it died)"]
    assert told() == ["In [4]: 0 processes"]
    worker = Process("node", 7, worker="worker 0", task="load")
    tasks = [replace(of(rank, 1), process=worker) for rank in (0, 1)]
    lines = told(*tasks, missing=[Missing("worker 1", "died while it had 3 tasks to run")])
    assert lines[0].startswith("In [4]: 2 tasks, ")
    assert lines[-1] == "missing: worker 1 (died while it had 3 tasks to run)"


def test_a_sentence_names_each_name_once():
    """However many have it; the others are counted."""
    tasks = [
        of({"pid": i, "worker": f"worker {i % 2}", "task": f"task {i % 10}"}, notes=(Note.read("not exact"),))
        for i in range(100)
    ]
    words = " ".join(" ".join(told(*tasks)).split())
    assert words.count("task 0 on worker 0, ") == 1
    assert words.endswith(" and 92 more: not exact")


NAMES = st.text(max_size=60) | st.sampled_from(
    ["<script>alert(1)</script>" * 4, "\x1b[31m\n\r", "a&" * 90, "字" * 40]
)


@settings(max_examples=60, phases=UNSHRUNK)
@given(
    st.lists(st.tuples(NAMES, NAMES, NAMES, st.integers(0, 1 << 22)), max_size=24),
    st.lists(NAMES, max_size=30),
)
def test_foreign_text_stays_in_its_place(processes, texts):
    """Whatever names say: 80 columns, a bounded length, no element or line of their own, no control character."""
    records = [
        of({"worker": name, "host": host, "task": task, "pid": i}, needs, on_gpu=needs)
        for i, (name, host, task, needs) in enumerate(processes)
    ]
    group = Group("".join(texts), records, [Missing(one, one) for one in texts], texts)
    text, markup = repr(group), group._repr_html_()
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 16 + 20 + 5 * 5 * 12
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(markup.encode()) <= LIMIT
    tags = {"details", "summary", "div", "b", "span", "table", "tfoot", "tr", "th", "td"}
    assert set(Reader(markup).tags) <= tags


@pytest.mark.parametrize("count", [1, 4, 16, 17, 1000])
def test_the_limit_holds(count):
    """With every column, every mark and every sentence, of usual names."""
    records = [
        of({"rank": rank, "host": f"gpu-node-{rank % 8}"}, 9000 * (1 + rank % 3), on_gpu=9000 * (1 + rank % 5),
           took_s=900 * (1 + rank % 4), notes=(f"note {rank}",), status="error", error="OutOfMemoryError")
        for rank in range(count)
    ]  # fmt: skip
    markup = html(Group("In [4]", records))
    assert len(markup.encode()) <= 16 << 10


def test_it_reads_without_styles():
    """Figures stand in a table, aligned by attributes."""
    markup = html(Group("In [4]", [of(rank, 100 * rank) for rank in range(3)]))
    plain = re.sub(r' style=("[^"]*"|[^ >]*)', "", markup)
    assert "<tr align=right><th><b>rank\N{NO-BREAK SPACE}2</b><td" in plain
