"""torch's functions that ask for the device, and what they answer while a function is estimated."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from typing import TYPE_CHECKING, Any

from .cuda_answers import accelerator_answers, answers
from .cuda_operators import RECURRENT, dropout, linear, one_hot, recurrent, scaled_dot_product_attention
from .fake_tensors import Methods
from .fallbacks import none_on_a_device
from .loaders import iterator, next_index
from .saving import Saving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from .fake_tensors import Answers
    from .operators import Operators
    from .own_threads import OwnThreads

_MISSING = object()


class Patches:
    """Attributes of torch that are ours for a while.

    Args:
        threads: Those for which functions are replaced.
    """

    def __init__(self, threads: OwnThreads) -> None:
        self._threads = threads
        self._undo: list[tuple[Any, str, Any]] = []

    def put(self, holder: Any, name: str, new: Any) -> None:
        """Replace an attribute, or add it, for all threads."""
        self._undo.append((holder, name, vars(holder).get(name, _MISSING)))
        setattr(holder, name, new)

    def put_made(self, holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute, if there is one, for all threads by one that is made of it."""
        if (old := getattr(holder, name, None)) is not None:
            self.put(holder, name, make(old))

    def replace(self, holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function, if there is one, for own threads by one that is made of it."""
        self.put_made(holder, name, lambda old: self._threads.only(make(old), old))

    def put_back(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            holder, name, old = self._undo[-1]
            if old is not _MISSING:
                setattr(holder, name, old)
            elif name in vars(holder):
                delattr(holder, name)
            self._undo.pop()


@contextlib.contextmanager
def patched(
    torch: ModuleType, device: Any, operators: Operators, backward: Callable[[Any], Any]
) -> Iterator[None]:
    """Have torch answer as if the device were there, and put everything back."""
    from torch._subclasses import fake_tensor
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    patches, saving = Patches(operators.threads), Saving(torch, operators.threads)
    try:
        patches.put(fake_tensor, "init_gpu_context", lambda _: None)
        patches.replace(fake_tensor, "run_fallback_kernel", none_on_a_device)
        patches.put(fake_tensor.log, "disabled", True)  # of shapes that do not match: the error says it
        for name, new in Methods(torch, device.index, operators).all().items():
            patches.put(fake_tensor.FakeTensor, name, new)
        of_cuda = answers(torch, device.index, operators.allocator)
        told = {torch.cuda: of_cuda}
        if hasattr(torch, "accelerator"):
            told[torch.accelerator] = accelerator_answers(torch, device.index, of_cuda)
        for module, found in told.items():
            for name, new in found.items():
                patches.replace(module, name, functools.partial(_always, new))
        patches.replace(torch.autograd, "_engine_run_backward", backward)
        # The lists of what can be computed together have the exact classes.
        patches.put_made(optimizer, "_foreach_supported_types", lambda old: [*old, fake_tensor.FakeTensor])
        # Fake modes keep weak references to parameters, which `Module.to` swaps.
        patches.replace(torch.utils, "swap_tensors", operators.swapping)
        patches.put(torch.utils, "weakref", types.SimpleNamespace(getweakrefs=lambda _: ()))
        patches.replace(dataloader.DataLoader, "_get_iterator", functools.partial(iterator, torch))
        patches.replace(dataloader._BaseDataLoaderIter, "_next_index", functools.partial(next_index, torch))
        patches.replace(threading.Thread, "start", operators.threads.noted)
        patches.put_made(torch.serialization, "_open_zipfile_writer", saving.open_zip)
        patches.put_made(torch.serialization, "_open_file_like", saving.open_file)
        for holder in (torch._VF, torch):
            patches.replace(holder, "dropout", functools.partial(dropout, torch))
        for name, shown in RECURRENT.items():
            patches.replace(torch._VF, name, functools.partial(recurrent, operators, shown))
        for holder in (torch._C._nn, torch.nn.functional):
            patches.replace(holder, "one_hot", functools.partial(one_hot, torch))
            for make in (linear, scaled_dot_product_attention):
                patches.replace(holder, make.__name__, functools.partial(make, torch))
        yield
    finally:
        patches.put_back()


@contextlib.contextmanager
def autocast_followed(
    torch: ModuleType, told: Answers, threads: OwnThreads, *, follow: bool
) -> Iterator[None]:
    """Know whether autocast is on for CUDA: torch answers False while it casts."""
    patches, before = Patches(threads), torch.is_autocast_enabled("cuda")

    def make(old: Any) -> Any:
        def set_autocast_enabled(*args: Any) -> None:
            if len(args) == 1 or args[0] == "cuda":
                told.autocast = follow and bool(args[-1])
            old(*args)

        return set_autocast_enabled

    try:
        told.autocast = follow and before
        patches.replace(torch, "set_autocast_enabled", make)
        yield
    finally:
        patches.put_back()
        torch.set_autocast_enabled("cuda", before)


def _always(new: Any, _: Any) -> Any:
    return new
