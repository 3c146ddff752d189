"""How much RAM this process may use, and how much of that is left: the machine's, or what a limit allows.

============  =================================  ===========================================================
limit         where it is read                   what counts against it
============  =================================  ===========================================================
container     ``memory.max`` (cgroup v2),        the working set of the group, all its processes together:
or job        ``memory.limit_in_bytes`` (v1)     what is charged to it without ``inactive_file``, the page
                                                 cache that the kernel gives up first. Kubernetes counts so
soft          ``memory.high`` (v2)               the same; beyond it the kernel slows the processes down
RLIMIT_AS     ``getrlimit``                      the address space of this process: allocating fails
RLIMIT_DATA   ``getrlimit``                      its private writable memory: allocating fails
machine       ``MemTotal``, ``MemAvailable``     what all processes use
============  =================================  ===========================================================

A group is limited by each of its ancestors too, so the one that leaves the least rules. RLIMIT_RSS is left
out, because Linux does not enforce it. Limits and groups may change: the files are read anew each time.
"""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ...records.units import size_text
from ...runtime.errors import is_from_a_handler
from .linux import gil_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCARCE = 0.05  # of a limit: less is little

_V2, _V1 = "cgroup2", "cgroup"  # as file systems
_MOUNTS = {_V2: "/sys/fs/cgroup", _V1: "/sys/fs/cgroup/memory"}  # where systemd and containers mount them
_LIMITS = {  # by the names of their files; the first one kills
    _V2: {"memory.max": " limit", "memory.high": "'s soft limit"},
    _V1: {"memory.limit_in_bytes": " limit"},
}
_CURRENT = {_V2: "memory.current", _V1: "memory.usage_in_bytes"}
_RECLAIMABLE = {_V2: b"inactive_file", _V1: b"total_inactive_file"}  # v1: with the groups below
_KILLS = {_V2: "memory.events", _V1: "memory.oom_control"}
_NO_LIMIT_BYTES = 2**60  # of v1, which writes "no limit" as the largest number of pages
# What counts against each, in words and as a field of /proc/self/statm.
_RLIMITS = {"RLIMIT_AS": ("Address space", 0), "RLIMIT_DATA": ("Data memory", 5)}


class Group(NamedTuple):
    """A cgroup that this process is in, or an ancestor of it."""

    version: str  # the file system's name: "cgroup2" or "cgroup"
    folder: str  # where its files are

    @property
    def name(self) -> str:
        """What people call it, which is "job" under SLURM, else "container"."""
        return "job" if "slurm" in self.folder else "container"


class MemoryLimit(NamedTuple):
    """A limit, and what is left under it."""

    name: str  # "container limit", "this machine" or the name of a resource limit
    source: str  # the file, or the name of the resource limit
    limit_bytes: int
    used_bytes: int | None  # what counts against it; None when unknown
    # what counts against it: "RAM", which is resident memory, "Address space" or "Data memory"
    memory: str = "RAM"
    group: Group | None = None  # the group whose limit it is; None for the machine's and this process's own

    @property
    def left_bytes(self) -> int | None:
        """How much can still be used; None when unknown."""
        return None if self.used_bytes is None else max(0, self.limit_bytes - self.used_bytes)

    @property
    def scarce_bytes(self) -> int:
        """What is left is little if it is less than this."""
        return int(self.limit_bytes * SCARCE)

    @property
    def is_scarce(self) -> bool:
        """Whether little is left, as far as that is known."""
        return self.left_bytes is not None and self.left_bytes < self.scarce_bytes

    def with_left(self, left_bytes: int) -> MemoryLimit:
        """Return the limit at another moment, when this much was left."""
        return self._replace(used_bytes=self.limit_bytes - max(0, left_bytes))

    @property
    def whole(self) -> str:
        """The limit as people read it, such as "8.0 GB (container limit)"."""
        return f"{size_text(self.limit_bytes)} ({self.name})"

    @property
    def title(self) -> str:
        """What is left, in words."""
        return f"{self.memory} left"

    def __str__(self) -> str:
        left_bytes = self.left_bytes
        return self.whole if left_bytes is None else f"{size_text(left_bytes)} of {self.whole}"


class Kills(NamedTuple):
    """How many processes the kernel's out-of-memory killer ended."""

    processes: int  # how many, since the group exists, or since the machine started
    where: str  # "this container", "this job", "this cgroup" (one without a limit) or "this machine"
    source: str  # the file that counts them
    limit_bytes: int | None  # the limit of the group; None without one


class RamLimits:
    """The limits under which this process lives; tests simulate a machine below `root`."""

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._root = os.fspath(root).rstrip("/")

    @cached_property  # not called again: each rich report asks
    def total_bytes(self) -> int | None:
        """The most RAM that all processes here can have, as last read; None when unknown."""
        self.all()
        return self.total_bytes

    def all(self, need: tuple[int, int] | None = None) -> list[MemoryLimit]:
        """Return every limit, and what is left under it.

        With a need, as `short` takes it, page cache is looked up only for a limit that is short without it,
        because the file that tells it is the slowest one.
        """
        found = [*self._groups_limits(need), *self._own_limits(), *self._machines_limit()]
        sizes_bytes = [limit.limit_bytes for limit in found if limit.memory == "RAM"]
        self.total_bytes = min(sizes_bytes, default=None)
        return found

    def short(self, need_bytes: int, transient_bytes: int) -> MemoryLimit | None:
        """Return the limit that leaves too little, the tightest one; None where there is enough.

        Too little is less than what is needed, or than a twentieth of the limit, also at a moment when
        `transient_bytes` more were in use than now.
        """
        need = need_bytes, transient_bytes
        return least(limit for limit in self.all(need) if _is_short(limit, *need))

    def refusing(self) -> MemoryLimit | None:
        """Return the tightest limit beyond which allocating fails; beyond a group's, processes are killed."""
        return least([*self._own_limits(), *self._machines_limit()])

    def groups(self) -> Iterator[Group]:
        """Yield the cgroup of this process and its ancestors, as far as they can be seen from here.

        Within a container the mounted group is the container's own. Its path is then "/", or as the host has
        it, of which nothing but the mounted group exists here. The same is true of a path out of the
        container ("/../x").
        """
        with contextlib.suppress(OSError):
            for line in self.read("/proc/self/cgroup").decode(errors="replace").splitlines():
                _, _, rest = line.partition(":")
                controllers, _, path = rest.partition(":")
                if controllers and "memory" not in controllers.split(","):
                    continue
                version = _V1 if controllers else _V2
                parts = PurePosixPath("/", path.lstrip("/")).parts[1:]
                for depth in range(0 if ".." in parts else len(parts), -1, -1):
                    yield Group(version, "/".join((_MOUNTS[version], *parts[:depth])))

    def kills(self, *, of_machine: bool = False) -> Kills | None:
        """Return how many processes the out-of-memory killer ended in the group of this process.

        The group is the one whose limit is the nearest. Version 2 counts the kills in the groups below it,
        too; version 1 counts them only in a group itself, so there it is the innermost. `of_machine` asks for
        those of the whole machine where no group counts them.
        """
        groups = list(self.groups())
        limits_bytes = {group: self._limit_bytes(group) for group in groups}
        limited = [group for group in groups if limits_bytes[group] is not None]
        for group in (*(one for one in limited if one.version == _V2), *groups):
            source = f"{group.folder}/{_KILLS[group.version]}"
            count = self._counted(source, b"oom_kill")
            if count is not None:
                nearest = next((limits_bytes[one] for one in limited if one.version == group.version), None)
                where = "this cgroup" if nearest is None else f"this {group.name}"
                return Kills(count, where, source, nearest)
        count = self._counted("/proc/vmstat", b"oom_kill") if of_machine else None
        return None if count is None else Kills(count, "this machine", "/proc/vmstat", None)

    def new_oom_kills(self) -> str | None:
        """Return a sentence on what was killed since any process of this user asked; None if nothing was."""
        kills = self.kills()
        if kills is None or not kills.processes:
            return None
        from .limit_diagnosis import killed, take_new  # only where a process was killed

        new = take_new(self, kills)
        return f"{killed(kills, new)}." if new else None

    def read(self, path: str) -> bytes:
        """Return what a file of the system says; raises `OSError`."""
        return gil_held().read_file(self.path(path))

    def path(self, path: str) -> str:
        """Return where a file of the system lies, which is elsewhere for a simulated machine."""
        return self._root + path

    def lowest(self) -> MemoryLimit | None:
        """Return the smallest limit, however much is in use; None when nothing is known."""
        return min(self.all(), key=lambda limit: limit.limit_bytes, default=None)

    def size_bytes(self, path: str) -> int | None:
        """Return the number in a file; None if there is none, as in "max"."""
        try:
            size_bytes = int(self.read(path))
        except (OSError, ValueError):
            return None
        return size_bytes if 0 <= size_bytes < _NO_LIMIT_BYTES else None

    def _limit_bytes(self, group: Group) -> int | None:
        return self.size_bytes(f"{group.folder}/{next(iter(_LIMITS[group.version]))}")

    def _groups_limits(self, need: tuple[int, int] | None) -> Iterator[MemoryLimit]:
        for group in self.groups():
            used_bytes: int | None = None
            for file, says in _LIMITS[group.version].items():
                source = f"{group.folder}/{file}"
                limit_bytes = self.size_bytes(source)
                if limit_bytes is None:
                    continue
                if used_bytes is None:
                    used_bytes = self.size_bytes(f"{group.folder}/{_CURRENT[group.version]}")
                limit = MemoryLimit(group.name + says, source, limit_bytes, used_bytes, group=group)
                if used_bytes is not None and (need is None or _is_short(limit, *need)):
                    cache_bytes = self._counted(f"{group.folder}/memory.stat", _RECLAIMABLE[group.version])
                    limit = limit._replace(used_bytes=max(0, used_bytes - (cache_bytes or 0)))
                yield limit

    def _own_limits(self) -> Iterator[MemoryLimit]:
        """Yield the resource limits of this process."""
        try:
            import resource  # loaded long ago, on any system that has it
        except ImportError:
            return
        for name, (memory, field) in _RLIMITS.items():
            number = getattr(resource, name, None)
            if number is None:
                continue
            soft_bytes = resource.getrlimit(number)[0]
            if not 0 <= soft_bytes < _NO_LIMIT_BYTES:  # RLIM_INFINITY is -1, or very large
                continue
            used_bytes = None
            with contextlib.suppress(OSError, ValueError, IndexError):
                used_bytes = int(self.read("/proc/self/statm").split()[field]) * resource.getpagesize()
            yield MemoryLimit(name, name, soft_bytes, used_bytes, memory)

    def _machines_limit(self) -> Iterator[MemoryLimit]:
        """Yield the machine's RAM, if it is known. On Linux psutil is not imported for it."""
        try:
            sizes_kb = dict(map(_named_kb, self.read("/proc/meminfo").splitlines()[:3]))
            total_bytes, available_kb = sizes_kb[b"MemTotal"] * 1024, sizes_kb.get(b"MemAvailable")
        except (OSError, ValueError, KeyError, IndexError):  # another system
            yield from _psutils_limit()
            return
        used_bytes = None if available_kb is None else max(0, total_bytes - available_kb * 1024)
        yield MemoryLimit("this machine", "/proc/meminfo", total_bytes, used_bytes)

    def _counted(self, path: str, name: bytes) -> int | None:
        """Return a figure from a file whose lines are a name and a number; None without it.

        The kernel may sum up counters of many CPUs for it; other threads run meanwhile.
        """
        try:
            text = gil_held().read_slow_file(self.path(path))
            for line in text.splitlines():
                if line.startswith(name + b" "):
                    return max(0, int(line[len(name) :]))
        except (OSError, ValueError):
            pass
        return None


def least(limits: Iterable[MemoryLimit]) -> MemoryLimit | None:
    """Return the limit under which the least is left, as far as that is known; None without any."""
    known = [(one.left_bytes, i, one) for i, one in enumerate(limits) if one.left_bytes is not None]
    return min(known)[2] if known else None


def _is_short(limit: MemoryLimit, need_bytes: int, transient_bytes: int) -> bool:
    enough_bytes = max(need_bytes, limit.scarce_bytes + (transient_bytes if limit.memory == "RAM" else 0))
    return limit.left_bytes is not None and limit.left_bytes < enough_bytes


def _named_kb(line: bytes) -> tuple[bytes, int]:
    name, size_kb, unit = line.split()
    if unit != b"kB":
        raise ValueError(line)
    return name.rstrip(b":"), int(size_kb)


def _psutils_limit() -> Iterator[MemoryLimit]:
    try:
        import psutil

        memory = psutil.virtual_memory()
        total_bytes = int(memory.total)
        available_bytes = getattr(memory, "available", None)
    except Exception as error:  # an installation can be broken in any way
        if is_from_a_handler(error):
            raise
        return
    used_bytes = None if available_bytes is None else max(0, total_bytes - int(available_bytes))
    yield MemoryLimit("this machine", "psutil", total_bytes, used_bytes)
