"""What each engine of an ipyparallel cluster needed for a cell.

    python examples/ipyparallel_engines.py

It needs ipyparallel. It prints:

    engine 0: 256 MB for a moment
    engine 1: 256 MB for a moment
"""

import ipyparallel

from ipygpulogger.cluster import watch

CELL = """
block = bytearray(256 * 2**20)  # 256 MB, for a moment
block[::4096] = b"x" * (len(block) // 4096)
del block
"""

if __name__ == "__main__":
    with ipyparallel.Cluster(n=2, log_level=40) as client:
        engines = watch(client)
        client[:].execute(CELL, silent=False, block=True)  # in a notebook: %%px, and the table shows itself
        for record in engines.records[-1]:
            print(f"{record.worker}: {record.gen.peaked_bytes / 2**20:.0f} MB for a moment")
        engines.stop()
