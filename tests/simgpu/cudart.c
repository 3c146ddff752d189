/* cudart.c - simulated CUDA runtime (libcudart.so.12/.13, build with -DCUDART=12 or 13)
 * and the few driver entry points (libcuda.so.1) that PyTorch looks up.
 *
 * Device memory is accounted in the shared state and backed by lazily committed host
 * memory. Copies and memsets are real; kernel launches do nothing. Everything is
 * synchronous, also the launch of a CUDA graph. Runtime symbols that PyTorch links to and that are missing here are
 * added by build.py as "not supported". */
#include "simgpu.h"
#include <dlfcn.h>
#include <pthread.h>

#ifndef CUDART
#define CUDART 13
#endif
#include "cudaprop.h"
#define API __attribute__((visibility("default")))
typedef int err_t;
typedef struct { unsigned x, y, z; } dim3_;
typedef struct sim_stream { int prio; uint64_t cap; } *stream_t; /* cap: the capture it is or was part of */
typedef struct { uint64_t ns, cap; int dev; } *event_t;

enum {
    OK = 0, INVALID_VALUE = 1, NO_MEMORY = 2, INIT_ERROR = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, PEER_UNSUPPORTED = 217, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908
};
#define MB (1ull << 20)
#define GRANULE (2 * MB) /* the driver hands out memory in 2 MiB pages */

/* ---------------------------------------------------------------- devices and contexts */

static sim_state *st;
static int n_vis, vis[SIM_MAX_DEV]; /* CUDA ordinal -> NVML index */
static int slice = -1; /* the MIG slice of vis[0] that is our only device, or -1 */
static int init_rc = -1;
static pid_t init_pid;
static uint64_t pool_high[SIM_MAX_DEV]; /* the memory pool's own peak, which cudaMallocAsync's users reset */
static sim_proc *me[SIM_MAX_DEV]; /* by NVML index: our row, once a context exists */
static __thread int cur, last_err, pushed;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

/* A process sees one MIG slice and nothing else, or whole devices. k -1: a device in MIG mode
 * stands for its first slice. */
static void take(int idx, int k)
{
    sim_dev *d = &st->dev[idx];
    for (int i = 0; i < SIM_MAX_SLICE && d->mig_mode && k < 0; i++)
        if (d->slice[i].total) k = i;
    if (slice >= 0 || (d->mig_mode && (k < 0 || n_vis))) return;
    vis[n_vis++] = idx, slice = k;
}

/* CUDA_VISIBLE_DEVICES: indices or UUID prefixes, also of MIG slices; the list ends at the first bad entry. */
static void pick_visible(void)
{
    const char *order = getenv("CUDA_DEVICE_ORDER"), *v = getenv("CUDA_VISIBLE_DEVICES");
    int by_pci = order && !strcmp(order, "PCI_BUS_ID"), ord[SIM_MAX_DEV], n = (int)st->n_dev;
    char buf[512], *tok, *save;
    for (int i = 0; i < n; i++) ord[i] = by_pci ? i : (int)st->cuda_order[i];
    if (!v) {
        for (int i = 0; i < n; i++) take(ord[i], -1);
        return;
    }
    snprintf(buf, sizeof buf, "%s", v);
    for (tok = strtok_r(buf, ",", &save); tok && n_vis < SIM_MAX_DEV; tok = strtok_r(0, ",", &save)) {
        int hit = -1, k = -1;
        char *end;
        while (*tok == ' ') tok++;
        if (!strncmp(tok, "GPU-", 4)) {
            for (int i = 0; i < n; i++)
                if (!strncmp(st->dev[i].uuid, tok, strlen(tok))) hit = i;
        } else if (!strncmp(tok, "MIG-", 4)) {
            for (int i = 0; i < n * SIM_MAX_SLICE; i++) {
                sim_dev *d = &st->dev[i / SIM_MAX_SLICE];
                sim_slice *s = &d->slice[i % SIM_MAX_SLICE];
                char old[80]; /* as drivers before 470 called it */
                snprintf(old, sizeof old, "MIG-%s/%u/0", d->uuid, s->gi);
                if (d->mig_mode && s->total && (!strncmp(s->uuid, tok, strlen(tok)) || !strcmp(old, tok)))
                    hit = i / SIM_MAX_SLICE, k = i % SIM_MAX_SLICE;
            }
        } else {
            long at = strtol(tok, &end, 10);
            if (end != tok && at >= 0 && at < n) hit = ord[at];
        }
        if (hit < 0) break;
        take(hit, k);
    }
}

static void leave(void);
static int init(void)
{
    pthread_mutex_lock(&mu);
    if (init_rc < 0) {
        st = sim_attach();
        if (st) pick_visible(), atexit(leave);
        init_pid = getpid();
        init_rc = n_vis ? OK : NO_DEVICE;
    }
    pthread_mutex_unlock(&mu);
    return init_rc;
}

static sim_dev *dev_of(int ordinal) { return &st->dev[vis[ordinal]]; }
static uint64_t total_of(const sim_dev *d) { return slice < 0 ? d->total - d->reserved : d->slice[slice].total; }
static int sms(const sim_dev *d) { return (int)(slice < 0 ? d->sm_count : d->sm_count * d->slice[slice].g / 7); }

/* Cross-process lock of the accounting; stolen from an owner that died. */
static void lock(void)
{
    uint32_t self = (uint32_t)getpid(), seen;
    pthread_mutex_lock(&mu);
    for (;;) {
        seen = 0;
        if (__atomic_compare_exchange_n(&st->lock, &seen, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
        if (!sim_alive(seen)) __atomic_compare_exchange_n(&st->lock, &seen, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        usleep(20);
    }
}
static void unlock(void)
{
    __atomic_store_n(&st->lock, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mu);
}

static uint64_t free_bytes(sim_dev *d) { return total_of(d) - (slice < 0 ? sim_used(d) : sim_slice_used(d, (uint32_t)slice)); }

/* Add n bytes to our row of the device, or fail when it is full. Call locked. */
static int charge(int idx, uint64_t n)
{
    sim_dev *d = &st->dev[idx];
    if (n > free_bytes(d)) return NO_MEMORY;
    me[idx]->used += n;
    if (me[idx]->used > me[idx]->peak) me[idx]->peak = me[idx]->used;
    if (me[idx]->used > pool_high[idx]) pool_high[idx] = me[idx]->used;
    return OK;
}

/* Create the primary context on first use: this is where the ~500 MB appear. */
static int need_ctx(int ordinal)
{
    int rc = init(), idx;
    if (rc) return rc;
    if (init_pid != getpid()) return INIT_ERROR; /* forked child */
    if (ordinal < 0 || ordinal >= n_vis) return INVALID_DEVICE;
    idx = vis[ordinal];
    if (me[idx]) return OK;
    lock();
    if (!me[idx]) {
        sim_dev *d = &st->dev[idx];
        rc = NO_MEMORY;
        sim_reap(d);
        for (int i = 0; i < SIM_MAX_PROC; i++) {
            sim_proc *p = &d->proc[i];
            if (p->kind) continue;
            *p = (sim_proc){.pid = (uint32_t)getpid(), .kind = 1, .owned = 1, .ctx = 1, .slice = (uint64_t)(slice + 1)};
            me[idx] = p;
            if ((rc = charge(idx, d->ctx_bytes))) memset(p, 0, sizeof *p), me[idx] = NULL;
            break;
        }
    }
    unlock();
    return rc;
}

static void leave(void) /* at exit; a killed process is reaped by the next reader */
{
    if (init_pid != getpid()) return;
    for (int i = 0; i < SIM_MAX_DEV; i++)
        if (me[i]) memset(me[i], 0, sizeof *me[i]), me[i] = NULL;
}

/* Errors are sticky per thread until read, as in the real runtime. */
static err_t ret(int rc)
{
    if (rc) last_err = rc;
    return rc;
}
static int enter(const char *fn, int ctx)
{
    int rc = init();
    if (!rc && ctx) rc = need_ctx(cur);
    if (st) {
        int f = sim_fault_rc(st, fn, n_vis ? vis[cur] : -1);
        if (f) rc = f;
    }
    return rc;
}
#define ENTER(ctx) do { int rc_ = enter(__func__, ctx); if (rc_) return ret(rc_); } while (0)
#define CHECK(c, rc) do { if (!(c)) return ret(rc); } while (0)

/* ---------------------------------------------------------------- stream capture (CUDA graphs)
 *
 * A captured call does not run, it becomes a node. A call that waits for captured work, or that might,
 * fails and spoils the capture, as in the real runtime. */

enum { KERNEL, COPY, SET, HOST };
typedef struct { int op, v; char *d; const char *s; size_t n; void (*f)(void *); void *u; } node;
typedef struct { node *nodes; size_t n; } *graph_t;
static struct capture { struct capture *next; uint64_t id; int mode, spoilt; pthread_t by; stream_t from; graph_t g; } *captures;
static __thread int capture_mode; /* 0 global, 1 thread-local, 2 relaxed */

static struct capture *capture_of(uint64_t id) /* call locked (mu) */
{
    struct capture *c = captures;
    while (c && c->id != id) c = c->next;
    return c;
}
static uint64_t cap_id(stream_t s) { return (uintptr_t)s > 2 ? s->cap : 0; }
static int capturing(uint64_t id) /* 0 no, 1 yes, 2 spoilt: numbers of cudaStreamCaptureStatus */
{
    if (!id || !SIM_LD(captures)) return 0;
    pthread_mutex_lock(&mu);
    struct capture *c = capture_of(id);
    int status = c ? 1 + c->spoilt : 0;
    pthread_mutex_unlock(&mu);
    return status;
}
static int spoil(uint64_t id, int rc)
{
    pthread_mutex_lock(&mu);
    for (struct capture *c = captures; c; c = c->next)
        if (!id || c->id == id) c->spoilt = 1;
    pthread_mutex_unlock(&mu);
    return rc;
}
/* Waiting for a stream that captures (NULL: for the device) is forbidden in every mode. */
static int broken_by_sync(stream_t s)
{
    if (!SIM_LD(captures) || (s && !capturing(cap_id(s)))) return OK;
    return spoil(cap_id(s), CAPTURE_UNSUPPORTED);
}
/* So is, unless relaxed, a call that might wait: allocating, freeing, asking an event. */
static int broken_by_mode(void)
{
    int bad = 0;
    if (!SIM_LD(captures) || capture_mode == 2) return OK;
    pthread_mutex_lock(&mu);
    for (struct capture *c = captures; c; c = c->next)
        if (pthread_equal(c->by, pthread_self()) ? c->mode != 2 : !c->mode && !capture_mode) bad = c->spoilt = 1;
    pthread_mutex_unlock(&mu);
    return bad ? CAPTURE_UNSUPPORTED : OK;
}
/* 0: run it now; 1: it became a node; -1: the capture is spoilt. */
static int record(stream_t s, node x)
{
    uint64_t id = cap_id(s);
    int done = 0;
    if (!id || !SIM_LD(captures)) return 0;
    pthread_mutex_lock(&mu);
    struct capture *c = capture_of(id);
    if (c && c->spoilt) done = -1;
    else if (c) {
        c->g->nodes = realloc(c->g->nodes, (c->g->n + 1) * sizeof x);
        c->g->nodes[c->g->n++] = x, done = 1;
    }
    pthread_mutex_unlock(&mu);
    return done;
}
#define RECORD(s, ...) do { int r_ = record(s, (node){__VA_ARGS__}); if (r_) return r_ < 0 ? ret(CAPTURE_INVALIDATED) : OK; } while (0)
#define UNLESS(rc) do { int rc_ = (rc); if (rc_) return ret(rc_); } while (0)

/* ---------------------------------------------------------------- devices */

API err_t cudaGetDeviceCount(int *n) { *n = 0; ENTER(0); *n = n_vis; return OK; }
API err_t cudaGetDevice(int *d) { ENTER(0); *d = cur; return OK; }
API err_t cudaSetDevice(int d)
{
    ENTER(0);
    CHECK(d >= 0 && d < n_vis, INVALID_DEVICE);
    cur = d; /* since CUDA 12 this also creates the context */
    return ret(need_ctx(d));
}
API err_t cudaDeviceSynchronize(void) { ENTER(1); return ret(broken_by_sync(NULL)); }
API err_t cudaDeviceReset(void) { ENTER(0); return OK; }
API err_t cudaDriverGetVersion(int *v) { init(); *v = st ? (int)st->cuda_version : 0; return OK; }
API err_t cudaRuntimeGetVersion(int *v) { *v = CUDART * 1000; return OK; }
API err_t cudaDeviceCanAccessPeer(int *can, int a, int b) { ENTER(0); (void)a; (void)b; *can = 0; return OK; }
API err_t cudaDeviceEnablePeerAccess(int d, unsigned f) { ENTER(0); (void)d; (void)f; return ret(PEER_UNSUPPORTED); }
API err_t cudaDeviceGetStreamPriorityRange(int *lo, int *hi) { ENTER(1); if (lo) *lo = 0; if (hi) *hi = -5; return OK; }
API err_t cudaDeviceGetPCIBusId(char *s, int n, int d)
{
    ENTER(0);
    CHECK(d >= 0 && d < n_vis, INVALID_DEVICE);
    snprintf(s, (size_t)n, "%s", dev_of(d)->pci + 4); /* 4-digit domain here, 8 in NVML */
    return OK;
}

static void uuid_bytes(const sim_dev *d, unsigned char out[16], int parent)
{
    const char *s = (slice < 0 || parent ? d->uuid : d->slice[slice].uuid) + 4;
    for (int i = 0; i < 16; s += 2) {
        unsigned b;
        if (*s == '-') s++;
        if (sscanf(s, "%2x", &b) != 1) break;
        out[i++] = (unsigned char)b;
    }
}

static err_t props(char *p, int ordinal)
{
    int dom = 0, bus = 0, slot = 0;
    CHECK(ordinal >= 0 && ordinal < n_vis, INVALID_DEVICE);
    sim_dev *d = dev_of(ordinal);
    sscanf(d->pci, "%x:%x:%x", (unsigned *)&dom, (unsigned *)&bus, (unsigned *)&slot);
    memset(p, 0, PROP_SIZE);
    if (slice < 0) strcpy(p, d->name);
    else sim_slice_name(d, (uint32_t)slice, p, 256);
    uuid_bytes(d, (unsigned char *)p + 256, (int)st->mig_parent_uuid);
#define I_(f, o12, o13, v) *(int *)(p + (CUDART >= 13 ? o13 : o12)) = (v);
#define Z_(f, o12, o13, v) *(size_t *)(p + (CUDART >= 13 ? o13 : o12)) = (v);
    PROPS(I_, Z_)
    ((int *)(p + 324))[1] = 1024, ((int *)(p + 324))[2] = 64;
    ((int *)(p + 336))[1] = ((int *)(p + 336))[2] = 65535;
    return OK;
}
#if CUDART >= 13
API err_t cudaGetDeviceProperties(void *p, int d) { ENTER(0); return props(p, d); }
#else
API err_t cudaGetDeviceProperties_v2(void *p, int d) { ENTER(0); return props(p, d); }
#endif

static int attr(int a, const sim_dev *d)
{
    switch (a) { /* numbers are those of cudaDeviceAttr and of CUdevice_attribute */
    case 1: case 2: case 3: return 1024;
    case 4: return 64;
    case 5: return 0x7fffffff;
    case 6: case 7: return 65535;
    case 8: return 49152;
    case 10: return 32;
    case 12: case 82: return 65536;
    case 16: return sms(d);
    case 18: return (int)d->integrated;
    case 31: case 41: case 78: case 83: case 95: case 115: return 1;
    case 39: return 2048;
    case 75: return (int)d->cc_major;
    case 76: return (int)d->cc_minor;
    case 81: return 167936;
    case 97: return 166912;
    case 102: return 1; /* virtual memory management */
    case 106: return 32;
    default: return 0;
    }
}
API err_t cudaDeviceGetAttribute(int *v, int a, int d)
{
    ENTER(0);
    CHECK(d >= 0 && d < n_vis, INVALID_DEVICE);
    *v = attr(a, dev_of(d));
    return OK;
}

/* ---------------------------------------------------------------- errors */

static const struct { int rc; const char *name, *text; } errs[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {804, "cudaErrorCompatNotSupportedOnDevice", "forward compatibility was attempted on non supported HW"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {905, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "cudaErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "cudaErrorUnknown", "unknown error"},
};
static const char *err_text(int rc, int text)
{
    for (size_t i = 0; i < sizeof errs / sizeof *errs; i++)
        if (errs[i].rc == rc) return text ? errs[i].text : errs[i].name;
    return text ? "unrecognized error code" : "cudaErrorUnrecognized";
}
API const char *cudaGetErrorName(err_t e) { return err_text(e, 0); }
API const char *cudaGetErrorString(err_t e) { return err_text(e, 1); }
API err_t cudaGetLastError(void) { err_t e = last_err; last_err = OK; return e; }
API err_t cudaPeekAtLastError(void) { return last_err; }
/* target of the generated stubs */
API err_t simgpu_unsupported(const char *fn)
{
    if (getenv("SIMGPU_VERBOSE")) fprintf(stderr, "simgpu: %s is not simulated\n", fn);
    return ret(NOT_SUPPORTED);
}

/* ---------------------------------------------------------------- memory */

typedef struct { char *p; uint64_t size, charged; int idx, ordinal; } block; /* idx -1: pinned host */
static block *blk;
static size_t n_blk, cap_blk;

static block *find(const void *p)
{
    for (size_t i = 0; i < n_blk; i++)
        if ((const char *)p >= blk[i].p && (const char *)p < blk[i].p + blk[i].size) return &blk[i];
    return NULL;
}
static void add(block b)
{
    if (n_blk == cap_blk) blk = realloc(blk, (cap_blk = cap_blk ? 2 * cap_blk : 64) * sizeof *blk);
    blk[n_blk++] = b;
}
static char *reserve(uint64_t n, int prot)
{
    void *p = mmap(0, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int dev_alloc(void **out, uint64_t n, int ordinal)
{
    int rc = need_ctx(ordinal), idx;
    uint64_t c = (n + GRANULE - 1) / GRANULE * GRANULE;
    if (rc) return rc;
    *out = NULL;
    if (!n) return OK;
    idx = vis[ordinal];
    lock();
    if (c < n) rc = NO_MEMORY;
    else if (!(rc = charge(idx, c))) {
        char *p = reserve(c, PROT_READ | PROT_WRITE);
        if (p) add((block){p, c, c, idx, ordinal}), *out = p, st->dev[idx].n_malloc++;
        else me[idx]->used -= c, rc = NO_MEMORY;
    }
    unlock();
    return rc;
}
static int dev_free(void *p)
{
    int rc = INVALID_VALUE;
    if (!p) return OK;
    lock();
    block *b = find(p);
    if (b && b->p == p) {
        if (b->idx >= 0 && me[b->idx]) me[b->idx]->used -= b->charged, st->dev[b->idx].n_free++;
        munmap(b->p, b->size);
        *b = blk[--n_blk];
        rc = OK;
    }
    unlock();
    return rc;
}

API err_t cudaMalloc(void **p, size_t n) { ENTER(1); UNLESS(broken_by_mode()); CHECK(p, INVALID_VALUE); return ret(dev_alloc(p, n, cur)); }
API err_t cudaFree(void *p) { ENTER(1); UNLESS(broken_by_mode()); return ret(dev_free(p)); }
API err_t cudaMallocAsync(void **p, size_t n, stream_t s) { ENTER(1); (void)s; return ret(dev_alloc(p, n, cur)); }
API err_t cudaFreeAsync(void *p, stream_t s) { ENTER(1); (void)s; return ret(dev_free(p)); }
API err_t cudaMemGetInfo(size_t *f, size_t *t)
{
    ENTER(1);
    sim_dev *d = dev_of(cur);
    *f = free_bytes(d), *t = total_of(d);
    return OK;
}
API err_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    ENTER(1); UNLESS(broken_by_mode()); (void)flags;
    if (!(*p = n ? reserve(n, PROT_READ | PROT_WRITE) : NULL) && n) return ret(NO_MEMORY);
    pthread_mutex_lock(&mu);
    if (n) add((block){*p, n, 0, -1, cur});
    pthread_mutex_unlock(&mu);
    return OK;
}
API err_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
API err_t cudaFreeHost(void *p) { ENTER(1); UNLESS(broken_by_mode()); return ret(dev_free(p)); }
API err_t cudaHostRegister(void *p, size_t n, unsigned f) { ENTER(1); (void)p; (void)n; (void)f; return OK; }
API err_t cudaHostUnregister(void *p) { ENTER(1); (void)p; return OK; }
API err_t cudaHostGetDevicePointer(void **d, void *h, unsigned f) { ENTER(1); (void)f; *d = h; return OK; }

typedef struct { int type, device; void *dev, *host; } ptr_attr; /* 13 appends long reserved[8] */
API err_t cudaPointerGetAttributes(ptr_attr *a, const void *p)
{
    ENTER(0);
    memset(a, 0, CUDART >= 13 ? 88 : 24);
    a->device = -1, a->host = (void *)p;
    pthread_mutex_lock(&mu);
    block *b = find(p);
    if (b) a->type = b->idx < 0 ? 1 : 2, a->device = b->ordinal, a->dev = (void *)p, a->host = b->idx < 0 ? (void *)p : NULL;
    pthread_mutex_unlock(&mu);
    return OK;
}

/* Kernels do not run, so what they should have written is stale. Scalars read back after a
 * launch steer the host (counts of nonzero(), .item(), printing), so a device-to-host copy of
 * up to 8 bytes gives zero, unless its source was copied or set since the last launch. */
static struct { const char *p; size_t n; } fresh[256];
static unsigned n_fresh, launched;
static void written(const void *p, size_t n)
{
    fresh[n_fresh % 256].p = p, fresh[n_fresh++ % 256].n = n;
}
static int stale(const void *d, const char *s, size_t n)
{
    int old = 0;
    pthread_mutex_lock(&mu);
    block *from = find(s), *to = find(d);
    if (n <= 8 && launched && from && from->idx >= 0 && (!to || to->idx < 0)) {
        old = 1;
        for (unsigned i = 0; i < n_fresh && i < 256; i++)
            if (s >= fresh[i].p && s + n <= fresh[i].p + fresh[i].n) old = 0;
    }
    if (!old && to && to->idx >= 0) written(d, n);
    pthread_mutex_unlock(&mu);
    return old;
}
static err_t copy(void *d, const void *s, size_t n)
{
    if (stale(d, s, n)) memset(d, 0, n);
    else memmove(d, s, n);
    return OK;
}
/* Zeroing a large range gives its pages back, so huge zeroed tensors cost no host memory. */
static err_t set(char *p, int v, size_t n)
{
    uintptr_t a = ((uintptr_t)p + 4095) & ~4095ul, e = ((uintptr_t)p + n) & ~4095ul;
    pthread_mutex_lock(&mu);
    written(p, n);
    pthread_mutex_unlock(&mu);
    if (v || n < MB || madvise((void *)a, e - a, MADV_DONTNEED)) return memset(p, v, n), OK;
    memset(p, 0, a - (uintptr_t)p);
    memset((void *)e, 0, (uintptr_t)p + n - e);
    return OK;
}
API err_t cudaMemcpy(void *d, const void *s, size_t n, int k) { ENTER(1); (void)k; return copy(d, s, n); }
API err_t cudaMemcpyAsync(void *d, const void *s, size_t n, int k, stream_t q) { ENTER(1); (void)k; RECORD(q, .op = COPY, .d = d, .s = s, .n = n); return copy(d, s, n); }
API err_t cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, stream_t q) { ENTER(1); (void)dd; (void)sd; RECORD(q, .op = COPY, .d = d, .s = s, .n = n); return copy(d, s, n); }
API err_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int k, stream_t q)
{
    ENTER(1); (void)k;
    for (size_t i = 0; i < h; i++) {
        char *to = (char *)d + i * dp;
        const char *from = (const char *)s + i * sp;
        int r = record(q, (node){.op = COPY, .d = to, .s = from, .n = w});
        CHECK(r >= 0, CAPTURE_INVALIDATED);
        if (!r) copy(to, from, w);
    }
    return OK;
}
API err_t cudaMemset(void *p, int v, size_t n) { ENTER(1); return set(p, v, n); }
API err_t cudaMemsetAsync(void *p, int v, size_t n, stream_t q) { ENTER(1); RECORD(q, .op = SET, .v = v, .d = p, .n = n); return set(p, v, n); }

/* one pool per device, without any caching of its own */
API err_t cudaDeviceGetDefaultMemPool(void **p, int d) { ENTER(0); *p = (void *)(uintptr_t)(d + 1); return OK; }
API err_t cudaMemPoolSetAccess(void *p, const void *d, size_t n) { ENTER(0); (void)p; (void)d; (void)n; return OK; }
API err_t cudaMemPoolSetAttribute(void *p, int a, void *v)
{
    ENTER(0);
    int idx = vis[(uintptr_t)p - 1];
    if ((a == 6 || a == 8) && !*(uint64_t *)v && me[idx]) pool_high[idx] = me[idx]->used;
    return OK;
}
API err_t cudaMemPoolTrimTo(void *p, size_t n) { ENTER(0); (void)p; (void)n; return OK; }
API err_t cudaMemPoolGetAttribute(void *p, int a, void *v)
{
    ENTER(1);
    sim_proc *q = me[vis[(uintptr_t)p - 1]];
    sim_dev *d = dev_of((int)(uintptr_t)p - 1);
    if (a < 4) *(int *)v = 1;
    else *(uint64_t *)v = !q || a == 4 ? 0 : (a == 6 || a == 8 ? pool_high[vis[(uintptr_t)p - 1]] : q->used) - d->ctx_bytes;
    return OK;
}

/* ---------------------------------------------------------------- streams and events */

static err_t new_stream(stream_t *s, int prio) { *s = calloc(1, sizeof **s); (*s)->prio = prio; return OK; }
API err_t cudaStreamCreate(stream_t *s) { ENTER(1); return new_stream(s, 0); }
API err_t cudaStreamCreateWithFlags(stream_t *s, unsigned f) { ENTER(1); (void)f; return new_stream(s, 0); }
API err_t cudaStreamCreateWithPriority(stream_t *s, unsigned f, int prio) { ENTER(1); (void)f; return new_stream(s, prio); }
API err_t cudaStreamDestroy(stream_t s) { ENTER(1); if ((uintptr_t)s > 2) free(s); return OK; }
API err_t cudaStreamQuery(stream_t s) { ENTER(1); return s ? ret(broken_by_sync(s)) : OK; }
API err_t cudaStreamSynchronize(stream_t s) { ENTER(1); return s ? ret(broken_by_sync(s)) : OK; }
API err_t cudaStreamWaitEvent(stream_t s, event_t e, unsigned f)
{
    ENTER(1); (void)f;
    if (capturing(e->cap) && (uintptr_t)s > 2) s->cap = e->cap; /* forks from the capture, or joins it */
    else if (e->ns && capturing(cap_id(s))) return ret(spoil(cap_id(s), CAPTURE_ISOLATION));
    return OK;
}
API err_t cudaStreamGetPriority(stream_t s, int *p) { ENTER(1); *p = (uintptr_t)s > 2 ? s->prio : 0; return OK; }
API err_t cudaStreamAddCallback(stream_t s, void (*f)(stream_t, err_t, void *), void *u, unsigned fl) { ENTER(1); (void)fl; f(s, OK, u); return OK; }
API err_t cudaLaunchHostFunc(stream_t s, void (*f)(void *), void *u) { ENTER(1); RECORD(s, .op = HOST, .f = f, .u = u); f(u); return OK; }

static int captured(event_t e) { return e->cap ? spoil(e->cap, CAPTURED_EVENT) : OK; }
API err_t cudaEventCreateWithFlags(event_t *e, unsigned f) { ENTER(1); (void)f; *e = calloc(1, sizeof **e); (*e)->dev = cur; return OK; }
API err_t cudaEventCreate(event_t *e) { return cudaEventCreateWithFlags(e, 0); }
API err_t cudaEventDestroy(event_t e) { ENTER(1); free(e); return OK; }
API err_t cudaEventRecord(event_t e, stream_t s) { ENTER(1); e->cap = capturing(cap_id(s)) ? cap_id(s) : 0; e->ns = sim_now_ns(); return OK; }
API err_t cudaEventRecordWithFlags(event_t e, stream_t s, unsigned f) { (void)f; return cudaEventRecord(e, s); }
API err_t cudaEventQuery(event_t e) { ENTER(1); UNLESS(broken_by_mode()); UNLESS(captured(e)); return OK; }
API err_t cudaEventSynchronize(event_t e) { ENTER(1); UNLESS(captured(e)); return OK; }
API err_t cudaEventElapsedTime(float *ms, event_t a, event_t b)
{
    ENTER(1);
    CHECK(a->ns && b->ns && !a->cap && !b->cap, INVALID_HANDLE);
    *ms = (float)((double)(int64_t)(b->ns - a->ns) / 1e6);
    return OK;
}

/* ---------------------------------------------------------------- code: registered, never run */

static __thread struct { dim3_ g, b; size_t shm; stream_t s; } conf[8];
static err_t launch(const char *fn, stream_t s)
{
    int rc = enter(fn, 1);
    if (!rc) RECORD(s, .op = KERNEL);
    if (!rc) SIM_INC(dev_of(cur)->n_launch), launched = 1, n_fresh = 0;
    return ret(rc);
}
API err_t simgpu_launch(stream_t s) { return launch("cudaLaunchKernel", s); } /* for the stubs of cuBLAS */
API void **__cudaRegisterFatBinary(void *f) { static void *h; (void)f; return &h; }
API void __cudaRegisterFatBinaryEnd(void **h) { (void)h; }
API void __cudaUnregisterFatBinary(void **h) { (void)h; }
API char __cudaInitModule(void **h) { (void)h; return 1; }
API void __cudaRegisterFunction(void **h, const char *f, char *df, const char *n, int l, void *a, void *b, void *c, void *d, int *w)
{ (void)h; (void)f; (void)df; (void)n; (void)l; (void)a; (void)b; (void)c; (void)d; (void)w; }

static struct var { struct var *next; const void *host; size_t size; void *dev; } *vars;
API void __cudaRegisterVar(void **h, char *host, char *a, const char *n, int e, size_t size, int c, int g)
{
    (void)h; (void)a; (void)n; (void)e; (void)c; (void)g;
    struct var *v = malloc(sizeof *v);
    *v = (struct var){vars, host, size, NULL};
    vars = v;
}
static void *var_addr(const void *host)
{
    for (struct var *v = vars; v; v = v->next)
        if (v->host == host) return v->dev ? v->dev : (v->dev = calloc(1, v->size));
    return NULL;
}
API err_t cudaGetSymbolAddress(void **p, const void *sym) { ENTER(1); *p = var_addr(sym); return *p ? OK : ret(13); }
API err_t cudaMemcpyToSymbol(const void *sym, const void *s, size_t n, size_t off, int k)
{
    ENTER(1); (void)k;
    char *p = var_addr(sym);
    CHECK(p, 13);
    memcpy(p + off, s, n);
    return OK;
}
API unsigned __cudaPushCallConfiguration(dim3_ g, dim3_ b, size_t shm, stream_t s)
{
    if (pushed >= 8) return 1;
    conf[pushed].g = g, conf[pushed].b = b, conf[pushed].shm = shm, conf[pushed++].s = s;
    return 0;
}
API err_t __cudaPopCallConfiguration(dim3_ *g, dim3_ *b, size_t *shm, void *s)
{
    CHECK(pushed > 0, INVALID_VALUE);
    pushed--;
    *g = conf[pushed].g, *b = conf[pushed].b, *shm = conf[pushed].shm, *(stream_t *)s = conf[pushed].s;
    return OK;
}
API err_t __cudaGetKernel(const void **k, const void *f) { *k = f; return OK; }
API err_t __cudaLaunchKernel(const void *k, dim3_ g, dim3_ b, void **a, size_t m, stream_t s) { (void)k; (void)g; (void)b; (void)a; (void)m; return launch("cudaLaunchKernel", s); }
API err_t cudaLaunchKernel(const void *k, dim3_ g, dim3_ b, void **a, size_t m, stream_t s) { (void)k; (void)g; (void)b; (void)a; (void)m; return launch("cudaLaunchKernel", s); }
API err_t cudaLaunchCooperativeKernel(const void *k, dim3_ g, dim3_ b, void **a, size_t m, stream_t s) { (void)k; (void)g; (void)b; (void)a; (void)m; return launch("cudaLaunchKernel", s); }
API err_t cudaLaunchKernelExC(const void *c, const void *k, void **a) { (void)k; (void)a; return launch("cudaLaunchKernel", *(stream_t *)((char *)c + 32)); }
API err_t cudaFuncGetAttributes(void *a, const void *f) /* all int-sized limits we need sit at 24.. */
{
    ENTER(1); (void)f;
    memset(a, 0, 144);
    int *i = (int *)((char *)a + 24);
    i[0] = 1024, i[1] = 32, i[2] = i[3] = 80, i[5] = 49152;
    return OK;
}
API err_t cudaFuncSetAttribute(const void *f, int a, int v) { ENTER(1); (void)f; (void)a; (void)v; return OK; }
API err_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t m) { ENTER(1); (void)f; (void)m; *n = b > 0 && b <= 2048 ? 2048 / b : 1; return OK; }
API err_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t m, unsigned fl) { (void)fl; return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, b, m); }

/* ---------------------------------------------------------------- graphs */

API err_t cudaStreamBeginCapture(stream_t s, int mode)
{
    static uint64_t last;
    ENTER(1);
    CHECK((uintptr_t)s > 2, CAPTURE_UNSUPPORTED);
    CHECK(!capturing(s->cap), ILLEGAL_STATE);
    struct capture *c = calloc(1, sizeof *c);
    c->mode = mode, c->by = pthread_self(), c->from = s, c->g = calloc(1, sizeof *c->g);
    pthread_mutex_lock(&mu);
    s->cap = c->id = ++last, c->next = captures;
    __atomic_store_n(&captures, c, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mu);
    return OK;
}
API err_t cudaStreamEndCapture(stream_t s, graph_t *g)
{
    ENTER(1);
    *g = NULL;
    pthread_mutex_lock(&mu);
    struct capture **at = &captures, *c;
    while ((c = *at) && (c->id != cap_id(s) || c->from != s)) at = &c->next;
    int rc = !c ? ILLEGAL_STATE : c->mode != 2 && !pthread_equal(c->by, pthread_self()) ? CAPTURE_WRONG_THREAD : OK;
    if (!rc) __atomic_store_n(at, c->next, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mu);
    if (rc) return ret(rc);
    if (c->spoilt) free(c->g->nodes), free(c->g), rc = CAPTURE_INVALIDATED;
    else *g = c->g;
    free(c);
    return ret(rc);
}
API err_t cudaStreamIsCapturing(stream_t s, int *c) { ENTER(0); *c = capturing(cap_id(s)); return OK; }
static err_t capture_info(stream_t s, int *c, unsigned long long *id, void **g)
{
    *c = capturing(cap_id(s));
    if (id) *id = *c == 1 ? cap_id(s) : 0;
    if (g) *g = NULL;
    return OK;
}
#if CUDART >= 13
API err_t cudaStreamGetCaptureInfo(stream_t s, int *c, unsigned long long *id, void **g, void **deps, void **edges, size_t *n)
{
    ENTER(0);
    if (deps) *deps = NULL;
    if (edges) *edges = NULL;
    if (n) *n = 0;
    return capture_info(s, c, id, g);
}
#else
API err_t cudaStreamGetCaptureInfo_v2(stream_t s, int *c, unsigned long long *id, void **g, void **deps, size_t *n)
{
    ENTER(0);
    if (deps) *deps = NULL;
    if (n) *n = 0;
    return capture_info(s, c, id, g);
}
#endif
API err_t cudaThreadExchangeStreamCaptureMode(int *m)
{
    int was = capture_mode;
    ENTER(0);
    capture_mode = *m, *m = was;
    return OK;
}

static graph_t copy_graph(graph_t g)
{
    graph_t c = malloc(sizeof *c);
    *c = *g, c->nodes = malloc(g->n * sizeof *g->nodes + 1);
    return memcpy(c->nodes, g->nodes, g->n * sizeof *g->nodes), c;
}
static err_t drop(graph_t g) { free(g->nodes), free(g); return OK; }
API err_t cudaGraphInstantiateWithFlags(graph_t *x, graph_t g, unsigned long long f) { ENTER(1); (void)f; *x = copy_graph(g); return OK; }
API err_t cudaGraphInstantiate(graph_t *x, graph_t g, unsigned long long f) { return cudaGraphInstantiateWithFlags(x, g, f); }
API err_t cudaGraphGetNodes(graph_t g, void **nodes, size_t *n)
{
    ENTER(0);
    for (size_t i = 0; nodes && i < *n; i++) nodes[i] = i < g->n ? &g->nodes[i] : NULL;
    *n = g->n;
    return OK;
}
API err_t cudaGraphDestroy(graph_t g) { ENTER(1); return drop(g); }
API err_t cudaGraphExecDestroy(graph_t x) { ENTER(1); return drop(x); }
API err_t cudaGraphLaunch(graph_t x, stream_t s) /* copies and memsets are real here too */
{
    ENTER(1);
    if (capturing(cap_id(s))) return ret(spoil(cap_id(s), CAPTURE_UNSUPPORTED)); /* no child graphs */
    for (size_t i = 0; i < x->n; i++) {
        node *q = &x->nodes[i];
        int known = q->op != COPY && q->op != SET;
        pthread_mutex_lock(&mu);
        if (!known) known = find(q->d) && (q->op == SET || find(q->s));
        pthread_mutex_unlock(&mu);
        CHECK(known, ILLEGAL_ADDRESS); /* freed since */
        if (q->op == KERNEL) SIM_INC(dev_of(cur)->n_launch), launched = 1, n_fresh = 0;
        else if (q->op == COPY) copy(q->d, q->s, q->n);
        else if (q->op == SET) set(q->d, q->v, q->n);
        else q->f(q->u);
    }
    return OK;
}
API err_t cudaProfilerStart(void) { return OK; }
API err_t cudaProfilerStop(void) { return OK; }

/* ---------------------------------------------------------------- driver API (libcuda.so.1) */

API int cuInit(unsigned f) { (void)f; return init(); }
API int cuDriverGetVersion(int *v) { return cudaDriverGetVersion(v); }
API int cuDeviceGetCount(int *n) { *n = n_vis; return init_rc < 0 ? 3 /* not initialized: it does not do so itself */ : init_rc; }
API int cuDeviceGet(int *d, int i) { *d = i; return i >= 0 && i < n_vis ? OK : INVALID_DEVICE; }
API int cuDeviceGetAttribute(int *v, int a, int d) { int rc = init(); if (!rc) *v = attr(a, dev_of(d)); return rc; }
API int cuDeviceGetName(char *s, int n, int d) { int rc = init(); if (!rc && slice >= 0) sim_slice_name(dev_of(d), (uint32_t)slice, s, (size_t)n); else if (!rc) snprintf(s, (size_t)n, "%s", dev_of(d)->name); return rc; }
API int cuDeviceTotalMem_v2(size_t *n, int d) { int rc = init(); if (!rc) *n = total_of(dev_of(d)); return rc; }
API int cuDeviceGetUuid(unsigned char *u, int d) { int rc = init(); if (!rc) uuid_bytes(dev_of(d), u, 1); return rc; }
API int cuDeviceGetUuid_v2(unsigned char *u, int d) { int rc = init(); if (!rc) uuid_bytes(dev_of(d), u, 0); return rc; }
API int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *active)
{
    int rc = init();
    *f = 0, *active = !rc && d < n_vis && me[vis[d]];
    return rc;
}
API int cuDevicePrimaryCtxRetain(void **c, int d) { int rc = need_ctx(d); *c = (void *)(uintptr_t)(d + 1); return rc; }
API int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; return OK; }
API int cuCtxGetCurrent(void **c) { *c = n_vis && me[vis[cur]] ? (void *)(uintptr_t)(cur + 1) : NULL; return OK; }
API int cuCtxSetCurrent(void *c) { if (c) cur = (int)(uintptr_t)c - 1; return OK; }
API int cuCtxGetDevice(int *d) { *d = cur; return OK; }
API int cuGetErrorString(int rc, const char **s) { *s = err_text(rc, 1); return OK; }
API int cuGetErrorName(int rc, const char **s) { *s = err_text(rc, 0); return OK; }
API int cuMemGetInfo_v2(size_t *f, size_t *t) { return cudaMemGetInfo(f, t); }
API int cuMemAlloc_v2(void **p, size_t n) { return enter("cuMemAlloc", 1) ?: dev_alloc(p, n, cur); }
API int cuMemFree_v2(void *p) { return dev_free(p); }
API int cuMemGetAddressRange_v2(void **base, size_t *n, void *p)
{
    pthread_mutex_lock(&mu);
    block *b = find(p);
    if (b && base) *base = b->p;
    if (b && n) *n = b->size;
    pthread_mutex_unlock(&mu);
    return b ? OK : INVALID_VALUE;
}

/* Virtual memory management, for PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True */
typedef struct { uint64_t size; int idx, refs; } phys;
typedef struct { int type, handle_types, loc_type, loc_id; } mem_prop;
static struct map { struct map *next; char *p; phys *h; } *maps;

static void phys_put(phys *h)
{
    if (--h->refs) return;
    if (me[h->idx]) me[h->idx]->used -= h->size;
    free(h);
}
API int cuMemGetAllocationGranularity(size_t *g, const mem_prop *p, int o) { (void)p; (void)o; *g = GRANULE; return OK; }
API int cuMemAddressReserve(char **p, size_t n, size_t align, void *hint, unsigned long long f)
{
    (void)align; (void)hint; (void)f;
    if (!(*p = reserve(n, PROT_NONE))) return NO_MEMORY;
    pthread_mutex_lock(&mu);
    add((block){*p, n, 0, cur < n_vis ? vis[cur] : 0, cur});
    pthread_mutex_unlock(&mu);
    return OK;
}
API int cuMemAddressFree(char *p, size_t n) { (void)n; return dev_free(p); }
API int cuMemCreate(phys **h, size_t n, const mem_prop *p, unsigned long long f)
{
    int rc = enter(__func__, 0) ?: need_ctx(p->loc_id), idx;
    (void)f;
    if (rc) return rc;
    idx = vis[p->loc_id];
    lock();
    if (!(rc = charge(idx, n))) *h = malloc(sizeof **h), **h = (phys){n, idx, 1};
    unlock();
    return rc;
}
API int cuMemRelease(phys *h) { lock(); phys_put(h); unlock(); return OK; }
API int cuMemMap(char *p, size_t n, size_t off, phys *h, unsigned long long f)
{
    (void)off; (void)f;
    lock();
    struct map *m = malloc(sizeof *m);
    *m = (struct map){maps, p, h};
    maps = m, h->refs++;
    mprotect(p, n, PROT_READ | PROT_WRITE);
    unlock();
    return OK;
}
API int cuMemSetAccess(char *p, size_t n, const void *d, size_t k) { (void)p; (void)n; (void)d; (void)k; return OK; }
API int cuMemUnmap(char *p, size_t n)
{
    lock();
    for (struct map **m = &maps; *m;) {
        struct map *q = *m;
        if (q->p >= p && q->p < p + n) *m = q->next, phys_put(q->h), free(q);
        else m = &q->next;
    }
    madvise(p, n, MADV_DONTNEED);
    mprotect(p, n, PROT_NONE);
    unlock();
    return OK;
}

/* Hand out our own cu* functions; anything else is "found" but answers "not supported". */
static int no_driver_fn(void) { return NOT_SUPPORTED; }
#define UNSUPPORTED(name) API int name(void) { return NOT_SUPPORTED; }
UNSUPPORTED(cuMemExportToShareableHandle) /* torch up to 2.8 looks these up with dlsym */
UNSUPPORTED(cuMemImportFromShareableHandle)
UNSUPPORTED(cuMemGetHandleForAddressRange)
UNSUPPORTED(cuMemsetD32Async)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuStreamWriteValue32)
static err_t entry_point(const char *name, void **fn, int *status)
{
    Dl_info self;
    char v2[96];
    void *h = dladdr((void *)entry_point, &self) ? dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    snprintf(v2, sizeof v2, "%s_v2", name);
    *fn = h ? dlsym(h, name) ?: dlsym(h, v2) : NULL;
    if (!*fn) *fn = (void *)no_driver_fn;
    if (h) dlclose(h);
    if (status) *status = 0;
    return OK;
}
API err_t cudaGetDriverEntryPointByVersion(const char *n, void **fn, unsigned v, unsigned long long fl, int *q) { (void)v; (void)fl; return entry_point(n, fn, q); }
API err_t cudaGetDriverEntryPoint(const char *n, void **fn, unsigned long long fl, int *q) { (void)fl; return entry_point(n, fn, q); }
API int cuGetProcAddress_v2(const char *n, void **fn, int v, uint64_t fl, int *q) { (void)v; (void)fl; return entry_point(n, fn, q); }
