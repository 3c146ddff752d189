"""`EpochScope`: measures one epoch at a time, for the callbacks of training frameworks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..engine.scope import Scope
from ..runtime.calls import Call
from ..runtime.frames import walk_stack
from .epoch_record import EpochRecord, doubts
from .warn import warn

if TYPE_CHECKING:
    from types import FrameType


class EpochScope:
    """Measure one epoch at a time; never raises.

    A copy, such as a pickled callback makes, starts without an open epoch.
    """

    def __init__(self) -> None:
        self._scope: Scope | None = None
        self._during: Call | None = None

    def within(self, frame: FrameType | None) -> None:
        """Drop the open epoch, and tie those that follow to a call: they end with it, however it ends.

        Args:
            frame: The call, of a framework's ``fit``; None for no call.
        """
        self.drop()
        self._during = frame and Call(frame)

    def is_open(self) -> bool:
        """Return whether an epoch has begun and not ended."""
        return self._scope is not None

    def begin(self) -> None:
        """Begin an epoch; drop one that never ended."""
        self.drop()
        try:
            self._scope = Scope(during=self._during)
            self._scope.open()
        except Exception as reason:  # the training goes on
            self._scope = None
            warn(f"the epoch is not measured: {reason}")

    def end(self, label: str, device: Any = None, *, marked: bool = False) -> EpochRecord | None:
        """End the epoch, and return its record; None if none was open, or it could not be measured.

        Args:
            label: The name of the epoch.
            device: Where the training runs: "cuda:1", a `torch.device`; without an index the framework's
                current device. None if unknown.
            marked: Whether the caller shows which figures are not exact; if not, a warning says so.
        """
        scope = self._scope
        if scope is None:
            return None
        try:
            stale = scope.orphaned()
            scope.close()
            self._scope = None
            if stale:
                return None
            kind, _, index = str(device or "").partition(":")
            current = machine().frameworks.current_index() if kind else None
            record = scope.result(
                EpochRecord,
                label,
                on_cpu=kind == "cpu",
                gpu_index=int(index) if index.isdecimal() else current,
            )
        except Exception as reason:
            self._scope = None
            warn(f"{label} is not measured: {reason}")
            return None
        for note in record.notes:
            warn(note)
        for doubt in () if marked else doubts(record):
            warn(f"the memory of an epoch is not exact: {doubt}")
        return record

    def drop(self) -> None:
        """Close the open epoch without a record."""
        try:
            if self._scope is not None:
                self._scope.close()
        except (
            Exception
        ):  # the epoch's figures are discarded anyway; closing fails while the interpreter shuts down
            pass
        self._scope = None

    def __reduce__(self) -> tuple[type[EpochScope], tuple[()]]:
        return EpochScope, ()


def caller(package: str, *names: str) -> FrameType | None:
    """Return the innermost running call on this thread of a function with such a name in a package."""
    for frame in walk_stack(sys._getframe(1)):
        if frame.f_code.co_name in names:
            module = frame.f_globals.get("__name__")
            if f"{module}.".startswith(f"{package}."):
                return frame
    return None
