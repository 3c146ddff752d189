"""Who holds what, `%gpulog vars` and `%gpulog free`, in a real kernel."""

import re

import pytest
from memory import MB

START = "%load_ext ipygpulogger\n%gpulog start report=none\nimport numpy as np"
WITH = {  # how a notebook makes so many MB of RAM
    "bytearray": "def make(size_mb):\n    return bytearray(b'x') * (size_mb << 20)",
    "numpy": "def make(size_mb):\n    return np.ones(size_mb << 20, np.uint8)",
    "torch": "import torch\ndef make(size_mb):\n    return torch.ones(size_mb << 18)",
}
FAILS = "def step(x):\n    act = make(30)\n    inside = [x, act]\n    raise ValueError('no')\nstep(1)"


def rss_bytes(kernel):
    return kernel.value("__import__('psutil').Process().memory_info().rss")


def rows(text):
    """{holder: (MB of RAM, the rest of the line)} of the table."""
    found = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition("  ")
        size = re.search(r"(<?\d+) MB", rest)
        found[name] = (size and size[1], rest[size.end() :].strip() if size else rest)
    return found


@pytest.mark.parametrize("made", ["bytearray", "numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_traceback_and_an_output(kernel, made):
    """A local of 30 MB and an `Out` of 40 MB are found, named and freed: 70 MB of resident memory within 5 %."""
    for code in (START, WITH[made], "kept = make(20)\nalias = kept"):
        assert kernel.run(code).status == "ok"
    kernel.run(FAILS)
    assert kernel.run("make(40)").status == "ok"
    number = kernel.value("max(Out)")
    found = rows(kernel.run("%gpulog vars").stdout)
    assert found["kept"] == ("20", "also alias")
    assert found[f"Out[{number}]"][0] == "40"
    assert found["last traceback: step.act"][0] == "30"
    assert int(found["named in all"][0]) in range(90, 93)
    assert int(found["not named"][0]) > 10
    before = rss_bytes(kernel)
    ran = kernel.run("%gpulog free")
    came = before - rss_bytes(kernel)
    assert abs(came - 70 * MB) < 3.5 * MB
    assert ran.stdout.startswith(f"dropped: last traceback (step.act 30 MB), Out[{number}] 40 MB\n"), (
        ran.stdout
    )
    assert abs(int(re.search(r"RAM (\d+) MB", ran.stdout)[1]) - 70) <= 3
    found = rows(kernel.run("%gpulog vars").stdout)
    assert found["kept"][0] == "20"
    assert not [name for name in found if name.startswith(("Out", "last traceback"))]
