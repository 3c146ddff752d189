"""What help says of the options and of the magics: all of them, with the defaults that they have."""

import inspect
import re
import subprocess
import sys

import pytest
from reports import run

from ipygpulogger import IPyGPULogger
from ipygpulogger.notebook.cell import OPTIONS
from ipygpulogger.notebook.magics import GpulogMagics
from ipygpulogger.notebook.options import COMMANDS, HELP, RANKED_BY

TRAITS = IPyGPULogger.class_traits(config=True)


# -- IPyGPULogger? -------------------------------------------------------------------------------------------


def test_the_signature_has_every_option_with_its_default(shell):
    """The first two by position too, as in the original; a call as the signature says is one that is taken."""
    parameters = inspect.signature(IPyGPULogger).parameters
    defaults = {name: trait.default() for name, trait in TRAITS.items()}
    assert {name: one.default for name, one in parameters.items()} == defaults
    kinds = [one.kind for one in parameters.values()]
    assert list(parameters)[:2] == ["compact", "gc_collect"]
    assert kinds[:2] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 2
    assert set(kinds[2:]) == {inspect.Parameter.KEYWORD_ONLY}
    assert IPyGPULogger(**defaults).trait_values(config=True) == defaults
    il = IPyGPULogger(True, False)
    assert (il.compact, il.gc_collect) == (True, False)


def test_the_docstring_lists_every_option_with_its_meaning_and_default():
    """In the words of its trait, in the order of the signature."""
    told = " ".join(IPyGPULogger.__doc__.split())
    places = []
    for name in inspect.signature(IPyGPULogger).parameters:
        trait = TRAITS[name]
        places.append(told.index(f" {name}: {trait.help} Default: {trait.default()!r}."))
    assert places == sorted(places)
    assert "{" not in told


def test_without_docstrings_it_is_imported_all_the_same():
    """Under python -OO."""
    program = "import ipygpulogger, IPython; from ipygpulogger.notebook import magics; print(ipygpulogger.IPyGPULogger.__doc__)"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


# -- %gpulog -h ----------------------------------------------------------------------------------------------


ASKED = ["%gpulog help", "%gpulog -h", "%gpulog --help", "%gpulog start --help", "%gpulog summary --by -h"]


@pytest.mark.parametrize("line", [*ASKED, "%gpulog save --help", "%%gpulog --help", "%%gpulog -h\nx = 1 / 0"])
def test_help_that_was_asked_for(extension, capsys, line):
    """One text, however it is asked for; nothing else is done."""
    il = extension.user_ns["il"]
    before = il.running, il.trait_values(config=True)
    il.report = "text"
    assert run(extension, line).success
    assert capsys.readouterr().out.startswith(HELP + "\n")
    il.report = "rich"
    assert (il.running, il.trait_values(config=True)) == before


def test_the_help_has_all_that_the_magics_take():
    """Every subcommand, what follows it, every option with its default; lines that fit a page of 88 columns."""
    for command in COMMANDS:
        assert re.search(rf"^  %gpulog {command}\b", HELP, re.MULTILINE), command
    for name, trait in TRAITS.items():
        assert re.search(rf"^  {name}={re.escape(repr(trait.default()))} ", HELP, re.MULTILINE), name
    for word in (*RANKED_BY, *OPTIONS, "PATH", ".jsonl", ".csv", ".parquet"):
        assert word in HELP
    assert max(map(len, HELP.splitlines())) <= 88
    assert GpulogMagics.gpulog.__doc__ == HELP
