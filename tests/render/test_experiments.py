"""What an experiment and its cell logger print, character by character."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory import MB
from plotted import device, record

from ipygpulogger.records import DeviceUsage, OutOfMemory, Peak, RamUsage
from ipygpulogger.render import experiments as render


def int2width(*numbers):
    """As the contract has it."""
    width = max(map(len, map(str, numbers)))
    return width + int((width - 1) / 3)


def secs2time(secs):
    """As the contract has it."""
    return f"{timedelta(seconds=int(secs))}.{int(abs(secs - int(secs)) * 1000):03d}"


@pytest.mark.parametrize(
    ("record", "gpu", "rows", "line"),
    [
        (record(), None, ["CPU:        128          0        170 MB |"], "CPU: 128/0/170 MB"),
        (record(quality="bounded", peaked=512), device(1, 2, 3, quality="sampled"),
         ["CPU:        128        512        170 MB |  (peaked 512-560)",
          "GPU:          1          2          3 MB |  (peaked at least)"],
         "CPU: 128/512/170 MB  (peaked 512-560) | GPU: 1/2/3 MB  (peaked at least)"),
        (record(), device(1, 2, 3, attributed=False, used_bytes=None),
         ["CPU:        128          0        170 MB |",
          "GPU:        n/a        n/a        n/a MB |  (per-process usage unavailable)"],
         "CPU: 128/0/170 MB | GPU: n/a/n/a/n/a MB  (per-process usage unavailable)"),
    ],
)  # fmt: skip
def test_the_cells_report(record, gpu, rows, line):
    """The original's lines; what is more stands after a row or below, never within."""
    head = "･ RAM:  △Consumed    △Peaked    Used Total | Exec time 0:00:00.807"
    card = OutOfMemory("cuda:0", 1, 2, 3, 4, 5, 6, 0, 0, (), "free something")
    failed = replace(record, status="error", error="ValueError", notes=("A note.",), out_of_memory=card)
    rows = [f"･ {row}" for row in rows]
    assert render.cell(record, gpu).splitlines() == [head, *rows]
    said = render.cell(failed, gpu).splitlines()
    assert said[: len(rows) + 2] == [head, f"{rows[0]}  failed: ValueError", *rows[1:], "A note."]
    line = f"{line} | Time 0:00:00.807 | (Consumed/Peaked/Used Total)"
    assert render.cell(record, gpu, compact=True) == line
    short = render.cell(failed, gpu, compact=True).splitlines()
    assert short[0] == f"{line} | failed: ValueError | A note."
    for told in said, short:  # the report of IPyGPULogger's, below the rows
        assert told[-3].startswith("Out of memory on cuda:0: ")
        assert told[-2] == "  -> free something"


SIZES = st.integers(-(2**46), 2**46)


@given(SIZES, st.integers(0, 2**45), st.integers(0, 2**46), SIZES, st.integers(0, 2**46), st.floats(0, 10**6))
def test_the_cells_report_is_the_contracts_own(consumed, peaked, used, gpu_consumed, gpu_used, time_s):
    """Whatever the figures: the lines are what the contract's f-strings make of them."""

    def usage(consumed, used):
        used = max(used, consumed, 0)
        top = max(used - consumed, used) + peaked
        return used - consumed, used, Peak(top, top, "exact")

    ram, gpu = usage(consumed, used), usage(gpu_consumed, gpu_used)
    one = DeviceUsage(*gpu, index=0, name="Sim", used_bytes=gpu[1])
    cell = record(time_s=time_s, gen=RamUsage(*ram))

    def b2mb(num):
        return int(num / 2**20)

    d, p, u, dd, uu = map(b2mb, (consumed, peaked, ram[1], gpu_consumed, gpu[1]))
    w = max(10, int2width(d, p, u, dd, uu) + 1)
    t = secs2time(time_s)
    assert render.cell(cell, one).splitlines() == [
        f"･ RAM: {'△Consumed':>{w}} {'△Peaked':>{w}}    {'Used Total':>{w}} | Exec time {t}",
        f"･ CPU: {d:{w},.0f} {p:{w},.0f} {u:{w},.0f} MB |",
        f"･ GPU: {dd:{w},.0f} {p:{w},.0f} {uu:{w},.0f} MB |",
    ]
    assert render.cell(cell, one, compact=True) == (
        f"CPU: {d:0.0f}/{p:0.0f}/{u:0.0f} MB | GPU: {dd:0.0f}/{p:0.0f}/{uu:0.0f} MB | Time {t}"
        " | (Consumed/Peaked/Used Total)"
    )


@given(st.lists(st.tuples(*[st.integers(0, 2**46)] * 2, st.integers(1, 2**46)), min_size=1, max_size=2))
def test_the_state_is_the_contracts_own(rows):
    """Whatever the figures: the lines are what the contract's f-strings make of them."""
    names = ["CPU", "GPU"]
    w = int2width(*(int(size / 2**20) for row in rows for size in row)) + 1
    lines = ["", "*** Current state:", f"RAM: {'Used':>{w}} {'Free':>{w}} {'Total':>{w}}    {'Util':>{w}}"]
    for name, row in zip(names, rows, strict=False):
        used, free, total = (int(size / 2**20) for size in row)
        lines.append(
            f"{name}: {used:{w},.0f} {free:{w},.0f} {total:{w},.0f} MB {row[0] / row[2] * 100:6.2f}% "
        )
    assert render.state(dict(zip(names, rows, strict=False))).split("\n") == lines


def test_what_is_unknown_is_no_number():
    """n/a where it is unknown; a share of nothing or of less is none, but nothing of nothing is all."""
    assert render.state({"GPU": (None, 2 * MB, None)}, ["A note."]) == (
        "\n*** Current state:\nRAM: Used Free Total    Util\nGPU:  n/a    2  n/a MB     n/a \nA note."
    )
    assert render.memory({"CPU": (0, 0), "GPU": (None, None)}) == (
        "\n*** Experiment memory:\nRAM: Consumed       Reclaimed\n"
        "CPU:        0        0 MB (100.00%)\nGPU:      n/a      n/a MB (    n/a)"
    )
    wide = render.memory({"CPU": (1, 1), "GPU": (12345678 * MB, 6172839 * MB)}).split("\n")
    assert wide[2:] == [
        "RAM:    Consumed         Reclaimed",
        "CPU:           0           0 MB (100.00%)",
        "GPU:  12,345,678   6,172,839 MB ( 50.00%)",
    ]
    assert render.memory({"CPU": (-MB, 0)}).endswith("CPU:       -1        0 MB (    n/a)")
    assert render.memory({"CPU": (0, MB)}).endswith("CPU:        0        1 MB (    n/a)")
    assert render.memory({"CPU": (400 * MB, -1)}).endswith("CPU:      400        0 MB (  0.00%)")


def test_the_other_lines():
    """The banner, the device, the end and what was found, in the original's words."""
    assert render.started("CPU-only") == "\n*** Experiment started with the CPU-only backend"
    gpu = device(0, 0, 0, total_bytes=8119 * MB)
    assert render.device(gpu) == "Device: ID 0, Sim (8119 RAM)"
    assert render.device(None) == "Device: none that can be used, RAM only"
    begins = "\nX: Finishing\n\n*** Experiment finished in "
    assert render.finished("X", 3723.9) == f"{begins}01:02:03 (elapsed wallclock time)"
    assert render.finished("X", 100 * 3600) == f"{begins}100:00:00 (elapsed wallclock time)"
    assert render.variables(["x1", "x2"], ["y"], ["z"]) == (
        "\n*** Newly defined local variables:\nDeleted: x1, x2\nFailed to delete: y\nKept:    z"
    )
    assert render.variables([], [], []) == render.garbage(0, 0) == ""
    assert render.garbage(3, 2) == (
        "\n*** Circular ref objects gc collected during the experiment:\n"
        "cleared 3 objects (only temporary leakage)\n"
        "\n*** Potential memory leaks during the experiment:\nuncollected gc.garbage of 2 objects"
    )
