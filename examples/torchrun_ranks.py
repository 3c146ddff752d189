"""What each rank of a torchrun job needed, gathered on rank 0.

    torchrun --nproc-per-node 3 examples/torchrun_ranks.py

It needs torch.
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
