"""The time series of one figure over a scope: small, however long the scope."""

from __future__ import annotations

POINTS = 62  # with the scope's two ends, at most 64 in a record
FIRST_STRIDE_S = 0.05


class TimeSeries:
    """At most `POINTS` points, evenly spread in time; each is the highest sample of its stride.

    When it is full, the stride doubles, and of every two points the higher one is kept.
    """

    def __init__(self) -> None:
        self._stride_s = FIRST_STRIDE_S
        self._points: dict[int, tuple[float, int]] = {}  # by the number of its stride

    def add(self, time_s: float, size_bytes: int) -> None:
        """Add a sample.

        Args:
            time_s: Seconds since the beginning, not less than for the last sample.
            size_bytes: The figure then.
        """
        slot = int(time_s / self._stride_s)
        if slot not in self._points or size_bytes > self._points[slot][1]:
            self._points[slot] = time_s, size_bytes
        if len(self._points) > POINTS:
            self._stride_s *= 2
            points, self._points = self._points.values(), {}
            for point in points:
                self.add(*point)

    def between(
        self, before_bytes: int | None, after_bytes: int | None, end_s: float
    ) -> tuple[tuple[float, int], ...]:
        """Return the points between the scope's two ends; nothing where nothing was sampled.

        A scope's time excludes the cost of measuring within it, so the last samples may lie beyond its end.
        They are moved to its end.
        """
        inner = [(min(at, end_s), size) for at, size in tuple(self._points.values()) if at > 0]
        if not inner:
            return ()
        ends = ((0.0, before_bytes), (end_s, after_bytes))
        first, last = ([(at, size)] if size is not None else [] for at, size in ends)
        return tuple((round(at, 3), size) for at, size in (*first, *inner, *last))
