"""The history: ranked, and still while it is read."""

import dataclasses
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import GPUS, UNSHRUNK, plain, records
from sessions import gpu, labels, ram

from ipygpulogger import History

MB = 2**20
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25, phases=UNSHRUNK)


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


def test_the_cell_that_raised_memory_comes_before_those_that_began_there():
    """By the highest level: of cells that show the same MB, the one that needed more, whatever a few pages say."""
    level = 184 * MB + 4096  # a page more than the other
    held = dataclasses.replace(
        ram(184, 184),
        after_bytes=level,
        peak=dataclasses.replace(ram(1, 1).peak, lo_bytes=level, hi_bytes=level),
    )
    found = [
        plain(label="raised", gen=ram(56, 184)),
        plain(label="held", gen=held),
        plain(label="low", gen=ram(1, 99)),
    ]
    assert labels(History(found).rank("highest")) == ["raised", "held", "low"]


@slow
@given(
    st.lists(records(gpus=GPUS, lines=st.just(()), notes=st.just(())), max_size=4),
    st.sampled_from(["needed", "consumed", "highest", "time"]),
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
    with pytest.raises(ValueError, match=r"^rank by 'needed', 'consumed', 'highest', 'time', not "):
        History().rank(by=by)


def test_a_history_holds_still_while_it_is_read():
    """Records that arrive from another thread while one is read change nothing of what is being read."""
    history = History([plain(i) for i in range(3)])
    for _ in history:
        thread = threading.Thread(target=history.append, args=[plain()])
        thread.start()
        thread.join()
    assert len(history) == 6
