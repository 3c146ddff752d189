"""The struct layouts written down in C and Python match NVIDIA's headers and pynvml."""

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml as N
import pytest

import simgpu
from simgpu import build

CHECK = """
#include <stddef.h>
#include <cuda_runtime_api.h>
#define CUDART (CUDART_VERSION / 1000)
#include "cudaprop.h"
#define AT(f, o12, o13, v) _Static_assert(offsetof(struct cudaDeviceProp, f) == (CUDART >= 13 ? o13 : o12), #f);
PROPS(AT, AT)
_Static_assert(sizeof(struct cudaDeviceProp) == PROP_SIZE, "size");
_Static_assert(sizeof(struct cudaPointerAttributes) == (CUDART >= 13 ? 88 : 24), "ptr");
_Static_assert(sizeof(struct cudaFuncAttributes) == 144, "func");
"""


def cuda_headers():
    """Of every toolkit and of every nvidia-* package here."""
    places = [Path("/usr/local"), *(Path(p) / "nvidia" for p in sys.path)]
    return sorted({h.resolve().parent for p in places for h in p.glob("*/include/cuda_runtime_api.h")})


@pytest.mark.skipif(not cuda_headers(), reason="no CUDA headers here")
def test_cuda_headers(gpu, tmp_path):
    (tmp_path / "c.c").write_text(CHECK)
    for include in cuda_headers():
        command = [build.GCC, "-fsyntax-only", "-I", include, "-I", build.HERE, tmp_path / "c.c"]
        subprocess.run(command, check=True)


def test_python_mirror(gpu):
    assert gpu.size == ctypes.sizeof(simgpu.State)


def test_pynvml_structs():
    assert ctypes.sizeof(N.c_nvmlMemory_v2_t) == 40 and N.nvmlMemory_v2 == (2 << 24 | 40)
    assert ctypes.sizeof(N.c_nvmlProcessInfo_v3_t) == 24
    assert ctypes.sizeof(N.nvmlPciInfo_t) == 68


def test_builders_race(gpu, tmp_path):
    """Several runs may build at once: each gets the whole library, nothing else stays."""
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: build.ensure(None, tmp_path), range(4)))
    assert list(tmp_path.iterdir()) == [made[0]]
    assert [p.name for p in made[0].iterdir()] == ["libnvidia-ml.so.1"]
