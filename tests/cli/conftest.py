"""Notebooks and kernels for the tests of the command line."""

import json
import os
import sys

import nbformat
import pytest


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook of these cells; its path."""

    def write(*sources, name="nb.ipynb", **metadata):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nb = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
        path = tmp_path / name
        nbformat.write(nb, path)
        return path

    return write


@pytest.fixture
def bare_kernel(tmp_path):
    """A kernel whose Python cannot import the package: its metadata, and the environment that offers it."""
    shadow, spec = tmp_path / "shadow", tmp_path / "share" / "kernels" / "bare"
    shadow.mkdir()
    (shadow / "ipygpulogger.py").write_text("raise ImportError('not this one')")
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": argv, "display_name": "bare", "language": "python", "env": {"PYTHONPATH": str(shadow)}}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    metadata = {"kernelspec": {"name": "bare", "language": "python", "display_name": "bare"}}
    return metadata, {**os.environ, "JUPYTER_PATH": str(tmp_path / "share")}
