"""Lightning's PeakMemCallback, in real fits on the CPU and on the simulated GPU."""

import csv
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from epochs import near, tensor
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from memory import Block, blip
from torch.utils.data import DataLoader, TensorDataset

from ipygpulogger.callbacks.lightning import PeakMemCallback
from ipygpulogger.engine.machine import machine

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("default", "error:.*is not measured")]

NAMES = ["mem/cpu_used_mb", "mem/cpu_peak_mb", "mem/gpu_used_mb", "mem/gpu_peak_mb"]


class Line(pl.LightningModule):
    """A line through the origin, whose hooks do what a test says."""

    def __init__(self, **does):
        super().__init__()
        self.line, self.does = torch.nn.Linear(1, 1), does

    def do(self, hook):
        # The first epoch is for what only it takes: libraries, the optimizer's state, the progress bar.
        if hook in self.does and not self.trainer.sanity_checking and self.current_epoch:
            self.does[hook](self)

    def training_step(self, batch, _):
        self.do("training_step")
        loss = ((self.line(batch[0]) - batch[1]) ** 2).mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.do("validation_step")
        self.log("val", ((self.line(batch[0]) - batch[1]) ** 2).mean())

    def on_train_epoch_start(self):
        self.do("on_train_epoch_start")

    def on_train_epoch_end(self):
        self.do("on_train_epoch_end")

    def on_validation_epoch_end(self):
        self.do("on_validation_epoch_end")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader():
    x = torch.arange(16.0)[:, None]
    return DataLoader(TensorDataset(x, 2 * x), batch_size=8)


QUIET = {
    f"enable_{what}": False for what in ("progress_bar", "model_summary", "checkpointing")
}  # what Lightning would print and write


def trainer(tmp_path, *callbacks, **options):
    usual = {"max_epochs": 3, "accelerator": "cpu", "devices": 1, "default_root_dir": tmp_path, **QUIET}
    return pl.Trainer(**usual | options, logger=CSVLogger(tmp_path), callbacks=list(callbacks))


def fit(tmp_path, module, *callbacks, **options):
    """The trainer after a fit, and its peaks."""
    peaks = PeakMemCallback()
    found = trainer(tmp_path, peaks, *callbacks, **options)
    run(found, module)
    return found, peaks


def run(found, module, **options):
    found.fit(module, loader(), loader(), **options)


def test_every_logger_has_the_four_figures(tmp_path):
    """Four metrics of four names, once per epoch at the epoch's step: in the CSV, callback and logged metrics."""
    kept = []
    found, peaks = fit(tmp_path, Line(on_train_epoch_start=lambda _: kept.append(Block(64)) or blip(150)))
    for record, truth in zip(peaks.history[1:], [(64, 150, 0, 0)] * 2, strict=True):
        near(record.memory(), truth)
    with Path(found.logger.experiment.metrics_file_path).open(newline="") as lines:
        logged = [row for row in csv.DictReader(lines) if row[NAMES[0]]]
    assert [int(row["epoch"]) for row in logged] == [0, 1, 2]
    assert [int(row["step"]) for row in logged] == [1, 3, 5]  # as Lightning's own rows of an epoch
    assert [[float(row[name]) for name in NAMES] for row in logged] == [
        list(r.memory()) for r in peaks.history
    ]
    for metrics in (found.callback_metrics, found.logged_metrics):
        assert [metrics[name] for name in NAMES] == list(peaks.history[-1].memory())
    assert not set(NAMES) & set(found.progress_bar_metrics)
    for block in kept:
        block.free()


HOOKS = ["on_train_epoch_start", "training_step", "validation_step", "on_train_epoch_end"]


@pytest.mark.parametrize("hook", [*HOOKS, "on_validation_epoch_end"])
def test_whatever_an_epoch_does_is_in_its_figures(tmp_path, hook):
    """Training, validation and the module's own hooks at either end, given back there, belong to that epoch."""
    _, peaks = fit(tmp_path, Line(**{hook: lambda m: blip(120) if m.current_epoch == 1 else None}))
    near(peaks.history[1].memory(), (0, 120, 0, 0))
    near(peaks.history[2].memory(), (0, 0, 0, 0))


def test_the_sanity_check_is_no_epoch(tmp_path):
    """What the check before training takes is in no figure, and the first epoch is the first."""

    class Checks(pl.Callback):
        def on_sanity_check_start(self, *_):
            self.block = Block(300)

        def on_sanity_check_end(self, *_):
            self.block.free()

    _, peaks = fit(tmp_path, Line(), Checks(), max_epochs=1)
    assert [record.label for record in peaks.history] == ["epoch 0"]
    assert peaks.history[0].memory().cpu_peak < 100 > abs(peaks.history[0].memory().cpu_used)


@pytest.mark.parametrize("accelerator", ["gpu", "cpu"])
def test_the_trainers_own_device(cuda, tmp_path, accelerator):
    """The figures are those of the device it trains on, to the megabyte; on the CPU they are 0."""
    torch.empty(1, device="cuda:0")
    kept, device, chosen = [], "cuda:1", [1] if accelerator == "gpu" else 1
    module = Line(
        training_step=lambda _: kept.append(tensor(16, device)),
        validation_step=lambda _: tensor(80, device) is None,
    )
    _, peaks = fit(tmp_path, module, accelerator=accelerator, devices=chosen)
    figures = (33, 80) if accelerator == "gpu" else (0, 0)  # two steps of 16.5 MB
    assert peaks.history[1].memory()[2:] == figures
    kept.clear()
    del module


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("hook", HOOKS)
def test_an_interrupted_fit_leaves_nothing(tmp_path, hook, error):
    """A fit that dies is over at once and its epoch told nowhere; the same callback measures the next."""

    def die(_):
        raise error

    peaks = PeakMemCallback()
    found = trainer(tmp_path, peaks)
    with pytest.raises((error, SystemExit)):  # Lightning ends the process when it is interrupted
        run(found, Line(**{hook: die}))
    assert not machine().scopes
    assert [record.label for record in peaks.history] == ["epoch 0"]
    run(trainer(tmp_path, peaks, max_epochs=1), Line())
    trainer(tmp_path, peaks).validate(Line(), loader(), verbose=False)  # evaluating alone is no epoch
    assert len(peaks.history) == 2
    assert not machine().scopes


@pytest.mark.parametrize(("step", "labels"), [(3, ["epoch 1", "epoch 2"]), (4, ["epoch 2"])])
def test_a_fit_that_goes_on_from_a_checkpoint(tmp_path, step, labels):
    """Checkpoints are written and read as before; a fit that goes on in the middle of an epoch measures its rest."""
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    _, peaks = fit(tmp_path, Line(), checkpoint, enable_checkpointing=True)
    assert len(peaks.history) == 3
    again = PeakMemCallback()
    module = Line(training_step=lambda _: blip(60))
    run(trainer(tmp_path, again), module, ckpt_path=tmp_path / f"step={step}.ckpt")
    assert [record.label for record in again.history] == labels
    for record in again.history:
        near(record.memory(), (0, 60, 0, 0))
