"""What tests of epochs share: tensors of a known size, and whether an epoch's figures are the truth."""

from memory import MB

GRAIN_MB = 2  # resident memory: pages of a framework's own come and go


def near(found, truth):
    """Resident memory within its grain, GPU memory to the megabyte."""
    *cpu, gpu_used, gpu_peak = found
    assert (gpu_used, gpu_peak) == truth[2:], (found, truth)
    assert all(abs(a - b) <= GRAIN_MB for a, b in zip(cpu, truth, strict=False)), (found, truth)


def tensor(size_mb, device="cuda"):
    """Half a megabyte more, so that what the training holds beside it moves no figure."""
    import torch

    return torch.empty(size_mb * MB + MB // 2, dtype=torch.uint8, device=device)
