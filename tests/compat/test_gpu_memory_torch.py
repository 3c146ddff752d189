"""gpu_mem_* with torch's real allocator: what is allocated, cached, left free; and never through the host."""

import gc
import subprocess
import sys
import textwrap

import psutil
import pytest
import torch

import ipygpulogger.utils.mem as door
from ipygpulogger.compat import mem as gpu_memory
from ipygpulogger.compat.mem import GPUMemory

pytestmark = pytest.mark.torch

CONTEXT = 500  # MB of a simulated device
DRIVER = 512  # MB that the simulated driver keeps of it


def block(size_mb):
    return torch.empty(size_mb << 20, dtype=torch.uint8, device="cuda")


def test_what_torch_takes(cuda):
    """Used is the whole device: context, live tensors and cache, until `no_cache` empties that."""
    assert gpu_memory.gpu_mem_get() == GPUMemory(16384, 16384 - DRIVER - CONTEXT, DRIVER + CONTEXT)
    kept = block(100)
    block(60)
    assert gpu_memory.gpu_mem_get_used() == DRIVER + CONTEXT + 160
    assert gpu_memory.gpu_mem_get_used_no_cache() == DRIVER + CONTEXT + 100
    assert gpu_memory.gpu_mem_get_free() == 16384 - DRIVER - CONTEXT - 100
    assert door.use_gpu is True
    del kept
    torch.cuda.synchronize(1)
    torch.cuda.empty_cache()
    with torch.cuda.device(1):  # without an id the device is the one that torch would use
        kept = block(200)
        assert gpu_memory.gpu_mem_get_used() == gpu_memory.gpu_mem_get_used_mbs(1) == DRIVER + CONTEXT + 200
        assert gpu_memory.gpu_mem_get_used_mbs(0) == DRIVER + CONTEXT
    del kept


def test_what_is_collected_first(cuda):
    """1.6 C8: fastai's `no_cache` empties the cache, ipyexperiments' collects garbage before that."""

    class Node:
        pass

    gc.collect()
    gc.disable()
    try:
        for name, left in (("", 100), ("_mbs", 0)):
            node = Node()
            node.me, node.data = node, block(100)
            del node
            assert getattr(gpu_memory, f"gpu_mem_get_used_no_cache{name}")() == DRIVER + CONTEXT + left, name
            gc.collect()
            torch.cuda.empty_cache()
    finally:
        gc.enable()


@pytest.mark.parametrize("size_mb", [1, 2, 10, 100, 1001, 20000])
def test_allocate(cuda, size_mb):
    """1.5: the tensor of the original, float32, `n*2**18`, on the current device; any exception -> None unless fatal."""
    with torch.cuda.device(1):
        tensor = gpu_memory.gpu_mem_allocate_mbs(n=size_mb)
        if size_mb == 20000:
            assert tensor is None
            with pytest.raises(torch.OutOfMemoryError):
                gpu_memory.gpu_mem_allocate_mbs(size_mb, fatal=True)
            return
    assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (torch.float32, (size_mb * 2**18,), True)
    assert (tensor.device, tensor.nbytes) == (torch.device("cuda", 1), size_mb << 20)


@pytest.mark.parametrize("left_mb", [300, 1, 5000])
def test_leave_free(cuda, left_mb):
    """On a 16 GB device so many MB stay free, within 4; the host grows by nothing."""
    process = psutil.Process()
    block(700)  # in the cache: to be had as well
    before = process.memory_info().rss
    buffer = gpu_memory.gpu_mem_leave_free_mbs(left_mb)
    assert process.memory_info().rss - before < 1 << 20
    assert abs(gpu_memory.gpu_mem_get_free() - left_mb) <= 4
    assert abs((buffer.nbytes >> 20) - (15872 - CONTEXT - left_mb)) <= 4
    del buffer
    with pytest.raises(AssertionError, match=r"^already have less available mem than desired 15999MBs$"):
        gpu_memory.gpu_mem_leave_free_mbs(15999)
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        with pytest.raises(AssertionError, match=r"^failed to allocate 15272MB$"):
            gpu_memory.gpu_mem_leave_free_mbs(100)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_nvml_that_says_nothing(cuda):
    """Where NVML has no memory figures torch has: no 0 that is not true."""
    kept = block(100)
    cuda.fault("nvmlDeviceGetMemoryInfo*", 3)
    free, total = torch.cuda.mem_get_info()
    assert gpu_memory.gpu_mem_get() == GPUMemory(total >> 20, free >> 20, total - free >> 20)
    assert gpu_memory.gpu_mem_get_used() >= 100
    del kept


# -- in a process of its own: torch not yet awake --------------------------------------------------


@pytest.fixture
def ours(cuda):
    """What is used of each device, in MB: by this process, a neighbour of the other, and by the driver."""
    torch.cuda.synchronize(1)
    torch.cuda.empty_cache()
    return [DRIVER + (cuda.dev[k].mine().used >> 20) for k in (0, 1)]


def run(env, program):
    words = [sys.executable, "-c", "from ipygpulogger.utils.mem import *\n" + textwrap.dedent(program)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_asking_wakes_nothing(ours, kernel_env):
    """Neither torch nor a context comes from a question, with or without torch imported."""
    program = """
        import sys
        print(gpu_mem_get().used, gpu_mem_get_all() == [gpu_mem_get(k) for k in (0, 1)], gpu_with_max_free_mem(), use_gpu)
        print("torch" in sys.modules)
        import torch
        print(gpu_mem_get(1).used, gpu_mem_get_free_no_cache(), torch.cuda.is_initialized())
        """
    assert run(kernel_env, program) == [
        f"{ours[0]} True {(ours.index(min(ours)), 16384 - min(ours))} True",
        "False",
        f"{ours[1]} {16384 - ours[0]} False",
    ]


def test_preload(ours, kernel_env):
    """1.6 C9: the context of the current device or the one named, once; no tensor is made."""
    program = """
        print(preload_pytorch(), gpu_mem_get(0).used, gpu_mem_get(1).used)
        print(preload_pytorch(1), preload_pytorch(device_id=1), gpu_mem_get(0).used, gpu_mem_get(1).used)
        import torch
        print(torch.cuda.memory_reserved(0), torch.cuda.memory_reserved(1))
        try:
            preload_pytorch(7)
        except Exception as error:
            print(type(error).__name__)
        """
    said = run(kernel_env, program)
    assert said[:3] == [
        f"None {ours[0] + CONTEXT} {ours[1]}",
        f"None None {ours[0] + CONTEXT} {ours[1] + CONTEXT}",
        "0 0",
    ]
    assert said[3].endswith("Error")
    first = "print(preload_pytorch(0), gpu_mem_get(0).used)"  # before anything else has initialized torch
    assert run(kernel_env, first) == [f"None {ours[0] + CONTEXT}"]


def test_unlike_devices(cuda, ours, kernel_env):
    """Unlike devices in CUDA's own order, fastest first: only CUDA knows which is 0, so it is asked."""
    cuda.dev[0].name, cuda.dev[1].name = b"Slow", b"Fast"
    cuda.cuda_order[0], cuda.cuda_order[1] = 1, 0
    cuda.dev[0].base_used, cuda.dev[1].base_used = 1 << 30, 2 << 30
    program = """
        import torch
        print([gpu_mem_get(k).used for k in (0, 1, 2)], [get_nvml_gpu_id(k) for k in (0, 1)])
        print([m.used for m in gpu_mem_get_all()], [torch._C._cuda_hasPrimaryContext(k) for k in (0, 1)])
        """
    assert run(kernel_env, program) == [
        f"{[2048 + ours[1], 1024 + ours[0], 0]} [1, 0]",
        f"{[1024 + ours[0], 2048 + ours[1]]} [False, False]",
    ]


def test_no_driver(driverless_env):
    """1.6 C12: with torch's CUDA build and no GPU everything works, and is 0."""
    program = """
        import torch
        print(use_gpu, gpu_mem_get(), gpu_mem_get_all(), gpu_with_max_free_mem(), preload_pytorch())
        print(gpu_mem_allocate_mbs(1), gpu_mem_get_used_no_cache_mbs())
        """
    assert run(driverless_env, program) == [
        "False GPUMemory(total=0, free=0, used=0) [] (None, 0) None",
        "None 0",
    ]
