"""`watch_epochs`: each turn of a loop with its own figures, however the loop ends."""

import copy
import gc
import re
import weakref

import pytest
from epochs import near
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import MB, Block, blip

from ipygpulogger import watch_epochs
from ipygpulogger.blocks.watch_epochs import EpochRecord, EpochScope, caller
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Peak, RamUsage


def memories(watched):
    return [record.memory() for record in watched.history]


def nothing_left():
    return not machine().scopes


# -- a plain loop ------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 16, 48]), st.sampled_from([0, 32, 80])), min_size=1, max_size=4)
)
@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
def test_any_training_has_its_figures(plan):
    """Whatever every epoch keeps and needs for a moment, its row says that and nothing of its neighbours."""
    kept = []
    watched = watch_epochs(plan, report=False)
    for keep_mb, blip_mb in watched:
        blip(blip_mb) if blip_mb else None
        kept.append(Block(keep_mb)) if keep_mb else None
    for block in kept:
        block.free()
    for figures, (keep_mb, blip_mb) in zip(memories(watched), plan, strict=True):
        near(figures, (keep_mb, max(0, blip_mb - keep_mb), 0, 0))


def test_the_items_pass_untouched():
    """The loop sees what it would see without us, also through enumerate, zip and a second round.

    Items that are no numbers are counted from 0.
    """
    items = [object(), "a", 3]
    watched = watch_epochs(items, report=False)
    assert list(watched) == items
    assert [record.label for record in watched.history] == ["epoch 0", "epoch 1", "epoch 3"]
    assert list(enumerate(watched)) == list(enumerate(items))
    assert [a for a, _ in zip(watched, range(2), strict=False)] == items[:2]
    assert len(watched) == 3
    assert nothing_left()
    with pytest.raises(TypeError, match="len"):
        len(watch_epochs(iter(items)))


def test_an_item_is_kept_alive_by_nobody():
    """What the loop's body lets go of is gone, as in a loop of its own."""

    class Item:
        pass

    for item in watch_epochs((Item() for _ in range(2)), report=False):
        alive = weakref.ref(item)
        del item
        assert alive() is None


class Stop(Exception):
    """Ends a loop."""


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_epoch_is_told_nowhere(error, capsys):
    """A loop that dies leaves no scope at once, without a collection, and its last epoch has no row."""
    watched = watch_epochs(range(3))
    gc.disable()
    try:
        with pytest.raises(error):
            for epoch in watched:
                assert not nothing_left()
                if epoch == 1:
                    raise error
        assert nothing_left()
    finally:
        gc.enable()
    assert [record.label for record in watched.history] == ["epoch 0"]
    assert len(capsys.readouterr().out.splitlines()) == 2  # the names and one row


def test_a_loop_left_by_break_or_return_leaves_nothing():
    """However a loop is left, its last epoch is over at once and told nowhere."""

    def training(watched):
        for _ in watched:
            return

    watched = watch_epochs(range(3), report=False)
    for _ in watched:
        break
    assert nothing_left()
    training(watched)
    assert nothing_left()
    assert watched.history == []


def test_an_error_of_the_iterable_is_the_users():
    """What fails while an item is fetched comes out as it is, and leaves nothing behind."""

    def items():
        yield 0
        raise Stop

    watched = watch_epochs(items(), report=False)
    with pytest.raises(Stop):
        for _ in watched:
            pass
    assert nothing_left()
    assert len(watched.history) == 1


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
def test_the_table_comes_row_by_row(capsys):
    """The names first, then a row as each epoch ends; a number is the epoch's own name."""
    kept = []
    for epoch in watch_epochs(range(7, 9)):
        printed = capsys.readouterr().out
        assert len(printed.splitlines()) == (0 if epoch == 7 else 2)
        kept.append(Block(64))
        if epoch == 7:
            blip(164)
    last = capsys.readouterr().out
    assert printed.splitlines()[0].split() == ["epoch", "time", "cpu", "used", "peak", "gpu", "used", "peak"]
    for line, name, truth in [
        (printed.splitlines()[1], "7", (64, 164, 0, 0)),
        (last.rstrip("\n"), "8", (64, 0, 0, 0)),
    ]:
        row = re.fullmatch(r" *(\d+) +\d+\.\d{3}s +(-?\d+) +(\d+) +(-?\d+) +(\d+) MB", line)
        assert row[1] == name
        near([int(figure) for figure in row.groups()[1:]], truth)
        assert len(line) - len(" MB") == len(printed.splitlines()[0])
    for block in kept:
        block.free()


@pytest.mark.parametrize("peak", [Peak(5 * MB, None, "sampled"), Peak(5 * MB, 9 * MB, "bounded")])
def test_a_peak_that_is_not_exact_says_so(peak, capsys, monkeypatch):
    """A row whose peak may be higher than it says, says that."""
    result = Scope.result

    def uncertain(self, kind, label, **more):
        measured = result(self, kind, label, **more)
        gen = RamUsage(0, 0, peak)
        object.__setattr__(measured, "gen", gen)
        return measured

    monkeypatch.setattr(Scope, "result", uncertain)
    for _ in watch_epochs(range(1)):
        pass
    assert capsys.readouterr().out.endswith(" 0         5         0         0 MB (peak at least)\n")


@pytest.mark.parametrize("broken", ["open", "close", "result"])
def test_a_fault_of_ours_is_a_warning(broken, monkeypatch):
    """The training goes on when its epochs cannot be measured, and none is made up."""
    original = getattr(Scope, broken)

    def fails(self, *words, **options):
        if broken == "close":
            original(self)
        raise OSError("broken on purpose")

    monkeypatch.setattr(Scope, broken, fails)
    watched, turns = watch_epochs(range(2), report=False), []
    with pytest.warns(RuntimeWarning, match="is not measured: broken on purpose"):
        turns.extend(watched)
    assert turns == [0, 1]
    assert watched.history == []
    monkeypatch.undo()
    assert nothing_left()


# -- on a GPU ------------------------------------------------------------------------------------------


def hold(size_mb, device="cuda"):
    import torch

    return torch.empty(size_mb * MB, dtype=torch.uint8, device=device)


@pytest.mark.torch
def test_the_loop_on_a_gpu(cuda, capsys):
    """GPU memory to the megabyte: kept, needed for a moment, given back; what the cache held is no peak."""
    kept = []
    watched = watch_epochs(range(3))
    for epoch in watched:
        if epoch == 0:
            hold(300)  # leaves 300 MB in the cache
            kept.append(hold(64))
        elif epoch == 1:
            hold(32)
        else:
            kept.pop()
    assert [memory[2:] for memory in memories(watched)] == [(64, 236), (0, 32), (-64, 0)]
    assert re.search(r" 64 +236 MB\n.* 0 +32 MB\n.* -64 +0 MB\n$", capsys.readouterr().out)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("device", "truth"),
    [("cuda:0", (8, 0)), ("cuda:1", (24, 100)), ("cuda", (24, 100)), (None, (24, 100)), ("cpu", (0, 0))],
)
def test_the_device_that_the_training_runs_on(cuda, device, truth):
    """A device that is named has its own figures; the current one stands in; a training on the CPU has none."""
    import torch

    hold(2, "cuda:1")  # the context
    with torch.cuda.device(1):
        scope = EpochScope()
        scope.begin()
        kept = [hold(8, "cuda:0"), hold(24, "cuda:1")]
        hold(100, "cuda:1")
        where = torch.device(device) if device else None
        assert scope.end("epoch 0", where).memory()[2:] == truth
    del kept


@pytest.mark.torch
@pytest.mark.parametrize(("device", "truth"), [(None, (100, 0)), ("cuda:1", (100, 0)), ("cuda:0", (2, 0))])
def test_a_loop_on_a_device_that_is_not_current(cuda, device, truth):
    """Most loops never set the current device: where none is named, it is the one whose memory moved most."""
    hold(2, "cuda:1")  # the context
    watched, kept = watch_epochs(range(1), report=False, device=device), []
    for _ in watched:
        kept += [hold(100, "cuda:1"), hold(2, "cuda:0")]
    assert memories(watched)[0][2:] == truth


@pytest.mark.torch
@pytest.mark.parametrize("report", [True, False])
def test_a_gpu_of_which_nobody_tells(cuda, fresh_machine, monkeypatch, capsys, report):
    """A pluggable allocator in a container: the row says that its zeros are none, or a warning does."""
    import torch

    def refuse(_device):
        raise RuntimeError("no statistics")

    monkeypatch.setattr(torch._C, "_cuda_memoryStats", refuse)
    cuda.proc_mem_na = 1
    with pytest.warns(RuntimeWarning) as warned:
        for _ in watch_epochs(range(1), report=report):
            hold(10)
    said = [str(warning.message) for warning in warned]
    assert any("no statistics" in sentence for sentence in said)
    doubt = "per-process GPU usage unavailable"
    assert (f"({doubt})" in capsys.readouterr().out) == report
    assert any(doubt in sentence for sentence in said) != report


@pytest.mark.torch
@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_an_interrupted_loop_leaves_torch_alone(cuda, error):
    """After an interrupt no function of torch's is ours, no thread runs, and the user's peaks are theirs."""
    import torch

    reads, resets = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats
    with pytest.raises(error):
        for _ in watch_epochs(range(2)):
            hold(100)
            assert torch._C._cuda_memoryStats is not reads
            raise error
    assert nothing_left()
    assert torch.cuda.max_memory_allocated() == 100 * MB
    torch.cuda.reset_peak_memory_stats()
    assert (torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats) == (reads, resets)


# -- the scope that the callbacks of training frameworks hold, and its record ---------------------------


def test_beginning_again_drops_the_first():
    """A second begin, after a fit that died, measures from there; an epoch that never began has no figures."""
    scope = EpochScope()
    assert scope.end("epoch 0") is None
    scope.drop()
    assert not scope.is_open()
    scope.begin()
    block = Block(64)
    scope.begin()
    assert len(machine().scopes) == 1
    figures = scope.end("epoch 0").memory()
    assert max(map(abs, figures)) <= 2, "the block is in the first"
    block.free()
    assert nothing_left()


def training(scope, error):
    scope.within(caller(__name__, "training"))
    scope.begin()
    raise error


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("then", ["scope", "tick", "end", "dropped", "again"])
def test_no_epoch_outlives_its_call(error, then):
    """A training that died without a word: the next scope, the sampler's tick, or the callback's end closes it."""
    scope = EpochScope()
    with pytest.raises(error):
        training(scope, error)
    if then == "scope":
        Scope().open().close()
    elif then == "tick":
        machine().sample()
    elif then == "end":
        assert scope.end("epoch 0") is None
    elif then == "dropped":
        del scope
    else:
        with pytest.raises(error):
            training(scope, error)
        scope.within(None)
    assert nothing_left()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_measures_nothing(copied):
    """An open epoch does not stand in the way of copying its callback, and stays with the original."""
    scope = EpochScope()
    scope.within(caller(__name__, "test_a_copy_measures_nothing"))
    scope.begin()
    other = copied(scope)
    assert not other.is_open()
    assert other.end("epoch 0") is None
    assert scope.end("epoch 0").label == "epoch 0"
    scope.within(None)


def test_the_nearest_call_is_found():
    """The caller is the innermost call of that name in that package, and of no other package."""

    def fit(depth):
        frame = caller(__name__, "fit")
        assert frame.f_locals["depth"] == depth
        if depth < 2:
            fit(depth + 1)
        assert caller("somewhere.else", "fit") is None
        assert caller(__name__[:-1], "fit") is None
        assert caller(__name__, "transform") is None
        assert caller(__name__, "transform", "test_the_nearest_call_is_found", "fit") is frame

    fit(0)


@given(st.integers(-(2**50), 2**50), st.integers(0, 2**50))
def test_megabytes_are_truncated_toward_zero(consumed, extra):
    """The four figures are whole megabytes of 2**20 bytes, truncated toward zero; no peak is negative."""
    before = 2**50
    after = before + consumed
    peak = max(before, after) + extra
    record = EpochRecord(
        label="", started_at=None, time_s=0.0, gen=RamUsage(before, after, Peak(peak, peak, "exact"))
    )
    used, over = record.memory()[:2]
    assert abs(used) == abs(consumed) // MB
    assert (used >= 0) == (consumed > -MB)
    assert over == extra // MB >= 0
    assert record.memory()[2:] == (0, 0)
