"""Each object of the user's dies when it would without us: nothing of ours keeps it alive."""

import lifetimes
import pytest

LOADED = ["%load_ext ipygpulogger"]
KEPT = """
import contextlib
kept = []
@contextlib.contextmanager
def keeping(**options):
    with measure(**options) as measured:
        yield
    kept.append(measured)
"""
COMMANDS = [
    "%gpulog vars", "%gpulog summary", "%gpulog status", "%gpulog doctor", "il.data, il.record, il.owners()",
    "%gpulog save $FOLDER/history.jsonl", "repr(il.history)",
]  # fmt: skip
ESTIMATED = """
def step():
    net(torch.ones(4, 300, device=DEVICE)).sum().backward()
if "net" in globals():
    print(ipygpulogger.estimate(step, device=DEVICE))
del step
"""


def logger(**options):
    """Cells that start a logger with these options."""
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return [f"il = ipygpulogger.IPyGPULogger({given}).start()"]


PLAIN = {
    "the extension": {"start": LOADED},
    "the extension, unloaded before the drops": {"start": LOADED, "before_drop": ["%unload_ext ipygpulogger"]},
    "printed, with a log and a budget": {"start": [
        "il = ipygpulogger.IPyGPULogger(report='text', log=FOLDER + '/log.jsonl', budget='9GB').start()"
    ]},
    "no garbage collected": {"start": logger(report="none", gc_collect=False, clear_cache=False)},
    "all garbage collected": {"start": logger(report="none", gc_collect="full", devices="all")},
    "lines": {"start": logger(report="text", lines=True)},
    "the peak of RAM, and lines": {"start": logger(report="rich", lines=True, peak="all")},
    "%%gpulog while stopped": {"start": [*LOADED, "%gpulog stop"], "prefix": "%%gpulog"},
    "%%gpulog with all options": {"start": LOADED, "prefix": "%%gpulog --peak=all --lines --label it"},
    "measure": {"around": "measure('a', report=True)"},
    "measure with the peak, kept": {"start": [KEPT], "around": "keeping(peak=True)"},
    "measure_lines": {"around": "lines"},
    "all commands": {"start": LOADED, "after": COMMANDS},
    "free": {"start": LOADED, "after": ["%gpulog free"]},
}  # fmt: skip
TORCH = {
    "the extension, unloaded before the drops": PLAIN["the extension, unloaded before the drops"],
    "no garbage collected": PLAIN["no garbage collected"],
    "%%gpulog with all options": PLAIN["%%gpulog with all options"],
    "measure with the peak, kept": PLAIN["measure with the peak, kept"],
    "all commands": {"start": LOADED, "after": [*COMMANDS, "%gpulog snapshot $FOLDER/snapshot.pickle"]},
    "estimate": {"after": [ESTIMATED]},
}


@pytest.fixture(scope="module")
def plain(driverless_env):
    return lifetimes.outcomes({"alone": {}, **PLAIN}, driverless_env)


@pytest.fixture(scope="module")
def torch(machine_env):
    return lifetimes.outcomes({"alone": {}, **TORCH}, machine_env, torch=True)


def longer_lives(found, alone):
    """What lives longer than without us, by moment, and how many bytes of the device."""
    assert [moment for moment, _, _ in found] == [moment for moment, _, _ in alone]
    assert any(living for _, living, _ in alone)
    return {
        moment: (more, size_bytes - expected_bytes)
        for (moment, living, size_bytes), (_, expected, expected_bytes) in zip(found, alone, strict=True)
        if (more := sorted(set(living) - set(expected))) or size_bytes > expected_bytes
    }


@pytest.mark.parametrize("way", PLAIN)
def test_objects_die_when_they_would_without_us(plain, way):
    """Whatever kind they are of: redefined, rebound, deleted, of a reloaded module, of a failed cell."""
    assert not longer_lives(plain[way], plain["alone"])


@pytest.mark.torch
@pytest.mark.parametrize("way", TORCH)
def test_modules_and_tensors_die_when_they_would_without_us(torch, way):
    """Their classes, caches, gradients, graphs and memory on the device too."""
    assert not longer_lives(torch[way], torch["alone"])
