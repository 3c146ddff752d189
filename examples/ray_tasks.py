"""What each method call of an actor of Ray needed; tasks are measured alike.

    python examples/ray_tasks.py

It needs Ray: pip install ray
"""

import ray

from ipygpulogger.cluster import watch

ray.init(num_cpus=2)
watching = watch(ray)  # before the functions and classes that it is to measure are declared


@ray.remote
class Model:
    def __init__(self):
        self.weights = bytearray(b"x") * (50 * 2**20)  # 50 MB, to stay

    def step(self, size_mb):
        return len(b"x" * (size_mb * 2**20))  # for a moment


model = Model.remote()
ray.get([model.step.remote(150), model.step.remote(80)])
print(watching.records[-1])

watching.stop()
