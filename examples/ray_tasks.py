"""What each method call of an actor of Ray needed; tasks are measured alike.

    python examples/ray_tasks.py

It needs Ray: pip install ray It prints:

    tasks: 3 tasks, 0.14 s; RAM in MB
                      Task           Consumed Needed  Used   Time
      worker aa423929 Model.__init__       50     50   170 0.03 s
    * worker aa423929 Model.step            0    150   170 0.14 s
      worker aa423929 Model.step            0     80   170 0.06 s
    RAM: Model.step on worker aa423929 needed 150 MB, 1.3 times the median
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
