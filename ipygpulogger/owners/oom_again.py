"""Whether a cell that ran out of memory was told to run again, and did so in vain."""

from __future__ import annotations

from ..records.units import MB

_ROUNDED = 4 * MB  # as much may differ although the cell began with the same memory


class RunAgain:
    """What a cell that failed was told when it failed before: to run again, perhaps after a release."""

    def __init__(self, code: str, told: dict[str, dict[str, int | None]]) -> None:
        """Look up a cell.

        Args:
            code: The cell's.
            told: By code and device what live arrays held as a cell began that was told so; None where
                unknown. `told` adds to it.
        """
        self._code, self._told = code, told
        self._earlier = dict(told.get(code, {}))

    def was_in_vain(self, device: str, before: int | None) -> bool:
        """Return whether the cell was told so and did it: it began with no more memory in use than then.

        Args:
            device: "cuda:0".
            before: What live arrays held on it when the cell began this time; None if unknown.
        """
        if device not in self._earlier:
            return False
        then = self._earlier[device]
        return then is None or before is None or before <= then + _ROUNDED

    def told(self, device: str, before: int | None) -> None:
        """Remember that the cell is told so now, unless it was before.

        Args:
            device: "cuda:0".
            before: What live arrays held on it when the cell began; None if unknown.
        """
        self._told.setdefault(self._code, {}).setdefault(device, before)
