"""The README and the pages of docs/: their examples run, and what they show is what the package says.

How a fenced block is checked goes by its language, and by the words in an HTML comment above it, which no reader sees:

=======================  ==========================================================================
``python``               runs as a cell of IPython, one shell for each page, from the top down
``raises ValueError``    the cell fails so
``torch``                the cell runs where torch is, on the simulated GPU
``training``             the cell runs where its framework is, after `TRAININGS`
``example: X``           each paragraph is one of examples/X, to the letter; tests/cluster runs that file
``text``, ``output``     what the cell above printed; consumed and peaked by 2 MB, other numbers by their place
``text``, ``shown: X``   what the renderer makes of the record `SHOWN[X]`, to the letter
``text``, ``command: X`` lines of what this command prints, but for their figures and the names of tests
``sh``                   each ``ipygpulogger ...`` is taken by the command line's own parser
``yaml``                 parses; the workflow is run by tests/cli/test_command_line.py
=======================  ==========================================================================
"""

import ast
import json
import re
import shlex
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

import ipygpulogger
from ipygpulogger import IPyGPULogger, experiments
from ipygpulogger.cli.arguments import parse
from ipygpulogger.cli.progress import Columns, moved
from ipygpulogger.notebook.options import COMMANDS
from ipygpulogger.owners import growth
from ipygpulogger.records import (
    AtPeak,
    CellRecord,
    ChildrenUsage,
    ChildUsage,
    DeviceUsage,
    Heap,
    Note,
    OutOfMemory,
    Owner,
    Peak,
    RamUsage,
    Usage,
)
from ipygpulogger.render import out_of_memory, text
from ipygpulogger.render.growth import ladders
from ipygpulogger.render.headline import headline
from ipygpulogger.utils import ipython, mem

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
MB = 2**20
MARKDOWN = MarkdownIt("commonmark").enable("table")

# What a page takes for granted.
GIVEN = {
    "blocks.md": "def load():\n    return bytearray(b'x') * (8 << 20)\nstep = load",
    "history.md": "import pytest",
    "trainings.md": "kept = []\ndef train_one_epoch():\n    kept.append(bytearray(b'x') * (20 << 20))",
}

# What the cell of a framework takes for granted, by the adapter that it imports.
TRAININGS = {
    "mem": """
from fastai.basics import DataLoader, DataLoaders, Learner
import torch
x = torch.arange(16.0)[:, None]
dls = DataLoaders(*(DataLoader(list(zip(x, 2 * x)), bs=8, device=torch.device("cpu")) for _ in range(2)))
model, loss_func = torch.nn.Linear(1, 1), torch.nn.MSELoss()
""",
    "lightning": "from lightning.pytorch import Trainer",
    "transformers": """
import torch
from transformers import Trainer, TrainingArguments
class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def forward(self, x, labels):
        return {"loss": ((self.line(x) - labels) ** 2).mean()}
model, train_dataset = Line(), [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
args = TrainingArguments("out", num_train_epochs=1, report_to=[], use_cpu=True)
""",
    "keras": """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
on_the_cpu.enter_context(keras.device("cpu"))
x = y = np.arange(16, dtype="float32")[:, None]
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss="mse", optimizer="sgd")
""",
}


def _usage(before_mb, after_mb, peak_mb):
    return before_mb * MB, after_mb * MB, Peak(peak_mb * MB, peak_mb * MB, "exact")


def _device(before_mb, after_mb, peak_mb, used_mb, total_bytes=40960 * MB, **more):
    return DeviceUsage(
        *_usage(before_mb, after_mb, peak_mb), index=0, name="NVIDIA A100-SXM4-40GB", uuid=None,
        total_bytes=total_bytes, used_bytes=used_mb * MB, **more,
    )  # fmt: skip


RECORD = CellRecord(
    label="In [4]", started_at=datetime(2026, 11, 1, tzinfo=timezone.utc), time_s=0.807,
    gen=RamUsage(*_usage(42, 170, 170)), gpus=(_device(2498, 4965, 6402, 5465),), execution_count=4,
    cell_id=None, source="...", status="ok",
)  # fmt: skip


def said(**changes):
    """The report of the record with these changes."""
    return text.report(replace(RECORD, **changes))


def in_one_line(**changes):
    """The line that its rich report unfolds from, as text."""
    return " · ".join(map(str, headline(replace(RECORD, **changes))))


def _on_gpu(name, size_mb, kind="variable"):
    return Owner(name, size_mb * MB, "cuda:0", kind)


SMALL_CARD = {"total_bytes": 16384 * MB}
DIVIDED_MB = {
    "allocated_bytes": 6400, "reserved_bytes": 6520, "other_bytes": 3500, "neighbours_bytes": 3000,
    "free_bytes": 30428, "driver_bytes": 512,
}  # fmt: skip
CARD = OutOfMemory(
    "cuda:0", round(4.10 * 1024 * MB), 1872 * MB, 10500 * MB, 0, 0, 3000 * MB, 3500 * MB, 0,
    (_on_gpu("last traceback: step.act", 3500, "traceback"), _on_gpu("x", 600)),
    "`%gpulog free` gives 3500 MB back (the failed call's step.act). Then run the cell again: it fits.",
)  # fmt: skip
ALIVE = (
    AtPeak("cuda:0", "activations", "loss = step(batch)", "In [7]:3", 5120 * MB, 96),
    AtPeak("cuda:0", "parameters", "model", "before the cell", 2410 * MB, 48),
    AtPeak("cuda:0", "gradients", "loss.backward()", "In [7]:4", 1205 * MB, 24),
)
SHOWN = {
    "report": said(),
    "compact": text.report(RECORD, compact=True),
    "line": in_one_line(
        time_s=12.4,
        gen=RamUsage(*_usage(461, 468, 468)),
        gpus=(_device(3200, 5658, 6886, 6554, **SMALL_CARD),),
        owners=(_on_gpu("model", 1638), _on_gpu("opt", 800)),
    ),
    "quiet": in_one_line(
        time_s=0.001,
        gen=RamUsage(*_usage(461, 461, 461)),
        gpus=(_device(2300, 2300, 2300, 2867, **SMALL_CARD),),
    ),
    "printed": repr(replace(RECORD, gpus=())),
    "failed": said(gpus=(), status="error", error="ValueError"),
    "grew": said(
        label="In [7]",
        time_s=2.118,
        gen=RamUsage(*_usage(569, 690, 690)),
        gpus=(_device(730, 1710, 1710, 2210),),
        owners=(_on_gpu("model", 980), Owner("df", 121 * MB, "cpu", "variable")),
    ),
    "status": ladders(
        [_device(6900, 6900, 6900, 10020, **{name: size_mb * MB for name, size_mb in DIVIDED_MB.items()})]
    ),
    "out of memory": out_of_memory.report(CARD),
    "alive when it failed": out_of_memory.report(
        OutOfMemory("cuda:0", *[None] * 6, 0, 0, (), "", ALIVE)
    ).split("\n", 2)[2],
}
TRAINED = replace(RECORD, gpus=(_device(4096, 6554, 7782, 6554, total_bytes=16384 * MB),))
SHOWN["run"] = Columns(21).line(7, "12.4 s", moved(TRAINED)[:1], "for batch in loader:")
GPU = RECORD.gpus[0]
RAM_LEFT = Note.read("RAM left: 392 MB of 8.0 GB (container limit); this cell needs 900 MB")
CHILDREN = ChildUsage(*_usage(0, 800, 800), "python", 71), ChildUsage(*_usage(0, 150, 530), "python", 72)
FULL = {"free_bytes": 300 * MB, "reserved_bytes": 40000 * MB, "allocated_bytes": 40000 * MB}
REMARKS = [  # each in a table of report.md
    ("(120 MB kept by malloc)", {"gen": RamUsage(*_usage(42, 170, 170), Heap(0, 0), Heap(0, 120 * MB))}),
    ("(+ 2 children 950 MB, highest 950 to 1330 MB: python 71 800 MB, python 72 150 MB (highest 530 MB))",
     {"children": ChildrenUsage(0, 950 * MB, Peak(950 * MB, 1330 * MB, "bounded"), 2, largest=CHILDREN)}),
    ("(pinned 128 MB)", {"pinned": Usage(*_usage(0, 128, 128))}),
    ("+ context 500 MB", {"context_bytes": 500 * MB}),
    ("(headroom 300 MB)", FULL),
    ("(other processes 3000 MB)", {"neighbours_bytes": 3000 * MB, "neighbours_before_bytes": 0}),
    ("(5120 MB more for a moment, owner unknown)", {"unknown_rise_bytes": 5120 * MB}),
    ("(+80 MB outside the allocator, owner unknown)", {"unattributed_bytes": 80 * MB}),
    ("n/a", {"attributed": False}),
    ("(peaked 512-560)", {"peak": Peak(GPU.after_bytes + 512 * MB, GPU.after_bytes + 560 * MB, "bounded")}),
    ("(peaked at least)", {"peak": Peak(512 * MB, None, "sampled")}),
    ("(peaked ±96 MB)", {"peak": Peak(512 * MB, 512 * MB, "exact", 96 * MB)}),
    ("(consumed ±192 MB)", {"gen": RamUsage(*_usage(42, 170, 170), precision_bytes=192 * MB)}),
    ("between cells: -97 MB, cuda:0 +200 MB", {"between": (("cpu", -97 * MB), ("cuda:0", 200 * MB))}),
    (RAM_LEFT, {"notes": (RAM_LEFT,)}),  # tests/notebook/test_ram_left.py has how it comes about
]  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    lineno: int
    language: str
    words: tuple[str, ...]  # of the comment above it
    text: str

    def word(self, beginning):
        """What follows the word of the comment that begins so; None where there is none."""
        return next(
            (word[len(beginning) :].strip() for word in self.words if word.startswith(beginning)), None
        )

    @property
    def first_line(self):
        return self.text.partition("\n")[0]

    def __str__(self):
        return f"{self.page}:{self.lineno}"


def blocks(page):
    found, words = [], ()
    for token in MARKDOWN.parse(PAGES[page].read_text(encoding="utf-8")):
        if token.type == "html_block" and token.content.startswith("<!--"):
            words = tuple(word.strip() for word in token.content.strip()[4:-3].split(","))
        elif token.type == "fence":
            found.append(Block(page, token.map[0] + 1, token.info.strip(), words, token.content.rstrip("\n")))
            words = ()
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
WITH_CELLS = sorted(
    {block.page for block in BLOCKS if block.language == "python" and block.word("example:") is None}
)
OF_LINUX = {  # pages that print what only Linux tells
    "blocks.md": pytest.mark.linux("elsewhere an earlier peak bounds a lower one"),
    "processes.md": pytest.mark.linux("children are not measured there"),
}
WITH_TORCH = sorted({block.page for block in BLOCKS if block.word("torch") is not None})


def of(language):
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language]


# -- cells --------------------------------------------------------------------------------------------------

ROW = re.compile(r"(?:Gen|GPU\d*): +(-?\d+) +(\d+) +\d+ MB")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def shape(printed):
    """Its lines with a 0 in the place of each number, and one space for many."""
    lines = (" ".join(NUMBER.sub("0", line).split()) for line in printed.splitlines())
    return [line for line in lines if line]


def part(printed, like):
    """Those lines of what a cell printed that have the shape of the page's, one after the other.

    What other tests left in this process may add words that no page shows: small holders, memory that changed
    between two cells, memory that malloc keeps.
    """
    printed = re.sub(r" \(\d+ MB kept by malloc\)", "", printed)
    printed = re.sub(r"(?m)^(\d+ smaller ones?|between cells:).*", "", printed)
    lines, wanted = [line for line in printed.splitlines() if line.strip()], shape(like)
    for i in range(len(lines)):
        if shape("\n".join(lines[i : i + len(wanted)])) == wanted:
            return "\n".join(lines[i : i + len(wanted)])
    return None


def figures(printed):
    """Consumed and peaked of each row of a report, in MB."""
    return [int(figure) for row in ROW.findall(printed) for figure in row]


@pytest.fixture
def run(shell, capsys, monkeypatch):
    """Run a cell; the name of what it raised, and what it printed."""
    monkeypatch.setattr(growth, "BUDGET_S", 10)  # a busy machine cuts no search short

    def run(code):
        ran = shell.run_cell(code, store_history=True)
        error = ran.error_before_exec or ran.error_in_exec
        return type(error).__name__ if error else None, capsys.readouterr().out

    yield run
    IPyGPULogger().free()  # the traceback of a cell that was to fail
    shell.user_ns.clear()
    if "ipygpulogger" in shell.extension_manager.loaded:
        shell.run_line_magic("unload_ext", "ipygpulogger")
    for logger in [one for one in shell.configurables if isinstance(one, IPyGPULogger)]:
        logger.stop()


@pytest.mark.parametrize(
    ("page", "lane"),
    [
        *(pytest.param(page, "plain", marks=OF_LINUX.get(page, ())) for page in WITH_CELLS),
        *(pytest.param(page, "torch", marks=pytest.mark.torch) for page in WITH_TORCH),
    ],
)
def test_the_cells_run_and_print_what_the_page_shows(request, tmp_path, page, lane):
    """From the top of the page to its end, each in the shell that the ones above have left."""
    env = request.getfixturevalue("kernel_env" if lane == "torch" else "driverless_env")
    found = [block for block in blocks(page) if block.word("training") is None]
    cells = [
        block
        for block in found
        if block.language == "python"
        and block.word("example:") is None
        and (lane == "torch" or block.word("torch") is None)
    ]
    asked = {"given": GIVEN.get(page, ""), "cells": [block.text for block in cells]}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("cells.py")], input=json.dumps(asked),
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**env, "IPYTHONDIR": str(tmp_path / "ipython")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = dict(zip(map(str, cells), json.loads(done.stdout), strict=True))
    printed = ""
    for block in found:
        if str(block) in results:
            error, printed = results[str(block)]
            # What a forked child shares may change by less than a megabyte; its bounds then read as two figures.
            printed = re.sub(
                r"\b(\d+) to (\d+)(?= MB)", lambda m: m[2] if int(m[2]) == int(m[1]) + 1 else m[0], printed
            )
            assert error == block.word("raises"), f"{block}\n{printed}"
        elif block.word("output") is not None and (block.word("torch") is not None) == (lane == "torch"):
            shown = part(printed, like=block.text)
            assert shown, f"{block}\n{printed}"
            for figure, wanted in zip(figures(shown), figures(block.text), strict=True):
                assert abs(figure - wanted) <= 2, f"{block}\n{printed}"


@pytest.mark.training
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("adapter", TRAININGS)
def test_the_trainings_run(shell, run, tmp_path, monkeypatch, adapter):
    """Each framework's cell, in a training of its own."""
    (block,) = (block for block in BLOCKS if f"callbacks.{adapter} import" in block.first_line)
    monkeypatch.chdir(tmp_path)
    assert block.word("training") is not None
    with ExitStack() as shell.user_ns["on_the_cpu"]:
        for code in TRAININGS[adapter], block.text:
            error, printed = run(code)
            assert error is None, printed


def test_the_examples_are_parts_of_files():
    """Each of examples/ is on a page, to the letter; tests/cluster/test_examples.py runs it."""
    shown = [block for block in BLOCKS if block.word("example:")]
    assert {block.word("example:") for block in shown} == {
        path.name for path in (ROOT / "examples").glob("*.py")
    }
    for block in shown:
        file = (ROOT / "examples" / block.word("example:")).read_text(encoding="utf-8")
        prints = textwrap.dedent(ast.get_docstring(ast.parse(file)).partition("It prints:\n")[2])
        source = file if block.language == "python" else prints + "\n"
        for part in block.text.split("\n\n"):
            assert any(f"\n{textwrap.indent(part, by)}\n" in source for by in ("", " " * 8)), block


@pytest.mark.parametrize("block", of("python"))
def test_the_cells_are_python(shell, block):
    """Also those that do not run here."""
    ast.parse(shell.transform_cell(block.text))


# -- what is shown ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", of("text"))
def test_what_is_shown_is_what_the_package_says(block):
    """A text is the output of the cell above it, or a renderer's of a record, to the letter."""
    if all(block.word(word) is None for word in ("output", "example:", "command:")):
        assert block.text == SHOWN[block.word("shown:")]


VERIFIED = pytest.mark.linux("the truth is read from /proc")


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=str(block), marks=VERIFIED if "--verify" in command else ())
        for block in BLOCKS
        if (command := block.word("command:"))
    ],
)
def test_a_command_prints_such_lines(block, driverless_env, tmp_path):
    """In the same words, on a machine without a device."""
    (tmp_path / "test_it.py").write_text("def test_it():\n    bytearray(64 << 20)[:] = bytes(64 << 20)\n")
    command = [sys.executable, "-m", *block.word("command:").split()]
    done = subprocess.run(
        command, env=driverless_env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    def words(text):
        text = re.sub(r"(?m)\S*test\S*_\S+|±\S+|[█░≥]|[\d.-]+( to [\d.-]+)?( s\b)?", " ", text)
        return {" ".join(line.split()) for line in text.splitlines()}

    assert words(block.text) <= words(done.stdout)


@pytest.mark.parametrize(("remark", "what"), REMARKS, ids=[remark for remark, _ in REMARKS])
def test_every_remark_is_one_that_the_report_makes(remark, what):
    """In these words, of a record or of its device."""
    device = {name: value for name, value in what.items() if hasattr(GPU, name)}
    rest = {name: value for name, value in what.items() if name not in device}
    assert remark in text.report(replace(RECORD, gpus=(replace(GPU, **device),), **rest))
    assert f"`{remark}`" in PAGES["report.md"].read_text(encoding="utf-8")


def test_every_block_is_checked():
    """No page has a block in a language that nothing here checks; directives are Sphinx's."""
    languages = {block.language for block in BLOCKS if not block.language.startswith("{")}
    assert languages <= {"python", "text", "sh", "yaml"}


# -- commands and files -------------------------------------------------------------------------------------


def test_the_commands_are_real():
    """Every `ipygpulogger ...` line is one that the command line takes."""
    lines = [line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("ipygpulogger ")]
    assert {words[1] for words in commands} == {"run", "report", "compare", "doctor"}
    for words in commands:
        assert parse(words[1:]).command in (words[1], "script")


@pytest.mark.parametrize("block", of("yaml"))
def test_the_yaml_parses(block):
    """A workflow has jobs."""
    assert yaml.safe_load(block.text)["jobs"]


def test_the_example_of_a_source_is_the_one_that_is_tested():
    """tests/example_source.py is measured in tests/sources and tests/engine."""
    (shown,) = (
        block.text for block in BLOCKS if block.page == "frameworks.md" and block.language == "python"
    )
    tested = ast.parse((ROOT / "tests" / "example_source.py").read_text(encoding="utf-8"))
    assert ast.dump(ast.parse(shown)) == ast.dump(ast.Module(tested.body[1:], []))


# -- links --------------------------------------------------------------------------------------------------


def anchors(path):
    """The headings of a page as a code host and MyST name them."""
    tokens = MARKDOWN.parse(path.read_text(encoding="utf-8"))
    heads = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(path):
    tokens = MARKDOWN.parse(path.read_text(encoding="utf-8"))
    inline = [child for token in tokens for child in token.children or ()]
    return [
        str(child.attrs.get("href") or child.attrs["src"])
        for child in inline
        if {"href", "src"} & child.attrs.keys()
    ]


@pytest.mark.parametrize("path", [*PAGES.values(), ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_every_link_leads_somewhere(path):
    """On a code host: to a file of the repository, and to a heading that is there."""
    for link in links(path):
        if re.match(r"[a-z]+://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_the_first_change_is_of_today():
    """CONTRIBUTING's first change is of lines that are there, before it or after it; its command sets the container up."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diffs = [
        token.content for token in MARKDOWN.parse(page) if token.type == "fence" and token.info == "diff"
    ]
    changes = re.findall(r"(?m)^--- a/(.*)\n-(.*)\n\+(.*)", "".join(diffs))
    assert len(changes) == 3
    for name, *lines in changes:  # who follows it has the other line
        text = (ROOT / name).read_text(encoding="utf-8")
        assert sorted(map(text.count, lines)) == [0, 1], name
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert f"\n{container['postCreateCommand']}\n" in page


def test_the_buttons_open_the_demo_with_what_it_needs():
    """It is in this repository; Binder and the notebook's own first cell install the extra of its plot."""
    opened = {link for link in links(PAGES["README.md"]) if "://" in link and link.endswith(".ipynb")}
    (name,) = {re.sub(".*(?=notebooks/)", "", link) for link in opened}
    cells = json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"]
    first = "".join(next(cell["source"] for cell in cells if cell["cell_type"] == "code"))
    assert "'ipygpulogger[plot]'" in first
    assert (ROOT / ".binder" / "requirements.txt").read_text(encoding="utf-8").endswith("\n.[plot]\n")


def test_the_page_of_the_architecture_names_files_that_exist():
    """Each `package/file.py` of docs/architecture.md is there."""
    named = set(re.findall(r"`(\w+(?:/\w+)+\.py)`", PAGES["architecture.md"].read_text(encoding="utf-8")))
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).is_file() or (ROOT / "ipygpulogger" / name).is_file(), name


def test_the_reference_has_every_public_name():
    """Those of the package, of its doors, and of what a source needs."""
    page = PAGES["reference.md"].read_text(encoding="utf-8")
    names = {*ipygpulogger.__all__, *experiments.__all__, *ipython.__all__, *mem.__all__}
    for name in names | {"Device", "DeviceCounter", "Framework", "Observation", "Reading", "Unavailable"}:
        assert re.search(rf"\b{name}\b", page), name


def test_no_property_begins_with_a_type():
    """Sphinx takes what stands before a colon in a property's summary for the property's type."""
    for path in (ROOT / "ipygpulogger").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "property" in map(ast.unparse, node.decorator_list):
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                assert ":" not in re.sub(r"``.*?``", "", summary), (path.name, node.name)


def test_every_page_is_found():
    """The README links to every page of the documentation but its front."""
    linked = {Path(link.partition("#")[0]).name for link in links(PAGES["README.md"])}
    assert PAGES.keys() - {"README.md", "index.md"} <= linked


# -- tables of the code's own names ---------------------------------------------------------------------------


def rows(page, *head):
    """The cells of the table of a page that begins so."""
    tokens = MARKDOWN.parse(PAGES[page].read_text(encoding="utf-8"))
    found, row = [], None
    for token in tokens:
        if token.type == "tr_open":
            row = []
        elif token.type == "inline" and row is not None:
            row.append(token.content)
        elif token.type == "tr_close":
            found.append(tuple(row))
            row = None
    begins = found.index(next(row for row in found if row[: len(head)] == head))
    return [row for row in found[begins + 1 :] if len(row) == len(found[begins])]


def test_every_option_is_on_its_page():
    """With the default that it has."""
    said = {
        name.strip("`"): default.partition("`")[2].partition("`")[0]
        for name, default, *_ in rows("options.md", "option", "default")
    }
    traits = IPyGPULogger.class_traits(config=True)
    assert {name: ast.literal_eval(default) for name, default in said.items()} == {
        name: trait.default() for name, trait in traits.items()
    }


FIGURE = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|dozen|hundred|thousand|million|half|twice|double"
    r"|percent|(?:milli|micro)?seconds?|minutes?|gigabytes?|megabytes?)\b",
    re.IGNORECASE,
)
PROVEN = {  # what the README says besides with a figure: where it is said first, and how
    "With Python 3.10 or newer": ("pyproject.toml", 'requires-python = ">=3.10"'),
    "an H200, all 173 figures": ("benchmarks/results/2026-11-h200.md", "173 of 173 figures hold"),
    "Apache 2.0.": ("LICENSE", "Version 2.0, January 2004"),
}


def test_every_figure_of_the_readme_is_held():
    """It is in a block that a test runs, compares or makes from the benchmark's results, or in `PROVEN`."""
    source = PAGES["README.md"].read_text(encoding="utf-8")
    said = re.sub(r"(?s)<!-- field: .*?<!-- /field -->|```.*?```|\]\([^)]*\)", "", source)
    for words, (file, first) in PROVEN.items():
        assert words in said
        assert first in (ROOT / file).read_text(encoding="utf-8")
        said = said.replace(words, "")
    assert not [line for line in said.splitlines() if FIGURE.search(line)]
    for block in blocks("README.md"):
        held = block.word("shown:") or block.word("output") is not None or block.language == "sh"
        assert held or not re.search(r"#.*\d", block.text), block  # a comment is compared with nothing


def test_the_picture_of_the_report_has_its_figures():
    """docs/needed.svg and the page agree on each word, and the figures of a picture on their sum."""
    picture = (ROOT / "docs" / "needed.svg").read_text(encoding="utf-8")
    drawn = {word: int(mb) for word, mb in re.findall(r">(\w+)</text>\n<text[^>]*>(\d+) MB<", picture)}
    assert drawn.keys() == {"needed", "peaked", "consumed", "highest"}
    assert drawn["needed"] == drawn["consumed"] + drawn["peaked"]
    (said,) = re.findall(r"!\[(.*)\]\(needed.svg\)", PAGES["report.md"].read_text(encoding="utf-8"))
    assert set(map(int, re.findall(r"\d+", said))) == set(drawn.values())


def test_every_command_is_in_the_table_of_the_start():
    """Each of `COMMANDS` has a row."""
    named = {
        row[0].split()[1].strip("`") for row in rows("start.md", "magic") if row[0].startswith("`%gpulog ")
    }
    assert COMMANDS.keys() <= named


def test_the_readme_is_short():
    """Not much over a hundred lines: the rest is in the pages."""
    assert len(PAGES["README.md"].read_text(encoding="utf-8").splitlines()) <= 126
