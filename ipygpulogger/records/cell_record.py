"""What one notebook cell used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

from .device_usage import CPU, Sizes
from .measurement import Measurement
from .units import MB, truncated_mb
from .usage import notable
from .value import Value

if TYPE_CHECKING:
    from .explained import LineUsage, OutOfMemory
    from .process import Process

MIME = "application/vnd.ipygpulogger.v1+json"  # the MIME type of a record in a notebook: `embed.embedded`
GROUP_MIME = "application/vnd.ipygpulogger.group.v1+json"  # the same of the table of many processes

OUTSIDE = "outside the allocator"  # the owner of what the framework's allocator does not see
LIBRARIES = "libraries loaded"  # the owner of what imports allocated: "libraries loaded: torch"
TEST = "test:"  # begins the `cell_id` of a test, which its id of pytest follows
Status = Literal["ok", "error", "interrupted"]

# Lines that do not say what a cell does: comments, imports, bare keywords, magics around code.
_SAYS_NOTHING = (
    r"#.*|[!@?].*|[)\]}]+|'''|\"\"\"|(?:import|from)\s[^;]*|[\w, ]+[,)]|(?:try|else|finally):|pass|\.\.\."
    r"|%(?!%|(?:time|timeit|prun|memit)\s).*|%%(?:time|timeit|prun|memit|capture|px|gpulog)\b.*"
)
_BEFORE_TEXT = re.compile(r"[%!,;/]+\w*|[^\"'#%!]*")


def main_line_of(text: str) -> str:
    """Return the first line of a cell that says what it does: no import, comment, magic or bare ``try:``.

    Without such a line it is the first one. What stands below another magic, such as ``%%bash``, is no code
    of the cell: there it is the magic.
    """
    lines = list(filter(None, map(str.strip, text.splitlines())))
    return next((line for line in lines if not re.fullmatch(_SAYS_NOTHING, line)), lines[0] if lines else "")


def line_code(record: CellRecord) -> str:
    """Return eight digits for a first line: without texts, numbers, comments, arguments of magics."""
    begins = re.sub(r"\b\d[\w.]*", "0", _BEFORE_TEXT.findall(record.source)[0]).rstrip()
    code = blake2b(begins.encode(errors="replace"), digest_size=4).hexdigest()
    return code if record.source else record.code  # as a log without source has it


class Data(NamedTuple):
    """The last cell in whole megabytes (``2**20``), truncated toward zero; 0 of a GPU without one."""

    gen_mem_used_delta: int
    gen_mem_peaked: int
    gen_mem_used: int
    gpu_mem_used_delta: int
    gpu_mem_peaked: int
    gpu_mem_used: int
    time_delta: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Owner(Value):
    """A name that holds memory.

    Attributes:
        name: The name as the user would write it: "model", "Out[3]", "last traceback: step.act".
        size_bytes: What it holds; in a cell's record, how much that grew within the cell.
        device: "cpu" for general RAM, "cuda:0", ...
        kind: Where the name lives.
        shared: Other names that refer to some of the same memory, which is counted under this one only.
    """

    name: str
    size_bytes: int
    device: str
    kind: Literal["variable", "output", "traceback", "other"]
    shared: tuple[str, ...] = ()

    @property
    def is_libraries(self) -> bool:
        """Whether it stands for imported libraries rather than for a name."""
        return self.kind == "other" and self.name.startswith(f"{LIBRARIES}: ")


def _largest_first(*owners: Owner) -> tuple[Owner, ...]:
    return tuple(sorted(owners, key=lambda owner: -owner.size_bytes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CellRecord(Measurement):
    """What one cell used.

    Attributes:
        execution_count: The 4 of "In [4]"; None where it is unknown.
        cell_id: The front end's id of the cell; None if it sends none.
        source: The cell's first line, shortened.
        status: "ok", "error" or "interrupted".
        error: Name of the exception type that ended the cell; None when it succeeded.
        current_gpu: Index of the framework's current device at the end of the cell; None without one.
        owners: The names that account for what the cell consumed, by how much they grew, the largest first.
        owners_complete: Whether there was time to search everything.
        unexplained: By device, what was consumed beyond the owners, where that is notable; may be negative.
        lines: What each line used, in the order of the text; empty unless requested.
        out_of_memory: What is known when the cell failed for lack of memory.
        between: By device, how much memory moved since the end of the previous cell, if over 1 MB and known.
        gpulog_only: Whether the cell contains only this package's own magics, such as ``%gpulog free``.
        dimensions: By name in the code, batch sizes and leading dimensions of arrays; of few cells empty.
        code: A fingerprint of the code without numbers and comments, or none; in a log, of the first line.
        main_line: The line that says what the cell does, if it is not `source`: the one that allocated most
            of what was alive at the peak, where that was recorded, else that of `main_line_of`.
    """

    execution_count: int | None
    cell_id: str | None
    source: str
    status: Status
    error: str | None = None
    current_gpu: int | None = None
    owners: tuple[Owner, ...] = ()
    owners_complete: bool = True
    unexplained: Sizes = ()
    lines: tuple[LineUsage, ...] = ()
    out_of_memory: OutOfMemory | None = None
    between: Sizes = ()
    gpulog_only: bool = False
    dimensions: tuple[tuple[str, int], ...] = ()
    code: str = ""
    main_line: str = ""

    @property
    def code_line(self) -> str:
        """The line by which reports name the cell, which is its heaviest one where that is known."""
        needs = [(_most_needed_mb(line), line.source) for line in self.lines if not line.place]
        most, source = max(needs, key=lambda one: one[0], default=((0, 0), ""))
        return source if any(most) else self.main_line or self.source

    def outcome(self) -> str:
        """Return how the cell ended if it did not succeed: "failed: ValueError" or "interrupted"."""
        if self.status == "ok":
            return ""
        return "interrupted" if self.status == "interrupted" else f"failed: {self.error}"

    def explained(
        self, owners: tuple[Owner, ...], gone_bytes: Mapping[str, int], *, complete: bool
    ) -> CellRecord:
        """Return the same record with every name that grew, and with what they leave unexplained.

        ``gone_bytes`` is, by device, how much less is held by the names that shrank or disappeared.
        """
        unexplained = []
        for device, grown_bytes in self.grown().items():
            usage = self.memories()[device]
            held_bytes = sum(owner.size_bytes for owner in owners if owner.device == device)
            if (outside_bytes := getattr(usage, "outside_bytes", 0)) >= MB:
                owners = _largest_first(*owners, Owner(OUTSIDE, outside_bytes, device, "other"))
            rest_bytes = grown_bytes - outside_bytes + gone_bytes.get(device, 0) - held_bytes
            if notable(abs(rest_bytes), usage.after_bytes):
                unexplained.append((device, rest_bytes))
        return replace(self, owners=owners, owners_complete=complete, unexplained=tuple(unexplained))

    def with_libraries(self, names: Sequence[str], most_bytes: int) -> CellRecord:
        """Return the same record with unexplained RAM, up to ``most_bytes``, as that of libraries."""
        unexplained = dict(self.unexplained)
        size_bytes = min(unexplained.get(CPU, 0), most_bytes)
        if size_bytes < MB:
            return self
        unexplained[CPU] -= size_bytes
        if not notable(unexplained[CPU], self.gen.after_bytes):
            del unexplained[CPU]
        owner = Owner(f"{LIBRARIES}: {', '.join(names)}", size_bytes, CPU, "other")
        owners = _largest_first(*self.owners, owner)
        return replace(self, owners=owners, unexplained=tuple(unexplained.items()))

    def data(self) -> Data:
        """Return the seven figures of the original package, in whole megabytes."""
        gen, gpu = self.gen, self.gpu(self.current_gpu)
        gpus = (gpu.consumed_bytes, gpu.peaked_bytes, gpu.used_bytes or 0) if gpu else (0, 0, 0)
        sizes = map(truncated_mb, (gen.consumed_bytes, gen.peaked_bytes, gen.after_bytes, *gpus))
        return Data._make((*sizes, self.time_s))


def _most_needed_mb(line: LineUsage) -> tuple[int, int]:
    """Return the most that a line can have held at once, on a device and in RAM."""
    needed = {device: line.need_bytes(device) // MB for device in line.memories()}
    ram_mb = needed.pop(CPU)
    return max(needed.values(), default=0), ram_mb


def process_of(record: CellRecord) -> Process | None:
    """Return which process of many a record came from; None for a cell of this kernel."""
    return getattr(record, "process", None)
