"""What a cell freed on a device, where every byte is known."""

import ctypes

import pytest
import torch
from memory import MB

pytestmark = pytest.mark.torch

KEPT = "t = torch.ones(50 * MB, dtype=torch.uint8, device='cuda')"
FREED = {
    "deleted": ([KEPT, "del t"], ["freed: t 50 MB (cuda:0)"]),
    "bound to None": ([KEPT, "t = None"], ["freed: t 50 MB (cuda:0)"]),
    "bound anew to more, and deleted": (
        [KEPT, "t = torch.ones(80 * MB, dtype=torch.uint8, device='cuda')", "del t"],
        ["freed: t 80 MB (cuda:0)"],
    ),
    "bound anew to as much": ([KEPT, KEPT], []),
    "shared storage": (
        [KEPT, "v = t[:10].view(2, 5)", "del t"],
        ["t was dropped, its 50 MB are still held by v"],
    ),
    "an attribute": (
        [KEPT, "m = torch.nn.Module(); m.cache = t", "del t"],
        ["t was dropped, its 50 MB are still held by m.cache"],
    ),
    "a graph": (
        ["t = torch.ones(10 * MB, device='cuda', requires_grad=True)", "loss = (t * t).sum()", "del t"],
        ["t was dropped, its 40 MB are still held by loss (autograd graph)"],
    ),
    "where nobody looks": ([KEPT, "hide(t)", "del t"], []),
    "where nobody looks, beside another": (
        [KEPT, "u = torch.ones(50 * MB, dtype=torch.uint8, device='cuda'); hide(t)", "del t, u"],
        ["freed: u 50 MB (cuda:0)"],
    ),
    "on two devices": (
        [KEPT, "u = torch.ones(20 * MB, dtype=torch.uint8, device='cuda:1')", "del t, u"],
        ["freed: t 50 MB (cuda:0)", "freed: u 20 MB (cuda:1)"],
    ),
    "moved to the other": ([KEPT, "t = t.to('cuda:1')"], ["freed: t 50 MB (cuda:0)"]),
}


@pytest.mark.parametrize(("cells", "notes"), FREED.values(), ids=FREED)
def test_what_was_freed_on_a_device(shell, cuda, run, cells, notes):
    """The name under which the tensor was held, where its memory is free again; or who holds it still."""
    hidden = []

    def hide(tensor):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        hidden.append(id(tensor))

    shell.user_ns.update(torch=torch, MB=MB, hide=hide)
    run("pass")
    for cell in cells:
        record = run(cell)
        assert record.status == "ok"
    told = [note for note in record.notes if note.startswith("freed") or "still held" in note]
    for at in hidden:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(at, ctypes.py_object))
    assert [note for note in told if "cpu" not in note] == notes
