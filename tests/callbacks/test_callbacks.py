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
        import sys, ipygpulogger.callbacks, ipygpulogger.blocks.watch_epochs
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


@pytest.mark.parametrize("version", ["0.7.0", "1.0.61"])
@pytest.mark.parametrize("lacks", ["", "import scipy_that_is_missing", "raise RuntimeError('an old torch')"])
def test_fastai_1_is_named_as_what_is_too_old(version, lacks, tmp_path):
    """With fastai 1 installed the adapter says that fastai 2 is needed, whatever fastai 1 itself lacks here."""
    (tmp_path / "fastai").mkdir()
    (tmp_path / "fastai" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (tmp_path / "fastai" / "callback.py").write_text(lacks)  # a package in fastai 2
    said = python("import ipygpulogger.callbacks.mem", tmp_path).stderr.splitlines()[-1]
    needs = f"needs fastai 2 or newer, not fastai {version}: pip install 'fastai>=2'"
    assert said == f"ImportError: ipygpulogger.callbacks.mem {needs}"


@pytest.mark.parametrize("version", ["__version__ = '1.9.5'", ""])
def test_a_framework_without_the_module_is_not_called_missing(version, tmp_path):
    """Lightning before 2.0 is installed, but `lightning.pytorch` is not in it: that is what is said."""
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "__init__.py").write_text(version)
    said = python("import ipygpulogger.callbacks.lightning", tmp_path).stderr.splitlines()[-1]
    found = "lightning 1.9.5" if version else "lightning"
    needs = f"needs lightning.pytorch, which {found} does not have: pip install -U lightning"
    assert said == f"ImportError: ipygpulogger.callbacks.lightning {needs}"
