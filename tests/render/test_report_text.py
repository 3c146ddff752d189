"""The report of a cell, letter by letter, as text and as HTML."""

import pytest
from memory import MB
from plotted import device, record

from ipygpulogger.records import ChildrenUsage, ChildUsage, Heap, Peak
from ipygpulogger.render import text

HEAD = "RAM: Consumed Peaked  Used Total in 0.807s (In [4])\n"
KEPT = {"heap_before": Heap(0, 0), "heap_after": Heap(8 * MB, 120 * MB)}
LARGEST = (
    ChildUsage(0, 215 * MB, Peak(315 * MB, 315 * MB, "exact"), "python", 12),
    ChildUsage(0, 215 * MB, Peak(215 * MB, 215 * MB, "exact"), "pt_data_worker", 13, gpu_bytes=2048 * MB),
    ChildUsage(0, 0, Peak(0, 0, "exact"), "sh", 14),
)
GONE = (ChildUsage(0, 0, Peak(90 * MB, None, "sampled"), "sh", 14, ended=True),)
LEFT = (
    ChildUsage(0, 0, Peak(90 * MB, 95 * MB, "bounded"), "python", 15, ended=True),
    ChildUsage(0, 0, Peak(80 * MB, 80 * MB, "exact"), "python", 16, ended=True),
)
CHILDREN = ChildrenUsage(0, 300 * MB, Peak(300 * MB, 400 * MB, "bounded"), count=2)
LONG = [
    (
        record(gpus=(device(2467, 1437, 5465),)),
        HEAD + "Gen:      128      0      170 MB\nGPU:     2467   1437     5465 MB",
    ),
    (record(), HEAD + "Gen:      128      0      170 MB"),
    (record(-300, 0, 5), HEAD + "Gen:     -300      0        5 MB"),
    (record(-0.3, 0.4, 5), HEAD + "Gen:        0      0        5 MB"),
    (record(1.6, 2.5, 3.5), HEAD + "Gen:        2      2        4 MB"),
    (record(123456, 234567, 345678), HEAD + "Gen:    123456  234567    345678 MB"),
    (record(0, 342, 170, quality="bounded"), HEAD + "Gen:        0    342      170 MB  (peak 512-560)"),
    (record(0, 342, 170, quality="sampled"), HEAD + "Gen:        0    342      170 MB  (peak at least)"),
    (
        record(status="error", error="ValueError"),
        HEAD + "Gen:      128      0      170 MB  failed: ValueError",
    ),
    (record(status="interrupted", error="X"), HEAD + "Gen:      128      0      170 MB  interrupted"),
    (record(**KEPT), HEAD + "Gen:      128      0      170 MB  (120 MB kept by malloc)"),
    (record(0, **KEPT), HEAD + "Gen:        0      0      170 MB"),
    (
        record(children=CHILDREN),
        HEAD + "Gen:      128      0      170 MB  (+ 2 children 300 MB, peak 300-400 MB)",
    ),
    (
        record(children=ChildrenUsage(0, 7 * MB, Peak(9 * MB, 9 * MB, "exact"), count=1)),
        HEAD + "Gen:      128      0      170 MB  (+ 1 child 7 MB, peak 9 MB)",
    ),
    (
        record(children=ChildrenUsage(7 * MB, 0, Peak(9 * MB, None, "sampled"), count=0)),
        HEAD + "Gen:      128      0      170 MB  (children ended, peak at least 9 MB)",
    ),
    (
        record(children=ChildrenUsage(0, 430 * MB, Peak(512 * MB, 630 * MB, "bounded"), 2, largest=LARGEST)),
        HEAD + "Gen:      128      0      170 MB  (+ 2 children 430 MB, peak 512-630 MB:"
        " python 12 215 MB (peak 315), pt_data_worker 13 215 MB, 2048 MB on GPU)",
    ),
    (
        record(children=ChildrenUsage(0, 2 * MB, Peak(2 * MB, 2 * MB, "exact"), 2, largest=LARGEST[2:])),
        HEAD + "Gen:      128      0      170 MB  (+ 2 children 2 MB, peak 2 MB)",
    ),
    (  # none of them ran, or what they needed is not known: they have what they had
        record(children=ChildrenUsage(7 * MB, 7 * MB, Peak(7 * MB, 7 * MB, "exact"), 2)),
        HEAD + "Gen:      128      0      170 MB  (+ 2 children 7 MB)",
    ),
    (
        record(children=ChildrenUsage(7 * MB, 7 * MB, Peak(7 * MB, 900 * MB, "bounded"), 2, at_least=True)),
        HEAD + "Gen:      128      0      170 MB  (+ 2 children at least 7 MB)",
    ),
    (
        record(children=ChildrenUsage(0, 9 * MB, Peak(90 * MB, None, "sampled"), 1, ended=3, largest=GONE)),
        HEAD + "Gen:      128      0      170 MB  (+ 1 child 9 MB, 3 ended, peak at least 90 MB:"
        " sh 14 at least 90 MB)",
    ),
    (
        record(children=ChildrenUsage(0, 0, Peak(90 * MB, 175 * MB, "bounded"), 0, ended=2, largest=LEFT)),
        HEAD + "Gen:      128      0      170 MB  (2 children ended, peak 90-175 MB: python 15 90-95 MB,"
        " python 16 80 MB)",
    ),
    (
        record(children=ChildrenUsage(0, 0, Peak(0, None, "sampled"), 0, ended=1)),
        HEAD + "Gen:      128      0      170 MB  (1 child ended)",
    ),
    (
        record(children=ChildrenUsage(0, 0, Peak(9 * MB, None, "sampled"), 0, ended=2)),
        HEAD + "Gen:      128      0      170 MB  (2 children ended, peak at least 9 MB)",
    ),
    (
        record(gpus=(device(1, 2, 3), device(4, 5, 6, index=1, quality="sampled"))),
        HEAD + "Gen:      128      0      170 MB\nGPU0:       1      2        3 MB\n"
        "GPU1:       4      5        6 MB  (peak at least)",
    ),
    (
        record(gpus=(device(1, 2, 3, context_bytes=500 * MB),)),
        HEAD + "Gen:      128      0      170 MB\nGPU:        1      2        3 MB  + context 500 MB",
    ),
    (
        record(gpus=(device(1, 2, 3, used_bytes=None),)),
        HEAD + "Gen:      128      0      170 MB\nGPU:        1      2      n/a MB",
    ),
    (
        record(notes=("The driver went away.",)),
        HEAD + "Gen:      128      0      170 MB\nThe driver went away.",
    ),
    (
        record(label="nested in In [4]", time_s=12.34567),
        "RAM: Consumed Peaked  Used Total in 12.346s (nested in In [4])\nGen:      128      0      170 MB",
    ),
]


@pytest.mark.parametrize(("given", "printed"), LONG)
def test_the_table(given, printed):
    """The long report, letter by letter."""
    assert text.report(given) == printed


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (
            record(gpus=(device(2467, 1437, 5465),)),
            "Gen: 128/0/170 MB | GPU: 2467/1437/5465 MB | 0.807s | In [4] (Consumed/Peaked/Used Total)",
        ),
        (record(), "Gen: 128/0/170 MB | 0.807s | In [4] (Consumed/Peaked/Used Total)"),
        (
            record(0, 342, 170, quality="bounded"),
            "Gen: 0/342/170 MB  (peak 512-560) | 0.807s | In [4] (Consumed/Peaked/Used Total)",
        ),
        (
            record(status="error", error="ValueError"),
            "Gen: 128/0/170 MB | 0.807s | In [4] (Consumed/Peaked/Used Total) | failed: ValueError",
        ),
        (
            record(gpus=(device(1, 2, 3), device(-4, 5, 6, index=1))),
            "Gen: 128/0/170 MB | GPU0: 1/2/3 MB | GPU1: -4/5/6 MB | 0.807s | In [4] (Consumed/Peaked/Used Total)",
        ),
    ],
)
def test_the_line(given, printed):
    """The compact report, letter by letter."""
    assert text.report(given, compact=True) == printed


def test_memory_in_use_is_not_called_kept():
    """Freed heap that was never resident explains nothing of what a cell holds: no remark."""
    before = Heap(10 * MB, 0)
    in_use = record(200, used=300, heap_before=before, heap_after=Heap(210 * MB, 300 * MB))
    assert "kept by malloc" not in text.report(in_use)
    kept = record(200, used=300, heap_before=before, heap_after=Heap(130 * MB, 300 * MB))
    assert "(80 MB kept by malloc)" in text.report(kept)
