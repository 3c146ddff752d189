"""torch's functions that are others while a function is estimated, for its thread: as on the device.

torch's functions are attributes of its modules, which all threads share. For other threads, which may train
or save a checkpoint, they stay as they were.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from copy import copy
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

from . import kernels
from .fake_tensors import dispatch_mode, methods, really
from .values import EstimateError, is_called_by_user, user_line, written

if TYPE_CHECKING:
    from ..allocator.caching_allocator import CachingAllocator
    from ..allocator.places import Frame
    from .fake_map import FakeMap
    from .operators import Operators

_NAME = "estimated device"
_TOTAL_BYTES = 80 << 30
_NOTHING = (  # functions that do nothing
    "synchronize set_device set_device_index set_device_idx set_stream ipc_collect init _lazy_init _lazy_call"
    " manual_seed seed manual_seed_all seed_all set_rng_state set_rng_state_all reset_max_memory_allocated"
    " reset_accumulated_memory_stats set_per_process_memory_fraction reset_peak_memory_stats"
)


class Patches(contextlib.ExitStack):
    """Attributes of torch that are replaced within, for the thread that runs the function."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.current_thread()

    def only(self, new: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is a new one for this thread, and the original one for the others."""

        @functools.wraps(original, updated=())
        def either(*args: Any, **kwargs: Any) -> Any:
            return (new if threading.current_thread() is self._thread else original)(*args, **kwargs)

        return either

    def put(self, holder: Any, name: str, new: Any) -> None:
        """Replace an attribute, or add it, for all threads."""
        self.enter_context(mock.patch.object(holder, name, new, create=True))

    def answer(self, holder: Any, name: str, new: Any) -> None:
        """Replace a function, if there is one, for this thread."""
        if (old := getattr(holder, name, None)) is not None:
            self.put(holder, name, self.only(new, old))

    def replace(self, holder: Any, name: str, new: Callable[..., Any], *first: Any) -> None:
        """Replace a function, if there is one, for this thread: the new one is given the original first."""
        self.answer(holder, name, functools.partial(new, *first, getattr(holder, name, None)))


@contextlib.contextmanager
def patched(
    torch: ModuleType, operators: Operators, backward: Callable[..., Any], fakes: FakeMap
) -> Iterator[Patches]:
    """Have torch answer as if the device were there, and put everything back."""
    from torch._subclasses import fake_tensor

    device = operators.device
    with Patches() as patches:
        patches.put(fake_tensor, "init_gpu_context", lambda _: None)
        patches.put(fake_tensor.log, "disabled", True)  # of shapes that do not match: the error says it
        patches.replace(fake_tensor, "run_fallback_kernel", kernels.none_on_a_device)
        for name, new in methods(torch, device.index, operators).items():
            patches.put(fake_tensor.FakeTensor, name, new)
        for name, new in _answers(torch, device.index, operators.allocator).items():
            for module in (torch.cuda, getattr(torch, "accelerator", None)):
                patches.answer(module, name, new)
        for kind in (torch.cuda.Stream, torch.cuda.ExternalStream, torch.cuda.Event):
            patches.answer(kind, "__new__", lambda *_, **__: _Quiet())
        for name in ("tensor", "as_tensor", "asarray"):
            patches.replace(torch, name, operators.placing)
        for holder in (torch._VF, torch):
            patches.replace(holder, "dropout", kernels.dropout, torch)
        for holder in (torch._C._nn, torch.nn.functional):
            patches.replace(holder, "one_hot", kernels.one_hot)
            patches.replace(holder, "linear", kernels.linear, torch)
            patches.replace(holder, "scaled_dot_product_attention", kernels.attention, torch)
        patches.replace(torch, "set_autocast_enabled", operators.reporting.setting_autocast)
        _replace_for_fakes(patches, torch, fakes, backward)
        _replace_loaders(patches, torch, device if operators.all_on_device else "cpu")
        patches.replace(threading.Thread, "start", _started, operators.started)
        patches.replace(futures.ThreadPoolExecutor, "submit", _started, operators.started)
        patches.answer(torch.serialization, "_open_zipfile_writer", _unsaved)
        yield patches


class _Quiet:
    """A stream or an event: it waits for nothing."""

    cuda_stream = device_index = 0
    device = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = {"elapsed_time": 1.0, "is_capturing": False}.get(name, True)
        return lambda *_, **__: answer


def _answers(torch: ModuleType, index: int, allocator: CachingAllocator) -> dict[str, Any]:
    """Return the functions of `torch.cuda` and `torch.accelerator` by name, for the device of an index."""
    properties = types.SimpleNamespace(
        name=_NAME, major=8, minor=0, total_memory=_TOTAL_BYTES, multi_processor_count=108, warp_size=32,
        L2_cache_size=40 << 20, shared_memory_per_block=48 << 10, gcnArchName=_NAME, uuid=_NAME,
    )  # fmt: skip
    constants: dict[str, Any] = {
        **dict.fromkeys(("is_available", "is_bf16_supported"), True),
        **dict.fromkeys(("is_initialized", "is_current_stream_capturing"), False),
        **dict.fromkeys(("current_device", "current_device_index", "current_device_idx"), index),
        **dict.fromkeys(("_exchange_device", "_maybe_exchange_device"), index),
        **dict.fromkeys(("current_stream", "default_stream"), _Quiet()),
        **dict.fromkeys(_NOTHING.split()),
        "device_count": index + 1,
        "get_device_capability": (8, 0),
        "get_device_name": _NAME,
        "get_device_properties": properties,
        "initial_seed": 0,
        "memory_stats": {},
        "memory_summary": "",
        "current_accelerator": torch.device("cuda"),
    }
    return {
        **{name: lambda *_, answer=answer, **__: answer for name, answer in constants.items()},
        "stream": lambda _: contextlib.nullcontext(),
        "memory_allocated": lambda *_: allocator.allocated_bytes,
        "max_memory_allocated": lambda *_: allocator.peak_bytes,
        "memory_reserved": lambda *_: allocator.reserved_bytes,
        "max_memory_reserved": lambda *_: allocator.peak_reserved_bytes,
        "mem_get_info": lambda *_: (_TOTAL_BYTES - allocator.reserved_bytes, _TOTAL_BYTES),
        "empty_cache": allocator.empty_cache,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8) for _ in range(index + 1)],
    }


def _replace_for_fakes(
    patches: Patches, torch: ModuleType, fakes: FakeMap, backward: Callable[..., Any]
) -> None:
    """Replace what does not ask Python before it takes a tensor."""
    from torch._functorch import eager_transforms, vmap
    from torch.optim import optimizer

    patches.replace(torch.autograd, "_engine_run_backward", fakes.engine, backward)
    patches.replace(torch._C, "_group_tensors_by_device_and_dtype", fakes.mapping)
    patches.answer(torch, "as_subclass", lambda tensor, _: tensor.view_as(tensor))
    for holder in (torch._C._functorch, eager_transforms, vmap):  # modules that imported them by name
        for name in ("_wrap_for_grad", "_add_batch_dim"):
            patches.replace(holder, name, fakes.mapping)
    apply = vars(torch.autograd.Function)["apply"].__func__
    of_fakes = patches.only(functools.partial(fakes.mapping, apply), apply)
    patches.put(torch.autograd.Function, "apply", classmethod(of_fakes))
    for name in ("_apply", "__setattr__", "__delattr__", "register_buffer", "register_parameter"):
        patches.replace(torch.nn.Module, name, fakes.meeting)
    # The lists of what can be computed together have the exact classes.
    supported = [*optimizer._foreach_supported_types, torch._subclasses.FakeTensor]
    patches.put(optimizer, "_foreach_supported_types", supported)
    # Fake modes keep weak references to parameters, which `Module.to` swaps.
    patches.replace(torch.utils, "swap_tensors", fakes.swapping)
    patches.answer(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    patches.put(torch.utils, "weakref", types.SimpleNamespace(getweakrefs=lambda _: ()))


# -- loaders and files


def _replace_loaders(patches: Patches, torch: ModuleType, place: Any) -> None:
    """Have data loaders read real samples in this process, and give fake batches."""
    from torch.utils.data import dataloader
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    def iterator(_: Callable[..., Any], loader: Any) -> Any:
        single = copy(loader)
        vars(single).update(num_workers=0, timeout=0)  # processes would have no fake tensors
        with really(torch):
            return dataloader._SingleProcessDataLoaderIter(single)

    def next_index(original: Callable[..., Any], one: Any) -> Any:
        with really(torch):  # samplers draw numbers
            return original(one)

    patches.replace(dataloader.DataLoader, "_get_iterator", iterator)
    patches.replace(dataloader._BaseDataLoaderIter, "_next_index", next_index)
    patches.replace(_MapDatasetFetcher, "fetch", _fetch, torch, place)


class _FakeError(Exception):
    """The samples have to be fake ones: they are on a device, or a tensor of the user's would change."""


def _fetch(torch: ModuleType, place: Any, original: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
    """Call `_MapDatasetFetcher.fetch` on real samples, as fake ones take long; the batch is a fake one."""
    made: list[Any] = []
    pytree, fake = torch.utils._pytree, torch._subclasses.FakeTensor

    def faked(one: Any) -> Any:
        return torch.empty_strided(tuple(one.size()), tuple(one.stride()), dtype=one.dtype, device=place)

    def on_the_cpu(func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        own = {one.untyped_storage()._cdata for one in made}
        if (
            any(isinstance(one, fake) or one.device.type != "cpu" for one in tensors)
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
    return pytree.tree_map_only(torch.Tensor, faked, batch)


def _unsaved(*_: Any) -> Any:
    """Open no file for `torch.save`: it would be emptied."""
    why = "the tensors have no values to write, and the file is left as it is"
    raise EstimateError(f"torch.save at {written(user_line())} cannot be estimated: {why}")


def _started(lines: list[Frame], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Start a library's work in another thread, for which torch is as it was; refuse the user's."""
    if is_called_by_user():
        raise EstimateError(f"{written(user_line())} cannot be estimated: it starts work in another thread")
    lines.append(user_line())
    return original(*args, **kwargs)
