"""Why NVML does not answer, in plain words; each reason is reported once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    """Return why a call failed: a known reason, NVML's own words, or how pynvml itself fails.

    Args:
        module: pynvml; None if importing it is what failed.
        error: What was raised.
    """
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
    """The figures that are missing at present, and why.

    Attributes:
        reasons: By figure; an entry goes when the driver answers again.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._said: set[str] = set()
        self._unsaid: list[str] = []

    def add(self, figure: str, why: str, sentence: str | None = None) -> None:
        """Note that a figure is missing.

        Args:
            figure: What is missing.
            why: For `diagnose`.
            sentence: For the user, once in the life of the process; None if it needs no mention.
        """
        self.reasons[figure] = why
        if sentence is not None and figure not in self._said:
            self._said.add(figure)
            self._unsaid.append(sentence)

    def found(self, figure: str) -> None:
        """Note that a figure is there after all."""
        self.reasons.pop(figure, None)

    def take_notes(self) -> tuple[str, ...]:
        """Return the sentences since the last call."""
        notes, self._unsaid = tuple(self._unsaid), []
        return notes
