"""The shell in which tests of owners run cells."""

import builtins

import pytest
from arrays import Array

from ipygpulogger.owners.roots import drop_hidden_references


@pytest.fixture
def notebook(shell):
    """A shell whose cells know `Array`; it forgets everything afterwards."""
    shell.user_ns["Array"] = Array
    yield shell
    drop_hidden_references(shell)
    shell.reset(new_session=False)
    vars(builtins).pop("_", None)
