"""The notebook that is to be executed: what is refused, in one sentence."""

import sys

import pytest
from command_line import refused

from ipygpulogger.cli import main

BEGIN = '{"nbformat": 4, "nbformat_minor": 5, '
CONTENT = [
    (None, "cannot be read: No such file or directory"),
    ("", "no JSON"),
    ("print(1)", "no JSON"),
    ("[1, 2]", "names no nbformat"),
    ('{"cells": []}', "names no nbformat"),
    (BEGIN + '"cells": [{"cell_type": "nonsense"}], "metadata": {}}', "broken notebook"),
    (BEGIN + '"metadata": {}}', "broken notebook"),
    ('{"nbformat": 99, "nbformat_minor": 0, "cells": [], "metadata": {}}', "broken notebook"),
    (b"\xff\xfe\x00", "cannot be read"),
    (
        BEGIN
        + '"cells": [{"cell_type": "code", "execution_count": 1, "id": "a", "metadata": {}, "outputs": [],'
        ' "source": "x = \\ud800"}], "metadata": {}}',
        "broken notebook: 'utf-8' codec can't encode",
    ),
]


@pytest.mark.parametrize(("content", "says"), CONTENT)
def test_not_a_notebook(tmp_path, capsys, content, says):
    """A missing, broken or foreign file: one sentence, exit 2, nothing written."""
    path = tmp_path / "x.ipynb"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    files = sorted(tmp_path.iterdir())
    assert refused(["run", path, "--log", tmp_path / "log.jsonl"], capsys, says)
    assert sorted(tmp_path.iterdir()) == files


def test_without_the_run_extra(notebook, monkeypatch, capsys):
    """Without nbclient: one sentence with the command that installs it."""
    monkeypatch.setitem(sys.modules, "nbclient", None)
    assert main(["run", str(notebook("1"))]) == 2
    assert "pip install 'ipygpulogger[run]'" in capsys.readouterr().err
