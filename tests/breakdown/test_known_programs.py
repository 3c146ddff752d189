"""Programs made by hypothesis of which each allocation's line and kind are known: each row is as it must be."""

import itertools
import linecache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import recorded

pytestmark = pytest.mark.torch

import torch  # noqa: E402 - where it is not, this file is not opened

KB = 2**10
EXAMPLES = 30
NUMBERS = itertools.count()
SPIKE = "torch.empty(1 << 26, dtype=torch.uint8, device='cuda')"
OPERATIONS = [
    "variable",
    "discard",
    "parameter",
    "parameter",
    "use",
    "use",
    "infer",
    "free",
    "optimizer",
    "step",
]
OPERATIONS += ["backward", "backward", "zero"]


class Made:
    """The lines of a program, and for each block what it is, its line, and from when to when it lives."""

    def __init__(self, steps, spike):
        self.lines = ["def run():", "    total = torch.zeros((), device='cuda')"]
        self.blocks = []  # kind, line, size, first and last line of its life
        self.names, self.parameters, self.in_graph, self.gradients, self.states = {}, {}, [], {}, {}
        self.optimized, self.passes, self.sizes = None, 0, itertools.count(2)
        self.parameter(0)
        self.optimizer(0)
        for number, (name, n) in enumerate(steps):
            if number == spike:
                self.spike()
            getattr(self, name)(n)
        if spike >= len(steps):
            self.spike()
        for block in self.in_graph:  # no pass came
            block[0] = "temporaries"

    def add(self, line):
        self.lines.append(f"    {line}")
        return len(self.lines)

    def block(self, kind, line, size_bytes):
        self.blocks.append([kind, line, size_bytes, line, None])
        return self.blocks[-1]

    def spike(self):
        self.spiked = self.add(SPIKE)

    def variable(self, _):
        """A block of which nothing is known until a backward pass begins in its function."""
        k = next(self.sizes)
        line = self.add(f"v{k} = torch.zeros({k} * 1024, device='cuda')")
        self.names[f"v{k}"] = self.block("temporaries", line, k * 4 * KB)

    def discard(self, _):
        self.add(f"torch.zeros({next(self.sizes)} * 1024, device='cuda')")

    def parameter(self, _):
        k = next(self.sizes)
        line = self.add(f"p{k} = nn.Parameter(torch.zeros({k} * 1024, device='cuda'))")
        self.parameters[k] = self.block("temporaries", line, k * 4 * KB)

    def use(self, n):
        """The exponential function keeps its result."""
        if self.parameters:
            k = sorted(self.parameters)[n % len(self.parameters)]
            line = self.add(f"total = total + p{k}.exp().sum()")
            self.in_graph.append(self.block("activations", line, k * 4 * KB))
            self.blocks[-1].append(k)

    def infer(self, n):
        if self.parameters:
            k = sorted(self.parameters)[n % len(self.parameters)]
            line = self.add(f"with torch.no_grad(): r{k} = p{k}.cos()")
            if f"r{k}" in self.names:
                self.names[f"r{k}"][4] = line
            self.names[f"r{k}"] = self.block("temporaries", line, k * 4 * KB)

    def free(self, n):
        if self.names:
            name = sorted(self.names)[n % len(self.names)]
            self.names.pop(name)[4] = self.add(f"del {name}")

    def backward(self, _):
        if not self.in_graph or self.passes == 2:
            return
        self.passes += 1
        line = self.add("total.backward()")
        self.add("total = torch.zeros((), device='cuda')")
        for block in self.in_graph:
            k = block[5]
            block[4] = line
            if k not in self.gradients:
                self.gradients[k] = self.block("gradients", line, k * 4 * KB)
        for block in self.names.values():
            block[0] = "variables"
        for block in self.parameters.values():
            block[0] = "parameters"
        self.in_graph = []

    def zero(self, _):
        if self.gradients:
            listed = ", ".join(f"p{k}" for k in self.gradients)
            line = self.add(f"for p in ({listed},): p.grad = None; del p")
            for block in self.gradients.values():
                block[4] = line
            self.gradients = {}

    def optimizer(self, _):
        if self.parameters and self.optimized is None:
            self.optimized = sorted(self.parameters)
            listed = ", ".join(f"p{k}" for k in self.optimized)
            self.add(f"opt = torch.optim.Adam([{listed}])")

    def step(self, _):
        if self.optimized is None:
            return
        line = self.add("opt.step()")
        for k in self.optimized:
            if k in self.gradients and k not in self.states:
                self.states[k] = self.block("optimizer state", line, 2 * k * 4 * KB)
            self.parameters[k][0] = "parameters"

    def expected(self):
        """By kind and line, what lives at the spike."""
        found = {}
        for kind, line, size_bytes, first, last, *_ in self.blocks:
            if first < self.spiked and (last is None or last > self.spiked):
                found[kind, line] = found.get((kind, line), 0) + size_bytes
        return found

    def run(self):
        source = "\n".join(self.lines)
        self.file = f"/programs/program_{next(NUMBERS)}.py"
        linecache.cache[self.file] = len(source), None, [f"{line}\n" for line in self.lines], self.file
        names = {"torch": torch, "nn": torch.nn, "__name__": "program"}
        exec(compile(source, self.file, "exec"), names)
        found = recorded(names["run"])
        del linecache.cache[self.file]
        return found


STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9)), min_size=8, max_size=20)


def test_each_block_stands_under_its_line_and_kind(cuda):
    """To 4 KB: results of one number, which are not followed, take 512 bytes each."""

    @settings(max_examples=EXAMPLES)
    @given(steps=STEPS, spike=st.integers(4, 20))
    def holds(steps, spike):
        made = Made(steps, spike)
        torch.cuda.reset_peak_memory_stats()
        record = made.run().record
        rows = [row for row in record.at_peak if row.device == "cuda:0"]
        assert sum(row.size_bytes for row in rows) == torch.cuda.max_memory_allocated()
        spiked = f"{made.file.rpartition('/')[2]}:{made.spiked}"
        found = {
            (row.kind, int(row.place.rpartition(":")[2])): row.size_bytes // (4 * KB) * (4 * KB)
            for row in rows
            if row.place != spiked and row.size_bytes >= 4 * KB
        }
        assert found == made.expected(), "\n".join(made.lines)

    holds()
