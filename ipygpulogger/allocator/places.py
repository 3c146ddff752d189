"""The user's line that a Python stack stands for: the innermost one, library frames folded into it."""

from __future__ import annotations

import functools
import linecache
import os
import re
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from ..records.explained import CallStack
from ..records.units import clipped
from ..runtime.objects import walk_stack
from ..runtime.shell import is_a_cells, is_users_file, lines_of, place_of_cell

Frame = tuple[str, int, str]  # a file, a line and a function

_DEEPEST = 64  # frames
_TEXT_CHARACTERS = 80
OURS = f"{__file__.rpartition(os.sep)[0].rpartition(os.sep)[0]}{os.sep}"  # the package
_STANDARD = f"{os.__file__.rpartition(os.sep)[0]}{os.sep}"
_NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".S")  # how files of other languages end
# Below a magic: the body of `%%time`, of `%%timeit` and of `%%prun`, with the function that each is.
_BODIES = {("<timed exec>", "<module>"), ("<timed eval>", "<module>"), ("<magic-timeit>", "inner")}
_BODIES |= {("<string>", "<module>")}
_CELLS = re.compile(r"<ipython-input-\d+-")
_TORCH = f"{os.sep}torch{os.sep}"


class Place(NamedTuple):
    """A line of the user's."""

    place: str  # "In [7]:3", "train.py:41"
    text: str  # the line itself; "" where it is unknown


@functools.cache
def is_users(file: str) -> bool:
    """Return whether a file holds code of the user's: a cell, or a file that is not installed."""
    if _CELLS.match(file):
        return True
    return is_users_file(file) and not file.startswith(OURS)


def is_top(frame: Frame) -> bool:
    """Return whether a frame runs the lines of a cell or a file of the user's, rather than a function."""
    return (frame[2] == "<module>" or frame[2].startswith("<cell line")) and is_users(frame[0])


def stack_of(frame: FrameType | None) -> tuple[Frame, ...]:
    """Return a stack from a frame outwards to the user's outermost line; all of it without one."""
    found: list[Frame] = []
    end = 0  # behind that line
    for one in walk_stack(frame):
        found.append((one.f_code.co_filename, one.f_lineno, one.f_code.co_name))
        end = len(found) if is_users(found[-1][0]) else end
        if is_top(found[-1]) or (end and len(found) >= _DEEPEST):
            break
    return tuple(found[: end or None][-_DEEPEST:])


def frames_of(stack: Iterable[dict[str, Any]]) -> list[Frame]:
    """Return the Python frames of a stack that torch's allocator recorded; it may have frames of C++ too."""
    found = ((one["filename"], one["line"], one["name"]) for one in stack)
    return [one for one in found if one[0] not in ("", "??") and not one[0].endswith(_NATIVE)]


def user_frame(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's: of a cell, of a file, or of the body of a cell's magic."""
    # That body is compiled as a text of its own, as is what `exec` and a line's magic are given. For these
    # the line that calls them stands.
    body = None
    for frame in stack:
        file, _, function = frame
        if is_users(file):
            return frame
        if (file, function) in _BODIES:
            body = frame
        elif body is not None and function == "run_cell_magic":
            return body
    return None


def last_resort(stack: Sequence[Frame]) -> Frame | None:
    """Return the frame that says most where none is the user's: of code from a text, or of a library."""
    texts = [frame for frame in stack if frame[0].startswith("<") and not frame[0].startswith("<frozen")]
    if texts:
        return texts[0]
    within = OURS, _STANDARD, "<frozen"
    libraries = [one for one in stack if not (one[0].startswith(within) or _TORCH in one[0])]
    return libraries[0] if libraries else stack[0] if stack else None


class Places:
    """Names places; of two files of one name the second is called by its path."""

    def __init__(self, shell: Any = None) -> None:
        self._shell = shell
        self._cells: dict[str, tuple[str, int] | None] = {}
        self._files: dict[str, str] = {}  # by name, the first file that has it

    def place_of(self, frame: Frame, stack: Sequence[Frame] = ()) -> Place:
        """Return how a user would write the line of a frame; of a helper, first the cell's that called it."""
        # That is looked up in the frame's stack, and left out where the helper stands in the same cell.
        place = self._place(frame)
        callers = stack[stack.index(frame) :] if frame in stack else []
        caller = next(filter(self._is_cells_line, callers), frame)
        if caller[0] == frame[0]:
            return place
        return place._replace(place=f"{self._place(caller).place} → {frame[2]}, {place.place}")

    def calls_of(self, stack: Iterable[Frame]) -> CallStack:
        """Return the user's calls that a stack has, from the cell's line on, as a `CallStack` of no size."""
        users: list[Frame] = []
        libraries = within = 0
        for frame in stack:
            if is_users(frame[0]) or self._below_magic(frame):
                users.append(frame)
                within = libraries
            elif not frame[0].startswith(OURS):
                libraries += 1
            if self._is_cells_line(frame):
                break
        lines: list[str] = []
        for frame in reversed(users):
            function = "" if is_top(frame) or not is_users(frame[0]) else f" {frame[2]}"
            line = self._place(frame).place + function
            at = lines.index(line) if line in lines else len(lines)
            lines[at:] = [line]  # a recursion that came back to it has left nothing between
        return CallStack(0, tuple(lines), within)

    def _is_cells_line(self, frame: Frame) -> bool:
        return bool(self._below_magic(frame) or (is_top(frame) and self._cell(frame[0])))

    def _place(self, frame: Frame) -> Place:
        file, line, _ = frame
        cell = self._cell(file) or self._below_magic(frame)
        if cell is not None:
            label, above = cell
            return Place(f"{label}:{line + above}", _text(file, line))
        name = os.path.basename(file)  # noqa: PTH119
        short = name if self._files.setdefault(name, file) == file else file
        return Place(f"{short}:{line}", _text(file, line))

    def _cell(self, file: str) -> tuple[str, int] | None:
        """Return a cell's label, and how many lines of its text come before the first compiled one."""
        if file not in self._cells:
            is_one = self._shell is not None and (is_a_cells(self._shell, file) or _CELLS.match(file))
            self._cells[file] = place_of_cell(self._shell, file) if is_one else None
        return self._cells[file]

    def _below_magic(self, frame: Frame) -> tuple[str, int] | None:
        """Return the same of the body of a cell's magic, which is compiled as a text of its own."""
        file, _, function = frame
        inputs = [] if self._shell is None else self._shell.history_manager.input_hist_raw
        if (file, function) not in _BODIES or not inputs:
            return None
        above = below_magics(lines_of(inputs[-1]))  # it is the cell that runs, or ran last
        return None if above is None else (f"In [{len(inputs) - 1}]", above)


def below_magics(lines: Sequence[str]) -> int | None:
    """Return how many lines come before the body of a cell's magics; None without one."""
    filled = [at for at, line in enumerate(lines) if line.strip()]
    body = next((at for at in filled if not lines[at].lstrip().startswith("%%")), len(lines))
    return body if filled and body != filled[0] else None


def _text(file: str, line: int) -> str:
    return clipped(linecache.getline(file, line).strip(), _TEXT_CHARACTERS)
