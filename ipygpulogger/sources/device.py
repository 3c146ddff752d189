"""An accelerator device: its identity, its memory as a whole, and a framework's allocator on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..records import device_id
from .counter import Counter


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator device as a framework knows it.

    Attributes:
        backend: "cuda", "xpu", "mps", ...; all CUDA frameworks of a process number the devices alike.
        index: The framework's own index, which `CUDA_VISIBLE_DEVICES` shapes.
        name: The name that the driver gives it.
        uuid: As NVML writes it ("GPU-...", "MIG-..."); None if the framework does not report it.
        total_bytes: None if the framework does not report it.
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
        """Backend and index, which are the same in every framework."""
        return self.backend, self.index

    @property
    def id(self) -> str:
        """The device's id as PyTorch writes it, such as ``cuda:0``."""
        return device_id(self.backend, self.index)


class DeviceMemory(NamedTuple):
    """The memory of a whole device at one moment, all processes together.

    Attributes:
        total_bytes: The size of the device's memory.
        used_bytes: In use.
        free_bytes: Free. Used and free may add up to less than the total: the driver reserves the rest.
        driver_in_used: Whether `used_bytes` includes what the driver reserves (drivers before R510).
    """

    total_bytes: int
    used_bytes: int
    free_bytes: int
    driver_in_used: bool = False


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
