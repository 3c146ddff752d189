"""The table of holders, and what was given back, as text."""

import dataclasses

import pytest
from memory import MB

from ipygpulogger.records import Owner
from ipygpulogger.render.owners import Freed, holders


def owner(name, size_mb, device="cpu", kind="variable", shared=()):
    return Owner(name, int(size_mb * MB), device, kind, shared)


def test_one_row_a_holder_one_column_a_device():
    """The largest first, hidden ones marked, shared names beside, small ones in one row, and the rest."""
    owners = [
        owner("model", 980, "cuda:0", shared=("opt", "tied", "view", "cfg")), owner("model", 20),
        owner("Out[3]", 40, kind="output"), owner("last traceback: step.act", 30, kind="traceback"),
        owner("err: step.act", 25), owner("loss (autograd graph)", 500, "cuda:0"),
        owner("a", 0.25, "cuda:0"), owner("b", 0.25),
    ]  # fmt: skip
    assert holders(owners, {"cpu": 200 * MB, "cuda:0": 1500 * MB}).splitlines() == [
        "holder                             cuda:0     RAM",
        "model                              980 MB   20 MB  also opt, tied, view and 1 more",
        "loss (autograd graph)     hidden   500 MB",
        "Out[3]                    hidden            40 MB",
        "last traceback: step.act  hidden            30 MB",
        "err: step.act             hidden            25 MB",
        "2 smaller ones                      <1 MB   <1 MB",
        "named in all                      1480 MB  115 MB",
        "not named                           20 MB   85 MB  Python itself, libraries, small objects",
    ]


def test_what_is_not_known_is_not_said():
    """No figure for a device whose use is unknown, nor where more is named than is resident."""
    owners = [owner("untouched", 500), owner("x", 3, "cuda:0")]
    lines = holders(owners, {"cpu": 200 * MB, "cuda:0": None}).splitlines()
    assert lines[-1].split() == ["named", "in", "all", "3", "MB", "500", "MB"]
    said = holders(owners, {"cpu": 900 * MB}, complete=False, uncounted=["loss (autograd graph)"])
    assert said.splitlines()[-2:] == [
        "There was no time to look everywhere: the named hold at least this much.",
        "Not counted, size unknown: loss (autograd graph)",
    ]


def test_no_holder():
    """A fresh notebook holds nothing to speak of."""
    assert holders([], {"cpu": 50 * MB}).splitlines() == [
        "holder          RAM",
        "named in all   0 MB",
        "not named     50 MB  Python itself, libraries, small objects",
    ]


def test_what_came_back():
    """Printed it says what was dropped; what is below 1 MB in all is not worth a word."""
    dropped = owner("last traceback: step.act", 30, kind="traceback"), owner("Out[3]", 40, kind="output")
    small = tuple(owner(f"Out[{i}]", 0.01, kind="output") for i in range(4, 9))
    freed = Freed((*dropped, *small), {"cuda:0": (0, 0), "RAM": (70 * MB,)})
    assert str(freed) == repr(freed)
    assert str(freed).splitlines() == [
        "dropped: last traceback (step.act 30 MB), Out[3] 40 MB",
        "came back: cuda:0 0 MB (the device 0 MB), RAM 70 MB",
    ]
    assert str(Freed(small, {"RAM": (0,)})).startswith("nothing hidden: ")
    many = tuple(owner(f"Out[{i}]", 0.5, kind="output") for i in range(4))
    assert str(Freed(many, {"RAM": (0,)})).startswith("dropped: 4 others (2 MB)\n")
    with pytest.raises(dataclasses.FrozenInstanceError):
        freed.complete = False
