"""`ipygpulogger run` of a notebook whose cells worked in other processes: their records are logged and judged."""

from pathlib import Path

from command_line import command, records

TESTS = str(Path(__file__).resolve().parent.parent)
WATCH = f"""
import sys
sys.path.insert(0, {TESTS!r})
from processes import of
from ipygpulogger.analysis.group import Group
from ipygpulogger.cluster.watcher import Watch, keep

class OfTheTest(Watch):
    done = ()
    leave = describe = lambda self: ""

    def ended(self, label):
        found, self.done = self.done, ()
        return [Group(label, found)] if found else []

watching = OfTheTest(None)
watching.started()
"""


def test_all_processes_are_logged_and_judged(notebook, tmp_path):
    """Each behind the cell it worked for; the rank over the budget is named; the log is read again."""
    path = notebook(WATCH, "watching.done = [of(0, 100), of(1, 9000)]", "x = 1", "kept = keep([of(7, 50)])")
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    done = command("run", path, "--log", log, "--html", page, "--max-ram", "8GB")
    assert done.returncode == 1, done.stderr
    assert "In [1], rank 1: x: peaked at 9500 MB in RAM, 1308 MB over --max-ram 8192 MB" in done.stderr, (
        done.stderr
    )
    assert done.stderr.count("over --max-ram") == 1
    ranks = [one.get("process", {}).get("rank") for one in records(log)]
    assert ranks == [None, None, 0, 1, None, None, 7]
    assert "rank 1" in page.read_text()
    done = command("report", log)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 cells and 3 records of other processes, ")
    assert "needed most: In [1], rank 1, 9000 MB of RAM" in done.stdout
    assert command("compare", log, log).returncode == 0
