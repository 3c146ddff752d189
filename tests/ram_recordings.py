"""What is struck by interrupts (see `interrupt_injection`): the recording of general RAM."""

import sys
import tempfile
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

MB = 2**20


class RamRecordings:
    """A recording that is ended by whoever began it, whatever happens."""

    def __init__(self, _):
        import memray

        from ipygpulogger.breakdown import ram
        from ipygpulogger.engine.scope import Scope
        from ipygpulogger.records import Measurement
        from ipygpulogger.sources.system import memray as shared

        self.tracker, self.shared, self.recording = memray.Tracker, shared, ram.RamRecording
        self.entered = vars(memray.Tracker)["__enter__"]
        scope = Scope().open()
        scope.close()
        self.measurement = scope.result(Measurement, "block")
        self.go(lambda _: nullcontext())

    def go(self, phase):
        recording = self.recording()
        with suppress(KeyboardInterrupt), phase("recordings"):
            self.record(recording)
        try:
            with phase("drop"):
                recording.drop()
        except KeyboardInterrupt:
            recording.drop()
        following = self.recording()
        told = [row.size_bytes // MB for row in self.record(following) if row.size_bytes > MB]
        problems = [] if told == [4] else [f"the next one: {told}, {following.notes}"]
        return problems + [f"left: {what}: {it!r}" for what, it in self.left().items() if it]

    def record(self, recording):
        recording.begin()
        len(bytearray(4 * MB))
        recording.end()
        return recording.result(self.measurement)

    def left(self):
        return {
            "a profile function": sys.getprofile(),
            "a profile function of threads": threading._profile_hook,
            "what takes the names of threads": {"_name", "_ident"} & set(vars(threading.Thread)),
            "a tracker": self.shared._run,
            "the way into trackers": vars(self.tracker)["__enter__"] is not self.entered,
            "a folder": list(Path(tempfile.gettempdir()).glob("*")),
        }
