"""The notebooks of notebooks/ are kept with their outputs: execute them anew, on a simulated GPU of 16 GB.

``nox -s notebooks`` does it in the environment that they need. ``python tests/shown_notebooks.py demo.ipynb`` executes
one, ``--into FOLDER`` leaves those in the repository as they are and keeps the log of the records beside the copy.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import simgpu

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def main():
    """Execute the notebooks asked for, or all; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--into", type=Path, default=NOTEBOOKS)
    asked = parser.parse_args()
    machine = simgpu.start(devices=1, mem_mb=16384)
    # torch's own warnings on stderr have the time and the line of its source in them.
    env = {**os.environ, **simgpu.environment(machine), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    failed = [name for name in asked.names if not _execute(name, asked.into, env)]
    return 1 if failed else 0


def _execute(name, folder, env):
    words = [sys.executable, "-m", "ipygpulogger.cli", "run", NOTEBOOKS / name, "--output", folder / name]
    if folder != NOTEBOOKS:
        words += ["--log", folder / f"{name}.jsonl"]
    done = subprocess.run([*map(str, words)], env=env, check=False)
    if done.returncode:
        return False
    _tidy(folder / name, json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["metadata"])
    return True


def _tidy(path, metadata):
    """Leave out what changes with every execution and says nothing: the time of each message, the version of Python."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["metadata"] = {"kernelspec": metadata["kernelspec"], "language_info": {"name": "python"}}
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
