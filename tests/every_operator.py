"""Every operator of torch's `op_db`, estimated and run on the simulated device: a table of what differs.

`nox -s operators`, or `python tests/every_operator.py [NAME ...]`; it takes a quarter of an hour.
"""

import gc
import sys
from pathlib import Path

import simgpu

sys.path.insert(0, str(Path(__file__).parents[1]))
simgpu.start(mem_mb=65536)

from estimation import every_operator  # noqa: E402 - it imports torch, which must find the simulated device


def main(wanted):
    operators = [op for op in every_operator.op_db() if not wanted or op.full_name in wanted]
    gc.collect()
    gc.freeze()  # the list of operators is never garbage
    found = []
    for op in operators:
        found += every_operator.of_operator(op)
    print(*every_operator.table(found), sep="\n")
    return not all(one.is_right for one in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
