"""Mutation testing: would the tests notice if an operator in what counts or does arithmetic were another?

    python tests/mutants.py                    every file of mutants.toml
    python tests/mutants.py peaks records      these files
    python tests/mutants.py --sample 100       at most so many mutants of each file, the same ones every time
    python tests/mutants.py --torch            those whose tests need torch, on the simulated GPU

It prints each mutant that survives the tests of its file, then tables of scores by file and by package, and
fails where a survivor is not listed in mutants.toml as equivalent, or where a listed one does not survive or no
longer exists. A row `"package/*"` there is for each file of the package that has none of its own.

The mutants are cosmic-ray's; mutmut does not mutate a decorated function, and much of the arithmetic here
stands in properties. They are run here instead of by `cosmic-ray exec`, which starts Python and pytest for each
of a thousand mutants: this process imports both once and forks. The files mutated are those of a copy, which
the tests' subprocesses import as well.
"""

import argparse
import ast
import compileall
import difflib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import NamedTuple

import hypothesis
import parso.python.tree as tree
import pytest
import tomllib
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "ipygpulogger"
MEMORY_BYTES = 8 << 30  # of one mutant's tests: one that grows for ever shall fail soon
PYTEST = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported before pytest begins


SWAPPED = {"+=": "-=", "-=": "+=", "*=": "//=", "|=": "&=", "&=": "|="}
OPPOSITES = {"max": "min", "min": "max", "any": "all", "all": "any"}


class Swap(Operator):
    """An augmented assignment for another, `+=` for `-=`, or a call of the opposite, `max` for `min`."""

    def mutation_positions(self, node):
        is_called = isinstance(node, tree.Name) and node.get_next_leaf().value == "("
        if (isinstance(node, tree.Operator) and node.value in SWAPPED) or (
            is_called and node.value in OPPOSITES
        ):
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):  # noqa: ARG002 - cosmic-ray's signature
        node.value = (SWAPPED | OPPOSITES)[node.value]
        return node

    @classmethod
    def examples(cls):
        return ()


class DropCall(Swap):
    """A statement that is a call, left out."""

    def mutation_positions(self, node):
        called = node.type == "simple_stmt" and node.children[0].type in ("power", "atom_expr")
        if called and node.children[0].children[-1].get_code().endswith(")"):
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):  # noqa: ARG002 - cosmic-ray's signature
        leaf = node.get_first_leaf()
        node.children[0] = tree.Keyword("pass", leaf.start_pos, leaf.prefix)
        return node


# Each operator's opposite, and its neighbour at the boundary: of the eleven that cosmic-ray would put for a plus
# most are no arithmetic at all, die in any test, and would embellish the score.
REPLACED = {
    "BinaryOperator": "Add_Sub Sub_Add Mul_FloorDiv Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul LShift_RShift "
    "RShift_LShift BitOr_BitAnd BitAnd_BitOr BitXor_BitAnd",
    "ComparisonOperator": "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Is_IsNot "
    "IsNot_Is",
    "UnaryOperator": "Delete_USub Delete_Not Delete_Invert",
}
NAMES = [f"Replace{kind}_{change}" for kind, changes in REPLACED.items() for change in changes.split()]
NAMES += ["AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"]
NAMES += ["ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer"]
NAMES += ["ZeroIterationForLoop"]
OPERATORS = [*(get_operator(f"core/{name}")() for name in NAMES), Swap(), DropCall()]


class Mutant(NamedTuple):
    """One change of one file: where, and its lines before and after."""

    file: str
    lineno: int
    within: str
    was: str
    becomes: str
    code: str

    @property
    def key(self):
        """What it is known by in mutants.toml."""
        return self.within, self.was, self.becomes

    def __str__(self):
        return f"{self.file}.py:{self.lineno} in {self.within}:\n    - {self.was}\n    + {self.becomes}"


def mutants_of(file, most=None):
    """Every mutant of a file of the package, in the order of the lines; or so many, the same ones every time."""
    source = (ROOT / PACKAGE / f"{file}.py").read_text(encoding="utf-8")
    parsed, silent = get_ast(source), silent_lines(source)
    places = []  # what each operator would change, and as the how manyth
    for operator in OPERATORS:
        positions = (
            (node, start, stop)
            for node in ast_nodes(parsed)
            for start, stop in operator.mutation_positions(node)
        )
        places += [
            (operator, occurrence, node, start)
            for occurrence, (node, start, stop) in enumerate(positions)
            if not any(first <= start and stop <= last for first, last in silent)
        ]
    if most:
        random.Random(file).shuffle(places)
    found, known = [], {None, essence(source)}
    for operator, occurrence, node, start in places:
        if len(found) == most:
            break
        try:
            code = mutate_code(source, operator, occurrence)
        except AttributeError:  # ExceptionReplacer knows no dotted name
            continue
        if essence(code) not in known:
            known.add(essence(code))
            was, becomes = changed(source, code)
            within = ASTQuery(node).get_definition_name() or "the module"
            found.append(Mutant(file, start[0], within, was, becomes, code))
    return sorted(found)


def changed(source, code):
    """The lines that differ, in one line each."""
    lines = list(difflib.ndiff(source.splitlines(), code.splitlines()))
    return (" ".join(" ".join(line[2:].split()) for line in lines if line.startswith(mark)) for mark in "-+")


def silent_lines(source):
    """Where nothing happens at run time or nothing is counted: annotations, decorators, types alone."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            parts.append(node)
        found += [
            ((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)) for part in parts if part
        ]
    return found


def essence(code):
    """What a module's code does: two that compile to the same are one mutant, `not a is b` and `a is not b`."""
    try:
        compiled = compile(code, "", "exec", dont_inherit=True) if isinstance(code, str) else code
    except SyntaxError:
        return None
    constants = tuple(
        essence(c) if isinstance(c, types.CodeType) else (type(c), c) for c in compiled.co_consts
    )
    return compiled.co_code, compiled.co_names, compiled.co_varnames, compiled.co_exceptiontable, constants


class QuickFirst:
    """A plugin of pytest's: the quickest tests run first, which kill most mutants; times as once measured."""

    def __init__(self, path):
        self.path, self.times = path, {}
        self.known = json.loads(path.read_text()) if path.exists() else {}

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report):
        self.times[report.nodeid] = self.times.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self, exitstatus):
        if exitstatus == 0:
            self.path.write_text(json.dumps(self.times))


class Copy:
    """A copy of the package and its tests, in which one file at a time is another."""

    def __init__(self, folder, marked):
        self.folder, self.marked = Path(folder), marked
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
        for name in (PACKAGE, "tests"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", self.folder)
        compileall.compile_dir(self.folder / PACKAGE, quiet=2)
        self.output = self.folder / "output"

    def run(self, tests, limit_s):
        """The exit status of these tests, None when they took too long; and their time in seconds."""
        began_s = time.monotonic()
        pid = os.fork()
        if not pid:
            self._child(tests)
        status = None
        while status is None and time.monotonic() - began_s < limit_s:
            done, how = os.waitpid(pid, os.WNOHANG)
            if done:
                status = how
            else:
                time.sleep(0.01)
        try:
            os.killpg(pid, signal.SIGKILL)  # what it left behind as well
        except ProcessLookupError:
            pass
        if status is None:
            os.waitpid(pid, 0)
        return status, time.monotonic() - began_s

    def _child(self, tests):
        os.setsid()
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder)
        sys.path[:] = [str(self.folder), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        status = 70
        try:
            status = int(
                pytest.main([*PYTEST, "-m", self.marked, *tests], plugins=[QuickFirst(self.folder / "times")])
            )
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def test(self, file, mutants, tests, equivalent):
        """Those of a file's mutants that live; what is not expected to is printed at once."""
        path = self.folder / PACKAGE / f"{file}.py"
        source = path.read_text(encoding="utf-8")
        for _ in range(2):  # as they stand, then in the order that is used from here on
            status, took_s = self.run(tests, 600)
            if status != 0:
                sys.exit(f"{file}: its tests fail without any mutant:\n{self.output.read_text()}")
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
            cached.unlink()
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant may have the original's size and second
        sys.dont_write_bytecode = True
        lived = []
        for mutant in mutants:
            path.write_text(mutant.code, encoding="utf-8")
            if self.run(tests, 20 + 5 * took_s)[0] == 0:
                lived.append(mutant)
                if mutant.key not in equivalent:
                    print(mutant, flush=True)
        path.write_text(source, encoding="utf-8")
        return lived


def main():
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="without .py; by default all of mutants.toml"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="at most so many mutants of each file")
    parser.add_argument("--torch", action="store_true", help="the files whose tests need torch")
    options = parser.parse_args()
    known = rows_of(tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8")))
    marked = "torch or gpu" if options.torch else "not torch"
    # What a test finds shall not depend on the day, and nobody reads the smallest example.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants", phases=phases, database=None, deadline=None, derandomize=True
    )
    hypothesis.settings.load_profile("mutants")
    rows, wrong = [], []
    for file in options.files or [one for one in known if known[one].get("torch", False) == options.torch]:
        mutants = mutants_of(file, options.sample)
        equivalent = {
            (one.get("in", ""), one["was"], becomes)
            for one in known[file].get("equivalent", ())
            for becomes in one["becomes"]
        }
        every = {mutant.key for mutant in mutants}
        if not options.sample:
            wrong += [
                f"{file}: listed as equivalent, but no such mutant: {one}" for one in equivalent - every
            ]
        with tempfile.TemporaryDirectory() as folder:
            lived = Copy(folder, marked).test(file, mutants, known[file]["tests"], equivalent)
        expected = [mutant for mutant in mutants if mutant.key in equivalent]
        wrong += [
            f"listed as equivalent, but the tests tell it apart: {m}" for m in expected if m not in lived
        ]
        new = [mutant for mutant in lived if mutant not in expected]
        wrong += [f"{file}: {len(new)} survived, see above"] if new else []
        rows.append((file, len(mutants), len(lived), len(expected)))
        print_table(rows[-1:])
    if len(rows) > 1:
        print_table(rows)
        packages = dict.fromkeys(row[0].partition("/")[0] for row in rows)
        parts = {name: [row for row in rows if row[0].startswith(f"{name}/")] for name in packages}
        print_table(
            [
                (name, *(sum(row[i] for row in part) for i in (1, 2, 3)))
                for name, part in (parts | {"all": rows}).items()
            ]
        )
    print("\n".join(wrong))
    sys.exit(bool(wrong))


def rows_of(written):
    """The row of each file: its own, or that of its package."""
    rows = {name: row for name, row in written.items() if "tests" in row and not name.endswith("/*")}
    for name in [one for one in written if one.endswith("/*")]:
        for path in sorted((ROOT / PACKAGE / name[:-2]).rglob("*.py")):
            file = path.relative_to(ROOT / PACKAGE).with_suffix("").as_posix()
            if path.name != "__init__.py":
                rows.setdefault(file, written[name] | written.get(file, {}))
    return rows


def print_table(rows):
    print("| file | mutants | killed | equivalent | survived | score |")
    print("|---|---|---|---|---|---|")
    for file, count, lived, equivalent in rows:
        killed, alive = count - lived, lived - equivalent
        score = f"{killed / max(1, count - equivalent):.1%}"
        print(f"| {file} | {count} | {killed} | {equivalent} | {alive} | {score} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
