"""Measurements with what was alive at their peak; for tests marked torch."""

import pytest

from ipygpulogger.breakdown.recording import PeakRecording
from ipygpulogger.breakdown.rows import Breakdown
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement

MB = 2**20


class Recorded:
    """A recording around a scope, until `end`; then `record`, `failures`, and by device the `blocks` found."""

    def __init__(self, **options):
        self.blocks = {}
        self.recording = PeakRecording(ram=False, **options)
        self.recording.begin()
        self.scope = Scope().open()

    def end(self):
        rows = Breakdown.rows

        def watched(breakdown, device, index, moment):
            self.blocks.setdefault(device, moment.blocks)  # the peak comes first, then a failure
            return rows(breakdown, device, index, moment)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Breakdown, "rows", watched)
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
