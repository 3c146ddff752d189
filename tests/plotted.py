"""Cells of round figures, for the plot: megabytes, and seconds after the first."""

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
