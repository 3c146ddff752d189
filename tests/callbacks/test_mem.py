"""fastai's PeakMemMetric, in real fits: each row of the original's contract is quoted by its test."""

import io
import re
from contextlib import redirect_stdout

import pytest
import torch
from epochs import near, tensor
from fastai.basics import (
    Callback,
    CancelEpochException,
    CancelTrainException,
    CancelValidException,
    DataLoader,
    DataLoaders,
    Learner,
    Recorder,
    load_learner,
    mae,
)
from fastai.callback.all import ProgressCallback
from memory import Block, blip
from torch import nn

from ipygpulogger.callbacks.mem import PeakMemMetric
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("default", "error:.*is not measured")]

COLUMNS = ["cpu used", "peak", "gpu used", "peak"]


class Numbers(torch.utils.data.Dataset):
    """A line through the origin."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.tensor([float(i)]), torch.tensor([2.0 * i])

    def new_empty(self):
        return self


def loaders(device="cpu"):
    device = torch.device(device)
    return DataLoaders(*(DataLoader(Numbers(), bs=8, device=device) for _ in range(2)), device=device)


def doing(order=0, **events):
    """A callback of the user's that does something at some events, told the callback itself."""
    return type("Doing", (Callback,), {"order": order, **events})()


def learner(*cbs, device="cpu", **options):
    """Warm: what the first fit alone takes is behind it."""
    found = Learner(loaders(device), nn.Linear(1, 1), loss_func=nn.MSELoss(), **options)
    with found.no_bar(), found.no_logging():
        found.fit(1)
    return found.add_cbs(cbs)


def quietly(call, *words, **options):
    said = io.StringIO()
    with redirect_stdout(said):
        call(*words, **options)
    return said.getvalue()


def rows(learn):
    """The four figures of every epoch as the recorder has them."""
    return [row[-4:] for row in learn.recorder.values]


# -- the contract, row by row --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["instance", "class", "added", "fit"])
def test_used_as(way):
    """Contract: used as `callback_fns=PeakMemMetric` or `learn.callbacks.append(PeakMemMetric(learn))`; today `cbs`.

    Who logs by name gives four different names.
    """
    names = ["ram", "ram peak", "vram", "vram peak"] if way == "fit" else COLUMNS
    cbs = {"instance": PeakMemMetric(), "class": PeakMemMetric}.get(way)
    learn = Learner(loaders(), nn.Linear(1, 1), loss_func=nn.MSELoss(), cbs=cbs)
    if way == "added":
        learn.add_cb(PeakMemMetric(learn))
    said = quietly(learn.fit, 1, cbs=PeakMemMetric(names=tuple(names)) if way == "fit" else None)
    assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", *names, "time"]
    assert re.search(" +".join(learn.recorder.metric_names), said)
    assert len(rows(learn)) == 1


@pytest.mark.parametrize("first", ["kept", "needed for a moment"])
def test_four_ints_in_mb(first):
    """Contract: on_epoch_end adds [cpu_used, cpu_peak, gpu_used, gpu_peak], 4 ints MB, to the row that is shown.

    Decision C10: both peaks are overhead on top of used. The constructor asserts CUDA; decision: without it 0.
    """
    kept = []

    def work(_):
        kept.append(Block(64)) if first == "kept" else blip(200)
        blip(200) if first == "kept" else kept.append(Block(64))

    learn = learner(PeakMemMetric(), doing(before_train=work))
    said = quietly(learn.fit, 2)
    for figures in rows(learn):
        assert [type(figure) for figure in figures] == [int] * 4
        near(figures, (64, 200 if first == "kept" else 136, 0, 0))
    assert re.findall(r"\d\d:\d\d", said.splitlines()[-1])
    table = [line for line in said.replace("\r", "\n").splitlines() if re.match(r"[01] +\d+\.", line)]
    assert [[int(word) for word in line.split()[3:7]] for line in table] == [list(row) for row in rows(learn)]
    for block in kept:
        block.free()


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_gpu_figures(cuda, device):
    """Contract: gpu_used is used after minus before, gpu_peak what was needed on top, never negative, also given back.

    GPU is the device that the learner trains on, not the current one.
    """
    kept = []

    def work(self):
        if self.epoch == 0:
            kept.append(tensor(64, device))
            tensor(300, device)
        elif self.epoch == 1:
            tensor(32, device)
        else:
            kept.clear()

    torch.cuda.set_device(0)
    learn = learner(PeakMemMetric(), doing(before_train=work), device=device)
    assert torch.cuda.current_device() == 0
    quietly(learn.fit, 3)
    assert [tuple(row[2:]) for row in rows(learn)] == [(64, 300), (0, 32), (-64, 0)]


# -- where memory is counted -----------------------------------------------------------------------------


@pytest.mark.parametrize("order", [-200, 0, 48])
@pytest.mark.parametrize(
    "event", ["before_epoch", "before_batch", "after_train", "after_validate", "after_epoch"]
)
def test_whatever_an_epoch_does_is_in_its_row(event, order):
    """Training, validation and what callbacks do at either end of an epoch, in any order up to the row's writing."""
    happened = []

    def work(self):
        if self.epoch == 1 and not happened:
            happened.append(blip(120))

    learn = learner(PeakMemMetric(), doing(order, **{event: work}))
    quietly(learn.fit, 3)
    assert happened
    for figures, peak in zip(rows(learn), (0, 120, 0), strict=True):
        near(figures, (0, peak, 0, 0))


def test_two_learners_nested():
    """A fit within a fit has its own rows, and the outer's row holds what the inner took."""
    inner = learner(PeakMemMetric(), doing(before_train=lambda _: blip(60)))
    outer = learner(PeakMemMetric(), doing(before_train=lambda _: quietly(inner.fit, 2)))
    quietly(outer.fit, 2)
    for learn in (inner, outer):
        assert len(rows(learn)) == 2
        for figures in rows(learn):
            near(figures, (0, 60, 0, 0))


CANCELS = {
    "before_batch": CancelTrainException,
    "before_validate": CancelValidException,
    "after_train": CancelEpochException,
}


@pytest.mark.parametrize(("event", "error"), CANCELS.items())
@pytest.mark.parametrize("metrics", [[], [mae]])
def test_a_cancelled_epoch_keeps_its_columns(event, error, metrics):
    """Where fastai's row is short, for what it skipped has no value, the figures stand under their own names."""

    def cancel(self):
        if self.training or event != "before_batch":
            blip(50)
            raise error

    learn = learner(PeakMemMetric(), doing(**{event: cancel}), metrics=metrics)
    quietly(learn.fit, 2)
    for row in learn.recorder.values:
        assert len(row) == len(learn.recorder.metric_names) - 2
        near(row[-4:], (0, 50, 0, 0))


# -- fastai goes on as it did ----------------------------------------------------------------------------


def test_validate_returns_what_it_did():
    """`learn.validate()` is no epoch: it returns loss and metrics alone, and has no row."""
    learn = learner(PeakMemMetric(), metrics=[mae])
    assert len(learn.validate()) == 2
    assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", "mae", "time"]
    quietly(learn.fit, 1)
    assert len(learn.validate()) == 2
    assert learn.peak_mem_metric.history[0].label == "epoch 0"
    assert len(learn.peak_mem_metric.history) == 1
    predictions, _ = learn.get_preds()
    assert len(predictions) == 16


@pytest.mark.parametrize("inner", [True, False])
def test_a_validation_within_an_epoch_ends_nothing(inner):
    """What a callback validates or predicts neither ends the epoch nor begins another, though fastai tells it as a fit."""

    def work(self):
        blip(70)
        self.learn.get_preds(inner=True) if inner else self.learn.validate()

    peaks = PeakMemMetric()
    learn = learner(peaks, doing(before_train=work))
    learn.remove_cb(ProgressCallback)  # it takes the validation's end for the fit's
    quietly(learn.fit, 2)
    assert len(peaks.history) == 2
    for record in peaks.history:
        near(record.memory(), (0, 70, 0, 0))


def test_fits_of_every_kind():
    """`fit` again, `fit_one_cycle`, `lr_find`: each has its own rows and names, and none is left open."""
    peaks = PeakMemMetric()
    learn = learner(peaks)
    for fit, epochs in [(learn.fit, 2), (learn.fit, 1), (learn.fit_one_cycle, 2), (learn.fine_tune, 1)]:
        quietly(fit, epochs)
        assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", *COLUMNS, "time"]
        assert [len(row) for row in learn.recorder.values] == [6] * epochs
    before = learn.model.weight.item()
    quietly(learn.lr_find, show_plot=False, num_it=20, stop_div=False)
    assert learn.model.weight.item() == before
    assert not machine().scopes


@pytest.mark.parametrize("options", [{"add_time": False}, {"train_metrics": True}, {"valid_metrics": False}])
def test_the_recorders_own_options(options):
    """However the recorder is set, names and figures stand in the same places."""
    peaks = PeakMemMetric()
    learn = learner(metrics=[mae])
    learn.remove_cb(Recorder).add_cbs([Recorder(**options), peaks, doing(before_train=lambda _: blip(40))])
    quietly(learn.fit, 2)
    names = [name for name in learn.recorder.metric_names if name not in ("epoch", "time")]
    for row in learn.recorder.values:
        assert len(row) == len(names)
        near(row[names.index("cpu used") :][:4], (0, 40, 0, 0))


def test_a_learner_is_exported(tmp_path):
    """`learn.export()` takes the callback along, in the middle of an epoch too, and what is loaded trains on."""
    peaks = PeakMemMetric()
    learn = learner(peaks)
    quietly(learn.fit, 1)
    peaks._epochs.begin()
    learn.export(tmp_path / "learner.pkl")
    peaks._epochs.within(None)
    found = load_learner(tmp_path / "learner.pkl")
    found.dls = loaders()
    quietly(found.fit, 1)
    assert [record.label for record in found.peak_mem_metric.history] == ["epoch 0", "epoch 0"]
    assert [record.label for record in peaks.history] == ["epoch 0"]


# -- interrupted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("event", ["before_epoch", "before_batch", "before_validate", "after_epoch"])
def test_an_interrupted_fit_leaves_nothing(event, error):
    """A fit that dies is over at the next scope; its epoch is told nowhere, and the next fit is whole."""
    dies = [True]

    def die(self):
        if dies and self.epoch == 1:
            raise error("on purpose")

    peaks = PeakMemMetric()
    learn = learner(peaks, doing(60, **{event: die}))
    learn.remove_cb(ProgressCallback)  # fastai's own keeps the logger of a fit that died
    with pytest.raises(error):
        learn.fit(3)
    Scope().open().close()
    assert not machine().scopes
    assert len(peaks.history) == (2 if event == "after_epoch" else 1)
    dies.clear()
    said = quietly(learn.fit, 1)
    assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", *COLUMNS, "time"]
    assert len(learn.recorder.values) == 1
    assert len(said.splitlines()) == 1
