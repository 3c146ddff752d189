"""The outside world, one file per origin of truth.

A source imports no other source and nothing above. It imports and initialises nothing that the
user has not already imported, except by the documented preload.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ..records import Diagnosis, device_id

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

PeakClass = Literal["resettable", "monotone", "sampled"]


class Unavailable(Exception):  # noqa: N818 - a state of the world rather than a mistake
    """The counter cannot be read now; the text says why in one sentence."""


class Reading(NamedTuple):
    """One look at one number.

    Attributes:
        current_bytes: In use now.
        peak_bytes: The highest since the counter's last reset; None where nothing counts it.
        seen_bytes: The highest that a sampler saw since the last look; 0 without one.
    """

    current_bytes: int
    peak_bytes: int | None
    seen_bytes: int = 0


class Look(NamedTuple):
    """Every number of a counter at one moment.

    Attributes:
        readings: One per series of the counter.
        stamp: Counts that move whenever memory could have grown; taken no later than the readings.
            Empty where no such count exists.
        reset_elsewhere: Something other than us may have reset the peaks since the last look.
    """

    readings: tuple[Reading, ...]
    stamp: tuple[int, ...]
    reset_elsewhere: bool = False


class Counter(ABC):
    """Numbers that move, and the highest they have been since the last reset.

    Only `peaks.PeakOwner` may call `reset`.

    Attributes:
        peak_class: "resettable" (exact), "monotone" (exact only where a record was set) or "sampled".
        precision_bytes: The grain of the peak.
        current_precision_bytes: The grain of what is in use now.
    """

    peak_class: PeakClass
    precision_bytes: int = 0
    current_precision_bytes: int = 0

    def describe(self) -> str:
        """What it is, for a sentence."""
        return "a peak counter"

    @abstractmethod
    def look(self) -> Look:
        """Read everything.

        Raises:
            Unavailable: It cannot be read now.
        """

    def stamp(self) -> tuple[int, ...]:
        """The stamp alone, where that is cheaper than a look.

        Raises:
            Unavailable: It cannot be read now.
        """
        return self.look().stamp

    def reset(self) -> None:
        """Let every peak start again from what is in use now; resettable counters only."""
        raise NotImplementedError(f"{type(self).__name__} has no reset")

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """For each series, at most how much came (and may have gone) between two stamps; None: unknown."""
        raise NotImplementedError(f"{type(self).__name__} has no stamps")

    def watch(self, *, on: bool) -> None:  # noqa: B027 - most counters do not care
        """Somebody begins or ends to be interested."""

    def close(self) -> None:  # noqa: B027 - most counters hold nothing
        """Give back what looking needs, such as a descriptor; the next look or watch takes it again."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator device as a framework knows it.

    Attributes:
        backend: "cuda", "xpu", "mps", ...; all CUDA frameworks of a process share their indices.
        index: The framework's own, which `CUDA_VISIBLE_DEVICES` shapes.
        name: As the driver calls it.
        uuid: As NVML writes it ("GPU-...", "MIG-..."); None where the framework does not tell.
        total_bytes: None where the framework does not tell.
        unified: The device has no memory of its own: it shares the machine's RAM.
    """

    backend: str
    index: int
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    unified: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """What makes it the same device to two frameworks."""
        return self.backend, self.index

    @property
    def id(self) -> str:
        """The device's id, as records have it: "cuda:0"."""
        return device_id(self.backend, self.index)


class DeviceMemory(NamedTuple):
    """A whole device at one moment, all processes together.

    Attributes:
        total_bytes: All there is.
        used_bytes: In use.
        free_bytes: Free; what is missing to the total the driver keeps for itself.
        driver_in_used: The driver's own share is part of `used_bytes` (drivers before R510).
    """

    total_bytes: int
    used_bytes: int
    free_bytes: int
    driver_in_used: bool = False


class DeviceCounter(Counter):
    """A framework's allocator on one device.

    Its series are allocated bytes (held by live arrays) and, where the framework tells them, reserved
    bytes (taken from the device, live and cached). The sampler looks from a thread of its own.
    """

    device: Device

    def describe(self) -> str:
        """What it is, for a sentence."""
        return f"the allocator's peak on {self.device.id}"

    def device_memory(self) -> DeviceMemory | None:
        """The whole device as the framework's driver tells it; None when it does not."""
        return None

    def limit_bytes(self) -> int | None:
        """The most that the framework lets itself reserve; None without a limit."""
        return None

    def fragmented_bytes(self) -> int | None:
        """Of the reserved bytes, those in unused pieces between live arrays; None where nobody tells."""
        return None

    def pools_bytes(self) -> int | None:
        """Of the reserved bytes, those in pools of their own: of CUDA graphs; None where nobody tells."""
        return None


class Holding(NamedTuple):
    """The memory behind one array.

    Attributes:
        key: The same for every array that shares this memory; unique among live arrays. Where the address
            is known, (device, address): memory within other memory is then found to be the same.
        size_bytes: The whole block, however small the view of it; 0 for what has no memory of its own.
            Of a borrowed one, from the first to the last byte that the view can touch.
        device: "cpu", "cuda:0", ...
        parts: What else it keeps that the garbage collector does not see, such as a gradient.
        graph: The autograd graph that it keeps.
        counted: Whether all that it keeps can be told.
        mapped: Whether it may only show a file, whose pages are no memory of the process's own.
        owner: What lives exactly as long as the memory, and takes weak references; None where nothing does.
        borrowed: The array stands on memory that something else allocated, how much of it is not known.
    """

    key: Hashable
    size_bytes: int
    device: str
    parts: Iterable[Any] = ()
    graph: Any = None
    counted: bool = True
    mapped: bool = False
    owner: Any = None
    borrowed: bool = False


class Framework(ABC):
    """A framework with an allocator of its own on accelerator devices.

    It never imports or initialises the framework: it looks in `sys.modules` whether the user did.
    Everything but `counters` may be left as it is here.

    Attributes:
        name: The module's: "torch". Only while `sys.modules` has it the framework is asked anything, but to
            `load`, to `diagnose`, and after a fork.
        on_user_reset: Set by the engine. Where users can reset the very counter that we reset, a
            wrapper of ours calls it with the device's index, None for pinned memory, and the user's
            own reset.
    """

    name: ClassVar[str]
    on_user_reset: Callable[[int | None, Callable[[], None]], None] | None = None

    @abstractmethod
    def counters(self) -> Iterable[DeviceCounter]:
        """The devices this process uses now; the same objects every time."""

    def pinned(self) -> Counter | None:
        """Its page-locked host memory; None where it uses or counts none."""
        return None

    def current_index(self) -> int | None:
        """The framework's current device, or None while it uses none."""
        return None

    def load(self) -> None:  # noqa: B027 - nothing to do is an answer, here and below
        """Import the framework, in a process that exists only to `diagnose` it; an error is told there."""

    def preload(self) -> None:  # noqa: B027
        """Create the current device's context, if the user has imported the framework."""

    def settle(self) -> None:  # noqa: B027
        """Give cached, unused memory back to the device."""

    def hold(self) -> bool | None:
        """Somebody measures: from now on keep the user's own counters true.

        Returns:
            Whether this comes late: the framework was in use before, and resets by the user went unseen.
        """
        return None

    def release(self) -> None:  # noqa: B027
        """Nobody measures any longer: take every wrapper off."""

    def after_fork_in_child(self) -> None:  # noqa: B027
        """Make locks anew: another thread may have held them at the moment of the fork."""

    def may_hold(self, kind: type) -> bool:  # noqa: ARG002
        """Whether values of a class can be arrays of the framework's; asked once for each class."""
        return type(self).holding is not Framework.holding

    def holding(self, value: Any) -> Holding | None:  # noqa: ARG002
        """The memory behind one of the framework's arrays; None for any other value."""
        return None

    def leading_dimension(self, value: Any) -> int | None:
        """The first of several dimensions of one of the framework's arrays, which may be a batch's size."""
        shape: Any = getattr(value, "shape", ())
        return int(shape[0]) if len(shape) > 1 else None

    def diagnose(self) -> Diagnosis | None:
        """What is exact here, and why; None where the user has nothing to do with the framework."""
        counters = list(self.counters())
        if not counters:
            known = self.name in sys.modules
            return Diagnosis(self.name, "absent", "uses no device in this process so far") if known else None
        states: dict[PeakClass, Literal["exact", "bounded", "sampled"]] = {
            "resettable": "exact",
            "monotone": "bounded",
            "sampled": "sampled",
        }
        devices = ", ".join(counter.device.id for counter in counters)
        return Diagnosis(self.name, states[counters[0].peak_class], f"its allocator on {devices}")
