"""What is reported of a cell that ran out of memory: the figures and the one next step."""

import re
from dataclasses import replace
from html import escape as html_escape

import pytest
from made import plain
from memory import MB

from ipygpulogger.notebook.logger import IPyGPULogger
from ipygpulogger.owners.out_of_memory import oom_snapshot
from ipygpulogger.owners.out_of_memory import out_of_memory as oom_report
from ipygpulogger.owners.roots import drop_hidden_references
from ipygpulogger.records import DeviceUsage, OutOfMemory, Owner, Peak
from ipygpulogger.render import out_of_memory, text

GIB = 2**30


@pytest.mark.parametrize(
    ("words", "asked_bytes", "report"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has",
            2 * GIB,
            "on gpu:1: asked 2.00 GiB\n  -> Use less at once: 2.00 GiB were asked for.",
        ),
        (
            "CUDA error: out of memory",
            None,
            "on gpu:0\n  -> Use less at once: it is not known how much was asked for.",
        ),
    ],
)
def test_without_any_framework(shell, words, asked_bytes, report):
    """What the words say is told; the rest is unknown, and never 0."""
    card = oom_report(oom_snapshot(RuntimeError(words), shell, []), [])
    assert (card.asked_bytes, card.free_bytes, card.live_bytes) == (asked_bytes, None, None)
    assert out_of_memory.report(card) == f"Out of memory {report}"


OWNERS = tuple(Owner(f"<b>{'x' * 200}&{i}", 2**40 - i, "cuda:0", "variable") for i in range(5))


CARD = OutOfMemory(
    "cuda:0", 2**40, None, 2**40, 0, None, 2**40, 2**40, 2**40, OWNERS, "Do <this> & that " + "x" * 200
)


def record_with(card):
    return plain(status="error", error="OutOfMemoryError", out_of_memory=card)


DEVICE = DeviceUsage(
    1000 * MB, 1000 * MB, Peak(1000 * MB, 1000 * MB, "exact"), 0, "A", total_bytes=16000 * MB
)


def test_the_card_as_html_is_a_bar_of_the_holders():
    """What is missing, a command to copy, who holds the device, and the size asked for to the megabyte."""
    owners = (
        Owner("model", 2400 * MB, "cuda:0", "variable"),
        Owner("last traceback: step.act", 3000 * MB, "cuda:0", "traceback"),
    )
    advice = (
        "`%gpulog free` gives 3000 MB back (the failed call's step.act). Then run the cell again: it fits."
    )
    card = OutOfMemory(
        "cuda:0", 8000 * MB, 5000 * MB, 6000 * MB, 0, 0, 4500 * MB, 3000 * MB, 0, owners, advice
    )
    page = out_of_memory.html(card, DEVICE, 1200)
    assert len(page.encode()) <= 1200
    words = re.sub(r"<div", "\n<div", page).replace("\N{NO-BREAK SPACE}", " ")
    assert [re.sub("<[^>]*>", "", line) for line in words.splitlines() if re.sub("<[^>]*>", "", line)] == [
        "GPU 0 is out of memory. 7.8 GB asked, 4.9 GB free: 2.9 GB short.",
        f"Do this: {html_escape(advice.replace('`', '').replace('3000 MB', '2.9 GB'))}",
        (
            "■ model 2.3 GB · ■ step.act (last traceback) 2.9 GB · ■ other tensors 600 MB"
            " · ■ context and libraries 500 MB · ■ other processes 4.4 GB · free 4.9 GB"
        ),
        "asked 8000 MB · free 5000 MB · live 6000 MB · other processes 4500 MB",
    ]
    assert "<code>%gpulog free</code>" in page
    assert re.findall(r"width:([\d.]+)%", page) == ["15", "18.8", "3.75", "3.12", "28.1"]
    for room in (1200, 900, 700, 500, 300):
        assert len(out_of_memory.html(card, DEVICE, room).encode()) <= room
    assert "model" not in out_of_memory.html(replace(card, live_bytes=None), None, 1200).split("Do this")[0]


@pytest.mark.parametrize("compact", [False, True])
def test_the_card_as_text(compact):
    """Directly below the figures, on lines of its own; who grew and the notes come after it."""
    said = {"owners": (Owner("act", 2000 * MB, "cuda:0", "traceback"),), "notes": ("A note.",)}
    lines = text.report(replace(record_with(CARD), **said), compact=compact).splitlines()
    start = lines.index("Out of memory on cuda:0: asked 1024.00 GiB")
    assert start == (1 if compact else 2)
    assert lines[start + 1].startswith("  -> Do <this> & that")
    assert lines[start + 2] == "  live 1048576 MB, cached 0 MB, other processes 1048576 MB"
    assert lines[-2:] == ["grew: act 2000 MB (cuda:0)", "A note."]


def test_a_broken_explanation_costs_nothing(shell, capsys, monkeypatch):
    """Without any GPU there is what the error said; without it a report all the same, and the reason once."""

    def broken(*_):
        raise LookupError("of ours")

    fails = "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')"
    il = IPyGPULogger().start()
    shell.run_cell(fails, store_history=True)
    assert il.record.out_of_memory.asked_bytes == 2 * GIB
    assert "Out of memory on gpu:0: asked 2.00 GiB" in capsys.readouterr().out
    monkeypatch.setattr("ipygpulogger.owners.out_of_memory.oom_snapshot", broken)
    for _ in range(2):
        shell.run_cell(fails, store_history=True)
    il.stop()
    printed = capsys.readouterr()
    assert printed.out.count("failed: RuntimeError") == 2
    assert printed.err.count("could not explain an error: LookupError: of ours") == 1
    assert il.record.out_of_memory is None
    drop_hidden_references(shell)
