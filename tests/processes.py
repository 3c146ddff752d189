"""Records of many processes, made by hand."""

from dataclasses import replace

from handmade import MB, cell, gpu, ram

from ipygpulogger.records.process import Process, ProcessRecord


def of(process, needs=0, *, uses=500, on_gpu=None, took_s=2.0, **fields):
    """The record of a process that held so many MB of RAM, and of a device, for a moment.

    Args:
        process: A rank, or the keywords of a `Process`.
        needs: Of RAM.
        uses: Of RAM, at both ends.
        on_gpu: What it needs of a device, or by index of several.
        took_s: Seconds.
        fields: Of the record.
    """
    given = {"rank": process} if isinstance(process, int) else process
    on = on_gpu if isinstance(on_gpu, dict) else {} if on_gpu is None else {0: on_gpu}
    gpus = [gpu(i, 100 * MB, 100 * MB, (100 + size) * MB, used_bytes=900 * MB) for i, size in on.items()]
    made = cell(ram(uses * MB, uses * MB, (uses + needs) * MB), *gpus)
    made = replace(made, **{"time_s": took_s, **fields})
    return ProcessRecord.of(made, Process(**{"host": "node", "pid": 100 + given.get("rank", 0), **given}))
