"""Build the simulated libraries with gcc: NVML always, CUDA and its stubs for a given torch."""

import concurrent.futures
import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from . import gen_stubs

HERE = Path(__file__).resolve().parent
GCC = os.environ.get("CC", "gcc")


def _cc(out, soname, *args):
    flags = ["-O1", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{soname}"]
    subprocess.run([GCC, *flags, "-o", out / soname, *args], check=True)


def _write(path, text):
    path.write_text(text)
    return path


def _node(src, soname, node):
    """Linker option that gives every symbol the version torch asks for."""
    script = _write(src / f"{soname}.map", f"{node} {{ global: *; }};\n")
    return f"-Wl,--version-script={script}"


def _nvml(out):
    _cc(out, "libnvidia-ml.so.1", HERE / "nvml.c")


def _cuda(out, src, torch_lib):
    want, sonames = gen_stubs.scan(torch_lib)
    cudart = next(s for s in sonames if s.startswith("libcudart"))
    define = f"-DCUDART={cudart.rsplit('.', 1)[1]}"
    main = HERE / "cudart.c"
    text = subprocess.check_output([GCC, "-E", "-P", define, main], text=True)
    have = set(re.findall(r'visibility\("default"\)\)\)[^(;{]*?\b(\w+)\(', text))
    extra = _write(
        src / "cudart_extra.c",
        '#define API __attribute__((visibility("default")))\nint simgpu_unsupported(const char *);\n'
        + "".join(
            f'API int {n}(void) {{ return simgpu_unsupported("{n}"); }}\n'
            for n in sorted(want[cudart] - have)
        ),
    )
    _cc(out, cudart, define, main, extra, _node(src, cudart, cudart), "-ldl", "-lpthread")
    # libcuda.so.1 is empty and pulls in the runtime, where the cu* functions live
    _cc(out, "libcuda.so.1", _write(src / "empty.c", ""), "-Wl,--no-as-needed,-rpath,$ORIGIN", out / cudart)

    def stub(item):
        so, (node, names) = item
        c = _write(src / f"{so}.c", gen_stubs.source(so, names))
        runtime = ["-Wl,-rpath,$ORIGIN", out / cudart] if so.startswith("libcublas") else []
        _cc(out, so, c, *([_node(src, so, node)] if node else []), *runtime)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(stub, gen_stubs.libraries(want, sonames).items()))


def ensure(torch_lib=None, cache=HERE / "_build"):
    """Build unless an identical build is cached; -> the library folder.

    Built aside and renamed into place, so that processes may build at the same time.
    """
    key = hashlib.sha256()
    for name in ("simgpu.h", "cudaprop.h", "nvml.c", "cudart.c", "gen_stubs.py", "build.py"):
        key.update((HERE / name).read_bytes())
    if torch_lib:
        key.update((torch_lib.parent / "version.py").read_bytes())
    done = Path(cache) / key.hexdigest()[:12]
    if done.exists():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=done.parent) as tmp:
        out, src = Path(tmp, "lib"), Path(tmp, "src")
        out.mkdir()
        src.mkdir()
        _nvml(out)
        if torch_lib:
            _cuda(out, src, torch_lib)
        try:
            out.rename(done)
        except OSError:
            if not done.exists():  # otherwise: another process was faster
                raise
    return done
