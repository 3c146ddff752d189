"""What the adapters share: nothing is imported that is not used, and what is missing is said."""

import subprocess
import sys
import textwrap

import pytest

ADAPTERS = {"mem": "fastai", "lightning": "lightning", "transformers": "transformers", "keras": "keras"}


def python(program, *path):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={"PYTHONPATH": ":".join(map(str, path))} if path else None,
    )


def test_the_folder_imports_no_framework():
    """`import ipygpulogger.callbacks` brings in no framework; each adapter is a file of its own."""
    program = """
        import sys, ipygpulogger.callbacks, ipygpulogger.epochs
        print({"torch", "fastai", "lightning", "transformers", "keras", "numpy"} & set(sys.modules))
    """
    assert python(program).stdout == "set()\n"


@pytest.mark.parametrize(("adapter", "framework"), ADAPTERS.items())
def test_a_framework_that_is_missing_is_named_with_the_command(adapter, framework):
    """Where the framework is not installed, its adapter says so in one sentence that ends in the pip command."""
    program = f"""
        import sys
        sys.modules[{framework!r}] = None  # as if it were not installed
        import ipygpulogger.callbacks.{adapter}
    """
    said = python(program).stderr.splitlines()[-1]
    name = f"ipygpulogger.callbacks.{adapter}"
    assert said == f"ImportError: {name} needs {framework}, which is not installed: pip install {framework}"


@pytest.mark.parametrize(("adapter", "framework"), ADAPTERS.items())
def test_a_framework_that_is_broken_says_itself_why(adapter, framework, tmp_path):
    """Where the framework is there and lacks something else, its own error is the one that is seen."""
    (tmp_path / framework).mkdir()
    (tmp_path / framework / "__init__.py").write_text("import what_it_needs\n")
    said = python(f"import ipygpulogger.callbacks.{adapter}", tmp_path).stderr.splitlines()[-1]
    assert said == "ModuleNotFoundError: No module named 'what_it_needs'"
