"""Sessions made by hand: the runs of cells, in megabytes."""

from datetime import timedelta

from made import plain

from ipygpulogger.records import DeviceUsage, Peak, RamUsage

MB = 2**20


def ram(before_mb, after_mb, peak_mb=None, **more):
    peak_bytes = max(before_mb, after_mb, peak_mb or 0) * MB
    return RamUsage(before_mb * MB, after_mb * MB, Peak(peak_bytes, peak_bytes, "exact"), **more)


def gpu(before_mb, after_mb, peak_mb=None, index=0, **more):
    peak_bytes = max(before_mb, after_mb, peak_mb or 0) * MB
    peak = Peak(peak_bytes, peak_bytes, "exact")
    return DeviceUsage(before_mb * MB, after_mb * MB, peak, index, "GPU", **more)


def cells(*usages, source="x = f()", cell_id="a", after=None):
    """Runs of one cell in one kernel: of RAM, or of a device."""
    first = len(after or ()) + 1
    start = plain().started_at
    return [
        *(after or ()),
        *(
            plain(
                **({"gpus": (usage,)} if isinstance(usage, DeviceUsage) else {"gen": usage}),
                source=source,
                cell_id=cell_id,
                execution_count=number,
                label=f"In [{number}]",
                started_at=start + timedelta(seconds=number),
            )
            for number, usage in enumerate(usages, first)
        ),
    ]


def labels(found):
    return [record.label for record in found]
