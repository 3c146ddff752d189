"""How large the data of a cell was, found in the names of its code."""

import types

import numpy as np
import pytest

from ipygpulogger import IPyGPULogger
from ipygpulogger.owners.dimensions import dimensions_of, fingerprint


def found(code, frameworks=(), **names):
    """What is found for a cell with this code among these variables."""
    names = dict(names)
    for name, value in names.items():
        if type(value) is types.FunctionType:  # as one that is defined in the notebook
            names[name] = types.FunctionType(value.__code__, names)
    return dimensions_of(code, names, frameworks)


def test_what_a_cell_names_is_found_in_order():
    """Batch sizes, then arrays as the code names them, then numbers in calls of the notebook's functions."""
    loader = types.SimpleNamespace(batch_size=64, drop_last=False)
    assert found(
        "for x, y in loader:\n    step(7, {'out': 1})",
        loader=loader,
        step=lambda *_: None,
        x=np.ones((5, 3)),
        y=np.ones(5),
        out=np.ones(99),
    ) == (("loader.batch_size", 64), ("x", 5), ("y", 5), ("step(...)", 7))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("fit(DataLoader(data, batch_size=32), epochs=3)", (("batch_size", 32),)),
        ("fit(16)", (("fit(...)", 16),)),
        ("torch.randn(16)\nrange(3)\nfit == 4", ()),  # no functions of the notebook
        ("cfg['batch_size'] # big\nconfig.bs", (("cfg['batch_size']", 8), ("config.bs", 4))),
        ('\'big\' """big\nbig""" # big', ()),
        ('f\'{big}\' f"\\"big"', ()),
        ('b\'x\' * 3, Rb"""x"""', ()),  # the prefix of a text is no name
        ("%%time\n!ls 'big\nbig", (("big", 3),)),
        ("pair", ()),  # nor is looked into a tuple
        ("_; __; nothing; flag; one; module", ()),
    ],
)
def test_where_sizes_stand(code, told):
    """In settings and in the code itself."""

    big = np.ones((3, 2))
    names = {
        "fit": lambda: None,
        "cfg": {"batch_size": 8, "lr": 1, "bs": True},
        "config": types.SimpleNamespace(bs=4, name="x"),
        "big": big,
        "b": big,
        "pair": (big, np.ones(3)),
        "_": big,
        "nothing": np.ones((0, 3)),
        "one": np.float64(3),
        "flag": True,
        "module": np,
    }
    assert found(code, **names) == told


def refuse(*_):
    raise AssertionError("nobody asked for this")


def test_none_of_the_users_code_is_run():
    """Neither properties nor dunder methods nor metaclasses of their classes."""
    dunder = ("__len__", "__iter__", "__getattr__", "__getattribute__", "__class_getitem__")
    meta = type("Meta", (type,), {"__eq__": refuse, "__hash__": type.__hash__})
    hostile = meta("Any", (), dict.fromkeys(dunder, refuse) | {"shape": property(refuse)})()
    array = np.ones((4, 4)).view(type("Sub", (np.ndarray,), {"shape": property(refuse), "__len__": refuse}))
    settings = type("Settings", (dict,), {"items": refuse})(batch_size=3)
    assert found("a; b; c; d", a=hostile, b=array, c=settings, d=[hostile]) == ()


def test_only_a_cell_that_needed_memory_says_it(shell):
    """Nothing is looked up after a light cell; a record keeps twelve, each with a short name."""
    il = IPyGPULogger(report="none").start()
    try:
        shell.user_ns["np"] = np
        shell.run_cell("a = np.ones((3, 2)); n = 5", store_history=True)
        assert il.record.dimensions == ()
        shell.run_cell("batch_size = 6; b = np.ones((batch_size, 1 << 20))", store_history=True)
        assert il.record.dimensions == (("batch_size", 6), ("b", 6))
        shell.run_cell(
            "; ".join(f"{'v' * 70}{i} = np.ones((4, 1 << 19))" for i in range(5)), store_history=True
        )
        assert il.record.dimensions == (("v" * 60, 4),)
        shell.run_cell("; ".join(f"v{i} = np.ones((4, 1 << 15))" for i in range(20)), store_history=True)
        assert il.record.dimensions == tuple((f"v{i}", 4) for i in range(12))
    finally:
        il.stop()
        shell.reset(new_session=False)


@pytest.mark.torch
def test_tensors(cuda, shell):
    """Of a tensor its first dimension, on any device."""
    import torch

    from ipygpulogger.engine.machine import machine

    names = {
        "x": torch.ones(5, 2, device="cuda"),
        "loss": torch.ones(()),
        "loader": torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4),
        "model": torch.nn.Linear(2, 3),
    }
    told = found("model(x), loss, loader", machine().frameworks.imported(), **names)
    assert told == (("loader.batch_size", 4), ("x", 5))


# -- the same code but for numbers ------------------------------------------------------------------

CODE = "batch_size = 32\nwith no_grad():\n    y = net1(x, 'file_3')  # note\n"


@pytest.mark.parametrize(
    "other",
    [
        "batch_size=1_000 # other\n\n  # more\nwith no_grad():  \n    y = net1(x, 'file_12')",
        "batch_size = 1.5e-3\nwith no_grad():\n    y = net1( x,'file_3')\n\n",
    ],
)
def test_the_same_code(other):
    """Numbers, comments, and spaces within lines may change."""
    assert fingerprint(other, {}) == fingerprint(CODE, {})
    assert len(fingerprint(CODE, {})) == 8


@pytest.mark.parametrize(
    ("was", "becomes"), [("net1", "net2"), ("    y", "y"), ("x,", "x.sin(),"), ("'file_3'", "'# 3'")]
)
def test_other_code(was, becomes):
    """A name, a call, an indentation or a text does not."""
    assert fingerprint(CODE.replace(was, becomes), {}) != fingerprint(CODE, {})
    assert fingerprint("\ud800", {}) != fingerprint("", {})  # nor does any text fail


def test_where_the_size_is_said_other_numbers_count():
    """Only the size itself may differ there, also where another number happens to equal it."""
    told = [
        fingerprint(f"batch_size = {size}\nstep(load(batch_size, {width}))", {"batch_size": size})
        for size, width in ((64, 64), (128, 64), (128, 32))
    ]
    assert told[0] == told[1] != told[2]
