"""gpu_mem_get and its kin where torch is not installed: NVML tells, or nobody does."""

import contextlib
import re
import subprocess
import sys
import threading

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB

import ipygpulogger.utils.mem as door
from ipygpulogger.compat import mem as gpu_memory
from ipygpulogger.compat.mem import GPUMemory
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook.logger import IPyGPULogger
from ipygpulogger.records import Measurement

GB = 1 << 30

# seed-contract 1.2 and 1.5, the rows of both tables.
FASTAI = {
    "GPUMemory", "b2mb", "use_gpu", "preload_pytorch", "gpu_mem_get", "gpu_mem_get_all", "gpu_mem_get_free",
    "gpu_mem_get_used", "gpu_mem_get_free_no_cache", "gpu_mem_get_used_no_cache", "gpu_mem_get_used_fast",
    "gpu_with_max_free_mem", "gpu_mem_trace", "GPUMemTrace", "gpu_mem_restore", "gpu_mem_restore_ctx",
    "load_pynvml_env", "reduce_mem_usage",
}  # fmt: skip
IPYEXPERIMENTS = {
    "preload_pytorch", "gpu_mem_allocate_mbs", "gpu_mem_get_total_mbs", "gpu_mem_get_free_mbs",
    "gpu_mem_get_used_mbs", "gpu_mem_get_mbs", "gpu_mem_get_free_no_cache_mbs",
    "gpu_mem_get_used_no_cache_mbs", "gpu_mem_leave_free_mbs", "get_nvml_gpu_id", "b2mb", "GPUMemory",
    "use_gpu", "pynvml",
}  # fmt: skip
DRIVER_MB = 512  # what the simulated driver keeps of each device
QUIET = GPUMemory(total=16384, free=15872, used=DRIVER_MB)


@pytest.fixture(autouse=True)
def closed(fresh_machine):
    """The driver is asked anew in every test, as it stands then."""
    yield
    with contextlib.suppress(pynvml.NVMLError):
        while True:  # as often as the door's own `pynvml` was asked for
            pynvml.nvmlShutdown()


def test_every_name_is_there():
    """`from ipygpulogger.utils.mem import *` brings every name of both originals, and nothing else."""
    names = {}
    exec("from ipygpulogger.utils.mem import *", names)
    assert names.keys() - {"__builtins__"} == FASTAI | IPYEXPERIMENTS
    with pytest.raises(AttributeError, match="no_such_name"):
        door.no_such_name  # noqa: B018


# -- the table: what each call answers, by machine ---------------------------------------------------


def fault(function, code):
    return lambda gpu: gpu.fault(function, code)


def in_use(*sizes):
    """So many bytes on each device."""

    def prepare(gpu):
        for device, size_bytes in zip(gpu.dev, sizes, strict=False):
            device.base_used = size_bytes

    return prepare


FIRST, NONE = GPUMemory(16384, 12800, DRIVER_MB + 3072), GPUMemory(0, 0, 0)
FIGURES = {name for name in FASTAI | IPYEXPERIMENTS if name.startswith("gpu_mem_get_")}
FIGURES -= {"gpu_mem_get_all", "gpu_mem_get_mbs"}
NOTHING = {
    **{f"{name}({'None' if name.endswith('_fast') else ''})": 0 for name in FIGURES},
    "gpu_mem_get()": NONE,
    "gpu_mem_get_mbs(0)": NONE,
    "gpu_mem_get_all()": [],
    "gpu_with_max_free_mem()": (None, 0),
    "(preload_pytorch(), use_gpu, gpu_mem_allocate_mbs(1))": (None, False, None),
}
NOT_TOLD = {"gpu_mem_get()": NONE, "gpu_mem_get_all()": [NONE] * 2, "gpu_with_max_free_mem()": (None, 0)}
MACHINES = {
    "3 GB in use on the first": (
        in_use(3 * GB),
        {
            "[gpu_mem_get(), gpu_mem_get(0), gpu_mem_get(id=0)]": [FIRST] * 3,
            "[gpu_mem_get(1), gpu_mem_get_mbs(torch_gpu_id=1)]": [QUIET] * 2,
            "gpu_mem_get_all()": [FIRST, QUIET],
            "[gpu_mem_get_free(), gpu_mem_get_free_no_cache(), gpu_mem_get_free_no_cache_mbs()]": [12800] * 3,
            "[gpu_mem_get_used(), gpu_mem_get_used_no_cache(), gpu_mem_get_used_mbs()]": [3584] * 3,
            "[gpu_mem_get_total_mbs(), gpu_mem_get_free_mbs(), gpu_mem_get_free_mbs(1)]": [
                16384,
                12800,
                15872,
            ],
            "[gpu_mem_get_used_mbs(1), gpu_mem_get_used_no_cache_mbs(1)]": [DRIVER_MB] * 2,
            "gpu_with_max_free_mem()": (1, 15872),
            "{type(value) for value in (*gpu_mem_get(), *gpu_with_max_free_mem())}": {int},
        },
    ),
    "quiet": (
        in_use(),
        {
            "[b2mb(mb * 2**20) for mb in (0, 1, 1.999, -127.9, -0.1)]": [0, 1, 1, -127, 0],  # not floor
            "gpu_with_max_free_mem()": (0, 15872),  # the first of those with the most
            "{gpu_mem_get(index) for index in (2, 99, -1, '0', 0.5, (0,))}": {NONE},
            "[gpu_mem_get_free_mbs(2), gpu_mem_get_used_no_cache_mbs('0')]": [0, 0],
            "get_nvml_gpu_id(2)": (ValueError, r"torch has no device .* doctor"),
            "get_nvml_gpu_id('0')": (ValueError, r"torch has no device .* doctor"),
            "gpu_mem_allocate_mbs(1, fatal=True)": (ModuleNotFoundError, "torch"),
            "gpu_mem_leave_free_mbs(300)": (AssertionError, "failed to allocate 15572MB"),
            "gpu_mem_leave_free_mbs(20000)": (AssertionError, "less available mem than desired 20000MBs"),
        },
    ),
    "divided": (
        lambda gpu: gpu.dev[0].mig(5 * GB, 10 * GB),
        {"[memory.total for memory in gpu_mem_get_all()]": [5120, 10240, 16384]},
    ),
    "no driver": (
        fault("nvmlInit*", 9),
        {**NOTHING, "load_pynvml_env()": (pynvml.NVMLError, "Driver Not Loaded")},
    ),
    "a driver of another version": (fault("nvmlInit*", 18), NOTHING),
    "a driver that fails": (fault("nvmlDeviceGetCount*", 999), NOTHING),
    "not supported": (fault("nvmlDeviceGetMemoryInfo*", 3), NOT_TOLD),
    "no permission": (fault("nvmlDeviceGetMemoryInfo*", 4), NOT_TOLD),
    "a lost device": (fault("nvmlDeviceGetMemoryInfo*", 15), NOT_TOLD),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_each_call_answers(gpu, machine):
    """1.2, 1.5: ints in MB by every function; 1.6 C12: zeros, `[]`, `(None, 0)` without a GPU; errors in one sentence."""
    prepare, answers = MACHINES[machine]
    prepare(gpu)
    names = {}
    exec("from ipygpulogger.utils.mem import *", names)
    for call, answer in answers.items():
        if isinstance(answer, tuple) and isinstance(answer[0], type):
            with pytest.raises(answer[0], match=answer[1]):
                eval(call, names)
        else:
            assert eval(call, names) == answer, call


def test_the_driver_stays_open_between_the_devices_and_their_memory(gpu, monkeypatch):
    """However slowly this thread goes on; a device is never told as one without memory."""
    devices, closing = machine().nvml.devices, []

    def slowly():
        found = devices()
        closing.append(threading.Thread(target=machine().close))
        closing[-1].start()
        closing[-1].join(0.3)
        return found

    monkeypatch.setattr(machine().nvml, "devices", slowly)
    try:
        assert gpu_memory.gpu_mem_get_all() == [QUIET, QUIET]
    finally:
        for thread in closing:
            thread.join()
    assert closing


HIDDEN = ["", "-1", "NoDevFiles", "7,0", "-1,0", "0,0", "MIG-0000"]


@pytest.mark.parametrize("order", [None, "PCI_BUS_ID"])
@pytest.mark.parametrize(
    ("visible", "indices"),
    [("1", [1]), ("1,0", [1, 0]), (" 1 , 0", [1, 0]), ("1,7,0", [1]), ("GPU-{uuid}", [1])]
    + [(visible, []) for visible in HIDDEN],
)
def test_hidden_devices(gpu, monkeypatch, visible, indices, order):
    """Indices are torch's: CUDA_VISIBLE_DEVICES says which device they mean, by index or by UUID.

    `gpu_mem_get_all` alone lists all of the machine, and none where this process sees none, as fastai does.
    """
    gpu.dev[0].base_used, gpu.dev[1].base_used = 1 * GB, 2 * GB
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible.format(uuid=gpu.dev[1].uuid.decode()[4:]))
    if order:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    used = {0: DRIVER_MB + 1024, 1: DRIVER_MB + 2048}
    assert [gpu_memory.gpu_mem_get(k).used for k in range(len(indices))] == [used[i] for i in indices]
    assert gpu_memory.gpu_mem_get(len(indices)) == GPUMemory(0, 0, 0)
    assert [gpu_memory.get_nvml_gpu_id(k) for k in range(len(indices))] == indices
    free = [16384 - used[i] for i in indices]
    best = max(free, default=0)
    assert gpu_memory.gpu_with_max_free_mem() == ((free.index(best), best) if free else (None, 0))
    assert [memory.used for memory in gpu_memory.gpu_mem_get_all()] == ([used[0], used[1]] if indices else [])
    assert machine().devices.all_hidden() == (not indices)
    scope = Scope(all_devices=True).open()
    scope.close()
    # There is no headroom on a hidden device, however much is free.
    gpus = scope.result(Measurement, "now").gpus
    assert [gpu.free_bytes for gpu in gpus] == [(16384 - used[i]) * MB for i in (0, 1)]
    assert [gpu.headroom_bytes for gpu in gpus] == [gpus[i].free_bytes * (i in indices) for i in (0, 1)]
    hidden = {0: "them all", 1: "1 of them", 2: None}[len(indices)]
    told = re.search("CUDA_VISIBLE_DEVICES hides (.+) from CUDA", machine().nvml.diagnose().says)
    assert (told and told[1]) == hidden


def test_the_logger_says_that_all_are_hidden(gpu, shell, capsys, monkeypatch):
    """Without a GPU to be seen there is no GPU row; the reason is said once, at start."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    il = IPyGPULogger().start()
    assert "No GPU here (CUDA_VISIBLE_DEVICES hides them all): RAM only.\n" in capsys.readouterr().out
    shell.run_cell("x = 1", store_history=True)
    il.stop()
    assert "GPU" not in capsys.readouterr().out


def test_pynvml_is_open(gpu):
    """The star's `pynvml` can be asked at once, as fastai's could, also after our own use of it ended.

    1.2: `gpu_mem_get_used_fast(gpu_handle)`; NVMLError propagates.
    """
    names = {}
    exec("from ipygpulogger.utils.mem import *", names)
    machine().close()
    assert names["pynvml"].nvmlDeviceGetCount() == names["load_pynvml_env"]().nvmlDeviceGetCount() == 2
    gpu.dev[1].base_used = 5 * GB
    handle = names["pynvml"].nvmlDeviceGetHandleByIndex(1)
    assert names["gpu_mem_get_used_fast"](handle) == names["gpu_mem_get_used_mbs"](1) == 5120 + DRIVER_MB
    gpu.fault("nvmlDeviceGetMemoryInfo*", 15)
    with pytest.raises(pynvml.NVMLError):
        names["gpu_mem_get_used_fast"](handle)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(used_bytes=st.integers(0, 14 * GB))
def test_the_three_add_up(gpu, used_bytes):
    """``total == free + used`` to the MB: what the driver keeps for itself counts as used."""
    gpu.dev[0].base_used = used_bytes
    memory = gpu_memory.gpu_mem_get()
    assert memory.total == 16384 == memory.free + memory.used
    assert memory.free == (15872 * MB - used_bytes) // MB
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert gpu_memory.gpu_mem_get_used_fast(handle) == gpu_memory.gpu_mem_get_all()[0].used == memory.used


def test_importing_the_door_is_light():
    """It loads no framework and starts nothing; the star asks the driver whether a GPU is there."""
    program = (
        "import sys, threading\n"
        "from ipygpulogger.utils.mem import *\n"
        "heavy = {'torch', 'numpy', 'pandas', 'IPython', 'fastai', 'rich', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)), threading.active_count(), use_gpu)"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True).strip()
    assert said == "[] 1 False"
