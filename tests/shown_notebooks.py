"""The notebooks of notebooks/ are kept with their outputs: execute them anew, on a simulated GPU of 16 GB.

``nox -s notebooks`` does it in the environment that they need. ``python tests/shown_notebooks.py demo.ipynb`` executes
one, ``--into FOLDER`` leaves those in the repository as they are and keeps the log of the records beside the copy.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import simgpu

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def main():
    """Execute the notebooks asked for, or all; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    machine = simgpu.start(devices=1, mem_mb=16384)
    # torch's own warnings on stderr have the time and the line of its source in them.
    env = {**os.environ, **simgpu.environment(machine), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with tempfile.TemporaryDirectory() as folder:
        return max(_execute(name, Path(folder), asked.into, env) for name in asked.names)


def _execute(name, folder, into, env):
    executed, words = folder / name, ["--log", into / f"{name}.jsonl", "--log-source"] if into else []
    words = ["run", NOTEBOOKS / name, "--output", executed, *words]
    done = subprocess.run([sys.executable, "-m", "ipygpulogger", *map(str, words)], env=env, check=False)
    if not done.returncode:
        shown = _tidy(json.loads(executed.read_text(encoding="utf-8")))
        text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
        ((into or NOTEBOOKS) / name).write_text(text, encoding="utf-8")
    return done.returncode


def _tidy(notebook):
    """Leave out what changes with every execution and says nothing: when each message came, the version of Python."""
    notebook["metadata"]["language_info"] = {"name": "python"}
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        for output in cell.get("outputs", ()):  # where this repository lies is nobody's business
            if "traceback" in output:
                output["traceback"] = [
                    line.replace(f"{NOTEBOOKS.parent}{os.sep}", "") for line in output["traceback"]
                ]
    return notebook


if __name__ == "__main__":
    sys.exit(main())
