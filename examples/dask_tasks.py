"""What each task of a Dask cluster needed, on its worker.

    python examples/dask_tasks.py

It needs distributed. It prints:

    tasks: 2 tasks, 0.72 s; RAM in MB
               Task  Consumed Needed  Used   Time
      worker 0 load       100    100   168 0.16 s
      worker 1 parse        0    150    68 0.72 s
"""

import time

from distributed import Client, LocalCluster, wait

from ipygpulogger.cluster import watch


def load() -> bytes:
    """Return 100 MB, which stay on the worker."""
    return b"x" * 100 * 2**20


def parse() -> int:
    """Need 150 MB for a moment."""
    time.sleep(0.5)
    return len(b"x" * 150 * 2**20)


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        w = watch(client)
        wait([client.submit(load, workers=[0]), client.submit(parse, workers=[1])])
        print(w.records[-1])
