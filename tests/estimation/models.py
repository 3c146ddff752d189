"""Nine models and ways to train them, each small to build and large to run, on any device.

A builder takes the device and returns the function and its arguments. It makes everything anew, so that the
same can be estimated and run for real. On the simulated device cuDNN must be off (see tests/simgpu/README.md).
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def _mlp(device, width=1024, depth=4, **options):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(device, **options)


def _batch(device, *shape, classes=10):
    return torch.randn(*shape, device=device), torch.zeros(shape[0], dtype=torch.long, device=device)


def mlp(device):
    """Fully connected layers under SGD with momentum."""
    model = _mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, _batch(device, 16384, 1024)


def conv(device):
    """Convolutions with batch norm and pooling under Adam."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, _batch(device, 64, 3, 96, 96)


class Block(nn.Module):
    """A transformer block of one's own, with the attention written out."""

    def __init__(self, width, heads, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        count, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = self.dropout((q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(-1))
        x = x + self.out((weights @ v).transpose(1, 2).reshape(count, length, width))
        return x + self.dropout(self.down(F.gelu(self.up(self.between(x)))))


class Language(nn.Module):
    """A small language model, whose output shares the weights of its embedding if they are tied."""

    def __init__(self, words=4096, width=256, depth=2, tied=False, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def _words(device, count=32, length=128):
    return torch.zeros(count, length, dtype=torch.long, device=device)


def _language_step(model, optimizer):
    def step(words):
        loss = F.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def transformer(device):
    """Attention, layer norm and dropout under AdamW."""
    model = Language().to(device)
    return _language_step(model, torch.optim.AdamW(model.parameters())), (_words(device),)


def checkpointed(device):
    """The same, recomputing the activations of its blocks in the backward pass."""
    model = Language(depth=6, checkpointed=True).to(device)
    return _language_step(model, torch.optim.AdamW(model.parameters())), (_words(device),)


def tied(device):
    """The same with one tensor for embedding and output, whose gradient is the sum of two."""
    model = Language(tied=True).to(device)
    return _language_step(model, torch.optim.AdamW(model.parameters())), (_words(device),)


def mixed_precision(device):
    """Autocast to bfloat16: half the activations, and a copy of each weight."""
    model = _mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, _batch(device, 16384, 1024)


def accumulation(device):
    """Gradients of four parts of the batch are summed up before the step."""
    model = _mlp(device)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, y):
        for part, labels in zip(x.chunk(4), y.chunk(4), strict=True):
            (F.cross_entropy(model(part), labels) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, _batch(device, 16384, 1024)


def foreach_optimizer(device):
    """Many parameters and a small batch: all at once, the optimizer's temporaries are as large as the model."""
    model = _mlp(device, depth=12)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)

    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, _batch(device, 64, 1024)


def inference(device):
    """No gradients: two layers' activations live at a time."""
    model = _mlp(device).eval()

    def predict(x):
        with torch.no_grad():
            return model(x).argmax(-1)

    return predict, (torch.randn(16384, 1024, device=device),)


MODELS = [
    mlp, conv, transformer, checkpointed, tied, mixed_precision, accumulation, foreach_optimizer, inference
]  # fmt: skip
