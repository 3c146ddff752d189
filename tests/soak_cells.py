"""The cells of the soak: how often each kind is drawn, and its cells, one after the other.

`$n` is a number that is drawn, `$k` that of the cell. A cell that prints "go" is interrupted then.
"""

BEGIN = """
import asyncio, concurrent.futures, copy, gc, io, logging, multiprocessing, os, pickle, subprocess, sys
import tempfile, threading, time, warnings, weakref
import numpy as np, torch
import soak_probe as soak
from pathlib import Path
from IPython.display import HTML, Image, clear_output, display, update_display
home = Path.cwd(); torch.ones(1, device="cuda")
"""

KINDS = [
    # what most cells are
    (90, "a = $n"),
    (90, "a = $n; a * 2"),
    (30, "print($n); print('to stderr', file=sys.stderr)"),
    (20, "sum(i * i for i in range($n))"),
    (10, ""),
    (10, "# nothing but a comment"),
    (10, "def f_$n(x):\n    return x + $n\nf_$n(1)"),
    (10, "[print(i) for i in range(50)]; None"),
    # memory that comes and goes, or stays until it is bound anew
    (20, "kept = soak.big($n)"),
    (10, "kept = [soak.big(10) for _ in range($n)]"),
    (10, "kept = None"),
    (10, "array = np.ones($n * 1000); array.sum()"),
    (10, "text = 'x' * ($n << 12); len(text)"),
    (5, "cycle = soak.big($n); cycle = [cycle]; cycle.append(cycle); del cycle"),
    (5, "blip = soak.big(8000); del blip"),
    (5, "{'x': 'y' * $n}", "_, len(Out) > 0"),
    (5, "soak.big(200)"),  # in Out until %reset
    (5, "'z' * 100_000"),
    # the device
    (20, "t = soak.watch(torch.ones($n << 8, device='cuda')); t.shape"),
    (10, "t = None"),
    (
        5,
        "m = torch.nn.Linear(64, 64).cuda(); m(torch.ones($n, 64, device='cuda')).sum().backward(); soak.watch(m)",
    ),
    (
        5,
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s): u = torch.zeros($n << 8, device='cuda')\nu = None",
    ),
    (5, "torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats(); torch.cuda.memory_allocated() >= 0"),
    (1.5, "torch.empty(1 << 45, device='cuda')", "1"),
    (1, "held = []\nwhile True: held.append(soak.watch(torch.empty(1 << 30, device='cuda')))", "held = None"),
    (
        1,
        "def step(x):\n    y = x * 2\n    return step(torch.cat([y, y]))\nstep(torch.ones(1 << 28, device='cuda'))",
    ),
    (3, "copy.deepcopy(torch.nn.Linear($n, 2).cuda()).weight.shape"),
    # errors
    (10, "1 / 0"),
    (10, "unknown_$n"),
    (10, "def ("),
    (10, "def inner():\n    local = soak.big($n)\n    raise ValueError('$n')\ndef outer(): inner()\nouter()"),
    (5, "try: 1 / 0\nexcept ZeroDivisionError as e: raise KeyError('chained') from e"),
    (5, "last = getattr(sys, 'last_value', None); type(last).__name__ if $n % 2 else None", "last = None"),
    (
        3,
        "def recursive(n): return recursive(n + 1)\ntry: recursive(0)\nexcept RecursionError as e: print('deep')",
    ),
    (
        1,
        "def recursive(n): return recursive(n + 1)\ntry: recursive(0)\nexcept RecursionError as e: raise e.with_traceback(None)",
    ),
    (3, "class Odd(Exception):\n    def __str__(self): raise ValueError('no text')\nraise Odd()"),
    (3, "assert False, 'x' * $n"),
    (3, "raise KeyboardInterrupt"),
    (1, "input('?')"),
    (3, "%nosuchmagic $n", "%run nosuchfile.py", "%%nosuchcell\n1"),
    # interrupts
    (4, "print('go', flush=True)\nwhile True: pass"),
    (4, "mine = soak.big($n)\nprint('go', flush=True)\ntime.sleep(60)"),
    (3, "print('go', flush=True)\nwhile True: torch.ones($n, device='cuda')"),
    (2, "try:\n    print('go', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('caught')"),
    (
        2,
        "child = subprocess.Popen(['sleep', '60'])\nprint('go', flush=True)\nchild.wait()",
        "child.kill(); child.wait() < 0",
    ),
    (1, "%%gpulog --lines\nprint('go', flush=True)\nwhile True:\n    x = 1"),
    # threads, tasks, processes
    (8, "th = threading.Thread(target=lambda: soak.big($n)); th.start(); th.join()"),
    (5, "with concurrent.futures.ThreadPoolExecutor(4) as pool: print(list(pool.map(len, ['a'] * 9)))"),
    (
        5,
        "let = threading.Event(); th = threading.Thread(target=let.wait, args=(60,)); th.start()",
        "let.set(); th.join()",
    ),
    (5, "def fails(): raise SystemExit\nth = threading.Thread(target=fails); th.start(); th.join()"),
    (8, "await asyncio.sleep(0); $n"),
    (5, "await asyncio.gather(*(asyncio.sleep(0, i) for i in range(9)))"),
    (5, "task = asyncio.ensure_future(asyncio.sleep(0.005, $n))", "1", "await task"),
    (3, "async def fails(): raise OSError($n)\nawait fails()"),
    (3, "agen = (i async for i in soak.letters())\nawait agen.__anext__()"),
    (3, "pid = os.fork()\nif not pid: os._exit(3)\nos.waitpid(pid, 0)[1] >> 8"),
    (
        2,
        "p = multiprocessing.get_context('fork').Process(target=soak.big, args=($n,)); p.start(); p.join(); p.exitcode",
    ),
    (3, "subprocess.run(['echo', '$n'], capture_output=True, text=True).stdout"),
    (2, "!echo $n"),
    (2, "%%bash\necho $n; exit 3"),
    (2, "child = subprocess.Popen(['sleep', '0.1'])", "child.wait()"),
    # Python's and IPython's own state
    (2, "%reset -f", BEGIN),
    (1, "%reset -f out"),
    (2, "%xdel kept", "kept = 1"),
    (3, "%%capture out\nprint($n); soak.big($n)", "out.stdout"),
    (3, "r = get_ipython().run_cell('nested = soak.big($n); nested'); r.success"),
    (2, "r = get_ipython().run_cell('1 / 0', silent=True); r.success", "r = None"),
    (2, "%time 1 + 1", "%%time\nx = soak.big($n)", "%timeit -n1 -r1 pass"),
    (
        6,
        "class C:\n    data = soak.big($n)\n    def f(self): return super().__repr__()\nsoak.watch(C); c = C()",
    ),
    (
        3,
        "def opened():\n    local = soak.big($n)\n    try: yield 1\n    finally: print('closed')\ng = opened(); next(g)",
    ),
    (2, "gc.disable()", "x = [[] for _ in range($n)]; gc.isenabled()", "1", "gc.enable()"),
    (
        2,
        "old = gc.get_threshold(); gc.set_threshold(50, 5, 5)",
        "gc.get_threshold()",
        "gc.set_threshold(*old)",
    ),
    (
        3,
        "f = weakref.finalize(soak.big($n), print, 'gone')",
        "r = weakref.ref(soak.Big(1), lambda _: None); r() is None",
    ),
    (3, "pickle.loads(pickle.dumps({'a': np.ones($n)}))['a'].sum()", "pickle.dumps(lambda: 0)"),
    (
        2,
        "old, sys.stdout = sys.stdout, io.StringIO(); sys.stdout.close()",
        "x = $n",
        "sys.stdout = old; print(x)",
    ),
    (2, "old, sys.stderr = sys.stderr, io.StringIO(); sys.stderr.close()", "1 / 0", "sys.stderr = old"),
    (2, "gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)", "x = $n", "os.chdir(home)"),
    (2, "sys.settrace(lambda *_: None)", "1 + 1", "sys.settrace(None)"),
    (2, "warnings.warn('soaked $n')"),
    (2, "logging.getLogger('soak').warning('soaked $n')"),
    (
        1,
        "from IPython import get_ipython as g\ndef hook(*_): pass\ng().events.register('pre_run_cell', hook)",
        "1",
        "g().events.unregister('pre_run_cell', hook)",
    ),
    (1, "del sys.last_value", "1"),
    # displays
    (5, "display(HTML('<b>soaked $n</b>'))"),
    (
        3,
        "display({'text/plain': 'soaked'}, raw=True, display_id='d$n')",
        "update_display({'text/plain': 'soaked $n'}, raw=True, display_id='d$n')",
    ),
    (2, "print($n); clear_output(wait=True); print('soaked')"),
    (
        2,
        "class Figure:\n    def _repr_png_(self): return b'\\x89PNG soaked' * $n\nfor _ in range(3): display(Figure())",
    ),
    (1, "class Bad:\n    def _repr_html_(self): raise ValueError('soaked')\nBad()"),
    # a module that changes
    (
        2,
        "%load_ext autoreload\n%autoreload 2\nsys.path.insert(0, str(home))\n(home / 'changing.py').write_text(soak.module($k))\nimport changing; changing.version()",
        "(home / 'changing.py').write_text(soak.module($n + 10_000)); None",
        "changing.version()",
        "changing.Thing().f()",
        "%autoreload 0\nsys.path.remove(str(home))",
    ),
    # ours
    (0.5, "%reload_ext ipygpulogger"),
    (0.5, "%unload_ext ipygpulogger", "x = $n", "1 / 0", "%load_ext ipygpulogger"),
    (3, "%gpulog vars"),
    (3, "%gpulog summary"),
    (1, "%gpulog free"),
    (2, "%gpulog status"),
    (1, "%gpulog doctor"),
    (2, "%gpulog nonsense", "%gpulog load nosuchfile.jsonl", "%gpulog save /nosuch/folder.csv"),
    (2, "%gpulog stop", "x = $n", "%%gpulog\nx", "%gpulog start"),
    (3, "%%gpulog --lines\nx = soak.big($n)\nfor i in range(9):\n    y = [i] * $n\nprint(len(y))"),
    (3, "%%gpulog --peak\nt = torch.ones($n << 8, device='cuda')\nu = t * 2\ndel u"),
    (1, "%%gpulog --peak=all --lines\nx = soak.big($n)\n1 / 0"),
    (1, "%%gpulog --peak\ntorch.empty(1 << 45, device='cuda')"),
    (1, "%gpulog measure soak.big($n)"),
    (1, "%gpulog save history.jsonl", "old = %gpulog load history.jsonl", "old = None"),
    (1, "%gpulog start quiet=1MB", "x = $n", "kept = soak.big(3000)", "%gpulog start quiet=None"),
]
