"""How much RAM this process may use and what is left of it; which processes were killed for lack of it.

A container or job (cgroup v1 and v2) limits the working set of all its processes: what is charged to it
without ``inactive_file``, the page cache that the kernel gives up first; Kubernetes counts so. RLIMIT_AS
limits the address space of this process, RLIMIT_DATA its private writable memory. RLIMIT_RSS is left out,
because Linux does not enforce it. A group is limited by each of its ancestors too, so the one that leaves the
least rules. Limits and groups may change: the files are read anew each time.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ...records import Diagnosis
from ...records.units import size_text
from ...runtime.errors import is_from_a_handler, write_file
from .linux import gil_held, resource

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
_BEYOND = {  # what happens there, by the end of a limit's source
    "memory.high": "beyond it Linux slows the processes down, and kills none",
    "RLIMIT_AS": "it counts address space; beyond it allocating fails",
    "RLIMIT_DATA": "it counts private writable memory; beyond it allocating fails",
}
_REMEDY = (
    "%gpulog vars shows what holds memory; every process under the limit counts, so end kernels that you no"
    " longer need, or ask for a larger limit"
)
# How many kills were said of the last group, below the user's runtime or cache folder: a kernel that was
# killed cannot say so, and the next one only finds a count.
_SAID = Path("ipygpulogger", "oom-kills")


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
    memory: str = "RAM"  # what counts against it: that, "Address space" or "Data memory"
    group: Group | None = None  # whose limit it is, if it is a group's

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
    def title(self) -> str:
        """What is left, in words."""
        return f"{self.memory} left"

    def __str__(self) -> str:
        whole = f"{size_text(self.limit_bytes)} ({self.name})"
        return whole if self.left_bytes is None else f"{size_text(self.left_bytes)} of {whole}"

    def diagnosis(self) -> Diagnosis:
        """Return what the doctor says of it."""
        is_known = self.used_bytes is not None
        left = f"{self} left" if is_known else f"{self}, of which the part in use cannot be read"
        says = [left if self.source == self.name else f"{left}, from {self.source}"]
        if self.group is not None and self.used_bytes is not None:
            used = size_text(self.used_bytes)
            says.append(f"working set {used}, without page cache that can be reclaimed")
        says += [beyond for source, beyond in _BEYOND.items() if self.source.endswith(source)]
        remedy = _REMEDY if self.is_scarce else None
        return Diagnosis("RAM limit", "exact" if is_known else "bounded", "; ".join(says), remedy)


class Kills(NamedTuple):
    """How many processes the kernel's out-of-memory killer ended."""

    processes: int  # how many, since the group exists, or since the machine started
    where: str  # "this container", "this machine", ...
    source: str  # the file
    limit_bytes: int | None  # the limit of that group

    def sentence(self, count: int) -> str:
        """Return that so many of them were killed."""
        processes = "1 process" if count == 1 else f"{count} processes"
        limit = "" if self.limit_bytes is None else f" (limit {size_text(self.limit_bytes)})"
        return f"Linux killed {processes} of {self.where} for lack of memory{limit}"


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
        """Return every limit; with a need, as of `short`, page cache is looked up only where it matters."""
        found = [*self._groups_limits(need), *self._own_limits(), *self._machines_limit()]
        sizes_bytes = [limit.limit_bytes for limit in found if limit.memory == "RAM"]
        self.total_bytes = min(sizes_bytes, default=None)
        return found

    def short(self, need_bytes: int, transient_bytes: int) -> MemoryLimit | None:
        """Return the tightest limit that leaves too little; None where there is enough.

        Too little is less than what is needed, or than a twentieth of the limit, also when `transient_bytes`
        more were in use than now.
        """
        need = need_bytes, transient_bytes
        return least(limit for limit in self.all(need) if _is_short(limit, *need))

    def refusing(self) -> MemoryLimit | None:
        """Return the tightest limit beyond which allocating fails; beyond a group's, processes are killed."""
        return least([*self._own_limits(), *self._machines_limit()])

    def groups(self) -> Iterator[Group]:
        """Yield the cgroup of this process and its ancestors, as far as they can be seen from here.

        Within a container the mounted group is its own; the path is "/", or as the host has it, or leads out
        ("/../x"), and of those only the mounted group exists here.
        """
        with suppress(OSError):
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

        That is the group with the nearest limit. Version 2 counts the kills in the groups below it, too;
        version 1 does not, so there it is the innermost. `of_machine` asks for those of the whole machine
        where no group counts them.
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
        """Return a sentence on what was killed since any process of this user asked; None if nothing was.

        What was said is written down. If that cannot be, it is said again.
        """
        kills = self.kills()
        if kills is None or not kills.processes:
            return None
        new, group = kills.processes, kills.source
        with suppress(OSError):  # not one of the same path in another container, host or boot
            boot = self.read("/proc/sys/kernel/random/boot_id").decode(errors="replace").strip()
            group = f"{boot} {Path(self.path(group)).stat().st_ino} {group}"
        folders = filter(None, map(os.environ.get, ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME")))
        path = Path(next(folders, os.path.expanduser("~/.cache")), _SAID)  # noqa: PTH111 - raises nothing
        with suppress(OSError, ValueError):  # none so far, or not as written below
            said_group, _, said = path.read_text("utf-8").rpartition(" ")
            if said_group == group and 0 <= int(said) <= new:
                new -= int(said)
        if new:
            with suppress(OSError):  # a home that cannot be written
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, f"{group} {kills.processes}")
        return f"{kills.sentence(new)}." if new else None

    def diagnoses(self) -> list[Diagnosis]:
        """Return what is known of each limit, and of processes that were killed."""
        known = sorted(
            self.all(), key=lambda one: (one.left_bytes is None, one.left_bytes or one.limit_bytes)
        )
        found = [limit.diagnosis() for limit in known]
        if not found:
            found = [Diagnosis("RAM limit", "absent", "neither the machine's RAM nor a limit can be read")]
        kills = self.kills(of_machine=True)
        if kills and kills.processes:
            says = f"{kills.sentence(kills.processes)}, from {kills.source}"
            found.append(Diagnosis("OOM kills", "exact", says))
        return found

    def read(self, path: str) -> bytes:
        """Return what a file of the system says; raises `OSError`."""
        return gil_held().read_file(self.path(path))

    def path(self, path: str) -> str:
        """Return where a file of the system lies, which is elsewhere for a simulated machine."""
        return self._root + path

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
        for name, (memory, field) in _RLIMITS.items():
            number = getattr(resource, name, None)
            soft_bytes = -1 if number is None else resource.getrlimit(number)[0]
            if not 0 <= soft_bytes < _NO_LIMIT_BYTES:  # RLIM_INFINITY is -1, or very large
                continue
            used_bytes = None
            with suppress(OSError, ValueError, IndexError):
                used_bytes = int(self.read("/proc/self/statm").split()[field]) * resource.getpagesize()
            yield MemoryLimit(name, name, soft_bytes, used_bytes, memory)

    def _machines_limit(self) -> Iterator[MemoryLimit]:
        """Yield the machine's RAM, if it is known. On Linux psutil is not imported for it."""
        source, text = "/proc/meminfo", b""
        with suppress(OSError):
            text = self.read(source)
        sizes = dict(re.findall(rb"^(MemTotal|MemAvailable): *(\d+) kB$", text, re.MULTILINE))
        sizes_bytes = {name.decode(): int(size_kb) * 1024 for name, size_kb in sizes.items()}
        if "MemTotal" not in sizes_bytes:  # another system
            source, sizes_bytes = "psutil", _psutils_sizes_bytes()
        total_bytes, available_bytes = map(sizes_bytes.get, ("MemTotal", "MemAvailable"))
        if total_bytes is not None:
            used_bytes = None if available_bytes is None else max(0, total_bytes - available_bytes)
            yield MemoryLimit("this machine", source, total_bytes, used_bytes)

    def _counted(self, path: str, name: bytes) -> int | None:
        """Return a figure from a file of names and numbers, for which counters of many CPUs are summed."""
        with suppress(OSError):
            text = Path(self.path(path)).read_bytes()
            if found := re.search(rb"^%b (-?\d+)$" % name, text, re.MULTILINE):
                return max(0, int(found[1]))
        return None


def least(limits: Iterable[MemoryLimit]) -> MemoryLimit | None:
    """Return the limit under which the least is left, as far as that is known; None without any."""
    known = [(one.left_bytes, i, one) for i, one in enumerate(limits) if one.left_bytes is not None]
    return min(known)[2] if known else None


def _is_short(limit: MemoryLimit, need_bytes: int, transient_bytes: int) -> bool:
    enough_bytes = max(need_bytes, limit.scarce_bytes + (transient_bytes if limit.memory == "RAM" else 0))
    return limit.left_bytes is not None and limit.left_bytes < enough_bytes


def _psutils_sizes_bytes() -> dict[str, int]:
    try:
        import psutil

        memory = psutil.virtual_memory()
        sizes = {"MemTotal": memory.total, "MemAvailable": getattr(memory, "available", None)}
        return {name: int(size_bytes) for name, size_bytes in sizes.items() if size_bytes is not None}
    except Exception as error:  # an installation can be broken in any way
        if is_from_a_handler(error):
            raise
        return {}
