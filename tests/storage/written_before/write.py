"""Write what the tests beside this folder compare with: run it where a format is meant to change, and only then.

    PYTHONPATH=.:tests python tests/storage/written_before/write.py [look]

With `look`, only the HTML of the reports is written anew: texts, files and values stay what they are.

`session.*` are a session's records, each in one file format: cells that really ran, with the CUDA build of torch on
the simulated GPU where it is installed, and records of every kind made by hypothesis. `kept.jsonl` is what the
notebook keeps of them, `shown.json` every report of every record.
"""

import io
import json
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import made
import nbformat
import simgpu
from hypothesis import HealthCheck, Phase, given, seed, settings

from ipygpulogger import History
from ipygpulogger.render import html, lines, summary, text

HERE = Path(__file__).parent
CELLS = [
    "x = bytearray(64 << 20)",
    "y = bytearray(200 << 20); del y",
    "%%gpulog --lines --label 'by lines'\nkept = bytearray(32 << 20)\nfor _ in range(3):\n    moment = bytearray(48 << 20)\ndel moment",
    "1 / 0",
    "pass",
    "import torch\na = torch.ones(32, 2**20, device='cuda')",
    "b = torch.ones(64, 2**20, device='cuda') * 2; del b",
    "%%gpulog --lines\nc = a * 2\nd = (a * 3).sum()\ndel c",
    "e = torch.empty(1 << 40, dtype=torch.uint8, device='cuda')",
    "%gpulog summary",
]


def session():
    """The records of cells that run now."""
    simgpu.start(devices=2, mem_mb=16384)
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from ipygpulogger import IPyGPULogger

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    with redirect_stdout(io.StringIO()):
        il = IPyGPULogger().start()
        for cell in CELLS:
            shell.run_cell(cell, store_history=True)
        il.stop()
    return list(il.history)


def drawn(count=8):
    """Records of every kind, the same ones every time."""
    found = []

    @seed(12)
    @settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(made.records())
    def draw(record):
        found.append(record)

    draw()
    fitting = [record for record in found if 1500 < len(json.dumps(record.to_dict())) < 12_000]
    return fitting[:: len(fitting) // count][:count]


def shown(record):
    """Every report of a record."""
    return {
        "text": text.report(record),
        "html": html.report(record),
        "lines": lines.table(record.lines) if record.lines else "",
        "lines html": lines.html(record.lines) if record.lines else "",
    }


def overviews(records):
    """Every ranking of a session."""
    history = History(records)
    return {
        by: summary.summary(history.rank(by=by), by, history.suspects())
        for by in ("peak", "consumed", "time")
    }


def loaded(path):
    """The records of a file as JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what a notebook had no room for
        return json.loads(json.dumps(History.load(path).to_dicts()))


def notebook(records, path):
    """The notebook that a session leaves behind."""
    from ipygpulogger.records import MIME
    from ipygpulogger.storage.embed import embedded

    cells = [
        nbformat.v4.new_code_cell(
            record.source if record.source.isprintable() else "x",
            outputs=[nbformat.v4.new_output("display_data", data={MIME: embedded(record), "text/plain": ""})],
        )
        for record in records
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def main():
    records = session() + drawn()
    History(records).save(HERE / "session.jsonl")
    records = list(History.load(HERE / "session.jsonl"))
    for kind in ("csv", "parquet"):
        History(records).save(HERE / f"session.{kind}")
    notebook(records, HERE / "session.ipynb")
    kept = loaded(HERE / "session.ipynb")
    Path(HERE / "kept.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept), encoding="utf-8")
    reports = {"records": [shown(record) for record in records], "overviews": overviews(records)}
    Path(HERE / "shown.json").write_text(json.dumps(reports, indent=1), encoding="utf-8")


def look():
    """Write the HTML of the reports anew."""
    reports = json.loads((HERE / "shown.json").read_text(encoding="utf-8"))
    for was, record in zip(reports["records"], History.load(HERE / "session.jsonl"), strict=True):
        was.update({kind: words for kind, words in shown(record).items() if "html" in kind})
    (HERE / "shown.json").write_text(json.dumps(reports, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(look() if sys.argv[1:] == ["look"] else main())
