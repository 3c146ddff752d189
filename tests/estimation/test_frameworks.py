"""`estimate` of whole trainings in frameworks: the figure of the device, and the model is as it was."""

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ipygpulogger import estimate

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("default", "error:.*is not measured")]
WIDTH = 512


def same(model, fn, *args, **kwargs):
    """Estimate, and check that no parameter, gradient, buffer or version of the model has changed."""

    def state():
        held = [*model.named_parameters(), *model.named_buffers()]
        return [(name, id(one), type(one), one.device, one._version, one.grad) for name, one in held]

    before, values = state(), [one.detach().cpu().clone() for one in model.state_dict().values()]
    found = estimate(fn, *args, **kwargs)
    assert state() == before
    assert all(map(torch.equal, [one.cpu() for one in model.state_dict().values()], values))
    return found


@pytest.fixture
def device(cuda):
    """The device, without what real runs keep on it: the workspaces of libraries."""
    yield cuda
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()


def peak(fn, *args):
    """Return what a real run takes at its peak, without what was there before of others."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    fn(*args)
    return torch.cuda.max_memory_allocated()


def wide():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 8))


def rows(count=512):
    return torch.utils.data.TensorDataset(torch.rand(count, WIDTH), torch.zeros(count, dtype=torch.long))


def learner(folder, device, model, kind=None):
    """Return fastai's Learner with batches of images, TensorBase all of them."""
    importlib.import_module("fastai.callback.progress")  # gives a Learner `no_bar`
    importlib.import_module("fastai.callback.fp16")
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader
    from fastai.learner import Learner
    from fastai.losses import CrossEntropyLossFlat
    from fastai.torch_core import TensorCategory, TensorImage

    data = [((kind or TensorImage)(torch.rand(WIDTH)), TensorCategory(torch.tensor(0))) for _ in range(64)]
    loaders = DataLoaders(DataLoader(data, bs=32, device=device), DataLoader(data, bs=32, device=device))
    return Learner(loaders, model, loss_func=CrossEntropyLossFlat(), path=folder)


def fit(learn, half=False):
    learn = learn.to_fp16() if half else learn
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_fastai(device, tmp_path, place, half):
    """`Learner.fit`: its images, categories and losses are of subclasses of torch's tensor."""
    model = wide().to(place)
    found = same(model, fit, learner(tmp_path, place, model), half)
    before = torch.cuda.memory_allocated()
    on_the_device = model.to("cuda:0")
    held = torch.cuda.memory_allocated() if place == "cpu" else before
    weights = sum(one.numel() * 4 for one in model.parameters())
    real = peak(fit, learner(tmp_path, "cuda:0", on_the_device), half) - (held - weights)
    assert found.peak_bytes == pytest.approx(real, rel=0.03, abs=1 << 20)


def test_subclasses(device):
    """Tensors of one are plain ones, which a note says; one that handles operators itself is refused."""

    class Mine(torch.Tensor):
        pass

    class Other(torch.Tensor):
        def __torch_dispatch__(self, *_):
            return NotImplemented

    model, x = wide(), torch.rand(64, WIDTH)

    def step(x):
        model(x.as_subclass(Mine) + x).sum().backward()

    found = same(model, step, x.as_subclass(Mine))
    assert found.peak_bytes == same(model, step, x).peak_bytes
    assert "Tensors of Mine are plain ones in an estimate." in found.notes
    with pytest.raises(RuntimeError, match="Other handles operators itself"):
        estimate(step, x.as_subclass(Other))


@pytest.mark.parametrize("accelerator", ["gpu", "cpu"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_lightning(device, accelerator, precision):
    """`Trainer.fit` asks a tensor on the device for the number of batches, which is known."""
    import lightning

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = wide()

        def training_step(self, batch, _):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    model, loader = Line(), torch.utils.data.DataLoader(rows(), batch_size=256)
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    how = {"max_epochs": 1, "devices": 1, "precision": precision, **quiet}
    trainer = lightning.Trainer(accelerator=accelerator, **how)
    found = same(model, trainer.fit, model, loader)
    before = torch.cuda.memory_allocated()
    real = peak(lightning.Trainer(accelerator="gpu", **how).fit, model, loader) - before
    assert found.peak_bytes == pytest.approx(real, rel=0.03, abs=1 << 20)


def test_a_number_on_the_device_is_forgotten_when_it_is_written_to(device):
    """What was moved from the CPU is known until an operator changes it."""
    model = wide().cuda()

    def known():
        count = torch.tensor(3, device="cuda:0")
        if count == 3 and count.item() == 3:
            model(torch.empty(8, WIDTH, device="cuda:0"))

    def written(change):
        count = torch.tensor(3, device="cuda:0")
        change(count, (model(torch.empty(8, WIDTH, device="cuda:0")) > 0).sum())
        return bool(count > 3)

    assert same(model, known).peak_bytes
    for change in (
        lambda count, other: count.add_(other),
        lambda count, other: count.copy_(other),
        lambda count, other: torch.add(other, 1, out=count),
        lambda count, other: count.view(1).add_(other),
        lambda count, other: torch._foreach_add_([count], [other]),
    ):
        with pytest.raises(RuntimeError, match="depends on the value of a tensor"):
            estimate(written, change)


ALONE = """
import sys, torch
sys.path[:0] = [sys.argv[1]]
import test_frameworks
getattr(test_frameworks, sys.argv[2])(sys.argv[3])
assert not torch.cuda.is_initialized()
"""


@pytest.mark.parametrize("framework", ["trainer_bert", "trainer_gpt2", "accelerated", "fastai_alone"])
def test_without_a_gpu(kernel_env, tmp_path, framework):
    """A framework that has chosen the CPU, on a machine without a GPU, is estimated as on the device."""
    env = {**kernel_env, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    told = [sys.executable, "-c", ALONE, str(Path(__file__).parent), framework, str(tmp_path)]
    done = subprocess.run(told, env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]


def whole(found, model):
    """Check that all of a training is on the device, Adam's state of the first of two steps included."""
    weights = sum(one.numel() * 4 for one in model.parameters())
    assert found.peak_bytes > 3 * weights
    assert {"parameters", "optimizer state"} <= {row.kind for row in found.at_peak}


def trained(folder, model, data):
    from transformers import Trainer, TrainingArguments

    options = TrainingArguments(folder, max_steps=2, report_to=[], save_strategy="no", disable_tqdm=True)
    whole(same(model, Trainer(model, options, train_dataset=data).train), model)


def trainer_bert(folder):
    """Hugging Face's `Trainer.train`, whose sum of losses is on the device that it has chosen."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(vocab_size=9000, **sizes))
    words = torch.zeros(16, dtype=torch.long)
    data = [{"input_ids": words, "attention_mask": words + 1, "labels": torch.tensor(1)}] * 16
    trained(folder, model, data)


def trainer_gpt2(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9000, n_embd=64, n_layer=2, n_head=2, n_positions=32))
    words = torch.zeros(16, dtype=torch.long)
    trained(folder, model, [{"input_ids": words, "labels": words}] * 16)


def accelerated(_):
    from accelerate import Accelerator

    model, loader = wide(), torch.utils.data.DataLoader(rows(), batch_size=64)
    accelerator = Accelerator(mixed_precision="bf16")
    ready, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)

    def epoch():
        for x, y in batches:
            accelerator.backward(F.cross_entropy(ready(x), y))
            optimizer.step()
            optimizer.zero_grad()

    whole(same(model, epoch), model)


def fastai_alone(folder):
    """Fastai's optimizer is none of torch's, so its state is told as another kind; it is counted as well."""
    model = wide()
    found = same(model, fit, learner(folder, "cpu", model))
    assert found.peak_bytes > 3 * sum(one.numel() * 4 for one in model.parameters())
