"""NVML's library: opened, and closed while no call is in it; why it does not answer, in plain words.

Closing it during a call of another thread would free what the driver works on. A driver may also hang, so
`close` does not wait for that call: the thread that is in it closes the library on its way out.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...runtime.errors import call_uninterrupted, is_from_a_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

NO_DRIVER = "no NVIDIA driver"
NOT_INSTALLED = "nvidia-ml-py is not installed"
_MISMATCH = "the driver's library and kernel module differ"
_NO_PERMISSION = "no permission"
_REMEDIES = {
    NOT_INSTALLED: "pip install nvidia-ml-py",
    NO_DRIVER: "if this machine has an NVIDIA GPU, install its driver",
    _MISMATCH: "restart the machine: the driver was updated",
    _NO_PERMISSION: "ask for access to the /dev/nvidia* files",
}


def reason(module: ModuleType | None, error: Exception) -> str:
    """Return why a call failed, or pynvml's import (None): a known reason, NVML's own words, or pynvml's."""
    if module is None or not isinstance(error, getattr(module, "NVMLError", ())):
        return f"pynvml fails: {str(error) or type(error).__name__}"
    known = {
        module.NVMLError_LibraryNotFound: NO_DRIVER,
        module.NVMLError_DriverNotLoaded: NO_DRIVER,
        module.NVMLError_LibRmVersionMismatch: _MISMATCH,
        module.NVMLError_NoPermission: _NO_PERMISSION,
    }
    return known.get(type(error)) or f"NVML says {str(error)!r}"


def remedy(reasons: str) -> str | None:
    """Return what the user can do about it; None if that is not known."""
    return next((does for trouble, does in _REMEDIES.items() if trouble in reasons), None)


class Missing:
    """The figures that are missing at present, and why."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}  # by figure; an entry goes when the driver answers again
        self._reported: set[str] = set()
        self._unreported: list[str] = []

    def add(self, figure: str, why: str, sentence: str | None = None) -> None:
        """Note why a figure is missing, and a sentence for the user, who reads one a figure and process."""
        self.reasons[figure] = why
        if sentence is not None and figure not in self._reported:
            self._reported.add(figure)
            self._unreported.append(sentence)

    def found(self, figure: str) -> None:
        """Note that a figure is there after all."""
        self.reasons.pop(figure, None)

    def take_notes(self) -> tuple[str, ...]:
        """Return the sentences since the last call."""
        notes, self._unreported = tuple(self._unreported), []
        return notes


class NvmlLibrary:
    """The library; any thread may use it while another opens or closes it.

    Args:
        missing: Where to note why it cannot be opened.
        opened: Called with pynvml as soon as it is open.
        closed: Called when it is closed, and before it is opened.
    """

    def __init__(
        self, missing: Missing, opened: Callable[[ModuleType], None], closed: Callable[[], None]
    ) -> None:
        self._missing, self._opened, self._closed = missing, opened, closed
        self._gate = threading.RLock()  # for opening and closing; not held during a call
        self._using: set[int] = set()  # the threads that are in the library just now
        self._closing = False  # it is to be closed by the last of them
        self._pid = 0  # of the process that opened it
        self._module: ModuleType | None = None

    @contextmanager
    def use(self) -> Iterator[ModuleType | None]:
        """Give pynvml, and keep it open meanwhile; None while it is closed."""
        thread = threading.get_ident()
        outermost = thread not in self._using
        try:
            with self._gate:
                self._using.add(thread)
                module = self._module if self._pid == os.getpid() else None
            yield module
        finally:
            if outermost:
                self._using.discard(thread)
                if self._closing:
                    self.close()

    def open(self) -> None:
        """Open the library, unless it is; without a driver it stays closed, and is not tried again."""
        if self._pid != os.getpid() or self._closing:
            with self._gate:
                self._closing = False
                if self._pid != os.getpid():
                    self._open()

    def close(self) -> None:
        """Close the library, now or as soon as no other thread is in it."""
        with self._gate:
            self._using.discard(threading.get_ident())  # this thread is closing it, not using it
            if self._module is not None and self._pid == os.getpid():
                if self._using:
                    self._closing = True
                    return
                self._shut_down()
            self._forget()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread may have held at the moment of the fork."""
        self._gate = threading.RLock()
        self._using.clear()

    def _open(self) -> None:
        self._forget()
        self._using.clear()
        self._missing.reasons.clear()
        try:
            if _is_missing():
                self._missing.add("open", NO_DRIVER)
            else:
                self._initialise()
                if self._module is not None:
                    self._opened(self._module)
            self._pid = os.getpid()  # last: an opening that was interrupted is done again
        except BaseException:
            self._shut_down()  # what is open now would stay open
            self._forget()
            raise

    def _initialise(self) -> None:
        try:
            import pynvml
        except Exception as error:  # not there, broken, or no descriptor is left to read it
            self._cannot_open(NOT_INSTALLED if isinstance(error, ImportError) else reason(None, error), error)
            return

        def initialise() -> None:
            pynvml.nvmlInit()  # the driver counts openings, and pynvml does after it
            self._module = pynvml

        try:
            call_uninterrupted(initialise)
        except Exception as error:  # another module may be called pynvml
            self._cannot_open(reason(pynvml, error), error)

    def _cannot_open(self, why: str, error: Exception) -> None:
        if is_from_a_handler(error):
            raise error
        ordinary = why in (NO_DRIVER, NOT_INSTALLED)
        self._missing.add("open", why, None if ordinary else f"no figures of the whole GPU: {why}")

    def _shut_down(self) -> None:
        if (module := self._module) is None:
            return

        def shut_down() -> None:
            self._module = None  # once more would close the user's own
            with suppress(module.NVMLError):
                module.nvmlShutdown()

        call_uninterrupted(shut_down)

    def _forget(self) -> None:
        self._pid, self._module, self._closing = 0, None, False
        self._closed()


def _is_missing() -> bool:
    """Return whether the driver's library is certainly not on this machine.

    pynvml would say the same, but importing it takes 7 ms and 2 MB. In doubt it is imported, for its reason.
    """
    if sys.platform == "win32" or "pynvml" in sys.modules or find_spec("pynvml") is None:
        return False
    from _ctypes import dlopen  # `ctypes.CDLL` makes a class first, which is garbage where this fails

    try:
        dlopen("libnvidia-ml.so.1", ctypes.DEFAULT_MODE)
    except OSError as error:  # else it cannot be loaded, or no descriptor is left
        return isinstance(error, FileNotFoundError) or "no such file" in str(error).lower()
    return False
