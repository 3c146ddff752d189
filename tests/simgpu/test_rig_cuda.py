"""The real CUDA build of torch, with its real caching allocator, on the simulated CUDA."""

import os
import re
import subprocess
import sys
import textwrap
import time

import pynvml as N
import pytest
import torch

import simgpu

pytestmark = pytest.mark.torch
MB, GB = 1 << 20, 1 << 30


def nvml_used(i=0):
    N.nvmlInit()
    try:
        return N.nvmlDeviceGetMemoryInfo(N.nvmlDeviceGetHandleByIndex(i), version=N.nvmlMemory_v2).used
    finally:
        N.nvmlShutdown()


def begin(gpu, code, **env):
    """Run code in a fresh process on the same simulated machine; do not wait for it."""
    env = {**os.environ, **simgpu.environment(gpu), **env}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, text=True, stdout=-1, stderr=-2
    )


@pytest.fixture
def run(torch_forks):
    """Run code in a process of its own on the same simulated machine; what it writes."""

    def run(code, **env):
        status, out, err = torch_forks.run(textwrap.dedent(code), **env)
        assert status == 0, out + err
        return out

    return run


def test_allocator_and_nvml_agree(cuda):
    before = nvml_used()
    x = torch.empty(300 * MB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 300 * MB
    assert nvml_used() - before == 300 * MB
    del x
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_reserved() == 300 * MB  # cached
    assert nvml_used() - before == 300 * MB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0 and nvml_used() == before
    assert torch.cuda.max_memory_allocated() == 300 * MB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0


def test_real_oom(cuda):
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 20.00 GiB.*this process has"):
        torch.empty(20 * GB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] >= 1
    torch.empty(10, device="cuda")  # and life goes on


def test_oom_retry_frees_the_cache(cuda):
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    x = torch.empty(9 * GB, dtype=torch.uint8, device="cuda")
    del x  # 9 GB cached
    y = torch.empty(10 * GB, dtype=torch.uint8, device="cuda")  # fits only after the cache is freed
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries + 1
    del y


def test_injected_faults(cuda):
    cuda.fault("cudaMalloc", 2, skip=1, count=2)
    torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(128 * MB, dtype=torch.uint8, device="cuda")
    cuda.fault("cudaMemcpyAsync", 700)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        torch.ones(3).cuda()


def test_copies_are_real(cuda):
    a = torch.arange(1000.0)
    assert torch.equal(a.cuda().cpu(), a)
    p = a.pin_memory()
    assert p.is_pinned() and torch.equal(p.cuda(non_blocking=True).cpu(), a)
    assert torch.equal(a.cuda().to("cuda:1").cpu(), a)
    m = torch.arange(12.0).reshape(3, 4).cuda()
    assert m.t()[1].data_ptr() == m.data_ptr() + 4  # views work, kernels do not compute


def test_scalars_after_kernels_are_zero(cuda):
    """Kernels compute nothing; sizes and scalars read back are 0, not garbage."""
    x = torch.ones((1, 1)).cuda()
    assert x.item() == 1  # copied, no kernel since
    y = x + x
    assert y.item() == 0 and y.nonzero().shape == (0, 2)
    assert repr(y) == "tensor([[0.]], device='cuda:0')"


@pytest.mark.parametrize(
    "conf", ["expandable_segments:True", "backend:cudaMallocAsync", "max_split_size_mb:64"]
)
def test_allocator_configurations(gpu, conf):
    process = begin(
        gpu,
        """
        import torch, pynvml as N
        N.nvmlInit(); h = N.nvmlDeviceGetHandleByIndex(0)
        used = lambda: N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used >> 20
        torch.cuda.synchronize(); a = used()
        x = torch.empty(512 << 20, dtype=torch.uint8, device='cuda'); b = used()
        assert torch.cuda.memory_allocated() == 512 << 20
        y = torch.arange(7.).cuda(); assert y.cpu().sum() == 21
        del x; torch.cuda.empty_cache(); c = used()
        print(b - a, c - a)
        try: torch.empty(17 << 30, dtype=torch.uint8, device='cuda')
        except torch.OutOfMemoryError: print('oom')
        """,
        PYTORCH_CUDA_ALLOC_CONF=conf,
    )
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 0, out
    grown, left = re.search(r"^(\d+) (\d+)$", out, re.MULTILINE).groups()  # among torch's own warnings
    assert 512 <= int(grown) <= 532 and int(left) <= 20 and "\noom\n" in out


def test_visible_devices_remap(gpu, run):
    """CUDA ordinal 0 is NVML index 1."""
    code = """
        import torch, pynvml as N
        N.nvmlInit()
        x = torch.empty(64 << 20, dtype=torch.uint8, device='cuda:0')
        u = [N.nvmlDeviceGetMemoryInfo(N.nvmlDeviceGetHandleByIndex(i), version=N.nvmlMemory_v2).used >> 20 for i in (0, 1)]
        print(torch.cuda.device_count(), u[1] - u[0])
    """
    base = (nvml_used(1) - nvml_used(0)) >> 20
    for visible in ("1", gpu.dev[1].uuid.decode()):
        n, diff = run(code, CUDA_VISIBLE_DEVICES=visible).split()
        assert n == "1" and int(diff) - base == 564
    gpu.cuda_order[0], gpu.cuda_order[1] = 1, 0  # CUDA's "fastest first" order differs from NVML's
    n, diff = run(code).split()
    assert n == "2" and int(diff) - base == 564
    n, diff = run(code, CUDA_DEVICE_ORDER="PCI_BUS_ID").split()
    assert int(diff) - base == -564


def test_graph(gpu, run):
    """Capture allocates from a private pool and runs nothing; replay runs it and allocates nothing."""
    before = nvml_used() >> 20
    code = """
        import torch, warnings
        warnings.simplefilter('error')
        KEYS = ('allocated_bytes.all.', 'reserved_bytes.all.', 'allocation.all.', 'segment.all.')
        def stats(): return {k: v for k, v in torch.cuda.memory_stats().items() if k.startswith(KEYS)}
        src = torch.full((32 << 20,), 7, dtype=torch.uint8).cuda()
        w = torch.empty(64, 64, device='cuda')
        w @ w  # the workspace of cuBLAS
        torch.cuda.synchronize()

        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            assert torch.cuda.is_current_stream_capturing()
            dst = torch.empty(32 << 20, dtype=torch.uint8, device='cuda')
            dst.copy_(src)  # a copy
            y = src + src   # a kernel
            z = w @ w       # cuBLAS
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # a fork: its memory belongs to the graph as well
                assert torch.cuda.is_current_stream_capturing()
                f = torch.empty(48 << 20, dtype=torch.uint8, device='cuda')
            torch.cuda.current_stream().wait_stream(side)
        assert not torch.cuda.is_current_stream_capturing()
        print(sum(s['total_size'] >> 20 for s in torch.cuda.memory_snapshot() if tuple(s['segment_pool_id']) == tuple(g.pool())))
        assert dst.cpu().sum() == 0  # not run yet
        was = stats()
        for _ in range(3): g.replay()
        torch.cuda.synchronize()
        assert stats() == was
        assert dst.cpu().sum() == 7 * (32 << 20)
        src.copy_(torch.zeros(32 << 20, dtype=torch.uint8))
        g.replay()
        assert dst.cpu().sum() == 0  # the same addresses, new contents
        del dst, y, z, f; torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() >= 32 + 32 + 48 << 20  # the graph keeps its pool
        del g
        torch._C._cuda_clearCublasWorkspaces()  # older torch keeps the one of the graph's stream
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() < 100 << 20
        print(torch.cuda.memory_reserved() >> 20)
    """
    launches = gpu.dev[0].n_launch
    pool, left = map(int, run(code).split())
    assert 32 + 32 + 48 <= pool < 32 + 32 + 48 + 40
    assert left < 32 + 40
    assert gpu.dev[0].n_launch - launches >= 4 * 2
    assert nvml_used() >> 20 == before


def test_what_spoils_a_capture(gpu, run):
    """Waiting for the device, from any thread; what only reads counters is allowed."""
    code = """
        import torch, threading
        x = torch.zeros(1 << 20, device='cuda')
        def capture(f, **kw):
            g = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(g, **kw):
                    y = x + x
                    f()
            except RuntimeError as e: return str(e).splitlines()[0]
            g.replay(); torch.cuda.synchronize()
            return 'fine'
        def swallowed(f):
            try: f()
            except RuntimeError: pass
        def elsewhere(f):
            t = threading.Thread(target=swallowed, args=(f,)); t.start(); t.join()
        event = torch.cuda.Event(); event.record()
        print(capture(torch.cuda.mem_get_info))
        print(capture(torch.cuda.memory_stats))
        print(capture(lambda: elsewhere(torch.cuda.mem_get_info)))
        print(capture(lambda: elsewhere(event.query), capture_error_mode='thread_local'))
        print(capture(lambda: swallowed(WHAT)))
        print(float(x[0]))  # life goes on
    """
    for what in ("torch.cuda.synchronize", "lambda: x[0].item()", "lambda: elsewhere(event.query)",
                 "lambda: elsewhere(torch.cuda.synchronize)"):  # fmt: skip
        lines = run(code.replace("WHAT", what)).splitlines()
        assert lines[:4] == ["fine"] * 4, what
        assert "operation failed due to a previous error during capture" in lines[4], what


MIG = """
    import sys, torch, pynvml as N
    p = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    x = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')
    print(torch.cuda.device_count(), p.uuid, p.total_memory >> 20, total >> 20, free >> 20, p.multi_processor_count)
    print(p.name)
    try: torch.empty(5 << 30, dtype=torch.uint8, device='cuda')
    except torch.OutOfMemoryError: print('oom')
    N.nvmlInit()
    def used(h): return N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used >> 20
    h = N.nvmlDeviceGetHandleByIndex(0)
    print(used(h), *(used(N.nvmlDeviceGetMigDeviceHandleByIndex(h, i)) for i in (0, 2)))
"""


def mig_lines(run, **env):
    return [line for line in run(MIG, **env).splitlines() if not line.startswith("[W")]  # torch's own


def test_mig(gpu, run):
    d = gpu.dev[0]
    d.ctx_bytes = 100 * MB
    a, _, b = d.mig(2432 * MB, 0, 4864 * MB)
    b.base_used = 10 * MB
    whole, whole_uuid, uuid = nvml_used() >> 20, d.uuid.decode(), b.uuid.decode()

    # the second slice, by its UUID, a prefix of it, or its old name; anything after it is not seen
    for visible in (uuid, f"MIG-{whole_uuid}/9/0", f"{uuid[:12]},{a.uuid.decode()},1"):
        head, name, oom, used = mig_lines(run, CUDA_VISIBLE_DEVICES=visible)
        assert head.split() == ["1", uuid[4:], "4864", "4864", "4754", "30"]
        assert name == "NVIDIA SimGPU 16GB MIG 2g.5gb" and oom == "oom"
        assert used.split() == [str(whole + 164), "0", "174"]

    # Without a choice, or with only the device chosen: its first slice. Older torch wakes as many devices as
    # NVML counts, slices or not, and so fails without a choice on any machine with two.
    counts_by_nvml = "is_initializing" not in torch.cuda.device_count.__code__.co_consts
    for env in ({"CUDA_VISIBLE_DEVICES": "0"}, *([] if counts_by_nvml else [{}])):
        head, name, oom, used = mig_lines(run, **env)
        assert head.split() == ["1", a.uuid.decode()[4:], "2432", "2432", "2332", "15"]
        assert used.split() == [str(whole + 164), "164", "10"]

    gpu.mig_parent_uuid = 1  # older CUDA
    assert mig_lines(run, CUDA_VISIBLE_DEVICES=uuid)[0].split()[1] == whole_uuid[4:]

    # torch.cuda.device_count() would ask NVML, which counts both devices, in MIG mode or not
    count = "import torch; print(torch._C._cuda_getDeviceCount())"
    assert run(count, CUDA_VISIBLE_DEVICES=uuid[:-1] + "x").split()[-1] == "0"
    a.total = b.total = 0  # MIG mode, but nobody made a slice: only the other device is left
    assert run(count).split()[-1] == "1"


def test_unified_memory(gpu, run):
    code = """
        import torch
        x = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')
        free, total = torch.cuda.mem_get_info()
        print(torch.cuda.get_device_properties(0).is_integrated, torch.cuda.get_device_properties(1).is_integrated)
        print((total - free) >> 20)
    """
    before = nvml_used() >> 20
    gpu.dev[0].integrated = 1
    assert run(code).split() == ["1", "0", str(before + 564)]


def test_killed_process_gives_memory_back(gpu):
    before = nvml_used()
    p = begin(
        gpu,
        """
        import torch, time
        x = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')
        print('up', flush=True); time.sleep(60)
        """,
    )
    assert p.stdout.readline() == "up\n"
    assert nvml_used() - before == 1524 * MB
    assert p.pid in {r.pid for r in gpu.dev[0].proc if r.kind}
    p.kill()
    os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert nvml_used() == before
    p.communicate()


def test_processes_compete(cuda):
    """Four processes allocate and free at once: the card never holds more than it has."""
    code = """
        import torch, random, sys
        ooms = 0
        for _ in range(300):
            try: x = torch.empty(random.randint(1, 5) << 30, dtype=torch.uint8, device='cuda')
            except torch.OutOfMemoryError: ooms += 1
            x = None
            torch.cuda.empty_cache()
        print(ooms)
    """
    before = nvml_used()
    ps = [begin(cuda, code) for _ in range(4)]
    d, most = cuda.dev[0], 0
    while any(p.poll() is None for p in ps):
        most = max(most, sum(r.used for r in d.proc if r.kind))
        time.sleep(0.002)
    assert [p.returncode for p in ps] == [0] * 4
    assert most <= d.total - d.reserved and nvml_used() == before
    [p.communicate() for p in ps]
