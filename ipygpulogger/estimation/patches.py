"""torch's functions that are others while a function is estimated; those of loaders and files are here."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from concurrent import futures
from typing import TYPE_CHECKING, Any

from . import cuda
from .fake_tensors import as_subclass, dispatch_mode, methods, of_kind, really
from .values import EstimateError, user_line, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from .fake_map import FakeMap
    from .operators import Operators
    from .threads import OwnThreads

_MISSING = object()


class Patches:
    """Attributes of torch that are ours for a while."""

    def __init__(self, threads: OwnThreads) -> None:
        self.only = threads.only
        self._undo: list[tuple[Any, str, Any]] = []

    def put(self, holder: Any, name: str, new: Any) -> None:
        """Replace an attribute, or add it, for all threads."""
        self._undo.append((holder, name, vars(holder).get(name, _MISSING)))
        setattr(holder, name, new)

    def answer(self, holder: Any, name: str, new: Any) -> None:
        """Replace a function or a class, if there is one, for own threads."""
        if (old := getattr(holder, name, None)) is not None:
            self.put(holder, name, self.only(new, old))

    def replace(self, holder: Any, name: str, new: Callable[..., Any], *first: Any) -> None:
        """Replace a function, if there is one, for own threads: the new one is given the original first."""
        if (old := getattr(holder, name, None)) is not None:
            self.answer(holder, name, functools.partial(new, *first, old))

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
    torch: ModuleType, device: Any, operators: Operators, backward: Callable[..., Any], fakes: FakeMap
) -> Iterator[None]:
    """Have torch answer as if the device were there, and put everything back."""
    from torch._subclasses import fake_tensor

    patches = Patches(operators.threads)
    try:
        patches.put(fake_tensor, "init_gpu_context", lambda _: None)
        patches.put(fake_tensor.log, "disabled", True)  # of shapes that do not match: the error says it
        patches.replace(fake_tensor, "run_fallback_kernel", cuda.none_on_a_device)
        for name, new in methods(torch, device.index, operators).items():
            patches.put(fake_tensor.FakeTensor, name, new)
        for module, answers in cuda.answers(torch, device.index, operators.allocator).items():
            for name, new in answers.items():
                patches.answer(module, name, new)
        for name in ("tensor", "as_tensor", "asarray"):
            patches.replace(torch, name, operators.placing)
        for holder in (torch._VF, torch):
            patches.replace(holder, "dropout", cuda.dropout, torch)
        for holder in (torch._C._nn, torch.nn.functional):
            patches.replace(holder, "one_hot", cuda.one_hot)
            for new in (cuda.linear, cuda.scaled_dot_product_attention):
                patches.replace(holder, new.__name__, new, torch)
        patches.replace(torch, "set_autocast_enabled", operators.reporting.setting_autocast)
        _replace_for_fakes(patches, torch, fakes, backward)
        _replace_loaders(patches, torch, device if operators.all_on_device else "cpu")
        patches.replace(threading.Thread, "start", operators.threads.noted)
        patches.replace(futures.ThreadPoolExecutor, "submit", operators.threads.submitted)
        for name in ("_open_zipfile_writer", "_open_file_like"):
            patches.replace(torch.serialization, name, unsaved)
        yield
    finally:
        patches.put_back()


def _replace_for_fakes(
    patches: Patches, torch: ModuleType, fakes: FakeMap, backward: Callable[..., Any]
) -> None:
    """Replace what does not ask Python before it takes a tensor, and what would change torch's allocator."""
    from torch._functorch import eager_transforms, vmap
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer

    for holder, name in (
        (torch.cuda.memory, "_record_memory_history"),
        (torch.cuda.memory, "_set_allocator_settings"),
        (torch._C, "_accelerator_setAllocatorSettings"),
        (torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings"),
    ):
        patches.answer(holder, name, lambda *_, **__: None)
    patches.replace(torch.autograd, "_engine_run_backward", fakes.engine, backward)
    patches.replace(torch._C, "_group_tensors_by_device_and_dtype", fakes.mapping)
    patches.replace(torch, "as_subclass", lambda old, *args: fakes.mapping(as_subclass, old, *args))
    for holder in (torch._C._functorch, eager_transforms, vmap):  # modules that imported them by name
        for name in ("_wrap_for_grad", "_add_batch_dim"):
            patches.replace(holder, name, fakes.mapping)
    apply = vars(torch.autograd.Function)["apply"].__func__
    of_fakes = patches.only(functools.partial(fakes.mapping, apply), apply)
    patches.put(torch.autograd.Function, "apply", classmethod(of_fakes))
    for name in ("_apply", "__setattr__", "__delattr__", "register_buffer", "register_parameter"):
        patches.replace(torch.nn.Module, name, fakes.meeting)
    # The lists of what can be computed together have the exact classes.
    supported = [*optimizer._foreach_supported_types, FakeTensor]
    patches.put(optimizer, "_foreach_supported_types", supported)
    # Fake modes keep weak references to parameters, which `Module.to` swaps.
    patches.replace(torch.utils, "swap_tensors", fakes.swapping)
    patches.answer(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    patches.put(torch.utils, "weakref", types.SimpleNamespace(getweakrefs=lambda _: ()))


def _replace_loaders(patches: Patches, torch: ModuleType, place: Any) -> None:
    """Have data loaders read real samples in this process, and give fake batches."""
    from torch.utils.data import dataloader
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    patches.replace(dataloader.DataLoader, "_get_iterator", iterator, torch)
    patches.replace(dataloader._BaseDataLoaderIter, "_next_index", next_index, torch)
    patches.replace(_MapDatasetFetcher, "fetch", fetch, torch, place)


def iterator(torch: ModuleType, _: Callable[..., Any], loader: Any) -> Any:
    """Do what `DataLoader._get_iterator` does, without workers: processes would have no fake tensors."""
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    own = {name: vars(loader)[name] for name in ("num_workers", "timeout") if name in vars(loader)}
    vars(loader).update(dict.fromkeys(own, 0))
    try:
        with really(torch):
            return _SingleProcessDataLoaderIter(loader)
    finally:
        vars(loader).update(own)


def next_index(torch: ModuleType, original: Callable[..., Any], one: Any) -> Any:
    """Call `_BaseDataLoaderIter._next_index` on real tensors: samplers draw numbers."""
    with really(torch):
        return original(one)


class _FakeError(Exception):
    """The samples have to be fake ones: they are on a device, or a tensor of the user's would change."""


def fetch(torch: ModuleType, place: Any, original: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
    """Call `_MapDatasetFetcher.fetch` on real samples, as fake ones take long; the batch is a fake one."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _pytree

    made: list[Any] = []

    def faked(one: Any) -> Any:
        made = torch.empty_strided(tuple(one.size()), tuple(one.stride()), dtype=one.dtype, device=place)
        return of_kind(made, type(one))

    def on_the_cpu(func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        own = {one.untyped_storage()._cdata for one in made}
        if (
            any(isinstance(one, FakeTensor) or one.device.type != "cpu" for one in tensors)
            or (func._schema.is_mutable and any(one.untyped_storage()._cdata not in own for one in tensors))
            or getattr(kwargs.get("device"), "type", "cpu") != "cpu"
        ):
            raise _FakeError
        with torch.utils._mode_utils.no_dispatch():
            out = func(*args, **kwargs)
        if func._opname.startswith(("empty", "zeros", "ones", "rand", "full", "clone", "_to_copy", "stack")):
            made.append(out)
        return out

    try:
        with torch._C.DisableTorchFunction(), dispatch_mode(on_the_cpu):
            batch = original(fetcher, indices)
    except _FakeError:
        return original(fetcher, indices)
    return _pytree.tree_map_only(torch.Tensor, faked, batch)


def unsaved(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Open a file for `torch.load`, and none for `torch.save`: it would be emptied."""
    if original.__name__ == "_open_zipfile_writer" or "w" in args[1]:
        raise EstimateError(
            f"torch.save at {written(user_line())} cannot be estimated: the tensors have no values to"
            " write, and the file is left as it is"
        )
    return original(*args, **kwargs)
