"""`Attempt`: tells what the ranks sent since torchrun restarted their job from what they sent before."""

from __future__ import annotations

import os

from ..runtime import clock

STAMP_BYTES = 48  # at most
_CLOCK_S = 2.0  # what the clocks of two machines may differ by, and the resolution of a process's start


class Attempt:
    """One run of the job between two restarts by torchrun, as this rank sees it.

    The job's store may stay when torchrun restarts it, with what the ranks left there, while all ranks run as
    new processes. TORCHELASTIC_RESTART_COUNT does not tell the attempts of a whole job apart, because the
    agent of each machine counts only the restarts that its own ranks caused. So what another machine sent is
    compared by its time.
    """

    def __init__(self) -> None:
        environ = os.environ
        self._machine = environ.get("GROUP_RANK", "0"), environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._began_s = _process_began_s() - _CLOCK_S if "TORCHELASTIC_RUN_ID" in environ else 0.0

    def stamp(self) -> bytes:
        """Return the line before a record that says when and where it was sent."""
        return f"{clock.wall_s():.3f} {' '.join(self._machine)}\n".encode()

    def is_later_than(self, stamp: bytes) -> bool:
        """Return whether a record was sent before this attempt; an invalid stamp is of no attempt."""
        try:
            sent_s, group, count = stamp.decode().split(" ")
            early = float(sent_s) < self._began_s
        except ValueError:
            return False
        return early or (group == self._machine[0] and count != self._machine[1])


def _process_began_s() -> float:
    """Return when this process was started, in seconds since the epoch; 0 if that is unknown."""
    import psutil

    try:
        return float(psutil.Process().create_time())
    except psutil.Error:
        return 0.0
