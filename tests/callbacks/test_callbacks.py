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


NONE = {"__init__.py": "raise ModuleNotFoundError(name=__name__)"}  # as if it were not installed
WITHOUT = [
    *(
        (adapter, framework, NONE, f"needs {framework}: pip install -U {framework}")
        for adapter, framework in ADAPTERS.items()
    ),
    *(
        ("mem", "fastai", {"__init__.py": f"__version__ = {version!r}", "callback.py": lacks},
         f"needs fastai 2, not {version}: pip install 'fastai>=2'")
        for version in ("0.7.0", "1.0.61")
        for lacks in ("", "import scipy_that_is_missing", "raise RuntimeError('an old torch')")
    ),
    # Lightning before 2.0 has no `lightning.pytorch`.
    ("lightning", "lightning", {"__init__.py": ""}, "needs lightning.pytorch: pip install -U lightning"),
]  # fmt: skip


@pytest.mark.parametrize(("adapter", "framework", "files", "says"), WITHOUT)
def test_a_framework_that_will_not_do(adapter, framework, files, says, tmp_path):
    """Missing, too old or without the module: one sentence, which ends in the pip command that helps."""
    (tmp_path / framework).mkdir()
    for name, text in files.items():
        (tmp_path / framework / name).write_text(text)
    said = python(f"import ipygpulogger.callbacks.{adapter}", tmp_path).stderr.splitlines()[-1]
    assert said == f"ImportError: ipygpulogger.callbacks.{adapter} {says}"


@pytest.mark.parametrize(("adapter", "framework"), ADAPTERS.items())
def test_a_framework_that_is_broken_says_itself_why(adapter, framework, tmp_path):
    """Where the framework is there and lacks something else, its own error is the one that is seen."""
    (tmp_path / framework).mkdir()
    (tmp_path / framework / "__init__.py").write_text("import what_it_needs\n")
    said = python(f"import ipygpulogger.callbacks.{adapter}", tmp_path).stderr.splitlines()[-1]
    assert said == "ModuleNotFoundError: No module named 'what_it_needs'"
