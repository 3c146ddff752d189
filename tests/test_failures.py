"""What a lane says at its end: which test failed, and why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from failures import MARK, WIDTH, told

HERE = Path(__file__).parent


def run(tmp_path, program, *options):
    """The last lines that pytest prints, without those that are not ours."""
    (tmp_path / "test_it.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": str(HERE), "NOX_CURRENT_SESSION": "a lane"}
    command = [sys.executable, "-m", "pytest", "-p", "failures", "--rootdir", str(tmp_path), "-c", os.devnull]
    done = subprocess.run(
        [*command, *options, str(tmp_path)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if line.startswith(MARK)]


@pytest.mark.parametrize("options", [[], ["-n", "1"]])
def test_the_name_and_the_reason(tmp_path, options):
    """Of a test that fails, and of one whose fixture does; nothing of those that pass."""
    program = (
        "import pytest\n"
        "def test_right(): pass\n"
        "def test_wrong():\n    number = 41\n    assert number == 42\n"
        "@pytest.fixture\ndef broken(): raise OSError('no driver')\n"
        "def test_needs(broken): pass\n"
    )
    first, *rest = run(tmp_path, program, *options)
    assert first == f"{MARK}a lane: 2 failed"
    told_of = "\n".join(rest)
    assert "test_it.py::test_wrong" in told_of
    assert "assert 41 == 42" in told_of
    assert "test_it.py::test_needs" in told_of
    assert "OSError: no driver" in told_of
    assert "test_right" not in told_of


@pytest.mark.parametrize("count", range(1, 30))
@pytest.mark.parametrize(
    "reason", ["", "E   one", "\n".join(["above", *["E   " + "x" * 500] * 50]), "no mark\nthe end"]
)
def test_ten_lines_at_most(count, reason):
    """However many fail, and however long their reasons are; the count is right and so is what is left out."""
    lines = told([(f"test_{number}", reason) for number in range(count)])
    assert len(lines) <= 10
    assert all(line.startswith(MARK) and len(line) <= WIDTH + len(MARK) for line in lines)
    assert f": {count} failed" in lines[0]
    named = [line for line in lines if line.startswith(f"{MARK}test_")]
    left_out = [line for line in lines if line == f"{MARK}and {count - len(named)} more"]
    assert bool(left_out) == (len(named) < count)
    assert sum("E   " in line for line in lines) >= len(named) * ("E   " in reason)
