"""Tab and Shift-Tab in a real kernel: what it answers to a front end's requests."""

import pytest
from kernels import TIMEOUT_S

from ipygpulogger import IPyGPULogger

BEGIN = "%load_ext ipygpulogger\nfrom ipygpulogger import IPyGPULogger\nstatement = 1"
OFFERED = {
    "%gpulog st": ["start", "stop", "status"],
    "%gpulog start compact=": ["True", "False"],
    "%gpulog start report=": ["text", "rich", "none"],
    "%gpulog summary --by ": ["peak", "consumed", "time"],
    "%gpulog free ": [],
    "%gpulog free st": [],
    "%%gpulog --l": ["--lines", "--label"],
    "%%gpulog --label st": [],
}

pytestmark = pytest.mark.kernel(shared=True, begin=[BEGIN])


def ask(kernel, what, code):
    """The kernel's answer to a request at the end of the code."""
    return getattr(kernel.client, what)(code, len(code), reply=True, timeout=TIMEOUT_S)["content"]


@pytest.mark.parametrize("jedi", [True, False])
def test_tab(kernel, jedi):
    """A name of the user's and a file that begin alike are there, and are not offered."""
    kernel.begin([f"import os; os.chdir({str(kernel.folder)!r}); get_ipython().Completer.use_jedi = {jedi}"])
    for name in ("run.jsonl", "status.txt"):
        (kernel.folder / name).touch()
    for line, words in OFFERED.items():
        reply = ask(kernel, "complete", line)
        begun = line[reply["cursor_start"] : reply["cursor_end"]]
        assert (line, [word for word in reply["matches"] if word != begun]) == (line, words)
    assert "run.jsonl" in ask(kernel, "complete", "%gpulog save run")["matches"]
    assert "quiet=" in ask(kernel, "complete", "IPyGPULogger(qu")["matches"]
    assert "statement" in ask(kernel, "complete", "stat")["matches"]


def test_shift_tab(kernel):
    """The tooltip of the class and of the magics: every option with its default; every subcommand."""
    told = ask(kernel, "inspect", "IPyGPULogger(")["data"]["text/plain"]
    for name, trait in IPyGPULogger.in_order().items():
        assert name in told
        assert " ".join(trait.help.split()[:5]) in " ".join(told.split())
    for magic in ("%gpulog", "%%gpulog"):
        assert "%gpulog summary [--by peak]" in ask(kernel, "inspect", magic)["data"]["text/plain"]
