"""Five small models, estimated and then run on the device: what a simulated one cannot show.

An estimate without notes promises to be exact with torch's default allocator. One whose notes name what is
left out, such as cuDNN's workspaces, promises no bound: its error is shown, and is no failure.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..blocks.measure import measure
from ..estimation.estimate import estimate
from ..records import device_id
from ..records.units import MB, size_text
from ..runtime.errors import first_line
from ..sources.torch import state as torch_state
from .check import Check, Figure, Label, Unchecked

_MOST_BYTES = 400 * MB  # that a model takes, at most
_MODELS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {  # with the shape of a batch
    "MLP": ((8192, 1024), lambda nn: nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 10))),
    "convolution": ((16, 3, 96, 96), lambda nn: nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))),
    "attention": ((64, 128, 256), lambda nn: nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)),
    "LSTM": ((256, 16, 128), lambda nn: nn.LSTM(128, 256, 2, batch_first=True)),
    "embedding": ((128, 128), lambda nn: nn.Sequential(nn.Embedding(20_000, 256), nn.Linear(256, 256))),
}


def checks() -> list[Check]:
    """Return what `--estimate` runs."""
    return [Check("the estimates of five small models", _run)]


def _run() -> Iterator[Figure | Unchecked]:
    torch = torch_state.module()
    if torch is None or not torch.cuda.is_available() or not torch_state.caches():
        why = "it needs PyTorch with a CUDA device and its cache: ipygpulogger doctor says what is missing"
        yield Unchecked("cuda", "estimates", why)
        return
    for name in _MODELS:
        try:
            with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
                yield _checked(torch, torch.cuda.current_device(), name)
        finally:
            _clear(torch)


def _checked(torch: ModuleType, index: int, name: str) -> Figure | Unchecked:
    where, case = device_id("cuda", index), f"{name}: two steps of training"
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    if free_bytes - total_bytes // 10 < _MOST_BYTES:
        why = f"only {size_text(free_bytes)} of it are free: nvidia-smi shows what uses the rest"
        return Unchecked(where, case, why)
    try:
        _training(torch, where, name)()  # loads the kernels; its memory is free again
        _clear(torch)
        training = _training(torch, where, name)
    except Exception as error:  # cuDNN is broken, or others took the memory
        return Unchecked(where, case, f"the model does not run: {first_line(error)}")
    found = estimate(training, device=index)
    with measure() as measured:
        training()
    usage = next(gpu for gpu in measured.gpus if gpu.index == index)
    if usage.peak.quality != "exact":
        return Unchecked(where, case, "what it needed is not known exactly: something else resets the peaks")
    truth, needed_bytes = (usage.needed_bytes, usage.needed_bytes), found.peak_bytes - found.held_bytes
    promised = not found.notes and not any(name.endswith("ALLOC_CONF") for name in os.environ)
    label: Label = "exact" if promised else "about"
    return Figure(where, case, "needed, estimated", truth, needed_bytes, needed_bytes, label)


def _training(torch: ModuleType, device: str, name: str) -> Callable[[], None]:
    shape, build = _MODELS[name]
    dtype = torch.long if name == "embedding" else torch.float32
    model, batch = build(torch.nn).to(device), torch.ones(shape, dtype=dtype).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def training() -> None:
        for _ in range(2):  # the second step begins with the optimizer's state
            out = model(batch)
            (out[0] if name == "LSTM" else out).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return training


def _clear(torch: ModuleType) -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
