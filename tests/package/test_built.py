"""The sdist and the wheel, built by `nox -s package` in the folder PACKAGE; the wheel is what is imported."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ipygpulogger

pytestmark = pytest.mark.package

BUILT = Path(os.environ["PACKAGE"])
# Classes that subclass one of a training framework, which is not installed here.
OF_FRAMEWORKS = {
    f"ipygpulogger.callbacks.{name}"
    for name in ("keras.PeakMemCallback", "lightning.PeakMemCallback", "mem.PeakMemMetric",
                 "transformers.PeakMemCallback")
}  # fmt: skip
DATA = {
    *("py.typed", "notebook/panel.js", "render/page.html", "render/page.js", "render/plot.html"),
    "storage/record.schema.json",
}
SELF_TEST = {
    *(
        "tests/conftest.py",
        "tests/simgpu/README.md",
        "benchmarks/weight.py",
        "docs/conf.py",
        "docs/needed.svg",
    ),
    *(
        "examples/torchrun_ranks.py",
        "notebooks/demo.ipynb",
        "recipe/meta.yaml",
        ".github/workflows/release.yml",
    ),
    *("noxfile.py", "pyproject.toml", "setup.cfg", "CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md"),
    *(".ci/run", ".git_archival.txt", ".gitattributes", ".gitignore", "MANIFEST.in", "CONTRIBUTING.md"),
}


def wheel(folder=BUILT):
    """The contents of the wheel in a folder, by name."""
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def sdist():
    """The names of the files in the sdist, without its own folder."""
    (path,) = BUILT.glob("*.tar.gz")
    with tarfile.open(path) as file:
        return {one.name.partition("/")[2] for one in file if one.isfile()}


def test_the_wheel_is_what_runs():
    """The tests import the package that was built, and no checkout."""
    path = Path(ipygpulogger.__file__)
    assert "site-packages" in path.parts
    assert path.read_bytes() == wheel()["ipygpulogger/__init__.py"]


def test_the_contents_of_the_wheel():
    """It has the package's code and data, its licence, and nothing else."""
    names = wheel().keys()
    code = {name for name in sdist() if name.startswith("ipygpulogger/") and name.endswith(".py")}
    ours = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    assert ours == code | {f"ipygpulogger/{name}" for name in DATA}
    meta = {name.partition("/")[2] for name in names - ours}
    assert meta == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}


def test_the_description():
    """An index shows README.md alone: no link or picture of it is relative, and each leads to a file that is here."""
    (metadata,) = (text for name, text in wheel().items() if name.endswith(".dist-info/METADATA"))
    description = metadata.decode().partition("\n\n")[2]
    links = [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("#")]
    assert all(link.startswith("https://") for link in links)
    of_files = [link for link in links if "/main/" in link and "colab" not in link]
    assert len(of_files) > 20
    for link in of_files:
        kind, _, file = link.partition("ipygpulogger/ipygpulogger/")[2].partition("/main/")
        assert kind == ("raw" if file.endswith(".png") else "blob")
        assert file.partition("#")[0] in sdist(), link


def test_the_contents_of_the_sdist():
    """It has what tests it and documents it, and nothing that was made by running it."""
    names = sdist()
    assert not SELF_TEST - names
    made = ("__pycache__", ".nox/", ".venv/", "build/", "dist/", ".v/", "_build/", ".executed.ipynb")
    assert ".git" not in names  # a file in a linked worktree: it names another folder
    assert not [name for name in names if any(one in name for one in made)]


def test_the_sdist_makes_the_same_wheel():
    """The wheel of the unpacked sdist is that of the checkout, file by file."""
    assert wheel(BUILT / "checkout") == wheel()


def test_the_version():
    """The version that the package says is that of its file."""
    (path,) = BUILT.glob("*.whl")
    assert path.name.split("-")[1] == ipygpulogger.__version__


def version_of(folder):
    """The version that a build of what is in a folder would have."""
    code = (
        "import setuptools_scm; print(setuptools_scm.get_version('.', **__import__('json').loads(input())))"
    )
    import tomllib

    options = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["setuptools_scm"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder, input=json.dumps(options), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("tags", "expected"),
    [([], "1.0.0.dev0"), (["before32"], "1.0.0.dev0"), (["v1.2.3"], "1.2.3"), (["v1.2.3rc1"], "1.2.3rc1")],
)
def test_the_version_is_the_tag_s(tmp_path, tags, expected):
    """A clone and an archive of a tag have its version; an archive without one the next, and neither fails."""
    clone, archive = tmp_path / "clone", tmp_path / "archive"
    clone.mkdir()
    archive.mkdir()
    for name in ("pyproject.toml", ".gitattributes", ".git_archival.txt"):
        (clone / name).write_bytes(Path(name).read_bytes())

    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e@localhost"]
        return subprocess.run(["git", *who, *words], cwd=clone, check=True, capture_output=True).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    for tag in tags:
        git("tag", tag)
    subprocess.run(["tar", "-x", "-C", archive], input=git("archive", "HEAD"), check=True)
    assert version_of(archive) == expected
    of_clone = version_of(clone)
    assert of_clone == expected or (expected == "1.0.0.dev0" and of_clone.startswith("1.0.0.dev1+g"))


def test_public_types_are_known(tmp_path):
    """A type checker knows the type of every public name; what a missing framework would tell is missing."""
    pyright = [
        sys.executable,
        "-m",
        "pyright",
        "--verifytypes",
        "ipygpulogger",
        "--ignoreexternal",
        "--outputjson",
    ]
    done = subprocess.run(pyright, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["typeCompleteness"]
    assert found["pyTypedPath"].endswith("py.typed")
    names = found["symbols"]
    assert len(names) > 3000
    unknown = {one["name"] for one in names if not one["isTypeKnown"] or one["isTypeAmbiguous"]}
    assert unknown == OF_FRAMEWORKS
