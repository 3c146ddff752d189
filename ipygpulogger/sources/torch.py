"""torch: the allocator's own counters on every `torch.accelerator` device, exact and resettable.

Nothing here imports torch, except `load`, or creates a context, except `preload`, which does so on the
device that torch would use, once torch is imported.

Resetting the allocator's peaks resets them for everybody, so from the first reset on the user reads
them through wrappers that put back what was forgotten (`_UserPeaks`). torch's Python functions look
these names up in `torch._C` at each call, so replacing them there reaches `torch.cuda` and
`torch.accelerator` alike.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..records import Diagnosis, device_id
from ..runtime.errors import first_line
from ..runtime.wrappers import Wrappers
from . import (
    Counter,
    Device,
    DeviceCounter,
    DeviceMemory,
    Framework,
    Holding,
    Look,
    PeakClass,
    Reading,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_SERIES = ("allocated_bytes", "reserved_bytes")
# What torch raises for a broken device, a pluggable allocator, a build without CUDA.
_TORCH_ERRORS = (RuntimeError, AttributeError, AssertionError)

# The names in `torch._C` through which anybody reads and resets peaks; which of them exist depends on
# the build. The first of each that matches the kind of device serves us too.
_READS = {"cuda": "_cuda_memoryStats", "xpu": "_xpu_memoryStats", "": "_accelerator_getDeviceStats"}
_RESETS = {
    "cuda": "_cuda_resetPeakMemoryStats",
    "xpu": "_xpu_resetPeakMemoryStats",
    "": "_accelerator_resetPeakStats",
    "host": "_cuda_resetPeakHostMemoryStats",  # of no device
}

Stats = dict[str, Any]  # as torch nests it: {"allocated_bytes": {"all": {"current": ..., "peak": ...}}}


class _UserPeaks:
    """The peaks that the user would read, had nobody but them reset the counters."""

    def __init__(self) -> None:
        self._highest: dict[int, dict[tuple[str, ...], int]] = {}

    def remember(self, index: int, stats: Stats) -> None:
        """The counters are about to be reset by us."""
        highest = self._highest.setdefault(index, {})
        for key, values in _peaks(stats):
            highest[key] = max(highest.get(key, 0), values["peak"])

    def put_back(self, index: int, stats: Stats) -> bool:
        """Raise fresh statistics to what the user would read; whether that changed anything."""
        highest, changed = self._highest.get(index), False
        if highest:
            for key, values in _peaks(stats):
                if highest.get(key, 0) > values["peak"]:
                    values["peak"], changed = highest[key], True
        return changed

    def forget(self, index: int) -> None:
        """The user reset the counters."""
        self._highest.pop(index, None)

    def indices(self) -> tuple[int, ...]:
        """The devices on which anything is remembered."""
        return tuple(self._highest)


def _peaks(stats: Stats, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """Every count that has a peak, however deep it is nested, by its path."""
    for name, values in stats.items():
        if isinstance(values, dict):
            if "peak" in values:
                yield (*path, name), values
            yield from _peaks(values, (*path, name))


class TorchCounter(DeviceCounter):
    """The caching allocator of one device: allocated and reserved bytes."""

    peak_class: PeakClass = "resettable"

    def __init__(self, source: Torch, device: Device) -> None:
        self.device = device
        self._source = source
        self._stats: Stats = {}

    def look(self) -> Look:
        """The allocator's statistics; its counts of allocations as the stamp."""
        stats = self._stats = self._source.stats(self.device.index)
        readings = tuple(
            Reading(stats[series]["all"]["current"], stats[series]["all"]["peak"]) for series in _SERIES
        )
        # The allocator counts its allocations under the same lock, so the stamp is as old as the readings.
        # The asynchronous backend (cudaMallocAsync) counts none: then nothing can be certified.
        allocations = stats["allocation"]["all"]["allocated"]
        if not allocations and readings[0].current_bytes:
            return Look(readings, ())
        return Look(readings, (allocations, *(stats[series]["all"]["allocated"] for series in _SERIES)))

    def reset(self) -> None:
        """Reset the peaks, keeping for the user what they would have read."""
        self._source.reset(self.device.index, self._stats)

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """What was allocated between two stamps."""
        if len(earlier) != len(later) or any(b < a for a, b in zip(earlier, later, strict=True)):
            return None, None  # the user reset the accumulated counts meanwhile
        return later[1] - earlier[1], later[2] - earlier[2]

    def device_memory(self) -> DeviceMemory | None:
        """From the driver, through torch; right under MIG, WSL and hidden devices as well."""
        try:
            free_bytes, total_bytes = self._source.mem_get_info(self.device.index)
        except _TORCH_ERRORS:
            return None
        return DeviceMemory(total_bytes, total_bytes - free_bytes, free_bytes)

    def limit_bytes(self) -> int | None:
        """What `set_per_process_memory_fraction` allows; None without a limit, or where nobody tells."""
        return self._source.limit_bytes(self.device.index)

    def fragmented_bytes(self) -> int | None:
        """What torch calls inactive split blocks."""
        stats = self._statistics()
        return None if stats is None else int(stats["inactive_split_bytes"]["all"]["current"])

    def releasable_bytes(self) -> int:
        """What emptying the cache would give back: reserved, neither in use nor a rest of a block in use."""
        stats = self._source.stats(self.device.index)
        names = "reserved_bytes", "active_bytes", "inactive_split_bytes"
        reserved, active, split = (stats[name]["all"]["current"] for name in names)
        return int(reserved - max(active, stats["allocated_bytes"]["all"]["current"]) - split)

    def pools_bytes(self) -> int | None:
        """Reserved by CUDA graphs and `torch.cuda.MemPool`, where torch tells (2.13 does, 2.6 does not)."""
        pools = (self._stats or self._statistics() or {}).get("reserved_bytes_by_private_pools")
        return None if pools is None else sum(pool["all"]["current"] for pool in pools.values())

    def _statistics(self) -> Stats | None:
        try:
            return self._source.stats(self.device.index)
        except Unavailable:
            return None


class PinnedCounter(Counter):
    """torch's page-locked host memory: live and cached, of all devices together.

    Its peak is read and never reset, so that it stays the user's; that they reset it is noticed.
    """

    peak_class: PeakClass = "monotone"

    def look(self) -> Look:
        """The host allocator's statistics."""
        try:
            held = _torch()._C._cuda_hostMemoryStats()["allocated_bytes"]  # type: ignore[union-attr]
        except (*_TORCH_ERRORS, KeyError) as error:
            raise Unavailable(f"torch gives no statistics of pinned memory: {first_line(error)}") from error
        return Look((Reading(held["current"], held["peak"]),), ())


class Torch(Framework):
    """torch in this process, once the user has imported it."""

    name = "torch"

    def __init__(self) -> None:
        self._counters: dict[int, TorchCounter] = {}
        self._users = _UserPeaks()
        self._wrappers = Wrappers(lambda: getattr(_torch(), "_C", None))
        self._leaving = False
        self._pinned = PinnedCounter()
        self._import_error: Exception | None = None  # of `load`

    # -- what the engine asks ------------------------------------------------------------------

    def counters(self) -> list[TorchCounter]:
        """The devices on which this process has a context, by index."""
        kind = self._kind()
        if kind is None:
            return []
        try:
            for index in range(self._device_count(kind)):
                if index not in self._counters and self._has_context(kind, index):
                    self._counters[index] = TorchCounter(self, self._describe(kind, index))
        except _TORCH_ERRORS:
            pass  # a device in an error state: the counters known so far stand
        return [self._counters[index] for index in sorted(self._counters)]

    def pinned(self) -> Counter | None:
        """Page-locked host memory, once CUDA is initialised and where torch counts it."""
        if self._kind() != "cuda" or not hasattr(_torch()._C, "_cuda_hostMemoryStats"):  # type: ignore[union-attr]
            return None
        return self._pinned

    def current_index(self) -> int | None:
        """The index of torch's current device, or None while no context exists."""
        kind, torch = self._kind(), _torch()
        if kind is None or torch is None:
            return None
        try:
            if kind == "cuda":
                return int(torch.cuda.current_device())
            return int(torch.accelerator.current_device_index())
        except _TORCH_ERRORS:
            return None

    def load(self) -> None:
        """Import torch; `diagnose` tells why it cannot be."""
        try:
            import_module("torch")
        except Exception as error:  # a library that is missing raises OSError, ImportError, ValueError
            self._import_error = error

    def preload(self) -> None:
        """Create the context of the current device, so that its half gigabyte is nobody's cell."""
        torch = _torch()
        if torch is None or self._kind() is not None or not hasattr(torch, "cuda"):
            return
        try:
            if torch.cuda.is_available() and not torch.cuda._is_in_bad_fork():
                torch.cuda.synchronize()
        except Exception:  # torch's DeferredCudaCallError is none of _TORCH_ERRORS
            pass  # the user's own first call will say what is wrong, in their own cell

    def settle(self) -> None:
        """Empty the allocator's cache where it holds anything."""
        kind, torch = self._kind(), _torch()
        if kind is None or torch is None:
            return
        try:
            if any(counter.releasable_bytes() for counter in self.counters()):
                (torch.cuda if kind == "cuda" else torch.accelerator).empty_cache()
        except (*_TORCH_ERRORS, Unavailable):
            pass

    def hold(self) -> bool:
        """Put the wrappers on, as far as torch is there."""
        late = not self._wrappers and self._kind() is not None
        with self._wrappers.lock:
            self._leaving = False
            self._wrappers.put_on(dict.fromkeys(_READS.values(), self._read_wrapper))
            self._wrappers.put_on(dict.fromkeys(_RESETS.values(), self._reset_wrapper))
        return late

    def after_fork_in_child(self) -> None:
        """Another thread may have held the lock."""
        self._wrappers.after_fork_in_child()

    def release(self) -> None:
        """Take the wrappers off, unless that would make torch forget a peak the user may ask for.

        Then they go at the user's next reset of the peaks, or once the counters have caught up.
        """
        with self._wrappers.lock:
            self._leaving = True
            self._leave()

    def _leave(self) -> None:
        with self._wrappers.lock:
            if not self._leaving:  # somebody measures again
                return
            for index in self._users.indices():
                try:
                    if self._users.put_back(index, self.stats(index)):
                        return
                except Unavailable:
                    pass
            self._users = _UserPeaks()
            self._wrappers.take_off()

    def may_hold(self, kind: type) -> bool:
        """Tensors, and the nodes of autograd graphs."""
        torch = _torch()
        if torch is None:
            return False
        bases = _bases_of(kind)
        return any(base is torch.Tensor for base in bases) or (
            any("next_functions" in _namespace_of(base) for base in bases)
            and (not _flags_of(kind) & _PYTHONS or any(base is torch._C._FunctionBase for base in bases))
        )

    def holding(self, value: Any) -> Holding | None:
        """The storage behind a tensor, which views and tied parameters share; what a graph's node saved."""
        torch = _torch()
        if torch is None:
            return None
        kind, c = type(value), torch._C
        if kind is torch.nn.Parameter or kind is torch.Tensor:
            if not c._len_torch_function_stack() and not c._len_torch_dispatch_stack():
                return _tensor(value, c, getattr)
        elif not issubclass(kind, c.TensorBase):
            return _node(value) if self.may_hold(kind) else None
        # A subclass's own code, and a mode's, is the user's.
        with c.DisableTorchFunction(), c._DisableTorchDispatch():
            return _tensor(value, c, _own)

    def leading_dimension(self, value: Any) -> int | None:
        """Of a tensor that is no weight; nothing is asked of one that answers with Python code."""
        torch = _torch()
        if torch is None or not issubclass(type(value), torch._C.TensorBase):
            return None
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if _answers_itself(value, torch._C) or _own(value, "requires_grad"):
                return None
            shape = _own(value, "shape")
        return int(shape[0]) if len(shape) > 1 else None

    def diagnose(self) -> Diagnosis:
        """Whether torch has a device here."""
        torch = _torch()
        if torch is None:
            return self._absence()
        version = getattr(torch, "__version__", "?")
        counters = self.counters()
        if not counters:
            return Diagnosis("torch", "absent", f"{version}, uses no device so far")
        try:
            for counter in counters:
                counter.look()
        except Unavailable as error:
            return Diagnosis(
                "torch", "sampled", str(error), "use torch's own allocator, or read the whole device"
            )
        devices = ", ".join(c.device.id for c in counters)
        return Diagnosis("torch", "exact", f"{version}, the allocator's own peaks on {devices}")

    def _absence(self) -> Diagnosis:
        """Why torch is not in this process: not installed, not importable, or not imported so far."""
        try:
            spec = find_spec("torch")
        except (ImportError, ValueError):
            spec = None
        if spec is None or spec.origin is None:  # without an origin: a folder that is called torch
            says = f"not installed for {sys.executable}"
            return Diagnosis("torch", "absent", says, f"to use it: {sys.executable} -m pip install torch")
        if self._import_error is not None:
            error = self._import_error
            says = f"installed, but import torch fails: {type(error).__name__}: {first_line(error)}"
            return Diagnosis(
                "torch", "absent", says, f"{sys.executable} -c 'import torch' shows where it fails"
            )
        # Python forgets a package whose import failed, but not the submodules that it had imported by then.
        if any(name.startswith("torch.") for name in tuple(sys.modules)):
            says = "installed, but import torch failed in this process"
            return Diagnosis("torch", "absent", says, "import torch again to see the error")
        return Diagnosis(
            "torch", "absent", "installed, but not imported in this process", "import torch, then ask again"
        )

    # -- what the counters ask -----------------------------------------------------------------

    def stats(self, index: int) -> Stats:
        """The allocator's own statistics, without what the wrappers put back.

        Raises:
            Unavailable: The allocator gives none (a pluggable one, or a device in an error state).
        """
        kind, torch = self._kind(), _torch()
        if kind is None or torch is None:
            raise Unavailable("torch uses no device")
        try:
            stats: Stats = self._wrappers.own(_READS.get(kind) or _READS[""])(index)
            stats["allocated_bytes"]["all"]["peak"], stats["allocation"]  # all we need is there
        except (*_TORCH_ERRORS, KeyError) as error:
            raise Unavailable(f"torch gives no memory statistics: {first_line(error)}") from error
        return stats

    def reset(self, index: int, stats: Stats) -> None:
        """Reset the allocator's peaks, keeping for the user what they would have read.

        Args:
            index: torch's index of the device.
            stats: The statistics as they stand.
        """
        kind, torch = self._kind(), _torch()
        if kind is None or torch is None:
            raise Unavailable("torch uses no device")
        self._users.remember(index, stats)
        try:
            self._wrappers.own(_RESETS.get(kind) or _RESETS[""])(index)
        except _TORCH_ERRORS as error:
            raise Unavailable(f"torch does not reset its peaks: {first_line(error)}") from error

    def mem_get_info(self, index: int) -> tuple[int, int]:
        """Free and total bytes of the device as the driver tells torch."""
        torch, kind = _torch(), self._kind()
        if torch is None or kind is None:
            raise RuntimeError("torch uses no device")
        module = torch.cuda if kind == "cuda" else torch.accelerator.memory
        info = module.mem_get_info if kind == "cuda" else module.get_memory_info
        free_bytes, total_bytes = info(index)
        return free_bytes, total_bytes

    def limit_bytes(self, index: int) -> int | None:
        """The share of the device that the user allowed torch; None without a limit or a way to know."""
        torch = _torch()
        ask = getattr(getattr(torch, "_C", None), "_cuda_getMemoryFraction", None)
        if torch is None or ask is None or self._kind() != "cuda":
            return None
        try:
            with torch.cuda.device(index):  # torch 2.6 leaves the device asked about as the current one
                fraction = ask(index)
            return int(fraction * self.mem_get_info(index)[1]) if fraction < 1 else None
        except _TORCH_ERRORS:
            return None

    # -- torch, looked at without waking it ----------------------------------------------------

    def _kind(self) -> str | None:
        """The kind of accelerator that this process has initialised: "cuda", "xpu", "mps", ..."""
        torch = _torch()
        if torch is None:
            return None
        try:
            if torch.cuda.is_initialized():
                return "cuda"
            if not torch._C._accelerator_isAllocatorInitialized():
                return None
            return str(torch.accelerator.current_accelerator().type)
        except _TORCH_ERRORS:
            return None  # still being imported, or a build without accelerators

    def _device_count(self, kind: str) -> int:
        torch = _torch()
        assert torch is not None
        return int(torch.cuda.device_count() if kind == "cuda" else torch.accelerator.device_count())

    def _has_context(self, kind: str, index: int) -> bool:
        torch = _torch()
        assert torch is not None
        if kind != "cuda":
            return bool(torch.accelerator.current_device_index() == index or self._allocates(index))
        return bool(torch._C._cuda_hasPrimaryContext(index))

    def _allocates(self, index: int) -> bool:
        try:
            return bool(self.stats(index)["allocation"]["all"]["allocated"])
        except Unavailable:
            return False

    def _describe(self, kind: str, index: int) -> Device:
        torch = _torch()
        assert torch is not None
        if kind != "cuda":
            return Device(kind, index, device_id(kind, index))
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        return Device(
            kind,
            index,
            properties.name,
            f"GPU-{uuid}" if uuid else None,
            properties.total_memory,
            unified=bool(getattr(properties, "is_integrated", 0)),
        )

    # -- the user's counters stay the user's ----------------------------------------------------

    def _read_wrapper(self, original: Callable[[int], Stats]) -> Callable[[int], Stats]:
        def memory_stats(device: int) -> Stats:
            stats = original(device)
            if not self._users.put_back(device, stats) and self._leaving:
                self._leave()
            return stats

        return memory_stats

    def _reset_wrapper(self, original: Callable[..., None]) -> Callable[..., None]:
        def reset_peak_stats(*device: int) -> None:
            def reset() -> None:
                original(*device)
                for index in device:
                    self._users.forget(index)

            if self.on_user_reset is None:
                reset()
            else:
                self.on_user_reset(device[0] if device else None, reset)
            if self._leaving:
                self._leave()

        return reset_peak_stats


def _torch() -> ModuleType | None:
    return sys.modules.get("torch")


# -- what tensors and graphs hold ------------------------------------------------------------------

# C accessors, which no class of the user's can override.
_bases_of: Callable[[Any], tuple[type, ...]] = vars(type)["__mro__"].__get__
_namespace_of: Callable[[Any], Any] = vars(type)["__dict__"].__get__
_flags_of: Callable[[Any], int] = vars(type)["__flags__"].__get__
_PYTHONS = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of every class that Python code made
_device_names: dict[Any, str] = {}


def _own(value: Any, name: str) -> Any:
    """As torch itself has it, whatever a subclass says."""
    found = getattr(sys.modules["torch"]._C.TensorBase, name)
    return found.__get__(value)


def _tensor(value: Any, c: Any, get: Callable[[Any, str], Any]) -> Holding | None:
    """What is asked runs no code of a subclass's, if torch functions and dispatch are switched off.

    A subclass may answer for its device, layout and shape all the same (`dispatch_device=True` and its
    kin). So the device is the storage's, and of a tensor that answers in Python nothing else is asked.
    """
    node = get(value, "grad_fn")
    # torch warns whoever reads the gradient of an intermediate result that keeps none.
    gradient = get(value, "grad") if node is None or get(value, "retains_grad") else None
    parts = () if gradient is None else (gradient,)
    try:
        storage = c.TensorBase.untyped_storage(value)
        address = c._data_address(value)  # the storage's; `storage.data_ptr` would copy a lazy clone
        if address:
            device = storage.device
            name = _device_names.get(device) or _device_names.setdefault(device, str(device))
            on_cpu = name == "cpu"
            borrowed = on_cpu and not storage.resizable()  # numpy's memory, a mapped file, ...
            size_bytes = storage.nbytes()
            return Holding((name, address), size_bytes, name, parts, node, True, on_cpu, storage, borrowed)
    except (*_TORCH_ERRORS, NotImplementedError):  # a sparse, fake or functional tensor, or a wrapper
        if not _answers_itself(value, c):
            parts += tuple(_parts_of_sparse(value, c.TensorBase))
    return Holding(None, 0, "", parts, node) if parts or node is not None else None


def _answers_itself(value: Any, c: Any) -> bool:
    """Whether its class has a `__torch_dispatch__`: as a rule a wrapper, whose attributes hold its memory."""
    return bool(c._dispatch_keys(value).has(c.DispatchKey.Python))


def _parts_of_sparse(value: Any, base: Any) -> Iterator[Any]:
    for name in _PARTS_OF_SPARSE.get(str(_own(value, "layout")), ()):
        yield getattr(base, name)(value)


_PARTS_OF_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def _node(value: Any) -> Holding:
    """A node keeps the nodes it came from, what it saved, and a leaf its parameter.

    Only `_raw_saved_*` is read: `_saved_*` and `saved_tensors` run the user's unpack hooks, and what
    checkpointing computes again. With hooks the raw one has what they packed.
    """
    parts: list[Any] = []
    counted = True
    for base in _bases_of(type(value)):
        for name, found in _namespace_of(base).items():
            if type(found) is not _GETSET:
                continue
            if name == "next_functions":
                parts += [node for node, _ in found.__get__(value)]
            elif name == "variable":
                parts.append(found.__get__(value))
            elif name.startswith("_raw_saved_"):
                try:
                    saved = found.__get__(value)
                except RuntimeError:  # after the backward pass
                    continue
                for one in saved if isinstance(saved, (tuple, list)) else (saved,):
                    data = _namespace_of(type(one)).get("data")
                    counted = counted and (data is not None or one is None)
                    parts += [] if data is None else [data.__get__(one)]
    return Holding(None, 0, "", [part for part in parts if part is not None], None, counted)


_GETSET = type(vars(BaseException)["args"])
