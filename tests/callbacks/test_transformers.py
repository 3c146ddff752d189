"""transformers' PeakMemCallback, in real trainings on the CPU and on the simulated GPU."""

import json

import pytest
import torch
from epochs import GRAIN_MB, near, tensor
from memory import Block, blip
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from ipygpulogger.callbacks.transformers import PeakMemCallback
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("default", "error:.*is not measured")]

NAMES = ["mem_cpu_used_mb", "mem_cpu_peak_mb", "mem_gpu_used_mb", "mem_gpu_peak_mb"]


class Line(nn.Module):
    """A line through the origin, that does what a test says: told itself, and whether it is trained."""

    def __init__(self, does=lambda _: None):
        super().__init__()
        self.line, self.does = nn.Linear(1, 1), does

    def forward(self, x, labels):
        self.does(self.training)
        found = self.line(x)
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])}


class Watcher(TrainerCallback):
    """What an integration hears: it stands before the user's callbacks, as TensorBoard's does."""

    def __init__(self):
        self.heard, self.ended = [], False

    def on_train_begin(self, *_, **__):
        self.ended = False

    def on_log(self, _, state, __, logs=None, **___):
        assert NAMES[0] not in logs or not self.ended, "an integration is closed by now"
        self.heard.append({**logs, "step": state.global_step})

    def on_train_end(self, *_, **__):
        self.ended = True


class Does(TrainerCallback):
    """Something at some events of some epochs, counted from 0."""

    def __init__(self, epoch, event, do):
        def act(args, state, control, **_):
            if epoch in (round(state.epoch, 3), int(state.epoch)) or (
                event == "on_epoch_end" and state.epoch == epoch + 1
            ):
                do()

        setattr(self, event, act)


@pytest.fixture
def fit(tmp_path):
    """Train, and return the trainer, its peaks and what an integration heard."""

    def fit(does=lambda _: None, *callbacks, peaks=None, cpu=True, **options):
        usual = {
            "output_dir": str(tmp_path), "num_train_epochs": 3, "per_device_train_batch_size": 8,
            "eval_strategy": "epoch", "logging_strategy": "epoch", "save_strategy": "no",
            "report_to": "none", "use_cpu": cpu, "disable_tqdm": True,
        }  # fmt: skip
        arguments = TrainingArguments(**usual | options)
        arguments._n_gpu = min(1, arguments.n_gpu)  # one of the simulated two: no copies of the model
        peaks, watcher = peaks or PeakMemCallback(), Watcher()
        found = Trainer(
            model=Line(does), args=arguments, train_dataset=Numbers(), eval_dataset=Numbers(),
            callbacks=[watcher, peaks, *callbacks],
        )  # fmt: skip
        fit.trainer = found
        found.train()
        return found, peaks, watcher

    return fit


def figures(logs):
    """The four figures of each entry that has any."""
    return [tuple(entry[name] for name in NAMES) for entry in logs if NAMES[0] in entry]


def test_the_figures_are_logged_as_trainers_own(fit, capsys):
    """Printed, in `state.log_history` and heard by every integration, once per epoch under the epoch's own step."""
    kept = []
    found, peaks, watcher = fit(lambda training: training and (kept.append(Block(32)), blip(100)))
    truth = [tuple(record.memory()) for record in peaks.history]
    for figure in truth[1:]:
        near(figure, (64, 100, 0, 0))  # two steps
    history = found.state.log_history
    assert figures(history) == figures(watcher.heard) == truth
    assert [(e["epoch"], e["step"]) for e in history if NAMES[0] in e] == [(1.0, 2), (2.0, 4), (3.0, 6)]
    printed = [line for line in capsys.readouterr().out.splitlines() if NAMES[0] in line]
    assert len(printed) == 3
    assert all(f"'{name}': {figure}" in printed[2] for name, figure in zip(NAMES, truth[2], strict=True))
    json.dumps(history)  # as a checkpoint keeps it
    for block in kept:
        block.free()


def test_the_trainers_own_logs_stay_whole(fit):
    """Loss and evaluation are logged as without us, the summary comes last, and nothing asked for is lost."""
    without = fit(peaks=TrainerCallback())[0].state.log_history
    found = fit()[0].state.log_history
    assert [sorted(entry) for entry in found if NAMES[0] not in entry] == [sorted(entry) for entry in without]
    assert "train_runtime" in found[-1]
    assert sum("loss" in entry for entry in found) == 3


@pytest.mark.parametrize("eval_strategy", ["no", "epoch", "steps"])
def test_evaluation_belongs_to_the_epoch_it_follows(fit, eval_strategy):
    """`Trainer` evaluates after its on_epoch_end: that is in the figures of the epoch that ended, the last one's too."""
    evaluated = []

    def does(training):
        if not training:
            evaluated.append(blip(50 + 30 * (len(evaluated) // 2)))

    options = {"eval_steps": 2} if eval_strategy == "steps" else {}
    _, peaks, _ = fit(does, eval_strategy=eval_strategy, **options)
    assert len(evaluated) == (0 if eval_strategy == "no" else 6)  # two batches an epoch
    for record, peak in zip(peaks.history, (50, 80, 110) if evaluated else (0, 0, 0), strict=True):
        near((0, *record.memory()[1:]), (0, peak, 0, 0))


@pytest.mark.parametrize("event", ["on_step_begin", "on_step_end", "on_epoch_end"])
def test_what_other_callbacks_do_is_in_the_epoch(fit, event):
    """Whatever a callback does between an epoch's begin and the next belongs to it."""
    _, peaks, _ = fit(lambda _: None, Does(1, event, lambda: blip(90)))
    near(peaks.history[1].memory(), (0, 90, 0, 0))
    near(peaks.history[2].memory(), (0, 0, 0, 0))


def test_saving_belongs_to_the_epoch(fit):
    """A checkpoint is written as before, in its epoch, and a training goes on from it."""
    saved = Does(2, "on_save", lambda: blip(70))
    _, peaks, _ = fit(lambda _: None, saved, save_strategy="epoch", load_best_model_at_end=True)
    assert abs(peaks.history[1].memory().cpu_peak - 70) <= GRAIN_MB
    again = PeakMemCallback()
    fit(peaks=again, num_train_epochs=4, save_strategy="epoch", resume_from_checkpoint=None)
    fit.trainer.args.num_train_epochs = 5
    fit.trainer.train(resume_from_checkpoint=True)
    assert [record.label for record in again.history][-1] == "epoch 4"


@pytest.mark.parametrize("cpu", [False, True])
def test_the_trainers_own_device(fit, cuda, cpu):
    """The figures are those of the device it trains on, evaluation included; on the CPU they are 0."""
    kept = []

    def does(training):
        kept.append(tensor(16)) if training else tensor(80)

    _, peaks, watcher = fit(does, cpu=cpu)
    wanted = (0, 0) if cpu else (33, 80)  # two steps of 16.5 MB
    assert peaks.history[1].memory()[2:] == figures(watcher.heard)[1][2:] == wanted
    kept.clear()
    del fit.trainer


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("when", ["training", "evaluation"])
def test_an_interrupted_training_leaves_nothing(fit, error, when):
    """A training that dies is over at the next scope; its epoch is told nowhere, and the next training is whole."""
    calls = []

    def does(training):
        calls.append(training)
        if len(calls) > 4 and training == (when == "training"):
            raise error

    peaks = PeakMemCallback()
    with pytest.raises(error):
        fit(does, peaks=peaks)
    Scope().open().close()
    assert not machine().scopes
    assert [record.label for record in peaks.history] == ["epoch 0"]
    assert len(figures(fit.trainer.state.log_history)) == 1
    found, _, _ = fit(peaks=peaks, num_train_epochs=1)
    assert len(figures(found.state.log_history)) == 1
    assert not any(name in found.evaluate() for name in NAMES)  # evaluating alone is no epoch
    assert len(peaks.history) == 2
    assert not machine().scopes
