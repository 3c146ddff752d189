"""What is in use at this moment: a scope that is closed as soon as it is open."""

from __future__ import annotations

from ..records import Measurement
from .scope import Scope


def measured_now(*, reset_peaks: bool = True, all_devices: bool = True) -> Measurement:
    """Return what is in use now.

    Args:
        reset_peaks: Reset the kernel's peak counter, as other measurements of this process do.
        all_devices: Include devices that this process does not use.
    """
    scope = Scope(reset_peaks=reset_peaks, all_devices=all_devices).open()
    scope.close()
    return scope.result(Measurement, "now")
