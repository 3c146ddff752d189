"""Notebooks and kernels for the tests of the command line."""

import json
import os
import sys

import nbformat
import pytest


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook of these cells, some of which have a tag; its path."""

    def write(*sources, name="nb.ipynb", tags={}, **metadata):  # noqa: B006 - by the place of the cell
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        for at, tag in tags.items():
            cells[at].metadata["tags"] = [tag]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def kernel_of(tmp_path):
    """Offer a kernel that is begun by this command; a notebook's metadata, and the environment that offers it."""

    def offer(*argv, name="bare", language="python", **more):
        spec = tmp_path / "share" / "kernels" / name
        spec.mkdir(parents=True)
        kernel = {"argv": argv, "display_name": name, "language": language, **more}
        (spec / "kernel.json").write_text(json.dumps(kernel))
        metadata = {"kernelspec": {"name": name, "language": language, "display_name": name}}
        return metadata, {**os.environ, "JUPYTER_PATH": str(tmp_path / "share")}

    return offer


@pytest.fixture
def bare_kernel(tmp_path, kernel_of):
    """A kernel whose Python cannot import the package."""
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "ipygpulogger.py").write_text("raise ImportError('not this one')")
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return kernel_of(*argv, env={"PYTHONPATH": str(tmp_path / "shadow")})
