"""The report of a cell, letter by letter, as text and as HTML."""

from dataclasses import replace

import pytest
from memory import MB
from plotted import device, record

from ipygpulogger.records import ChildrenUsage, ChildUsage, Heap, Peak
from ipygpulogger.render import text

HEAD = "RAM: Consumed Peaked  Used Total in 0.807s (In [4])\n"
KEPT = {"heap_before": Heap(0, 0), "heap_after": Heap(8 * MB, 120 * MB)}
LARGEST = (
    ChildUsage(0, 215 * MB, Peak(315 * MB, 315 * MB, "exact"), "python", 12),
    ChildUsage(0, 215 * MB, Peak(215 * MB, 215 * MB, "exact"), "pt_data_worker", 13),
    ChildUsage(0, 0, Peak(0, 0, "exact"), "sh", 14),
)
GONE = (ChildUsage(0, 0, Peak(90 * MB, None, "sampled"), "sh", 14, ended=True),)
LEFT = (
    ChildUsage(0, 0, Peak(90 * MB, 95 * MB, "bounded"), "python", 15, ended=True),
    ChildUsage(0, 0, Peak(80 * MB, 80 * MB, "exact"), "python", 16, ended=True),
)
ROW = "Gen:      128      0      170 MB"
EXACT = Peak(9 * MB, 9 * MB, "exact")


def children(before_mb, after_mb, peak, count, **more):
    return {"children": ChildrenUsage(before_mb * MB, after_mb * MB, peak, count, **more)}


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"status": "error", "error": "ValueError"}, "failed: ValueError"),
        ({"status": "interrupted", "error": "X"}, "interrupted"),
        (KEPT, "(120 MB kept by malloc)"),
        (children(0, 300, Peak(300 * MB, 400 * MB, "bounded"), 2), "(+ 2 children 300 MB, highest 300 to 400 MB)"),
        (children(0, 7, EXACT, 1), "(+ 1 child 7 MB, highest 9 MB)"),
        (children(7, 0, Peak(9 * MB, None, "sampled"), 0), "(children ended, highest at least 9 MB)"),
        (children(0, 430, Peak(512 * MB, 630 * MB, "bounded"), 2, largest=LARGEST),
         "(+ 2 children 430 MB, highest 512 to 630 MB: python 12 215 MB (highest 315 MB), pt_data_worker 13 215 MB)"),
        (children(0, 2, Peak(2 * MB, 2 * MB, "exact"), 2, largest=LARGEST[2:]), "(+ 2 children 2 MB, highest 2 MB)"),
        # None of them ran, or what they needed is not known: they have what they had.
        (children(7, 7, Peak(7 * MB, 7 * MB, "exact"), 2), "(+ 2 children 7 MB)"),
        (children(7, 7, Peak(7 * MB, 900 * MB, "bounded"), 2, at_least=True), "(+ 2 children at least 7 MB)"),
        (children(0, 9, Peak(90 * MB, None, "sampled"), 1, ended=3, largest=GONE),
         "(+ 1 child 9 MB, 3 ended, highest at least 90 MB: sh 14 at least 90 MB)"),
        (children(0, 0, Peak(90 * MB, 175 * MB, "bounded"), 0, ended=2, largest=LEFT),
         "(2 children ended, highest 90 to 175 MB: python 15 90 to 95 MB, python 16 80 MB)"),
        (children(0, 0, Peak(0, None, "sampled"), 0, ended=1), "(1 child ended)"),
        (children(0, 0, Peak(9 * MB, None, "sampled"), 0, ended=2), "(2 children ended, highest at least 9 MB)"),
    ],
)  # fmt: skip
def test_what_stands_behind_a_row(fields, remark):
    """How it ended, what malloc keeps, and the children."""
    assert text.report(record(**fields)) == f"{HEAD}{ROW}  {remark}"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (record(gpus=(device(2467, 1437, 5465),)), f"{ROW}\nGPU:     2467   1437     5465 MB"),
        (record(), ROW),
        (record(-300, 0, 5), "Gen:     -300      0        5 MB"),
        (record(-0.3, 0.4, 5), "Gen:        0      0        5 MB"),
        (record(1.6, 2.5, 3.5), "Gen:        2      2        4 MB"),
        (record(123456, 234567, 345678), "Gen:    123456  234567    345678 MB"),
        (record(0, 342, 170, quality="bounded"), "Gen:        0    342      170 MB  (peaked 342-390)"),
        (record(0, 342, 170, quality="sampled"), "Gen:        0    342      170 MB  (peaked at least)"),
        (record(0, **KEPT), "Gen:        0      0      170 MB"),
        (record(gpus=(device(1, 2, 3), device(4, 5, 6, index=1, quality="sampled"))),
         f"{ROW}\nGPU0:       1      2        3 MB\nGPU1:       4      5        6 MB  (peaked at least)"),
        (record(gpus=(device(1, 2, 3, context_bytes=500 * MB),)), f"{ROW}\nGPU:        1      2        3 MB  + context 500 MB"),
        (record(gpus=(device(1, 2, 3, used_bytes=None),)), f"{ROW}\nGPU:        1      2      n/a MB"),
        (record(notes=("The driver went away.",)), f"{ROW}\nThe driver went away."),
    ],
)  # fmt: skip
def test_the_table(given, printed):
    """The long report, letter by letter."""
    assert text.report(given) == HEAD + printed
    nested = replace(given, label="nested in In [4]", time_s=12.34567)
    assert text.report(nested) == f"{HEAD.replace('0.807', '12.346').replace('In', 'nested in In')}{printed}"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (record(gpus=(device(2467, 1437, 5465),)), "Gen: 128/0/170 MB | GPU: 2467/1437/5465 MB"),
        (record(), "Gen: 128/0/170 MB"),
        (record(0, 342, 170, quality="bounded"), "Gen: 0/342/170 MB  (peaked 342-390)"),
        (record(gpus=(device(1, 2, 3), device(-4, 5, 6, index=1))),
         "Gen: 128/0/170 MB | GPU0: 1/2/3 MB | GPU1: -4/5/6 MB"),
    ],
)  # fmt: skip
def test_the_line(given, printed):
    """The compact report, letter by letter."""
    line = f"{printed} | 0.807s | In [4] (Consumed/Peaked/Used Total)"
    assert text.report(given, compact=True) == line
    assert text.report(given, compact=True, heads=False) == line.removesuffix(" (Consumed/Peaked/Used Total)")
    failed = replace(given, status="error", error="ValueError")
    assert text.report(failed, compact=True) == f"{line} | failed: ValueError"


def test_memory_in_use_is_not_called_kept():
    """Freed heap that was never resident explains nothing of what a cell holds: no remark."""
    before = Heap(10 * MB, 0)
    in_use = record(200, used=300, heap_before=before, heap_after=Heap(210 * MB, 300 * MB))
    assert "kept by malloc" not in text.report(in_use)
    kept = record(200, used=300, heap_before=before, heap_after=Heap(130 * MB, 300 * MB))
    assert "(80 MB kept by malloc)" in text.report(kept)
