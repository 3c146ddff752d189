"""The workflows of GitHub: what they run also runs here, and what they may do is the least."""

import itertools
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
SESSION_FILES = [one for one in FILES if one.name in {"tests.yml", "nightly.yml"}]
INSTALL = re.compile(r"python -m pip install( [\w.>=-]+)+")

pytestmark = pytest.mark.skipif(not FILES, reason="the workflows are not here")


def read(file):
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def named(files):
    return pytest.mark.parametrize("file", files, ids=lambda one: one.name)


def combinations(job):
    """What the matrix of this job makes of it, with include as GitHub does it where each adds a job of its own."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    alone = matrix.pop("include", [])
    return [*(dict(zip(matrix, each, strict=True)) for each in itertools.product(*matrix.values())), *alone]


def sessions(monkeypatch):
    """The sessions that noxfile.py defines, as `nox -l` names them, and those that run all parameters of one."""
    found = set()

    def session(function=None, **_):
        if not function:
            return session
        ids = getattr(function, "ids", [])
        found.update([function.__name__, *(f"{function.__name__}({one})" for one in ids)])
        return function

    def parametrize(name, values):
        def mark(function):
            function.ids = [
                one.id if isinstance(one, SimpleNamespace) else f"{name}={one!r}" for one in values
            ]
            return function

        return mark

    nox = ModuleType("nox")
    nox.session, nox.parametrize, nox.options = session, parametrize, SimpleNamespace()
    nox.param = lambda _, **named: SimpleNamespace(**named)
    nox.command = ModuleType("nox.command")
    nox.command.CommandFailed = Exception
    monkeypatch.setitem(sys.modules, "nox", nox)
    monkeypatch.setitem(sys.modules, "nox.command", nox.command)
    exec((ROOT / "noxfile.py").read_text(encoding="utf-8"), {"__name__": "noxfile"})
    return found


@named(SESSION_FILES)
def test_a_workflow_installs_nox_and_runs_one_session_that_exists(file, monkeypatch):
    """Nothing runs on GitHub alone: after `pip install` comes `nox -s` with a session of noxfile.py."""
    known = sessions(monkeypatch)
    for job in read(file)["jobs"].values():
        runs = [step for step in job["steps"] if "run" in step]
        assert all(INSTALL.fullmatch(step["run"]) for step in runs[:-1])
        assert runs[-1]["run"] == 'nox -s "$SESSION"'
        assert runs[-1]["env"] == {"SESSION": "${{ matrix.session }}"}
        assert {one["session"] for one in combinations(job)} <= known


def test_each_supported_python_and_system_runs_the_first_lane():
    """As pyproject.toml and its classifiers name them: from the oldest to the newest."""
    each = combinations(read(ROOT / ".github/workflows/tests.yml")["jobs"]["session"])
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    plain = {(one["system"], one["python"]) for one in each if one["session"] == "plain"}
    assert plain >= set(itertools.product(["ubuntu", "macos", "windows"], declared))


def test_each_combination_of_versions_runs(monkeypatch):
    """A combination that noxfile.py names and no job runs would rot."""
    each = combinations(read(ROOT / ".github/workflows/tests.yml")["jobs"]["session"])
    wanted = {one for one in sessions(monkeypatch) if one.startswith("versions(")}
    assert wanted <= {one["session"] for one in each}


def test_each_session_that_a_page_names_exists(monkeypatch):
    """`nox -s NAME` in a page works as it stands there."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages if page.name != "CHANGELOG.md")
    found = {one for said in re.findall(r"nox -s ((?:\w[\w.()]*[ ]?)+)", text) for one in said.split()}
    assert found
    assert found <= sessions(monkeypatch)


@named(FILES)
def test_each_action_is_pinned_by_digest_beside_its_version(file):
    """A tag can be moved; and a digest alone tells the reader nothing."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if "uses:" in line:
            assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@named(FILES)
def test_a_workflow_may_only_read_and_ends(file):
    """What a job needs beyond reading it asks for itself; none hangs for GitHub's six hours."""
    workflow = read(file)
    assert workflow["permissions"] in ({"contents": "read"}, {})
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@named(SESSION_FILES)
def test_no_job_of_the_tests_may_write(file):
    """They run the code of any pull request."""
    workflow = read(file)
    assert not any("permissions" in job for job in workflow["jobs"].values())
    assert "pull_request_target" not in workflow[True]  # YAML 1.1 reads `on` so
    assert "secrets." not in file.read_text(encoding="utf-8")
    assert workflow["concurrency"]["cancel-in-progress"] is True


def test_a_run_of_the_tests_adds_a_row_to_the_summary_of_its_job(tmp_path):
    """Of three tests one passes, one fails, one is skipped: so says the row; a second run adds a second row."""
    (tmp_path / "conftest.py").write_text("from job_summary import pytest_sessionfinish\n")
    (tmp_path / "test_three.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n@pytest.mark.skip\ndef test_c(): pass\n"
    )
    file = tmp_path / "summary.md"
    env = {**os.environ, "GITHUB_STEP_SUMMARY": str(file), "NOX_CURRENT_SESSION": "mine"}
    env["PYTHONPATH"] = str(ROOT / "tests")
    for extra in ([], ["-n", "2"]):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *extra, "."]
        ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert ended.returncode == 1
    head, rule, *rows = [line.strip("| \n").split(" | ") for line in file.read_text("utf-8").splitlines()]
    assert [len(head), *map(len, rows)] == [len(rule)] * 3
    for row in rows:
        said = dict(zip(head, row, strict=True))
        assert (said["session"], said["Python"]) == ("mine", platform.python_version())
        assert (said["passed"], said["failed"], said["skipped"]) == ("1", "1", "1")
