"""At the end of a run of the tests: which failed, and why, in ten lines at most. `.ci/run` repeats them.

A lane's output is long, and what failed stands far above its end, between the output of other lanes.
"""

import os

MARK = "!! "  # begins each of the lines, for .ci/run to find them
SHOWN = 4  # the first, each with a line of its reason at least
WIDTH = 200


def pytest_terminal_summary(terminalreporter):
    """The last section but the list of names."""
    reports = [one for kind in ("error", "failed") for one in terminalreporter.stats.get(kind, [])]
    for line in told([(one.nodeid, getattr(one, "longreprtext", "")) for one in reports]):
        terminalreporter.write_line(line)


def told(failed):
    """The lines: by test its name and its reason, which pytest marks, or else ends with."""
    if not failed:
        return []
    each = 8 // len(failed[:SHOWN]) - 1
    lines = [f"{os.environ.get('NOX_CURRENT_SESSION', 'pytest')}: {len(failed)} failed"]
    for name, reason in failed[:SHOWN]:
        said = reason.splitlines()
        marked = [line for line in said if line.startswith("E ")]
        lines += [name, *(f"    {line}" for line in (marked or said[-each:])[:each])]
    lines += [f"and {len(failed) - SHOWN} more"] if failed[SHOWN:] else []
    return [MARK + line[:WIDTH] for line in lines]
