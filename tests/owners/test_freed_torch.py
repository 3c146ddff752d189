"""Who still holds what a cell dropped, on a device."""

import ctypes

import pytest
import torch
from memory import MB

pytestmark = pytest.mark.torch

KEPT = "t = torch.ones(50 * MB, dtype=torch.uint8, device='cuda')"
FREED = {
    "bound anew to as much": ([KEPT, KEPT], []),
    "shared storage": (
        [KEPT, "v = t[:10].view(2, 5)", "del t"],
        ["t was dropped, its 50 MB are still held by v"],
    ),
    "an attribute": (
        [KEPT, "m = torch.nn.Module(); m.cache = t", "del t"],
        ["t was dropped, its 50 MB are still held by m"],
    ),
    "a graph": (
        ["t = torch.ones(10 * MB, device='cuda', requires_grad=True)", "loss = (t * t).sum()", "del t"],
        ["t was dropped, its 40 MB are still held by loss (autograd graph)"],
    ),
    "where nobody looks": ([KEPT, "hide(t)", "del t"], []),
}


@pytest.mark.parametrize(("cells", "notes"), FREED.values(), ids=FREED)
def test_who_holds_it_on_a_device(shell, cuda, run, cells, notes):
    """The name that holds the tensor now, if the walk finds one."""
    hidden = []

    def hide(tensor):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        hidden.append(id(tensor))

    shell.user_ns.update(torch=torch, MB=MB, hide=hide)
    run("pass")
    for cell in cells:
        record = run(cell)
        assert record.status == "ok"
    told = [note for note in record.notes if "still held" in note]
    for at in hidden:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(at, ctypes.py_object))
    assert [note for note in told if "cpu" not in note] == notes
