"""Cells of round figures: megabytes, and seconds after the first."""

from datetime import datetime, timedelta, timezone

from memory import MB

from ipygpulogger.records import CellRecord, DeviceUsage, Peak, RamUsage

BEGIN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)


def peak(top_mb, quality="exact", hi_mb=None):
    hi = {"exact": top_mb, "bounded": hi_mb, "sampled": None}[quality]
    return Peak(top_mb * MB, None if hi is None else hi * MB, quality)


def cell(count, at_s, time_s, before, after, top=None, *, gpus=(), course=(), **more):
    """A cell of these megabytes, so many seconds after the first."""
    top = top if isinstance(top, Peak) else peak(max(before, after) if top is None else top)
    timeline = tuple((at, size * MB) for at, size in course)
    fields = {"label": f"In [{count}]", "cell_id": None, "source": "x", "status": "ok"} | more
    return CellRecord(
        started_at=BEGIN + timedelta(seconds=at_s),
        time_s=time_s,
        gen=RamUsage(before * MB, after * MB, top, timeline=timeline),
        gpus=tuple(gpus),
        execution_count=count,
        **fields,
    )


def gpu(before, after, top=None, index=0, **more):
    top = top if isinstance(top, Peak) else peak(max(before, after) if top is None else top)
    fields = {"name": "Sim", "uuid": f"GPU-{index}", "used_bytes": (after + 500) * MB} | more
    return DeviceUsage(before * MB, after * MB, top, index=index, **fields)


def moved(consumed, peaked, used, quality="exact"):
    """Both ends and the peak of what consumed so much, needed so much more for a moment, and uses so much."""
    before = used - consumed
    top = max(before, used) + peaked
    hi = {"exact": top, "bounded": top + 48, "sampled": None}[quality]
    sizes = int(before * MB), int(used * MB)
    return *sizes, Peak(int(top * MB), None if hi is None else int(hi * MB), quality)


def record(consumed=128, peaked=0, used=170, *, quality="exact", **more):
    """A cell of these megabytes."""
    heap = {name: more.pop(name) for name in ("heap_before", "heap_after") if name in more}
    gen = RamUsage(*moved(consumed, peaked, used, quality), **heap)
    fields = {"label": "In [4]", "execution_count": 4, "cell_id": None, "source": "x = 1", "status": "ok"}
    return CellRecord(**{"started_at": BEGIN, "time_s": 0.807, "gen": gen, **fields, **more})


def device(consumed, peaked, used, index=0, quality="exact", **more):
    """A device of these megabytes."""
    fields = {"index": index, "name": "Sim", "used_bytes": int(used * MB)} | more
    return DeviceUsage(*moved(consumed, peaked, used, quality), **fields)
