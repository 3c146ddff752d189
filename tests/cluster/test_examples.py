"""Each file of examples/ runs with its real engine, and prints what its docstring says."""

import ast
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"dask": "distributed", "ipyparallel": "ipyparallel", "ray": "ray", "torchrun": "torch"}
TIMES = re.compile(r"(?<=^time 0 s 0 s 0 s 0 s) .*")
NUMBER = re.compile(r"\b[0-9a-f]{8}\b|[+-]?\d+(?:\.\d+)?")  # or the id of a worker


def shape(printed):
    """Its lines with 0 for each number, one name for the machine, and one space for many.

    Who took longer than the others depends on the machine: without the mark, the sentence and the last column
    of the row that say so.
    """
    printed = printed.replace(socket.gethostname(), "node-a")
    lines = (" ".join(NUMBER.sub("0", line).removeprefix("*").split()) for line in printed.splitlines())
    return [TIMES.sub("", line) for line in lines if line and not line.startswith("time: ")]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_what_it_says(path, driverless_env, tmp_path):
    """By the command that its docstring names, but for the numbers and the name of the machine."""
    engine = path.stem.partition("_")[0]
    pytest.importorskip(NEEDS[engine], reason=f"{NEEDS[engine]} is not installed, see nox -s cluster")
    says, _, prints = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).partition("It prints:\n")
    command = re.search(r"(?m)^    ((?:python|torchrun) .*)$", says)
    program, *words = shlex.split(command[1])
    assert words[-1] == f"examples/{path.name}"
    start = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}[program]
    ran = subprocess.run(
        [sys.executable, *start, *words[:-1], path],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**driverless_env, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert shape(ran.stdout) == shape(textwrap.dedent(prints)), ran.stdout
