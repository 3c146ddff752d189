"""At the end of a run of the tests on GitHub: a row of the job's summary, with what ran under which versions.

Elsewhere too, where GITHUB_STEP_SUMMARY names a file.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COLUMNS = [
    *("session", "system", "Python", "IPython", "ipykernel", "torch", "numpy"),
    *("passed", "failed", "skipped"),
]


def pytest_sessionfinish(session):
    """Not by a worker, whose controller counts for all."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not file or hasattr(session.config, "workerinput"):
        return
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    row = [
        os.environ.get("NOX_CURRENT_SESSION", "pytest"),
        f"{platform.system()} {platform.machine()}",
        platform.python_version(),
        *map(found, ("ipython", "ipykernel", "torch", "numpy")),
        *(str(count) for count in (len(stats.get("passed", [])), failed, len(stats.get("skipped", [])))),
    ]
    with Path(file).open("a", encoding="utf-8") as summary:
        if not summary.tell():
            summary.write(f"{line(COLUMNS)}{line(['---'] * len(COLUMNS))}")
        summary.write(line(row))


def found(distribution):
    """The installed version."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def line(cells):
    """One line of a table in Markdown."""
    return f"| {' | '.join(cells)} |\n"
