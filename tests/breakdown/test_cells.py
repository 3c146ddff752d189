"""Names and places of what was alive at the peak of the cells of a real kernel, on the simulated GPU."""

import pytest

pytestmark = pytest.mark.torch

ROWS = """[(row.kind, row.name, row.place, row.size_bytes >> 20, row.blocks)
for row in il.record.at_peak if row.device == 'cuda:0' and row.size_bytes >= 1 << 20]"""
BEGIN = [
    "import torch; from torch import nn\nMB = 1 << 18\ntorch.zeros(1, device='cuda');",
    "from ipygpulogger import IPyGPULogger\nil = IPyGPULogger(report='none', peak=True).start()",
]


SPIKE = "torch.empty(64 * MB, device='cuda')"
TRAINING = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3 * MB))
    def forward(self, x):
        return (self.weight * x).sin()

def step(x):
    loss = model(x).sum()
    {SPIKE}
    loss.backward()
    opt.step()
"""


@pytest.mark.kernel(gpu=True, begin=BEGIN)
def test_names_and_lines_are_those_that_the_user_sees(kernel):
    """In one notebook: plain cells, magics, functions and models of earlier cells, a failed cell."""

    def rows(code, status="ok"):
        ran = kernel.run(code)
        assert ran.status == status, ran.reply
        return [tuple(row) for row in kernel.value(ROWS)]

    before = "before the cell"
    # Empty lines above the code, magics, and what several cells have made.
    assert rows("\n\nx = torch.zeros(3 * MB, device='cuda')\ny = x * 2") == [
        ("variables", "x", "In [1]:3", 3, 1),
        ("variables", "y", "In [1]:4", 3, 1),
    ]
    assert rows("%%time\n\nz = x[:MB] + 1\ndel y")[-1] == ("variables", "z", "In [2]:3", 1, 1)
    assert rows("%%capture said\n\n\nu = x[:2 * MB] + 1\nv = u")[1] == ("variables", "u", "In [3]:4", 2, 1)
    both = "%%gpulog --peak\n%%capture said\n\nt = x[:MB] + 1"
    assert rows(both)[-1] == ("variables", "t", "In [4]:4", 1, 1)
    both = "\n%%gpulog --peak\n\n%%time\n# nothing\ns = t + 1"
    assert rows(both)[-1] == ("variables", "s", "In [5]:6", 1, 1)
    rows("%%time\ndef timed():\n    return torch.zeros(5 * MB, device='cuda')\n")
    assert rows("big = timed()")[0] == ("variables", "big", "In [7]:1", 5, 1)  # of several, which was timed?
    freed = ("before", "freed since", before, 13, 6)  # which variables held it is not known any more
    assert freed in rows("del big, s, t, u, v, z, x")

    rows(TRAINING)
    assert rows("model = Net().cuda(); opt = torch.optim.Adam(model.parameters())") == [
        ("parameters", "model", "In [10]:1", 3, 1)
    ]

    def called(place):  # `step` and `forward` of an earlier cell, called from a line of this one
        spike = ("temporaries", SPIKE, f"{place} → step, In [9]:11", 64, 1)
        return spike, ("activations", "return (self.weight * x).sin()", f"{place} → forward, In [9]:7")

    spike, activations = called("In [11]:1")
    assert rows("step(torch.ones(3 * MB, device='cuda'))") == [
        spike,
        ("parameters", "model", before, 3, 1),
        ("variables", "x", "In [11]:1", 3, 1),  # as `step` calls it
        (*activations, 3, 1),
    ]
    again = [
        ("optimizer state", "opt", before, 6, 2),
        ("parameters", "model", before, 3, 1),
        ("gradients", "model", before, 3, 1),
    ]
    spike, activations = called("In [12]:3")
    assert rows("for _ in range(2):\n    x = torch.ones(3 * MB, device='cuda')\n    step(x)") == [
        spike,
        *again,
        ("variables", "x", "In [12]:2", 3, 1),
        (*activations, 3, 1),
    ]
    # No backward pass comes: the graphs that are alive at the end tell.
    _, activations = called("In [13]:1")
    found = rows("loss = model(x).cos()\nloss = loss.sum()")
    assert set(found) == {
        *again,
        (*activations, 6, 2),
        ("variables", "x", before, 3, 1),
        ("temporaries", "loss = model(x).cos()", "In [13]:1", 3, 1),
    }
    _, activations = called("In [14]:4")
    found = rows("def fails():\n    inner = model(x).cos()\n    1 / 0\nfails()", "error")
    assert set(found) == {
        *again,
        (*activations, 6, 2),
        ("activations", "loss (autograd graph)", before, 6, 2),
        ("variables", "x", before, 3, 1),
        ("variables", "fails.inner", "In [14]:2", 3, 1),
    }
    # What a recording takes for itself, and gives back, is neither a cell's nor told between two.
    rows("many = [torch.zeros(1, device='cuda') for _ in range(20_000)]")
    for _ in range(3):
        rows("pass")
    assert kernel.value("[r.between for r in il.history][-3:]") == [[], [], []]


DELETED = {  # a cell, and what the 24 MB of its `a` were at the peak
    "deleted": ("a = torch.zeros(24 * MB, device='cuda')\nb = a * 2\ndel a", ("a (deleted)", "{}:1")),
    "of a helper": ("a = T(24)\nb = a * 2\na = None", None),
    "kept by a graph": (
        (
            "a = torch.zeros(24 * MB, device='cuda', requires_grad=True) * 1\nb = (a * a).sum()\ndel a\n"
            "c = torch.zeros(48 * MB, device='cuda')\ndel b"
        ),
        None,
    ),
    "a list": ("a = [T(12), T(12)]\nb = a[0] * 2\ndel a", None),
}


@pytest.mark.kernel(gpu=True, begin=BEGIN)
def test_a_variable_that_the_cell_deleted(kernel):
    """It is named where the cell's text proves that the name held the memory at the peak."""
    kernel.run("def T(mb):\n    return torch.zeros(mb * MB, device='cuda')")
    for law, (code, named) in DELETED.items():
        assert kernel.run(code).status == "ok"
        found = [tuple(row)[1:3] for row in kernel.value(ROWS) if row[0] == "variables"]
        place = kernel.value("il.record.label")
        told = [row for row in found if "(deleted)" in row[0]]
        assert told == ([(named[0], named[1].format(place))] if named else []), (law, found)
        kernel.run("b = c = None")
