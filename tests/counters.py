"""A counter of which the whole truth is known."""

from ipygpulogger.sources import Counter, Observation, Reading, Unavailable


class Model(Counter):
    """A counter with one peak and one reset for everybody, of one series or several; the whole truth is kept."""

    def __init__(self, start=1000, *, peak_class="resettable", certified=True, grain=0, count=1):
        self.peak_class, self.certified, self.precision_bytes = peak_class, certified, grain
        self.now, self.highest, self.ever = [start] * count, [start] * count, [0] * count
        self.story = [start]  # every value that the first series ever had
        self.before_reset = self.after_reset = self.before_stamp = lambda: None
        self.broken = self.erased = False
        self.watched, self.log = [], []

    def move(self, step, series=0):
        self.now[series] += step
        self.ever[series] += max(0, step)
        self.highest[series] = max(self.highest[series], self.now[series])
        self.story.append(self.now[0])

    def blip(self, step):
        self.move(step)
        self.move(-step)

    def observe(self):
        self.log.append("observe")
        if self.broken:
            raise Unavailable("broken")
        erased, self.erased = self.erased, False
        peaks = [None if self.peak_class == "sampled" else one for one in self.highest]
        readings = tuple(Reading(now, peak) for now, peak in zip(self.now, peaks, strict=True))
        return Observation(readings, tuple(self.ever) if self.certified else (), erased)

    def stamp(self):
        self.before_stamp()
        self.log.append("stamp")
        return tuple(self.ever) if self.certified else ()

    def describe(self):
        return "the model"

    def reset(self):
        assert self.peak_class == "resettable"
        self.before_reset()
        self.log.append("reset")
        self.highest = list(self.now)
        self.after_reset()

    def growth_bytes(self, earlier, later):
        return tuple(now - before for before, now in zip(earlier, later, strict=True))

    def watch(self, *, on):
        self.watched.append(on)
