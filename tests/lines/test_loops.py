"""The loops of a code object, against programs whose loops are counted by hand."""

import linecache

import pytest

from ipygpulogger.lines.loops import outermost_loops

PROGRAM = """\
for i in range(3):
    while i:
        i -= 1
if True:
    for j in []: pass
@print
def f():
    def g():
        for k in []:
            pass
    while True:
        for m in []:
            break
    [x for x in []]
async def h():
    async for n in n:
        pass
"""


@pytest.fixture
def file():
    name = "<loops>"
    linecache.cache[name] = len(PROGRAM), None, PROGRAM.splitlines(keepends=True), name
    yield name
    del linecache.cache[name]


@pytest.mark.parametrize(
    ("name", "first_lineno", "is_function", "loops"),
    [
        ("<module>", 1, False, [(1, 3), (5, 5)]),
        ("f", 6, True, [(11, 13)]),
        ("g", 8, True, [(9, 10)]),
        ("h", 15, True, [(16, 17)]),
        ("f", 7, True, []),  # not where it begins
        ("<listcomp>", 14, True, []),
    ],
)
def test_the_outermost_loops(file, name, first_lineno, is_function, loops):
    """Each loop of the code object itself that is in no other, wherever it stands; a comprehension is none."""
    assert sorted(outermost_loops(file, name, first_lineno, is_function=is_function)) == loops


@pytest.mark.parametrize("text", ["", "for i in (", "x = '\0'"])
def test_source_that_is_none(text, file):
    """Without source, or with some that is no Python, there are no loops."""
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    assert outermost_loops(file, "<module>", 1, is_function=False) == []
