/* simgpu.h - state shared by the simulated NVML and the simulated CUDA runtime.
 *
 * The state is one mmap'ed file, named by $SIMGPU_STATE: a memory file of the test's
 * process, so nothing is left on disk however that process ends. Every simulated process
 * and every test maps it, so a plain 8-byte store changes what the next NVML call
 * reports, in any process, with no call and no lock.
 * $SIMGPU_STATE unset, or its owner gone, means "no driver on this machine".
 *
 * The Python mirror of these structs is in __init__.py; `size` guards against drift. */
#ifndef SIMGPU_H
#define SIMGPU_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SIM_MAGIC 0x31555047u /* "GPU1" */
enum { SIM_MAX_DEV = 8, SIM_MAX_PROC = 32, SIM_MAX_STEP = 64, SIM_MAX_FAULT = 16, SIM_MAX_SLICE = 7 };

typedef struct {
    uint32_t pid;
    uint32_t kind;  /* 0 free slot, 1 compute, 2 graphics */
    uint32_t owned; /* 1: made by the fake CUDA runtime, dropped when the pid dies */
    uint32_t ctx;   /* 1: a primary context exists */
    uint64_t used;  /* bytes, context included */
    uint64_t peak;  /* ground truth for tests: highest `used` so far */
    uint64_t slice; /* 1 + the MIG slice it runs in, 0: the whole device */
} sim_proc;

typedef struct {
    uint64_t at;   /* script mode 1: microseconds since script_t0; 2: memory reads since script_t0 */
    uint64_t used; /* value of base_used from then on */
} sim_step;

typedef struct { /* MIG: one GPU instance with one compute instance */
    char uuid[48];
    uint64_t total, base_used; /* total 0: an empty slot */
    uint32_t gi, g;            /* id of the GPU instance; sevenths of the device */
} sim_slice;

typedef struct {
    char name[96], uuid[48], pci[32];
    uint64_t total, reserved; /* as in nvmlMemory_v2_t */
    uint64_t base_used;       /* other tenants, not listed as processes */
    uint64_t ctx_bytes;       /* what one CUDA context costs */
    uint64_t energy_mj, energy_t0_ns; /* energy = energy_mj + power * (now - t0) */
    uint64_t load_t0;                 /* CLOCK_MONOTONIC in ns: where `load` starts */
    uint64_t script_t0;               /* mode 1: CLOCK_MONOTONIC in ns; 2: n_meminfo at the start */
    uint64_t n_meminfo;               /* NVML memory reads so far */
    uint64_t n_launch, n_malloc, n_free;
    uint32_t cc_major, cc_minor, sm_count, temp_c;
    uint32_t util_gpu, util_mem, power_mw, power_limit_mw;
    uint32_t lost, n_step, script_mode /* 0: off */;
    uint32_t n_load;         /* 0: util_gpu all the time */
    uint32_t sample_us;      /* period of nvmlDeviceGetSamples; 0: its buffer stays empty */
    uint32_t energy_step_ms; /* the energy counter moves only this often; 0: continuously */
    uint32_t integrated;     /* unified memory: NVML does not know the device's memory */
    uint32_t mig_mode;
    sim_step step[SIM_MAX_STEP], load[SIM_MAX_STEP]; /* load: `used` is a percentage */
    sim_slice slice[SIM_MAX_SLICE];
    sim_proc proc[SIM_MAX_PROC];
} sim_dev;

typedef struct {
    char fn[56];          /* exact function name, or a prefix ending in '*'; "" = slot off */
    int32_t dev;          /* -1: any device */
    int32_t rc;           /* error code to return; -1: only delay */
    uint32_t skip, count; /* let `skip` calls pass, then hit `count` calls (0: all) */
    uint32_t delay_us, hits;
} sim_fault;

typedef struct {
    uint32_t magic, size, n_dev, lock;
    int32_t pid_offset;   /* container: NVML shows host pids, pid + offset */
    uint32_t proc_mem_na; /* WSL/WDDM: process memory is NVML_VALUE_NOT_AVAILABLE */
    uint32_t n_fault;     /* fault slots in use (fast path when 0) */
    uint32_t cuda_version;
    uint32_t in_flight_at_shutdown; /* how often nvmlShutdown came while another thread was in the library */
    uint32_t mig_parent_uuid; /* older CUDA: in a MIG slice, cudaDeviceProp.uuid is the whole device's */
    char driver_version[32];
    uint32_t cuda_order[SIM_MAX_DEV]; /* CUDA's FASTEST_FIRST order, as NVML indices */
    sim_fault fault[SIM_MAX_FAULT];
    sim_dev dev[SIM_MAX_DEV];
} sim_state;

#define SIM_LD(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define SIM_INC(x) __atomic_add_fetch(&(x), 1, __ATOMIC_RELAXED)

static inline uint64_t sim_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sim_defaults(sim_state *s)
{
    const char *n = getenv("SIMGPU_DEVICES"), *mb = getenv("SIMGPU_MEM_MB");
    s->n_dev = n ? (uint32_t)atoi(n) : 1;
    if (s->n_dev > SIM_MAX_DEV) s->n_dev = SIM_MAX_DEV;
    s->cuda_version = 13000;
    strcpy(s->driver_version, "580.65.06");
    for (uint32_t i = 0; i < SIM_MAX_DEV; i++) {
        sim_dev *d = &s->dev[i];
        s->cuda_order[i] = i;
        snprintf(d->name, sizeof d->name, "NVIDIA SimGPU 16GB");
        snprintf(d->uuid, sizeof d->uuid, "GPU-51606770-75%02x-4000-8000-00000000%04x", i, i);
        snprintf(d->pci, sizeof d->pci, "00000000:%02X:00.0", 0x17 + 8 * i);
        d->total = (mb ? strtoull(mb, 0, 10) : 16384) << 20;
        d->reserved = d->total / 32;
        d->ctx_bytes = 500u << 20;
        d->cc_major = 8, d->cc_minor = 0, d->sm_count = 108;
        d->temp_c = 35, d->power_mw = 60000, d->power_limit_mw = 300000;
        d->energy_mj = 1000000, d->energy_t0_ns = sim_now_ns(), d->sample_us = 166667;
    }
    s->size = sizeof *s;
    __atomic_store_n(&s->magic, SIM_MAGIC, __ATOMIC_RELEASE);
}

/* Map the state, filling the file on first use. NULL: no driver. */
static sim_state *sim_attach(void)
{
    static sim_state *st;
    sim_state *s = __atomic_load_n(&st, __ATOMIC_ACQUIRE);
    const char *path = getenv("SIMGPU_STATE");
    struct stat sb;
    int fd;
    if (s || !path || !*path) return s;
    if ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0) return NULL;
    flock(fd, LOCK_EX);
    int fresh = fstat(fd, &sb) == 0 && sb.st_size == 0 && ftruncate(fd, sizeof *s) == 0;
    void *m = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m != MAP_FAILED) {
        s = m;
        if (fresh) sim_defaults(s);
        if (s->magic == SIM_MAGIC && s->size == sizeof *s) __atomic_store_n(&st, s, __ATOMIC_RELEASE);
        else s = NULL, fputs("simgpu: state file of another version\n", stderr);
    }
    flock(fd, LOCK_UN); /* explicitly: the mapping keeps the open file alive */
    close(fd);
    return s;
}

/* A zombie has released its GPU memory, as far as the driver is concerned. */
static inline int sim_alive(uint32_t pid)
{
    char p[32], buf[256], *q;
    if (pid == (uint32_t)getpid()) return 1;
    snprintf(p, sizeof p, "/proc/%u/stat", pid);
    int fd = open(p, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, buf, sizeof buf - 1);
    close(fd);
    if (n <= 0) return 0;
    buf[n] = 0;
    return (q = strrchr(buf, ')')) && q[2] != 'Z' && q[2] != 'X';
}

static inline void sim_reap(sim_dev *d)
{
    for (int i = 0; i < SIM_MAX_PROC; i++) {
        sim_proc *p = &d->proc[i];
        uint32_t pid = SIM_LD(p->pid);
        if (!SIM_LD(p->kind) || !p->owned || sim_alive(pid)) continue;
        /* several readers may get here: the one that clears the pid frees the slot */
        if (!__atomic_compare_exchange_n(&p->pid, &pid, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
        p->used = p->peak = p->slice = 0, p->owned = p->ctx = 0;
        __atomic_store_n(&p->kind, 0, __ATOMIC_RELEASE);
    }
}

/* Memory in use on the device, without `reserved`. */
static inline uint64_t sim_used(sim_dev *d)
{
    uint64_t u = SIM_LD(d->base_used);
    uint32_t mode = SIM_LD(d->script_mode);
    if (mode) {
        uint64_t now = mode == 1 ? sim_now_ns() : SIM_LD(d->n_meminfo), at = now - d->script_t0;
        if (mode == 1) at = (int64_t)at < 0 ? 0 : at / 1000;
        for (uint32_t i = 0; i < d->n_step && i < SIM_MAX_STEP && d->step[i].at <= at; i++) u = d->step[i].used;
    }
    sim_reap(d);
    for (int i = 0; i < SIM_MAX_PROC; i++)
        if (SIM_LD(d->proc[i].kind)) u += SIM_LD(d->proc[i].used);
    for (int i = 0; i < SIM_MAX_SLICE && d->mig_mode; i++) u += SIM_LD(d->slice[i].base_used);
    return u < d->total - d->reserved ? u : d->total - d->reserved;
}

/* Memory in use in MIG slice k. */
static inline uint64_t sim_slice_used(sim_dev *d, uint32_t k)
{
    const sim_slice *s = &d->slice[k];
    uint64_t u = SIM_LD(s->base_used);
    sim_reap(d);
    for (int i = 0; i < SIM_MAX_PROC; i++)
        if (SIM_LD(d->proc[i].kind) && d->proc[i].slice == k + 1) u += SIM_LD(d->proc[i].used);
    return u < s->total ? u : s->total;
}

/* What NVIDIA calls the slice: "... MIG 1g.5gb". */
static inline void sim_slice_name(const sim_dev *d, uint32_t k, char *out, size_t n)
{
    const sim_slice *s = &d->slice[k];
    snprintf(out, n, "%s MIG %ug.%llugb", d->name, s->g, (unsigned long long)(s->total + (1u << 29)) >> 30);
}

/* Percentage of utilization at a time of CLOCK_MONOTONIC. */
static inline uint32_t sim_util(const sim_dev *d, uint64_t ns)
{
    uint32_t n = SIM_LD(d->n_load);
    uint64_t u = d->util_gpu;
    for (uint32_t i = 0; i < n && i < SIM_MAX_STEP && d->load_t0 + 1000 * d->load[i].at <= ns; i++) u = d->load[i].used;
    return (uint32_t)u;
}

/* Error code injected for this call, or 0. */
static inline int sim_fault_rc(sim_state *s, const char *fn, int dev)
{
    if (!s || !SIM_LD(s->n_fault)) return 0;
    for (int i = 0; i < SIM_MAX_FAULT; i++) {
        sim_fault *f = &s->fault[i];
        size_t n = strlen(f->fn);
        if (!n || (f->dev >= 0 && f->dev != dev)) continue;
        if (f->fn[n - 1] == '*' ? strncmp(f->fn, fn, n - 1) : strcmp(f->fn, fn)) continue;
        uint32_t h = SIM_INC(f->hits);
        if (h <= f->skip || (f->count && h > f->skip + f->count)) continue;
        if (f->delay_us) usleep(f->delay_us);
        if (f->rc > 0) return f->rc;
    }
    return 0;
}
#endif
