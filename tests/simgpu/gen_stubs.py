"""Stubs for the NVIDIA symbols that a PyTorch wheel links to and nobody provides.

With these, a wheel installed by `pip install --no-deps torch===X.Y.Z` loads without the
nvidia-* packages. scan() reads the wheel with binutils (present wherever gcc is), so a new
torch that links to new symbols gets new stubs and still loads.
"""

import collections
import re
import subprocess

NVIDIA_LIB = re.compile(r"lib(cu|nv|nccl)")
NVIDIA_SYM = re.compile(r"(?!cuda_)(__cuda|cu[A-Za-z]|nv|nccl)")
PROVIDED = {"libcuda.so.1", "libnvidia-ml.so.1"}

HEAD = """\
#include <stdio.h>
#include <stdlib.h>
#define API __attribute__((visibility("default")))
static int zero;
static int say(const char *f, int rc)
{
    if (getenv("SIMGPU_VERBOSE")) fprintf(stderr, "simgpu: %s is not simulated\\n", f);
    return rc;
}
#define DONE(f) API int f(void) { return say(#f, 0); }
#define FAIL(f) API int f(void) { return say(#f, 1); }
#define TEXT(f) API const char *f(void) { return "not simulated"; }
#define HANDLE(f) API int f(void **h) { return (*h = malloc(1)) ? 0 : 3; } /* each its own: torch has a workspace for each */
int simgpu_launch(void *stream);
static __thread void *stream;
#define KERNEL(f) API int f(void) { say(#f, 0); return simgpu_launch(stream) ? 13 : 0; }
#define SIZE(f, v) API unsigned long f(void) { return v; }
"""
# cuBLAS "succeeds" without computing, so that Linear layers run and allocate as usual: a kernel like any other;
# every other library fails cleanly with status 1.
DONE = re.compile(r"cublas")
KERNEL = re.compile(r"cublas(?!Lt|Set|Get|Create|Destroy)")
TEXT = re.compile(r"(cudnn|cusparse|nccl|nvrtc)Get(Last)?Error(String)?$")  # return char *
SPECIAL = {
    "cublasCreate_v2": "HANDLE(cublasCreate_v2)",
    "cublasSetStream_v2": "API int cublasSetStream_v2(void *h, void *s) { (void)h; stream = s; return 0; }",
    "cublasLtMatmul": "API int cublasLtMatmul(void *h, void *m, void *x, void *a, void *al, void *b, void *bl,"
    " void *y, void *c, void *cl, void *d, void *dl, void *g, void *w, unsigned long n, void *s)\n{ (void)h; (void)m; (void)x;"
    " (void)a; (void)al; (void)b; (void)bl; (void)y; (void)c; (void)cl; (void)d; (void)dl; (void)g; (void)w; (void)n;"
    " return simgpu_launch(s) ? 13 : 0; }",
    "cublasLtCreate": "HANDLE(cublasLtCreate)",
    "cublasLtGetVersion": "SIZE(cublasLtGetVersion, 130100)",
    "cublasGetVersion_v2": "API int cublasGetVersion_v2(void *h, int *v) { (void)h; *v = 130100; return 0; }",
    # offer one all-zero "algorithm", so that addmm takes its cublasLt path
    "cublasLtMatmulAlgoGetHeuristic": "API int cublasLtMatmulAlgoGetHeuristic(void *h, void *o, void *a, void *b,"
    " void *c, void *d, void *p, int n, void *r, int *found)\n{ (void)h; (void)o; (void)a; (void)b; (void)c; (void)d;"
    " (void)p; (void)n; (void)r; *found = 1; return 0; }",
    "cudnnGetVersion": "SIZE(cudnnGetVersion, SO_MAJOR * 10000 + 9900)",
    "cudnnGetProperty": "API int cudnnGetProperty(int which, int *v) { *v = which ? 99 : SO_MAJOR; return 0; }",
    "cuptiGetResultString": 'API int cuptiGetResultString(int rc, const char **s) { (void)rc; *s = "not simulated"; return 0; }',
    "ncclGetVersion": "API int ncclGetVersion(int *v) { *v = 29999; return 0; }",
    "nvrtcVersion": "API int nvrtcVersion(int *a, int *b) { *a = 13, *b = 0; return 0; }",
}


def scan(torch_lib):
    """-> ({symbol version: symbols}, {sonames}): what torch/lib/*.so want from NVIDIA."""
    want, sonames = collections.defaultdict(set), set()
    for lib in torch_lib.glob("*.so"):
        out = subprocess.check_output(["readelf", "-dW", lib], text=True)
        for so in re.findall(r"\(NEEDED\).*\[(.*)\]", out):
            if NVIDIA_LIB.match(so) and not (torch_lib / so).exists():
                sonames.add(so)
        out = subprocess.check_output(
            ["nm", "-D", "--undefined-only", "--with-symbol-versions", lib], text=True
        )
        for line in out.splitlines():
            name, _, version = line.split()[-1].partition("@")
            if NVIDIA_SYM.match(name):
                want[version.lstrip("@")].add(name)
    return want, sonames


def libraries(want, sonames):
    """-> {soname: (version node or None, symbols)} without the runtime, NVML and driver."""
    libs = {}
    for so in sorted(s for s in sonames - PROVIDED if not s.startswith("libcudart")):
        stem = re.match(r"lib(\w+?)(_host)?\.so", so).group(1).lower()
        node = so if so in want else next((v for v in want if v.lower() == stem), None)
        # symbols without a version go by their prefix
        names = want.get(node, set()) | {s for s in want[""] if s.lower().startswith(stem)}
        libs[so] = node, names
    return libs


def source(soname, names):
    default = "DONE" if DONE.match(soname[3:]) else "FAIL"

    def kind(name):
        return "KERNEL" if KERNEL.match(name) else "TEXT" if TEXT.match(name) else default

    lines = [SPECIAL.get(n) or f"{kind(n)}({n})" for n in sorted(names)]
    return f"#define SO_MAJOR {soname.rsplit('.', 1)[1]}\n" + HEAD + "\n".join(lines) + "\n"
