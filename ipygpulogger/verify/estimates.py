"""Five small models, estimated and then run on the device: what a simulated one cannot show.

An estimate without notes promises to be exact with torch's default allocator. One whose notes name what is
left out, such as cuDNN's workspaces, promises no bound: its error is shown and is no failure.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from ..blocks.measure import measure
from ..estimation.arguments import BACKEND
from ..estimation.estimate import estimate
from ..records import device_id
from ..records.units import MB, size_text
from ..runtime.errors import first_line, is_from_a_handler
from ..sources.torch import state as torch_state
from .check import Check, Figure, Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from .check import Label

    # From torch, the rows of a batch and the device: a model's forward pass, its parameters and the batch.
    Parts = Callable[[ModuleType, int, str], tuple[Callable[[Any], Any], Iterator[Any], Any]]

_MOST_BYTES = 400 * MB  # what the largest model takes; with less, each gets a part of its batch
_LEAST_BYTES = 120 * MB
_KEPT = 10  # a tenth of the device stays free
_SETTINGS = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"
_CASE = "{}: two steps of training"


def checks() -> list[Check]:
    """Return what `--estimate` runs."""
    return [Check("the estimates of five small models", _run)]


def _run() -> Iterator[Figure | Unchecked]:
    torch = _torch()
    if isinstance(torch, str):
        yield Unchecked("estimate", "five small models", torch)
        return
    index = torch.cuda.current_device()
    for name, (rows, parts) in _MODELS.items():
        with torch.random.fork_rng(devices=[index]):
            yield _checked(torch, index, name, rows, parts)
        _clear(torch)


def _torch() -> Any:
    """Return torch if it can use a device, else why it cannot."""
    try:
        import torch
    except Exception as error:  # it may be broken in any way
        if is_from_a_handler(error):
            raise
        return f"torch cannot be imported ({first_line(error)}): pip install torch"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device: ipygpulogger doctor says why"
    if not torch_state.caches():
        return "torch's caching allocator is off: unset PYTORCH_NO_CUDA_MEMORY_CACHING"
    return torch


def _checked(torch: ModuleType, index: int, name: str, rows: int, parts: Parts) -> Figure | Unchecked:
    where, case = device_id(BACKEND, index), _CASE.format(name)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    usable_bytes = free_bytes - total_bytes // _KEPT
    if usable_bytes < _LEAST_BYTES:
        return Unchecked(
            where,
            case,
            f"{size_text(free_bytes)} of {size_text(total_bytes)} are free, of which a tenth stays so:"
            " nvidia-smi shows what uses the rest",
        )
    rows = int(rows * min(1, usable_bytes / _MOST_BYTES))
    try:
        _steps(torch, *parts(torch, rows, where))()  # loads the kernels; its memory is free again
        _clear(torch)
        steps = _steps(torch, *parts(torch, rows, where))
    except Exception as error:  # cuDNN is broken, or others took the memory
        if is_from_a_handler(error):
            raise
        return Unchecked(where, case, f"the model does not run: {first_line(error)}")
    found = estimate(steps, device=index)
    with measure() as measured:
        steps()
    usage = next(gpu for gpu in measured.gpus if gpu.index == index)
    highest_bytes = usage.needed_at_most_bytes
    truth = usage.needed_bytes, float("inf") if highest_bytes is None else highest_bytes
    promised = not found.notes and not any(map(os.environ.get, _SETTINGS))
    needed_bytes = found.peak_bytes - found.held_bytes
    label: Label = "exact" if promised else "about"
    return Figure(where, case, "needed, estimated", truth, needed_bytes, needed_bytes, label)


def _steps(torch: ModuleType, forward: Any, parameters: Iterator[Any], batch: Any) -> Callable[[], None]:
    optimizer = torch.optim.Adam(parameters)

    def steps() -> None:
        for _ in range(2):  # the second one begins with the optimizer's state
            forward(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return steps


def _clear(torch: ModuleType) -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def _mlp(torch: ModuleType, rows: int, device: str) -> Any:
    nn, width = torch.nn, 1024
    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 10)).to(device)
    return model, model.parameters(), torch.randn(rows, width, device=device)


def _convolution(torch: ModuleType, rows: int, device: str) -> Any:
    nn = torch.nn
    first = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, 10)).to(device)
    return model, model.parameters(), torch.randn(rows, 3, 96, 96, device=device)


def _attention(torch: ModuleType, rows: int, device: str) -> Any:
    model = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True).to(device)
    return model, model.parameters(), torch.randn(rows, 128, 256, device=device)


def _lstm(torch: ModuleType, rows: int, device: str) -> Any:
    model = torch.nn.LSTM(128, 256, 2, batch_first=True).to(device)
    return lambda batch: model(batch)[0], model.parameters(), torch.randn(rows, 16, 128, device=device)


def _embedding(torch: ModuleType, rows: int, device: str) -> Any:
    nn, words = torch.nn, 20_000
    model = nn.Sequential(nn.Embedding(words, 256), nn.Linear(256, 256)).to(device)
    return model, model.parameters(), torch.randint(words, (rows, 128), device=device)


_MODELS: dict[str, tuple[int, Parts]] = {  # with the rows of a batch
    "MLP": (8192, _mlp),
    "convolution": (32, _convolution),
    "attention": (64, _attention),
    "LSTM": (256, _lstm),
    "embedding": (128, _embedding),
}
