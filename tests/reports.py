"""Cells run as a front end runs them, and the printed reports that they left."""

import re

REPORT = re.compile(
    r"^RAM: Consumed Peaked  Used Total in \d+\.\d{3}s \((?P<label>[^\n]*)\)\n"
    r"Gen:    [ \d-]{5}  [ \d]{5}    [ \d]{5} MB(?P<after>[^\n]*)\n",
    re.MULTILINE,
)


def run(shell, code, *, store_history=True, silent=False):
    """Run a cell the way a front end does."""
    return shell.run_cell(code, store_history=store_history, silent=silent)


def labels(printed):
    """The cells that reports speak of, in the order of printing; every table must keep the format."""
    found = [match["label"] for match in REPORT.finditer(printed)]
    assert len(found) == printed.count("RAM: ") == printed.count("Gen: ")
    return found
