"""A small training on the CPU, and whether an estimate of it left all as it was."""

import contextlib
import functools
import gc
import random
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import ipygpulogger

CACHE = {"seen": [], "best": torch.zeros(4)}
LAST = torch.ones(2)


class Model(nn.Module):
    """Tied weights, batch norm, dropout, a buffer that it replaces, and an attribute that it sets."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mean", torch.zeros(16))
        self.calls, self.kept = 0, None

    def forward(self, words):
        x = self.drop(self.norm(self.embedding(words)))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.calls, self.kept = self.calls + 1, x
        return self.head(x)


class Training:
    """A model and an optimizer with state, and a step that changes all that a step can."""

    def __init__(self, device="cpu"):
        self.model = Model().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.generator = torch.Generator()
        self.history, self.named = [], {"last": None}
        self.words = torch.randint(0, 50, (8,), device=device)
        self.raises = None  # an error that the step raises at its end
        self.step(self.words)

    def step(self, words):
        """One step of training."""
        global LAST  # noqa: PLW0603 - as notebooks do
        noise = torch.rand(3, generator=self.generator).sum() + random.random()
        noise = noise + np.random.rand()  # noqa: NPY002 - its state is what must not move
        loss = F.cross_entropy(self.model(words), words) + 0 * noise
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.history.append(loss.detach())
        self.named["last"] = CACHE["best"] = LAST = loss.detach()
        CACHE["seen"].append(words)
        if self.raises is not None:
            raise self.raises
        self.optimizer.zero_grad()
        self.model.head.weight.grad = torch.zeros_like(self.model.head.weight)
        return loss

    def state(self):
        """All that may change, so that two of them are equal only if nothing did."""
        model, optimizer = self.model, self.optimizer
        tensors = {f"model.{name}": one for name, one in (*model.named_parameters(), *model.named_buffers())}
        tensors |= {f"grad of {name}": one.grad for name, one in model.named_parameters()}
        for number, of_one in enumerate(optimizer.state.values()):
            tensors |= {f"optimizer {number}.{name}": one for name, one in of_one.items()}
        tensors |= {f"history {number}": one for number, one in enumerate(self.history)}
        tensors |= {"last": self.named["last"], "best": CACHE["best"], "global": LAST, "words": self.words}
        tensors |= {f"seen {number}": one for number, one in enumerate(CACHE["seen"])}
        tensors |= {"kept": model.kept}
        found = {name: _of_tensor(one) for name, one in tensors.items()}
        for name, module in model.named_modules():
            found[f"module {name}"] = {key: _of_value(value) for key, value in vars(module).items()}
        found["groups"] = [
            {key: _of_value(value) for key, value in group.items()} for group in optimizer.param_groups
        ]
        found["optimizer"] = [type(optimizer.state), *map(id, optimizer.state)]
        found["scheduler"] = {key: _of_value(value) for key, value in vars(self.scheduler).items()}
        found["own"] = self.generator.get_state().tolist()
        return found | surroundings()


def forget():
    """Have the globals hold nothing on a device."""
    global LAST  # noqa: PLW0603 - as above
    CACHE["seen"].clear()
    CACHE["best"] = LAST = torch.zeros(4)


def surroundings():
    """What of torch's, of Python's and of numpy's an estimate could leave changed."""
    c = torch._C
    found = {
        "torch's generator": torch.get_rng_state().tolist(),
        "Python's generator": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002 - as above
        "grad": torch.is_grad_enabled(),
        "autocast": (torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")),
        "modes": (c._len_torch_dispatch_stack(), c._len_torch_function_stack()),
        "defaults": (torch.get_default_dtype(), torch.get_default_device()),
        "trace": (sys.gettrace(), sys.getprofile()),
        "collector": (gc.isenabled(), gc.get_threshold()),
    }
    if torch.cuda.is_available():
        count = torch._C._cuda_getDeviceCount() if torch.cuda.is_initialized() else 0
        found["contexts"] = [torch._C._cuda_hasPrimaryContext(index) for index in range(count)]
        if any(found["contexts"]):
            found["cuda"] = torch.cuda.get_rng_state(0).tolist()
            found["allocations"] = torch.cuda.memory_stats(0).get("allocation.all.allocated")
    return found | {name: names_of(owner) for name, owner in _owners().items()}


def _owners():
    from torch._subclasses import fake_tensor
    from torch.optim import optimizer

    return {
        "torch": torch, "torch._C": torch._C, "torch.cuda": torch.cuda, "torch.Tensor": torch.Tensor,
        "Module": nn.Module, "Optimizer": torch.optim.Optimizer, "Adam": torch.optim.Adam,
        "optimizer": optimizer, "autograd": torch.autograd, "graph": torch.autograd.graph,
        "FakeTensor": fake_tensor.FakeTensor, "FakeTensorMode": fake_tensor.FakeTensorMode,
        "autocast": torch.amp.autocast_mode, "checkpoint": torch.utils.checkpoint, "random": torch.random,
        "cuda.random": torch.cuda.random, "memory": torch.cuda.memory, "Parameter": nn.Parameter,
        "functional": F, "hooks": {"post": optimizer._global_optimizer_post_hooks,
                                   "pre": optimizer._global_optimizer_pre_hooks},
    }  # fmt: skip


def names_of(owner):
    """What stands under each name, by identity; caches and counts left out."""
    names = owner if isinstance(owner, dict) else vars(owner)
    if isinstance(owner, dict):
        return {name: list(value) for name, value in names.items()}
    skipped = (int, float, set, dict, list)
    return {name: id(value) for name, value in list(names.items()) if not isinstance(value, skipped)}


def _of_tensor(tensor):
    if tensor is None:
        return None
    return (
        id(tensor), type(tensor), tensor.data_ptr(), tensor._version, tensor.detach().flatten().tolist(),
        tensor.requires_grad, str(tensor.device), id(tensor.grad_fn) if tensor.is_leaf else "",
    )  # fmt: skip


def _of_value(value):
    if isinstance(value, (dict, list)):
        return [type(value), *(map(id, value.values()) if isinstance(value, dict) else map(id, value))]
    return value if isinstance(value, (int, float, str)) else id(value)


def difference(before, after):
    """What changed."""
    return {
        name: (
            {key: (before[name].get(key), after[name].get(key))
             for key in {*before[name], *after[name]} if before[name].get(key) != after[name].get(key)}
            if isinstance(before.get(name), dict) and isinstance(after.get(name), dict)
            else (before.get(name), after.get(name))
        )
        for name in {*before, *after}
        if before.get(name) != after.get(name)
    }  # fmt: skip


class Estimating:
    """A scenario of `interrupt_injection`: a struck estimate leaves all as it was, and the next one is right."""

    def __init__(self, _):
        self.training = Training()
        self.estimate = functools.partial(
            ipygpulogger.estimate, self.training.step, self.training.words, capacity="1GB", batch_sizes=[4]
        )
        self.expected = self.estimate()
        self.go(lambda _: contextlib.nullcontext())
        gc.collect()
        gc.freeze()

    def go(self, phase):
        before = self.training.state()
        with phase("estimate"):
            try:
                self.estimate()
            except KeyboardInterrupt:
                pass
        problems = [
            f"changed: {str(changed)[:900]}"
            for changed in [difference(before, self.training.state())]
            if changed
        ]
        if not problems and self.estimate() != self.expected:
            problems.append("the next estimate differs")
        return problems
