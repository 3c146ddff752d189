"""Estimates against the allocator of a simulated device: to the byte, and whether a function fits."""

import gc
import json

import pytest
import torch
from estimation import models

from ipygpulogger import estimate
from ipygpulogger.breakdown.kinds import WORKSPACE_BYTES
from ipygpulogger.estimation.run import run

pytestmark = pytest.mark.torch
MB = 2**20


@pytest.fixture(autouse=True)
def without_cudnn(monkeypatch):
    """The simulated device has none."""
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)


def really(fn, args):
    """Return the peaks of the allocator in a run on the device: allocated and reserved."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    fn(*args)
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


@pytest.mark.parametrize("builder", models.MODELS, ids=lambda one: one.__name__)
def test_models(cuda, builder):
    """The same figures, whether the model is on the device already or still on the CPU."""
    fn, args = builder("cpu")
    before = run(fn, args, {}, "cuda:0")
    fn, args = builder("cuda")
    on_device = run(fn, args, {}, "cuda:0")
    peak_bytes, reserved_bytes = really(fn, args)
    assert before.peak_bytes == on_device.peak_bytes == peak_bytes
    assert before.reserved_bytes == on_device.reserved_bytes == reserved_bytes
    assert sum(row.size_bytes for row in on_device.rows) == peak_bytes


TRAINING = """
import json
import torch
from ipygpulogger.estimation.run import run

model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
batch = torch.ones(8192, 1024, device="cuda")

def training():
    model(batch).square().mean().backward()
    model.zero_grad()

before = torch.cuda.memory_allocated()
estimated = run(training, (), {}, "cuda:0").peak_bytes
torch.cuda.reset_peak_memory_stats()
training()
print(json.dumps([estimated, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated() - before]))
"""


@pytest.mark.parametrize(
    "kind",
    [(8, 0, 108), (8, 9, 128), (9, 0, 132), (10, 0, 148), (12, 1, 48)],
    ids=["A100", "L4", "H200", "B200", "GB10"],
)
def test_other_devices(gpu, torch_forks, monkeypatch, kind):
    """cuBLAS has a workspace for each thread, which is larger from Hopper on; reductions use all multiprocessors."""
    for name, number in zip(("cc_major", "cc_minor", "sm_count"), kind, strict=True):
        monkeypatch.setattr(gpu.dev[0], name, number)
    status, said, errors = torch_forks.run(TRAINING, CUDA_VISIBLE_DEVICES="0")
    assert not status, errors
    estimated_bytes, really_bytes, kept_bytes = json.loads(said)
    assert estimated_bytes == really_bytes
    assert kept_bytes >= 2 * WORKSPACE_BYTES


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad(lambda y: y.sin().sum()),
        torch.vmap(torch.func.grad(lambda y: (y * y).sum())),
        lambda x: torch.func.vjp(torch.sin, x)[1](x),
        lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
    ],
    ids=["grad", "vmap of grad", "vjp", "jvp"],
)
def test_function_transforms(cuda, transform):
    """torch.func wraps a tensor in C++ code, which does not ask Python for its fake."""
    args = (torch.ones(1024, 1024, device="cuda"),)
    assert run(transform, args, {}, "cuda:0").peak_bytes == really(transform, args)[0]


ATTENTION = {  # the type of the inputs, their heads (of keys, if others), the queries, the mask, what else is given
    "gqa, causal, not square": (torch.bfloat16, (8, 2), 512, None, {"is_causal": True, "enable_gqa": True}),
    "causal, not square": (torch.bfloat16, (8, 8), 512, None, {"is_causal": True}),
    "odd strides": (torch.float32, (8, 8), 500, torch.float32, {}),
    "odd strides, of bool": (torch.float32, (8, 8), 500, torch.bool, {}),
    "autocast, mask": (torch.float32, (8, 8), 504, torch.float32, {"autocast": True}),
    "autocast, mask, odd head": (torch.float32, (8, 8), 504, torch.float32, {"autocast": True, "size": 60}),
    "autocast, double": (torch.float64, (8, 8), 504, torch.float64, {"autocast": True}),
}


@pytest.mark.parametrize("case", ATTENTION.values(), ids=ATTENTION)
def test_attention(cuda, case):
    """The kernel that can, and what is cast, copied and kept for it."""
    kind, heads, queries, mask, more = case
    size, is_cast = more.get("size", 64), more.get("autocast", False)
    more = {name: value for name, value in more.items() if name not in ("size", "autocast")}
    keys = 2 * queries
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    shapes = [(1, heads[0], queries, size), *((1, heads[1], keys, size),) * 2]
    args = [torch.ones(shape, device="cuda", dtype=kind) for shape in shapes]
    given = None if mask is None else torch.ones(queries, keys + queries % 8, device="cuda", dtype=mask)

    def attend(query, key, value):
        part = None if given is None else given[:, :keys]
        with torch.autocast("cuda", torch.bfloat16, enabled=is_cast):
            torch.nn.functional.scaled_dot_product_attention(query, key, value, part, **more)

    found = run(attend, args, {}, "cuda:0")
    assert (found.peak_bytes, found.reserved_bytes) == really(attend, args)


@pytest.mark.parametrize("foreach", [True, False])
def test_a_later_step(cuda, foreach):
    """The optimizer's state is there, and its count of steps is a number on the CPU, which it asks for."""
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    args = (torch.ones(64, 512, device="cuda"),)
    step(*args)
    found = run(step, args, {}, "cuda:0")
    assert (found.peak_bytes, found.reserved_bytes) == really(step, args)
    named = {row.name: row.place.partition(":")[0] for row in found.rows}
    assert named["model(x).sum().backward()"] == "test_against_the_device.py"


@pytest.fixture
def limited(cuda):
    """Limits what torch's allocator may reserve."""
    total_bytes = torch.cuda.mem_get_info(0)[1]

    def limit(size_bytes):
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((size_bytes + 0.5) / total_bytes, 0)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


def runs(fn, args):
    """Whether a function runs for real."""
    try:
        fn(*args)
    except torch.OutOfMemoryError:
        return False
    return True


@pytest.mark.parametrize("builder", [models.conv, models.accumulation])
def test_fits(limited, builder):
    """A capacity between the peak and what would be reserved: fits is what the allocator makes of it.

    The same is said of the device where the model is there already: with that limit and no capacity.
    """
    fn, args = builder("cpu")
    whole = estimate(fn, *args, capacity="15GB")
    peak_bytes, reserved_bytes = whole.peak_bytes, whole.reserved_bytes
    seen = set()
    for capacity in (peak_bytes - 1, peak_bytes, (peak_bytes + reserved_bytes) // 2, reserved_bytes):
        made = estimate(fn, *args, capacity=capacity)
        limited(capacity)
        real, given = builder("cuda")
        there = estimate(real, *given)
        assert there.held_bytes > 0
        assert there.peak_bytes == peak_bytes
        fits = runs(real, given)
        del real, given
        assert (made.fits, there.fits) == (fits, fits), (capacity, there)
        assert made.short_bytes == (0 if fits else max(1, made.short_bytes))
        seen.add(fits)
    assert seen == {True, False}


def test_a_full_device(cuda):
    """What others hold is not available, and what the function itself holds there does not count twice."""
    fn, args = models.inference("cuda")
    total = torch.cuda.mem_get_info(0)[1]
    rest = torch.cuda.mem_get_info(0)[0] - 256 * MB
    ballast = torch.empty(rest, dtype=torch.uint8, device="cuda")
    made = estimate(fn, *args)
    assert made.fits and runs(fn, args)
    assert made.available_bytes < 400 * MB < made.capacity_bytes
    more = torch.empty(180 * MB, dtype=torch.uint8, device="cuda")
    made = estimate(fn, *args, batch_sizes=[64, 16384, 32768])
    assert made.fits is runs(fn, args) is False
    assert [batch.fits for batch in made.batches] == [True, False, False]
    assert made.largest_batch == 64
    assert total and ballast.numel() and more.numel()
