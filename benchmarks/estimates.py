"""How far an estimate of a well-known model is off: two steps of its training, estimated and then run on the device.

Claim: without notes, less than 0.5 % off; with cuDNN's note, by what cuDNN takes as workspace.

    python benchmarks/estimates.py            every model, and the largest batch of one that fits
    python benchmarks/estimates.py GPT BERT   those whose names contain one of these words

Needs a real GPU, and torchvision and transformers beside torch. The weights are random; nothing is downloaded.
The first run of each model, which is not measured, loads the kernels; cuDNN chooses its own then.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torchvision.models as vision
import transformers
from bench import about, print_table
from torch import nn

from ipygpulogger import estimate, measure

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 2**20
SAMPLE_MB = 850  # about what GPT-2 needs for each 512 tokens
BESIDE = [-60, -24, -12, -8, -4, 0, 4, 8]  # batches, beside the one that fills a device at that


def steps(model: nn.Module, batch: Callable[[], Any], loss: Callable[..., Any], *, half: bool = False) -> Any:
    """Return a function that makes two steps of a training, on a new batch each."""
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def training() -> None:
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
                found = loss(model, batch())
            found.backward()
            optimizer.step()
            optimizer.zero_grad()

    return training


def images(count: int, size: int = 224) -> Any:
    """Return a function that makes a batch of images."""
    return lambda: torch.randn(count, 3, size, size, device="cuda")


def words(count: int, length: int) -> Any:
    """Return a function that makes a batch of token numbers."""
    return lambda: torch.randint(30_000, (count, length), device="cuda")


def of_classes(model: nn.Module, batch: Any) -> Any:
    """Return a classifier's loss; which class is right costs no memory."""
    return nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long, device="cuda"))


def of_language(model: nn.Module, batch: Any) -> Any:
    """Return a language model's own loss."""
    return model(input_ids=batch, labels=batch).loss


def of_states(model: nn.Module, batch: Any) -> Any:
    """Return a loss of an encoder's last states."""
    return model(input_ids=batch).last_hidden_state.float().square().mean()


def gpt2(*, checkpointing: bool = False) -> nn.Module:
    """Return a GPT-2 of 124 million parameters."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model


def t5() -> nn.Module:
    """Return a T5 of the small size."""
    config = transformers.T5Config(decoder_start_token_id=0, pad_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def llama() -> nn.Module:
    """Return a small Llama whose heads share keys and values."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
    config = transformers.LlamaConfig(num_attention_heads=16, num_key_value_heads=4, **sizes)
    return transformers.LlamaForCausalLM(config).bfloat16()


def unet() -> nn.Module:
    """Return a small U-Net without skips."""

    def block(channels: int, more: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, more, 3, padding=1), nn.GroupNorm(8, more), nn.SiLU())

    down = block(3, 64), block(64, 64), nn.MaxPool2d(2), block(64, 128), block(128, 128)
    return nn.Sequential(*down, nn.Upsample(scale_factor=2), block(128, 64), nn.Conv2d(64, 3, 1))


def lstm() -> Any:
    """Return a function that makes two steps of a training of two layers of an LSTM."""
    model = nn.LSTM(1024, 1024, 2, batch_first=True)
    return steps(
        model, lambda: torch.randn(64, 256, 1024, device="cuda"), lambda of, batch: of(batch)[0].sum()
    )


def inference() -> Any:
    """Return a function that runs a model without gradients."""
    model = vision.resnet50().cuda().eval()
    return torch.no_grad()(lambda: model(images(256)()))


MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2, 8 x 512 tokens": lambda: steps(gpt2(), words(8, 512), of_language),
    "GPT-2, bf16 autocast": lambda: steps(gpt2(), words(8, 512), of_language, half=True),
    "GPT-2, checkpointing": lambda: steps(gpt2(checkpointing=True), words(8, 512), of_language),
    "BERT base, 16 x 256 tokens": lambda: steps(
        transformers.BertModel(transformers.BertConfig()), words(16, 256), of_states
    ),
    "T5 small, 8 x 256 tokens": lambda: steps(t5(), words(8, 256), of_language),
    "Llama, 8 layers, bf16, 4 x 1024 tokens": lambda: steps(llama(), words(4, 1024), of_language),
    "ViT-B/16, 32 images": lambda: steps(vision.vit_b_16(), images(32), of_classes),
    "ConvNeXt-T, 32 images": lambda: steps(vision.convnext_tiny(), images(32), of_classes),
    "Swin-T, 32 images": lambda: steps(vision.swin_t(), images(32), of_classes),
    "ResNet-50, 64 images": lambda: steps(vision.resnet50(), images(64), of_classes),
    "ResNet-50, bf16 autocast": lambda: steps(vision.resnet50(), images(64), of_classes, half=True),
    "ResNet-50, inference, 256 images": inference,
    "EfficientNet-B0, 64 images, bf16": lambda: steps(
        vision.efficientnet_b0(), images(64), of_classes, half=True
    ),
    "U-Net, 16 images of 256": lambda: steps(
        unet(), images(16, 256), lambda model, batch: (model(batch) - batch).square().mean()
    ),
    "LSTM, 2 x 1024, 64 x 256": lstm,
}


def clear() -> None:
    """Empty the cache, and drop cuBLAS's workspaces, which the next run makes anew."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def row(name: str) -> list[str]:
    """Return what was estimated and what was needed."""
    MODELS[name]()()
    clear()
    fn = MODELS[name]()
    began_s = time.perf_counter()
    found = estimate(fn, device=0)
    took_s = time.perf_counter() - began_s
    with measure() as measured:
        fn()
    needed_bytes, estimated_bytes = measured.gpus[0].needed_bytes, found.peak_bytes - found.held_bytes
    figures = f"{estimated_bytes / MB:.0f}", f"{needed_bytes / MB:.0f}"
    error = f"{(estimated_bytes / needed_bytes - 1) * 100:+.2f} %"
    return [
        name,
        *figures,
        error,
        f"{took_s:.1f}",
        "cuDNN" if "cuDNN" in str(found.notes) else str(len(found.notes)),
    ]


def largest_batch() -> list[list[str]]:
    """Return for each batch size whether it was estimated to fit, and whether it did."""
    model = gpt2().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def training(batch: Any) -> None:
        for _ in range(2):
            of_language(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    training(words(2, 512)())
    clear()
    full = torch.cuda.mem_get_info()[1] // (SAMPLE_MB * MB) // 4 * 4
    sizes = [full + more for more in BESIDE]
    found, rows = estimate(training, words(16, 512)(), batch_sizes=sizes, device=0), []
    for one in found.batches:
        clear()
        try:
            training(words(one.size, 512)())
            ran = "fits"
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            ran = "out of memory"
        highest = f"{(one.peak_bytes or 0) / MB:.0f}"
        rows.append([str(one.size), highest, "fits" if one.fits else "does not fit", ran])
    return rows


def main() -> None:
    """Print the table of the models, and that of the batches."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    asked = sys.argv[1:]
    rows = []
    for name in MODELS:
        if not asked or any(word in name for word in asked):
            rows.append(row(name))
            clear()
    head = ["model", "estimated MB", "needed MB", "error", "estimate s", "notes"]
    print_table("Estimates beside what was needed", head, rows)
    if not asked:
        head = ["batch of GPT-2", "estimated highest MB", "estimate", "run"]
        print_table("The largest batch", head, largest_batch())
    print(f"\n{torch.cuda.get_device_name()}, {about('torch', 'transformers')}")


if __name__ == "__main__":
    main()
