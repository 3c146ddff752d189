"""Who holds what in a shell or among names, with arrays of a framework that is not there."""

import warnings

from arrays import holding

from ipygpulogger.owners.attribution import Root
from ipygpulogger.owners.growth import OwnedBlock
from ipygpulogger.owners.roots import owners_in
from ipygpulogger.owners.unreachable import garbage_below
from ipygpulogger.owners.walk import walk


class Plain:
    def __init__(self, *values):
        self.values, self.other = values[:1], list(values[1:])


def walked(names, readers=(holding,), **how):
    """What a walk from variables finds, with time for everything; torch's warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns whoever reads `.grad` of an intermediate result
        roots = [Root(name, "variable", value) for name, value in names.items()]
        found = walk(roots, readers, budget_s=60, **how)
    assert found.complete
    return found


def held(names, **how):
    """{name: bytes} of variables."""
    return {owner.name: owner.size_bytes for owner in walked(names, **how).owners}


class AnyBlock:
    """Every key is that of a large block which a name held."""

    def get(self, key):
        return OwnedBlock("name", "variable", key[0], 1 << 40, ())


def proven(root, readers, budget_s=60):
    """By device, the bytes that are proven to be garbage with what a weak reference refers to."""
    sizes = {}
    for block in garbage_below([root], AnyBlock(), readers, budget_s).values():
        sizes[block.device] = sizes.get(block.device, 0) + block.size_bytes
    return sizes


def found_in(shell, exception=None):
    found = owners_in(shell, [holding], exception, budget_s=60)
    return [(owner.name, owner.size_bytes, owner.kind) for owner in found.owners]


def run(notebook, source):
    return notebook.run_cell(source, store_history=True)


def shared_in(notebook):
    found = owners_in(notebook, [holding], budget_s=60)
    return {owner.name: (owner.size_bytes, owner.kind, owner.shared) for owner in found.owners}


KEPT = """
def step(x):
    act = Array(20)
    raise ValueError('no')

def attempt():
    try:
        step(Array(3))
    except ValueError as error:
        return error
"""


FAILING = """
def step(x):
    act = Array(20)
    again = [act, x]
    layer(act)

def layer(h):
    class Inner:
        weight = Array(2)
    inside = [Array(7)]
    raise ValueError('no', h)

x = Array(100)
step(x)
"""


CHAINED = """
def first():
    one = Array(3)
    raise KeyError('first')

def second():
    two = Array(4)
    try:
        first()
    except KeyError as error:
        raise ValueError('second') from error

def third():
    three = Array(5)
    try:
        second()
    except ValueError:
        raise RuntimeError('third', Array(6))

third()
"""
