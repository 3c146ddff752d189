"""What each block at the peak was for: from what was seen meanwhile, and from what names hold at the end."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from .held import Held, surer
from .places import user_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .graph import Address
    from .places import Frame
    from .replay import Block
    from .seen import Pass, Seen

# The figures of aten/src/ATen/cuda/CublasHandlePool.cpp: of each handle and stream, kept for good.
_CUBLAS_BYTES = {8_519_680, 33_554_432}  # the default; that of Hopper and later
_CUBLAS = "workspace of cuBLAS"
_CHECKPOINT = "checkpoint.py"
_RECOMPUTES = "recompute_fn", "unpack_hook"
_ENGINE = "_engine_run_backward"
_NEVER = 1 << 62
_AT_ONCE = 64  # backward passes that may be under way, in all threads together


class Kinds:
    """Tells what the blocks of one device were for.

    Args:
        index: torch's index of the device.
        count: The number of allocations until the peak.
        seen: What was seen of training.
        names: What names hold at the end.
    """

    def __init__(self, index: int, count: int, seen: Seen, names: Mapping[Address, Held]) -> None:
        self._index, self._count, self._names = index, count, names
        # By address, what was seen there: when, and before which pass.
        self._found: dict[int, list[tuple[int, Held, Pass | None]]] = {}
        for look in seen.looks:
            if (position := look.positions.get(index)) is not None:
                for (device, address), held in look.held.items():
                    if device == index:
                        self._found.setdefault(address, []).append((position, held, look.of))
        self._passes = sorted((one for one in seen.passes if index in one.begin), key=self._begin)
        self._begins = [self._begin(one) for one in self._passes]
        self._workspaces = _workspaces()

    def kind_of(self, block: Block, stack: list[Frame]) -> Held:
        """Return what a block was for.

        Args:
            block: One that was alive at the peak.
            stack: Who allocated it, innermost first.
        """
        held = self._seen(block)
        if held is None or held.computed:
            if _is_recomputed(stack) or (self._was_saved(block) and not _is_first_gradient(stack)):
                return Held("activations", held.name if held is not None else "")
            if held is None and not block.before and self._outlived_its_pass(block, stack):
                held = Held("gradients")
        if held is not None:
            return held
        if block.alive and block.size_bytes in self._workspaces:
            return Held("before" if block.before else "temporaries", _CUBLAS)
        if block.before:
            return Held("before")
        return Held("variables" if block.alive else "temporaries")

    def waiting(self, block: Block) -> list[Pass]:
        """Return the backward passes during which a block was allocated: those that the user waits for.

        Of passes within each other, that is the innermost. Passes of several threads are all returned: which
        of them allocated the block is not known. Of a block whose allocation is lost, nothing is.
        """
        if block.lost:
            return []
        found = [one for one in self._around(block.count - 1) if block.count <= self._end(one)]
        found = [one for one in found if user_frame(one.stack) is not None] or found
        return found if len([one for one in found if not one.inner]) > 1 else found[-1:]

    def _seen(self, block: Block) -> Held | None:
        """Return what was seen in a block while it was alive."""
        address = self._index, block.address
        held = self._names.get(address) if block.alive else None
        until = _NEVER if block.freed is None else block.freed
        for position, one, of in self._found.get(block.address, ()):
            if not block.count <= position <= until:
                continue
            if one.kind != "activations" or of is None or self._was_ahead(of):
                held = surer(held, one)
            elif one.name:  # the graph has let go of it, the variable has not
                held = surer(held, Held("variables", one.name))
        return held

    def _was_ahead(self, one: Pass) -> bool:
        """Return whether the peak came before a backward pass let go of its graph."""
        return one.retained or self._count <= self._end(one)

    def _was_saved(self, block: Block) -> bool:
        """Return whether a backward pass freed a block, where it is unknown what its graph kept."""
        return block.freed is not None and any(
            block.count <= self._begin(one) and max(block.freed, self._count) <= self._end(one)
            for one in self._around(block.freed)
            if not one.whole
        )

    def _outlived_its_pass(self, block: Block, stack: list[Frame]) -> bool:
        """Return whether the engine allocated a block in a backward pass that it outlived."""
        if (stack and stack[0][2] != _ENGINE) or block.size_bytes in self._workspaces:
            return False
        passes = self.waiting(block)
        return bool(passes) and all(
            not one.walked and (block.freed is None or block.freed > self._end(one)) for one in passes
        )

    def _around(self, count: int) -> list[Pass]:
        """Return the last passes that had begun at a position, in their order."""
        last = bisect_right(self._begins, count)
        return self._passes[max(last - _AT_ONCE, 0) : last]

    def _begin(self, one: Pass) -> int:
        return one.begin[self._index]

    def _end(self, one: Pass) -> int:
        return (one.end or {}).get(self._index, _NEVER)


def _is_recomputed(stack: list[Frame]) -> bool:
    """Return whether checkpointing computes an activation again, which the pass then needs."""
    return any(name in _RECOMPUTES and file.endswith(_CHECKPOINT) for file, _, name in stack)


def _is_first_gradient(stack: list[Frame]) -> bool:
    """Return whether a block is the gradient of the result, with which a backward pass begins."""
    return any(name == "_make_grads" for _, _, name in stack)


def _workspaces() -> set[int]:
    """Return the sizes that cuBLAS's workspaces may have here."""
    said = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return {sum(int(size) * int(count) * 1024 for size, count in said)} if said else _CUBLAS_BYTES
