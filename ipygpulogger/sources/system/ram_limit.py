"""How much RAM this process may use and what is left of it; which processes were killed for lack of it.

cgroups limit the working set, as Kubernetes counts it: what is charged, without ``inactive_file``. Each
ancestor of a group limits it, too. Limits and groups may change: the files are read anew each time.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ...records import Diagnosis
from ...records.units import size_text
from ...runtime.errors import write_file
from .linux import gil_held, resource

SCARCE = 0.05  # of a limit: less is little

_NO_LIMIT_BYTES = 2**60  # cgroup v1 writes "no limit" as the largest number of pages
_REMEDY = (
    "%gpulog vars shows what holds memory; every process under the limit counts, so end kernels that you no"
    " longer need, or ask for a larger limit"
)
# How many kills were said of the last group, below the user's runtime or cache folder: a kernel that was
# killed cannot say so, and the next one only finds a count.
_SAID = Path("ipygpulogger", "oom-kills")


# Of each version of cgroups, where systemd and containers mount it, and the rest of a `Group`.
_V2 = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "memory.events"
_V1 = (
    "/sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)


class Group(NamedTuple):
    """A cgroup that this process is in, or an ancestor of it; its folder, and names of files there."""

    folder: str
    limit: str
    current: str
    reclaimable: str  # the name of a figure in memory.stat; of v1 with the groups below
    kills: str

    @property
    def name(self) -> str:
        """What people call it, which is "job" under SLURM, else "container"."""
        return "job" if "slurm" in self.folder else "container"


class MemoryLimit(NamedTuple):
    """A limit, and what is left under it."""

    name: str  # "container limit", "this machine" or "RLIMIT_AS"
    source: str  # the file, or the name of the resource limit
    limit_bytes: int
    used_bytes: int | None  # what counts against it; None when unknown
    memory: str = "RAM"  # what counts against it: that or "Address space"

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

    def __str__(self) -> str:
        whole = f"{size_text(self.limit_bytes)} ({self.name})"
        return whole if self.left_bytes is None else f"{size_text(self.left_bytes)} of {whole}"

    def diagnosis(self) -> Diagnosis:
        """Return what the doctor says of it."""
        is_known = self.used_bytes is not None
        left = f"{self} left" if is_known else f"{self}, of which the part in use cannot be read"
        says = left if self.source == self.name else f"{left}, from {self.source}"
        remedy = _REMEDY if self.is_scarce else None
        return Diagnosis("RAM limit", "exact" if is_known else "bounded", says, remedy)


class Kills(NamedTuple):
    """How many processes of a group the kernel's out-of-memory killer ended."""

    processes: int  # how many, since the group exists
    where: str  # "this container", "this job" or "this cgroup"
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
        self.seen: list[MemoryLimit] = []  # as last read: reading takes longer than a short cell may

    @cached_property  # not called again: each rich report asks
    def total_bytes(self) -> int | None:
        """The most RAM that all processes here can have, as first read; None when unknown."""
        return min((one.limit_bytes for one in self.all() if one.memory == "RAM"), default=None)

    def all(self) -> list[MemoryLimit]:
        """Return every limit."""
        self.seen = [*self._groups_limits(), *self._own_limits(), *self._machines_limit()]
        return self.seen

    def short(self, need_bytes: int, transient_bytes: int) -> MemoryLimit | None:
        """Return the tightest limit that leaves too little; None where there is enough.

        Too little is less than what is needed, or than a twentieth of the limit, also when `transient_bytes`
        more were in use than now.
        """
        return least(limit for limit in self.all() if _is_short(limit, need_bytes, transient_bytes))

    def refusing(self) -> MemoryLimit | None:
        """Return the tightest limit beyond which allocating fails; beyond a group's, processes are killed."""
        return least([*self._own_limits(), *self._machines_limit()])

    def groups(self) -> Iterator[Group]:
        """Yield the cgroup of this process and its ancestors, as far as they can be seen from here.

        In a container the path may be the host's, or lead out ("/../x"): there only the mounted group exists.
        """
        with suppress(OSError):
            for line in self.read("/proc/self/cgroup").decode(errors="replace").splitlines():
                _, _, rest = line.partition(":")
                controllers, _, path = rest.partition(":")
                if controllers and "memory" not in controllers.split(","):
                    continue
                mount, *files = _V1 if controllers else _V2
                parts = PurePosixPath("/", path.lstrip("/")).parts[1:]
                for depth in range(0 if ".." in parts else len(parts), -1, -1):
                    yield Group("/".join((mount, *parts[:depth])), *files)

    def kills(self) -> Kills | None:
        """Return the kills in the group with the nearest limit, else in the innermost that counts them."""
        groups = list(self.groups())
        limited = [group for group in groups if self._limit_bytes(group) is not None]
        for group in (*limited, *groups):
            source = f"{group.folder}/{group.kills}"
            count = self._counted(source, "oom_kill")
            if count is not None:
                where = f"this {group.name if group in limited else 'cgroup'}"
                return Kills(count, where, source, self._limit_bytes(group))
        return None

    def new_oom_kills(self) -> str | None:
        """Return a sentence on what was killed since any process of this user asked; None if nothing was."""
        kills = self.kills()
        if kills is None or not kills.processes:
            return None
        new, group = kills.processes, kills.source
        with suppress(OSError):  # not one of the same path in another container, host or boot
            boot = self.read("/proc/sys/kernel/random/boot_id").decode(errors="replace").strip()
            group = f"{boot} {Path(self._root + group).stat().st_ino} {group}"
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
        known = sorted(self.all(), key=lambda one: (one.left_bytes is None, one.left_bytes, one.limit_bytes))
        found = [limit.diagnosis() for limit in known]
        if not found:
            found = [Diagnosis("RAM limit", "absent", "neither the machine's RAM nor a limit can be read")]
        kills = self.kills()
        if kills and kills.processes:
            says = f"{kills.sentence(kills.processes)}, from {kills.source}"
            found.append(Diagnosis("OOM kills", "exact", says))
        return found

    def read(self, path: str) -> bytes:
        """Return what a file of the system says; raises `OSError`."""
        return gil_held().read_file(self._root + path)

    def size_bytes(self, path: str) -> int | None:
        """Return the number in a file; None if there is none, as in "max"."""
        with suppress(OSError, ValueError):
            size_bytes = int(self.read(path))
            return size_bytes if 0 <= size_bytes < _NO_LIMIT_BYTES else None
        return None

    def _limit_bytes(self, group: Group) -> int | None:
        return self.size_bytes(f"{group.folder}/{group.limit}")

    def _groups_limits(self) -> Iterator[MemoryLimit]:
        for group in self.groups():
            limit_bytes = self._limit_bytes(group)
            if limit_bytes is None:
                continue
            used_bytes = self.size_bytes(f"{group.folder}/{group.current}")
            if used_bytes is not None:
                cache_bytes = self._counted(f"{group.folder}/memory.stat", group.reclaimable)
                used_bytes = max(0, used_bytes - (cache_bytes or 0))
            source = f"{group.folder}/{group.limit}"
            yield MemoryLimit(f"{group.name} limit", source, limit_bytes, used_bytes)

    def _own_limits(self) -> Iterator[MemoryLimit]:
        number = getattr(resource, "RLIMIT_AS", None)
        soft_bytes = -1 if number is None else resource.getrlimit(number)[0]
        if not 0 <= soft_bytes < _NO_LIMIT_BYTES:  # RLIM_INFINITY is -1, or very large
            return
        used_bytes = None
        with suppress(OSError, ValueError, IndexError):
            used_bytes = int(self.read("/proc/self/statm").split()[0]) * resource.getpagesize()
        yield MemoryLimit("RLIMIT_AS", "RLIMIT_AS", soft_bytes, used_bytes, "Address space")

    def _machines_limit(self) -> Iterator[MemoryLimit]:
        source = "/proc/meminfo"
        with suppress(OSError, ValueError):
            sizes_kb = re.findall(rb"^Mem(?:Total|Available): *(\d+) kB$", self.read(source), re.MULTILINE)
            total_bytes, available_bytes = (int(size_kb) * 1024 for size_kb in sizes_kb)
            yield MemoryLimit("this machine", source, total_bytes, max(0, total_bytes - available_bytes))
            return
        if sys.platform != "linux" and not self._root:
            with suppress(Exception):  # psutil may be broken in any way
                import psutil

                memory = psutil.virtual_memory()
                yield MemoryLimit("this machine", "psutil", memory.total, memory.total - memory.available)

    def _counted(self, path: str, name: str) -> int | None:
        """Return a figure from a file of names and numbers, for which counters of many CPUs are summed."""
        with suppress(OSError):
            text = Path(self._root + path).read_bytes()
            if found := re.search(rb"^%b (-?\d+)$" % name.encode(), text, re.MULTILINE):
                return max(0, int(found[1]))
        return None


def least(limits: Iterable[MemoryLimit]) -> MemoryLimit | None:
    """Return the limit under which the least is left, as far as that is known; None without any."""
    known = [(one.left_bytes, i, one) for i, one in enumerate(limits) if one.left_bytes is not None]
    return min(known)[2] if known else None


def _is_short(limit: MemoryLimit, need_bytes: int, transient_bytes: int) -> bool:
    enough_bytes = max(need_bytes, limit.scarce_bytes + (transient_bytes if limit.memory == "RAM" else 0))
    return limit.left_bytes is not None and limit.left_bytes < enough_bytes
