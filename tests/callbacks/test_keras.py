"""Keras's PeakMemCallback, in real fits with torch behind Keras, on the CPU and on the simulated GPU."""

import csv
import os

import pytest
from epochs import near, tensor
from memory import Block, blip

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

from ipygpulogger.callbacks.keras import PeakMemCallback
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("default", "error:.*is not measured")]

NAMES = ["mem_cpu_used_mb", "mem_cpu_peak_mb", "mem_gpu_used_mb", "mem_gpu_peak_mb"]
X = np.arange(16, dtype="float32")[:, None]


class Does(keras.callbacks.Callback):
    """Something at one event of one epoch, or of every one."""

    def __init__(self, event, do, epoch=None):
        super().__init__()
        self.epoch, self.wanted = None, epoch
        hook = getattr(self, event)

        def act(*words, **options):
            hook(*words, **options)
            if self.wanted in (None, self.epoch):
                do()

        setattr(self, event, act)

    def on_epoch_begin(self, epoch, _=None):
        self.epoch = epoch


class Still(keras.Model):
    """Trains without computing, for the simulated GPU computes nothing, and does what a test says."""

    def __init__(self, does):
        super().__init__()
        self.dense, self.does = keras.layers.Dense(1), does

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def train_step(self, _):
        self.does("train")
        return {"loss": 0.0}

    def test_step(self, _):
        self.does("test")
        return {"loss": 0.0}


def fit(*callbacks, model=None, epochs=3, **options):
    """The history of a fit on the CPU, and its peaks."""
    peaks = PeakMemCallback()
    with keras.device("cpu"):
        if model is None:
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        found = model.fit(
            X, 2 * X, batch_size=8, epochs=epochs, validation_data=(X, X), callbacks=[*callbacks, peaks],
            **{"verbose": 0} | options,
        )  # fmt: skip
    return found, peaks


def test_the_figures_are_in_the_logs(tmp_path, capsys):
    """In what `fit` returns, in a CSVLogger after us and in the progress bar, once per epoch."""
    kept = []
    peaks, path = PeakMemCallback(), tmp_path / "log.csv"
    work = Does("on_train_batch_end", lambda: kept.append(Block(32)) or blip(100))
    found, last = fit(work, peaks, keras.callbacks.CSVLogger(path), verbose=2)
    truth = [tuple(record.memory()) for record in peaks.history]
    for figures in truth[1:]:
        near(figures, (64, 100, 0, 0))  # two batches
    assert [found.history[name] for name in NAMES] == [
        list(column) for column in zip(*map(tuple, (r.memory() for r in last.history)), strict=True)
    ]
    with path.open(newline="") as lines:
        logged = list(csv.DictReader(lines))
    assert [tuple(int(row[name]) for name in NAMES) for row in logged] == truth
    assert {"loss", "val_loss"} < set(logged[0])
    assert capsys.readouterr().out.count("mem_gpu_peak_mb: ") == 3
    for block in kept:
        block.free()


@pytest.mark.parametrize(
    "event", ["on_epoch_begin", "on_train_batch_begin", "on_test_begin", "on_test_batch_end", "on_epoch_end"]
)
def test_whatever_an_epoch_does_is_in_its_figures(event):
    """Training, validation and other callbacks between an epoch's ends belong to it and to no other."""
    peaks = PeakMemCallback()
    work = Does(event, lambda: blip(120), epoch=1)
    fit(*([work, peaks] if event == "on_epoch_end" else [peaks, work]))
    near(peaks.history[1].memory(), (0, 120, 0, 0))
    near(peaks.history[2].memory(), (0, 0, 0, 0))


@pytest.mark.parametrize(("device", "figures"), [("cuda:0", (33, 80)), ("cpu", (0, 0))])
def test_the_models_own_device(cuda, device, figures):
    """The figures are those of the device that the model is on, 0 on the CPU; validation is in its epoch."""
    kept = []
    peaks = PeakMemCallback()
    with keras.device(device):
        model = Still(lambda step: kept.append(tensor(16)) if step == "train" else tensor(80) is None)
        model.build((None, 1))
        model.compile("sgd", "mse")
        model.fit(X, X, batch_size=8, epochs=2, validation_data=(X, X), callbacks=[peaks], verbose=0)
    assert peaks.history[1].memory()[2:] == figures  # two steps of 16.5 MB
    kept.clear()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("event", ["on_train_batch_end", "on_test_begin"])
def test_an_interrupted_fit_leaves_nothing(event, error):
    """A fit that dies is over at the next scope; its epoch is told nowhere, and the same callback measures the next."""

    def die():
        raise error

    peaks = PeakMemCallback()
    with pytest.raises(error):
        fit(peaks, Does(event, die, epoch=1))
    Scope().open().close()
    assert not machine().scopes
    assert [record.label for record in peaks.history] == ["epoch 0"]
    found, _ = fit(peaks, epochs=1)
    assert [record.label for record in peaks.history] == ["epoch 0", "epoch 0"]
    assert all(len(found.history[name]) == 1 for name in NAMES)
    with keras.device("cpu"):  # evaluating and predicting alone is no epoch
        assert set(found.model.evaluate(X, X, callbacks=[peaks], verbose=0, return_dict=True)) == {"loss"}
        found.model.predict(X, callbacks=[peaks], verbose=0)
    assert len(peaks.history) == 2
    assert not machine().scopes
