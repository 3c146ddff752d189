"""A running cell on a device: its figures so far are exact to the byte, and cost no slow question."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB

from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement

pytestmark = pytest.mark.torch


def tensor(size_mb):
    return torch.empty(size_mb * MB, dtype=torch.uint8, device="cuda:0")


def gpu_of(measurement):
    return next(gpu for gpu in measurement.gpus if (gpu.backend, gpu.index) == ("cuda", 0))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.integers(0, 40) | st.just("free"), max_size=12))
def test_so_far_follows_every_allocation(cuda, steps):
    """After each step: consumed and peak are the model's; asking changes nothing of the final figures."""
    torch.cuda.empty_cache()
    scope, held, peak = Scope().open(), [], 0
    before = torch.cuda.memory_allocated()
    for step in steps:
        if step == "free":
            held.clear()
        else:
            held.append(tensor(step))
        now = torch.cuda.memory_allocated() - before
        peak = max(peak, now)
        gpu = gpu_of(scope.so_far("x"))
        assert (gpu.consumed_bytes, gpu.peak.lo_bytes - gpu.before_bytes) == (now, peak)
    scope.close()
    final = gpu_of(scope.result(Measurement, "x"))
    assert (final.consumed_bytes, final.peak.lo_bytes - final.before_bytes) == (
        torch.cuda.memory_allocated() - before,
        peak,
    )
    assert final.peak.quality == "exact"
    held.clear()


def test_asking_neither_lists_processes_nor_calls_cuda(cuda):
    """The driver's list holds a lock of all, a CUDA call could break a capture: neither is asked for."""
    kept = [tensor(8)]
    scope = Scope().open()
    cuda.dev[0].base_used += 64 * MB  # a neighbour came: the list would have to be asked
    asked = cuda.fault("nvmlDeviceGetComputeRunningProcesses*")
    called = cuda.fault("cudaMemGetInfo")
    kept.append(tensor(16))
    gpu = gpu_of(scope.so_far("x"))
    assert (asked.hits, called.hits) == (0, 0)
    assert gpu.consumed_bytes == 16 * MB
    assert gpu.neighbours_bytes is None
    cuda.clear()
    scope.close()
    kept.clear()
