"""Measurements with what was alive at their peak; for tests marked torch."""

import pytest

from ipygpulogger.breakdown.recording import PeakRecording
from ipygpulogger.breakdown.rows import Breakdown
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement

MB = 2**20


class Recorded:
    """A recording around a scope, until `end`; then `record`, `failures`, and by device the `blocks` and `totals` found."""

    def __init__(self, **options):
        self.blocks, self.totals = {}, {}
        self.recording = PeakRecording(ram=False, **options)
        self.recording.begin()
        self.scope = Scope().open()

    def end(self):
        rows, timeline = Breakdown.rows, Breakdown.timeline

        def watched(breakdown, device, index, moment):
            self.blocks.setdefault(device, moment.blocks)  # the peak comes first, then a failure
            return rows(breakdown, device, index, moment)

        def replayed(breakdown, device, index, replay, *times_s):
            self.totals[device] = replay.totals()
            return timeline(breakdown, device, index, replay, *times_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Breakdown, "rows", watched)
            patch.setattr(Breakdown, "timeline", replayed)
            self.scope.close()
            self.recording.end()
            self.record = self.recording.result(self.scope.result(Measurement, "x"))
            self.at_failure = self.recording.at_failure
        self.notes = [note for note in self.record.notes if "memray" not in note]
        return self

    def bytes(self, device="cuda:0"):
        """What the rows of a device add up to."""
        return sum(row.size_bytes for row in self.record.at_peak if row.device == device)


def recorded(run, **options):
    """Run something within a recording."""
    around = Recorded(**options)
    try:
        run()
    finally:
        around.end()
    return around


def checked_timeline(found, device="cuda:0"):
    """The timeline of a device: its points are the allocator's figures after events, its peak is the table's."""
    (one,) = (one for one in found.record.timeline if one.device == device)
    totals, points = found.totals[device], [sum(sums) for _, sums in one.points]
    remaining = iter(totals)
    assert all(point in remaining for point in points[:-1])  # in their order
    assert points[-1] == totals[-1]
    assert max(points) == max(totals) == found.bytes(device)
    when_s, sums = one.peak()
    table = dict.fromkeys(one.kinds, 0)
    for row in (row for row in found.record.at_peak if row.device == device):
        table[row.kind] += row.size_bytes
    assert dict(zip(one.kinds, sums, strict=True)) == table
    assert when_s == pytest.approx(dict(found.record.peak_times_s)[device], rel=1e-5, abs=1e-5)
    times = [time_s for time_s, _ in one.points]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= found.record.time_s * 1.00001
    return one
