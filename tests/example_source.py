"""Somebody else's source: an allocator called `arena`, measured like our own.

In the package that brings it:

    [project.entry-points."ipygpulogger.sources"]
    arena = "example_source:Arena"
"""

import sys

from ipygpulogger.sources import Device, DeviceCounter, Framework, Observation, Reading, Unavailable


class ArenaCounter(DeviceCounter):
    peak_class = "resettable"  # or "monotone" without a reset, "sampled" without a peak

    def __init__(self, index):
        self.device = Device("cuda", index, "the GPU of the arena")

    def observe(self):
        arena = sys.modules["arena"]
        try:
            stats = arena.stats(self.device.index)
        except arena.ArenaError as error:
            raise Unavailable(f"the arena's statistics cannot be read: {error}") from error
        return Observation((Reading(stats.live_bytes, stats.peak_bytes),), (stats.bytes_ever_allocated,))

    def reset(self):
        sys.modules["arena"].reset_peak(self.device.index)

    def growth_bytes(self, earlier, later):
        return (later[0] - earlier[0],)


class Arena(Framework):
    name = "arena"

    def __init__(self):
        self._counters = {}

    def counters(self):
        arena = sys.modules.get("arena")  # never imported, never initialised
        for index in arena.devices_in_use() if arena else ():
            self._counters.setdefault(index, ArenaCounter(index))
        return list(self._counters.values())
