"""What each rank of a torchrun job needed, gathered on rank 0.

    torchrun --nproc-per-node 3 examples/torchrun_ranks.py

It needs torch. It prints:

    step: 3 processes, 0.24 s; RAM in MB
             Consumed Needed  Used   Time
      rank 0        0    100   228 0.09 s
      rank 1        0    200   228 0.17 s
    * rank 2        0    300   228 0.24 s
    RAM: rank 2 needed 300 MB, 1.5 times the median
"""

import torch
import torch.distributed as dist

from ipygpulogger import measure
from ipygpulogger.cluster import gather

dist.init_process_group("gloo")
rank = dist.get_rank()

with measure("step") as m:
    batch = torch.zeros((rank + 1) * 100 * 2**20, dtype=torch.uint8)  # 100, 200 and 300 MB, for a moment
    del batch

ranks = gather(m)  # on rank 0 the records of all ranks; None elsewhere
if ranks is not None:
    print(ranks)

dist.destroy_process_group()
