"""The contract of all sources of figures: counters, devices, frameworks, and the memory behind an array."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from ..records import Diagnosis, device_id
from ..records.value import Value
from ..runtime.errors import first_line, is_from_a_handler

PeakClass = Literal["resettable", "monotone", "sampled"]
UNREADABLE = "the memory of this process cannot be read"  # how the reason begins where RAM has no counter


class Unavailable(Exception):  # noqa: N818 - a state of the world rather than a mistake
    """The counter cannot be read now; the message says why in one sentence."""


class unavailable:  # noqa: N801 - used as a function; a generator's context takes twice the calls
    """Raise `Unavailable` in place of any error that no signal handler raised: what it says, and why."""

    def __init__(self, says: str, why: Callable[[Exception], str] = first_line) -> None:
        self._says, self._why = says, why

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not (isinstance(error, Unavailable) or is_from_a_handler(error)):
            raise Unavailable(f"{self._says}: {self._why(error)}") from error


class Notes:
    """Sentences for the user that wait for the next record."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._waiting: list[str] = []

    def is_new(self, sentence: str) -> bool:
        """Return whether a sentence was never reported; from now on it counts as reported."""
        new = sentence not in self._told
        self._told.add(sentence)
        return new

    def add(self, sentence: str) -> None:
        """Keep a sentence for the next record, unless it was reported before."""
        if self.is_new(sentence):
            self._waiting.append(sentence)

    def take(self) -> tuple[str, ...]:
        """Return the sentences for the next record, and forget them."""
        waiting, self._waiting = tuple(self._waiting), []
        return waiting


class Reading(NamedTuple):
    """One series of a counter at one moment.

    Attributes:
        current_bytes: In use now.
        peak_bytes: The highest value since the counter's last reset; None if nothing counts it.
    """

    current_bytes: int
    peak_bytes: int | None


class Observation(NamedTuple):
    """Every series of a counter at one moment.

    Attributes:
        readings: One per series.
        stamp: Event counts, read no later than the readings, that change whenever memory could have grown,
            such as page faults or allocations. Empty if there are none.
        reset_elsewhere: Something other than this package may have reset the peaks since the last one.
    """

    readings: tuple[Reading, ...]
    stamp: tuple[int, ...]
    reset_elsewhere: bool = False


class Counter(ABC):
    """One or more series, each with its current value and its peak since the last reset.

    Only `engine.peaks.PeakTracker` may call `reset`: it keeps the peaks of every open scope.

    Attributes:
        peak_class: "resettable" (exact), "monotone" (exact only if the peak rose within the scope), or
            "sampled" (a lower bound).
        precision_bytes: How far a peak may be off.
        current_precision_bytes: How far a current value may be off.
    """

    peak_class: PeakClass
    precision_bytes: int = 0
    current_precision_bytes: int = 0

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return "a peak counter"

    @abstractmethod
    def observe(self) -> Observation:
        """Read every series; raises `Unavailable`."""

    def stamp(self) -> tuple[int, ...]:
        """Return the stamp alone; override this if it costs less than `observe`. Raises `Unavailable`."""
        return self.observe().stamp

    def reset(self) -> None:
        """Restart every peak from the current value; only resettable counters have this."""
        raise NotImplementedError(f"{type(self).__name__} has no reset")

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """Bound, for each series, the bytes allocated between two stamps, freed or not; None if unknown."""
        raise NotImplementedError(f"{type(self).__name__} has no stamps")

    def watch(self, *, on: bool) -> None:  # noqa: B027 - most counters do not care
        """Prepare for the first open scope, or release what is not needed after the last one."""

    def close(self) -> None:  # noqa: B027 - most counters hold nothing
        """Release what `observe` needs, such as descriptors; the next `observe` or `watch` acquires it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Device(Value):
    """One accelerator device as a framework knows it; None is what the framework does not report.

    Attributes:
        backend: "cuda", "xpu", "mps", ...; all CUDA frameworks of a process number the devices alike.
        index: The framework's own index, which `CUDA_VISIBLE_DEVICES` shapes.
        name: The name that the driver gives it.
        uuid: As NVML writes it ("GPU-...", "MIG-...").
        total_bytes: The size of its memory.
        unified: Whether the device has no memory of its own and shares the machine's RAM.
    """

    backend: str
    index: int
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    unified: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Backend and index, the same in every framework."""
        return self.backend, self.index

    @property
    def id(self) -> str:
        """The device's id as PyTorch writes it, such as ``cuda:0``."""
        return device_id(self.backend, self.index)


class DeviceMemory(NamedTuple):
    """The memory of a whole device at one moment, all processes together; the driver reserves the rest."""

    total_bytes: int
    used_bytes: int
    free_bytes: int


class DeviceCounter(Counter):
    """A framework's allocator on one device.

    Its first series is allocated bytes (held by live arrays), its second, if the framework reports them,
    reserved bytes (taken from the device: live and cached). The sampler looks from a thread of its own.
    """

    device: Device

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return f"the allocator's peak on {self.device.id}"

    def device_memory(self) -> DeviceMemory | None:
        """Return the memory of the whole device as the framework's driver reports it; None if unknown."""
        return None

    def limit_bytes(self) -> int | None:
        """Return the most that the framework lets itself reserve; None without a limit."""
        return None

    def fragmented_bytes(self) -> int | None:
        """Return the reserved bytes that lie unused between live arrays; None if unknown."""
        return None

    def pools_bytes(self) -> int | None:
        """Return the reserved bytes in private pools, such as those of CUDA graphs; None if unknown."""
        return None


_STATES: dict[PeakClass, Literal["exact", "bounded", "sampled"]] = {
    "resettable": "exact",
    "monotone": "bounded",
    "sampled": "sampled",
}


class Framework(ABC):
    """A framework's devices, cache, arrays and diagnosis, once the user has imported it.

    It never imports or initialises the framework. Only `counters` must be implemented.

    Attributes:
        name: The framework's module: "torch". While it is not in `sys.modules`, only `load`, `diagnose` and
            `after_fork_in_child` are called.
        on_user_reset: Set by the engine. If users can reset the same peaks as we do, the framework
            calls this with the device's index (None: pinned memory) and the user's reset; the engine runs it.
    """

    name: ClassVar[str]
    on_user_reset: Callable[[int | None, Callable[[], None]], None] | None = None

    @abstractmethod
    def counters(self) -> Iterable[DeviceCounter]:
        """Return a counter for each device that this process uses now; the same objects every time."""

    def pinned(self) -> Counter | None:
        """Return the counter of page-locked host memory; None if the framework uses or counts none."""
        return None

    def current_index(self) -> int | None:
        """Return the index of the framework's current device; None while it uses none."""
        return None

    def load(self) -> None:  # noqa: B027 - having nothing to do is fine, here and below
        """Import the framework, in a process that only runs `diagnose`, which then reports an error."""

    def can_preload(self) -> bool:
        """Return whether `preload` would create a context now; asked before each cell."""
        return type(self).preload is not Framework.preload and self.current_index() is None

    def preload(self) -> None:  # noqa: B027
        """Create the current device's context, if the user has imported the framework."""

    def settle(self) -> None:  # noqa: B027
        """Return cached, unused memory to the device."""

    def hold(self) -> bool | None:
        """Preserve what the user reads from the framework's peak counters, until `release`.

        Return whether the framework was in use before, so that resets by the user may have gone unseen.
        """
        return None

    def release(self) -> None:  # noqa: B027
        """Take every wrapper off, because no scope is open and no logger runs."""

    def after_fork_in_child(self) -> None:  # noqa: B027
        """Replace locks, which another thread may have held at the moment of the fork."""

    def may_hold(self, kind: type) -> bool:  # noqa: ARG002
        """Return whether values of a class can be arrays of the framework; asked once per class."""
        return type(self).holding is not Framework.holding

    def holding(self, value: Any) -> Holding | None:  # noqa: ARG002
        """Return the memory behind one of the framework's arrays; None for any other value."""
        return None

    def leading_dimension(self, value: Any) -> int | None:
        """Return the first dimension of one of the framework's arrays, such as a batch size; else None."""
        shape: Any = () if self.holding(value) is None else getattr(value, "shape", ())
        return int(shape[0]) if len(shape) > 1 else None

    def diagnose(self) -> Diagnosis | None:
        """Say what is exact here, and why; None if the user has not imported the framework."""
        counters = list(self.counters())
        if not counters:
            known = self.name in sys.modules
            return Diagnosis(self.name, "absent", "uses no device in this process so far") if known else None
        devices = ", ".join(counter.device.id for counter in counters)
        return Diagnosis(self.name, _STATES[counters[0].peak_class], f"its allocator on {devices}")


class FrameworkByDevice(Framework):
    """A framework of which this process begins to use one device after the other, each with one counter."""

    def __init__(self) -> None:
        self._counters: dict[Any, DeviceCounter] = {}

    @abstractmethod
    def in_use(self) -> Iterable[Hashable]:
        """Return the devices that may be in use now, the current one first, each as anything that sorts."""

    @abstractmethod
    def counter(self, device: Any) -> DeviceCounter:
        """Make the counter of one of these devices; raises `Unavailable` if it is not counted so far."""

    def current_index(self) -> int | None:
        """Return the first device that may be in use now, if it has a counter."""
        index: Any = next(iter(self.in_use()), None) if self._counters else None
        return index if index in self._counters else None

    def counters(self) -> list[DeviceCounter]:
        """Return a counter for each device that was ever found in use, in their order."""
        for device in self.in_use():
            if device not in self._counters:
                try:
                    self._counters[device] = self.counter(device)
                except Unavailable:
                    continue
        return [self._counters[device] for device in sorted(self._counters)]


class Holding(NamedTuple):
    """The memory behind one array.

    Attributes:
        key: Identifies the block: equal for all arrays that share it, unique among live arrays.
            (device, address) if the address is known, so that a block inside another one is recognised.
        size_bytes: The size of the whole block, however small the array's view of it; 0 if the array has
            no memory of its own.
        device: "cpu", "cuda:0", ...
        parts: Objects that it keeps alive and the garbage collector does not see, such as a gradient.
        graph: The autograd graph that it keeps alive.
        counted: Whether everything that it keeps alive can be read.
        mapped: Whether the block may be a mapped file, whose pages are not the process's own memory.
        owner: An object that lives exactly as long as the block and takes weak references, if there is one.
    """

    key: Hashable
    size_bytes: int
    device: str
    parts: Iterable[Any] = ()
    graph: Any = None
    counted: bool = True
    mapped: bool = False
    owner: Any = None
