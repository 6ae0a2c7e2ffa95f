/* comm.c: how parts come from rank to rank. loopback: all ranks share a card and a stream, so a part lies where it was made.
 * peer: the same over cards that reach each other's memory, behind a meeting of all ranks. A part's buffer is written again only
 * behind a later meeting (ranks_split.c: two sets take turns), so nobody overwrites what another rank still reads.
 * nccl: NVIDIA's library, loaded when several cards are asked for (docs/decisions/0008-nccl.md); the few functions that are used
 * are declared here, by its published interface of version 2.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ops/cuda/ranks_int.h"

/* --- loopback --- */

static mb_status loopback_open(struct comm *c, mb_error *err)
{
    (void)c;
    (void)err;
    return MB_OK;
}

static void loopback_close(struct comm *c) { (void)c; }

static bool loopback_abort(struct comm *c)
{
    (void)c;
    return true;
}

static int loopback_spread(struct comm *c, void *const *part, const size_t *bytes, void *const *stage, void *from[OPS_RANKS_MAX][OPS_RANKS_MAX])
{
    (void)bytes;
    (void)stage;
    for (int r = 0; r < c->n; r++)
        for (int q = 0; q < c->n; q++) from[r][q] = part[q];
    return 0;
}

static int loopback_failed(struct comm *c)
{
    (void)c;
    return 0;
}

static const char *loopback_error(const struct comm *c, int code)
{
    (void)c;
    (void)code;
    return "no error";
}

const struct comm_ops comm_loopback = { "loopback", loopback_open, loopback_close, loopback_spread, loopback_failed, loopback_abort,
                                        loopback_error, false };

/* --- peer --- */

static mb_status peer_reach(struct comm *c, mb_error *err)
{
    const struct cuda_library *lib = c->rank[0]->lib;
    for (int r = 0; r < c->n; r++)
        for (int q = 0; q < c->n; q++) {
            int can = 1;
            if (q == r) continue;
            MB_TRY(cuda_check(c->rank[r], lib->peer_open(c->rank[r]->ordinal, c->rank[q]->ordinal, &can), "reaching another card", err));
            if (!can)
                return mb_fail_at(err, MB_UNSUPPORTED, "device", "cuda:%d does not reach the memory of cuda:%d", c->rank[r]->ordinal,
                                  c->rank[q]->ordinal);
        }
    return MB_OK;
}

static mb_status peer_open(struct comm *c, mb_error *err)
{
    const struct cuda_library *lib = c->rank[0]->lib;
    size_t bytes = (CS_RANKS_MAX + 1) * sizeof(uint32_t);
    MB_TRY(peer_reach(c, err));
    MB_TRY(cuda_check(c->rank[0], lib->alloc_host((void **)(void *)&c->given_up, sizeof *c->given_up), "pinned host memory", err));
    *c->given_up = 0;
    for (int r = 0; r < c->n; r++) {
        struct device *d = c->rank[r];
        lib->device_use(d->ordinal);
        int code = lib->alloc(&c->state[r], bytes);
        if (code == 0) code = lib->fill(c->state[r], 0, bytes, d->stream);
        if (code == 0) code = lib->stream_wait(d->stream); /* before another rank raises a flag in it */
        MB_TRY(cuda_check(d, code, "flags of the ranks", err));
    }
    return ranks_trade_open(c, err);
}

static void peer_close(struct comm *c)
{
    const struct cuda_library *lib = c->n > 0 ? c->rank[0]->lib : NULL;
    for (int r = 0; r < c->n; r++) {
        if (!c->state[r]) continue;
        lib->device_use(c->rank[r]->ordinal);
        lib->stream_wait(c->rank[r]->stream);
        lib->free(c->state[r]);
        c->state[r] = NULL;
    }
    ranks_trade_close(c);
    if (c->given_up) lib->free_host((void *)(uintptr_t)c->given_up);
    c->given_up = NULL;
}

static int peer_spread(struct comm *c, void *const *part, const size_t *bytes, void *const *stage, void *from[OPS_RANKS_MAX][OPS_RANKS_MAX])
{
    int code = loopback_spread(c, part, bytes, stage, from);
    struct cs_meet meet = { .n = c->n, .given_up = c->given_up };
    for (int r = 0; r < c->n; r++) meet.flags[r] = c->state[r];
    for (int r = 0; r < c->n && code == 0; r++) {
        struct device *d = c->rank[r];
        struct ck_ctx ctx = d->ctx;
        ctx.pdl = 1;
        meet.rank = r;
        code = d->lib->device_use(d->ordinal);
        if (code == 0) code = d->lib->meet(&ctx, &meet, d->stream);
    }
    return code;
}

static bool peer_abort(struct comm *c)
{
    if (c->given_up) *c->given_up = 1;
    return true;
}

static const char *peer_error(const struct comm *c, int code)
{
    return c->rank[0]->lib->error_text(code);
}

const struct comm_ops comm_peer = { "peer", peer_open, peer_close, peer_spread, loopback_failed, peer_abort, peer_error, false };

/* --- nccl --- */

#define NCCL_FILE "libnccl.so.2"
#define ABORT_MS 5000 /* a communicator that has not ended by then never will */
enum { NCCL_BYTES = 1 /* ncclUint8 */, NCCL_IN_PROGRESS = 7 };

struct nccl {
    int (*init_all)(void **comm, int n, const int *devices);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *code);
    const char *(*error_text)(int code);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_gather)(const void *from, void *to, size_t count, int type, void *comm, void *stream);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*recv)(void *to, size_t count, int type, int peer, void *comm, void *stream);
};
static struct nccl nccl; /* filled once, never unloaded; the first device that needs it fills it */

static mb_status nccl_load(mb_error *err)
{
    static const struct { const char *name; size_t off; } symbols[] = {
        { "ncclCommInitAll", offsetof(struct nccl, init_all) },       { "ncclCommDestroy", offsetof(struct nccl, destroy) },
        { "ncclCommAbort", offsetof(struct nccl, abort) },            { "ncclCommGetAsyncError", offsetof(struct nccl, async_error) },
        { "ncclGetErrorString", offsetof(struct nccl, error_text) },  { "ncclGroupStart", offsetof(struct nccl, group_start) },
        { "ncclGroupEnd", offsetof(struct nccl, group_end) },         { "ncclAllGather", offsetof(struct nccl, all_gather) },
        { "ncclSend", offsetof(struct nccl, send) },                  { "ncclRecv", offsetof(struct nccl, recv) },
    };
    char why[256];
    if (nccl.init_all) return MB_OK;
    /* NVLink multicast stays off: a program that ends in the middle of it can leave a host's cards unusable for all. */
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    void *h = cuda_open_beside(NCCL_FILE, why);
    if (!h)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "GPUs that do not reach each other's memory need NCCL, and " NCCL_FILE " %s%s%s; install libnccl2, or take the "
                          "PyPI wheel nvidia-nccl-cu13 and name its nvidia/nccl/lib folder in LD_LIBRARY_PATH, or use one GPU (--device cuda)",
                          why[0] ? "cannot be loaded (" : "was not found", why, why[0] ? ")" : "");
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *f = dlsym(h, symbols[i].name);
        if (!f) {
            dlclose(h);
            memset(&nccl, 0, sizeof nccl);
            return mb_fail_at(err, MB_UNSUPPORTED, "device", NCCL_FILE " has no %s: a version of 2.7 or later is needed; or use one GPU "
                              "(--device cuda)", symbols[i].name);
        }
        memcpy((char *)&nccl + symbols[i].off, &f, sizeof f);
    }
    return MB_OK;
}

static mb_status nccl_open(struct comm *c, mb_error *err)
{
    int cards[OPS_RANKS_MAX];
    MB_TRY(nccl_load(err));
    for (int r = 0; r < c->n; r++) cards[r] = c->rank[r]->ordinal;
    int code = nccl.init_all(c->state, c->n, cards);
    if (code == 0) return MB_OK;
    memset(c->state, 0, sizeof c->state);
    return mb_fail_at(err, MB_DEVICE, "device", "NCCL cannot join %d GPUs: %s; NCCL_DEBUG=INFO says more", c->n, nccl.error_text(code));
}

static void nccl_close(struct comm *c)
{
    for (int r = 0; r < c->n; r++)
        if (c->state[r]) nccl.destroy(c->state[r]);
}

struct nccl_end {
    struct rank_group *group;
    void *state[OPS_RANKS_MAX];
    atomic_bool done;
    atomic_int owners; /* the last one frees it */
};

static void nccl_end_leave(struct nccl_end *e)
{
    if (atomic_fetch_sub(&e->owners, 1) == 1) mb_free(e);
}

static void *nccl_end_main(void *arg)
{
    struct nccl_end *e = arg;
    ranks_graphs_free(e->group); /* a communicator ends when no graph holds it */
    for (int r = 0; r < OPS_RANKS_MAX; r++)
        if (e->state[r]) nccl.abort(e->state[r]); /* frees it */
    atomic_store(&e->done, true);
    nccl_end_leave(e);
    return NULL;
}

/* In a thread of its own: with a card whose context is gone the library may never return. Then nobody touches what the thread has. */
static bool nccl_abort(struct comm *c)
{
    pthread_t thread;
    struct nccl_end *e = mb_calloc(1, sizeof *e);
    if (!e) return false;
    e->group = c->group;
    memcpy(e->state, c->state, sizeof e->state);
    memset(c->state, 0, sizeof c->state);
    atomic_store(&e->owners, 2);
    if (pthread_create(&thread, NULL, nccl_end_main, e) != 0) {
        mb_free(e);
        return false;
    }
    pthread_detach(thread);
    for (int i = 0; i < ABORT_MS && !atomic_load(&e->done); i++) clock_sleep_ms(1);
    bool done = atomic_load(&e->done);
    nccl_end_leave(e);
    return done;
}

static bool parts_are_equal(const struct comm *c, const size_t *bytes)
{
    for (int r = 1; r < c->n; r++)
        if (bytes[r] != bytes[0]) return false;
    return true;
}

/* Rank r's side of the exchange. */
static int nccl_rank(struct comm *c, int r, void *const *part, const size_t *bytes, uint8_t *stage, bool equal)
{
    int code = 0;
    void *stream = c->rank[r]->stream;
    if (equal) return nccl.all_gather(part[r], stage, bytes[0], NCCL_BYTES, c->state[r], stream);
    for (int q = 0; q < c->n && code == 0; stage += bytes[q++]) {
        if (q == r) continue;
        if (bytes[r] > 0) code = nccl.send(part[r], bytes[r], NCCL_BYTES, q, c->state[r], stream);
        if (bytes[q] > 0 && code == 0) code = nccl.recv(stage, bytes[q], NCCL_BYTES, q, c->state[r], stream);
    }
    return code;
}

static int nccl_spread(struct comm *c, void *const *part, const size_t *bytes, void *const *stage, void *from[OPS_RANKS_MAX][OPS_RANKS_MAX])
{
    bool equal = parts_are_equal(c, bytes);
    int code = nccl.group_start();
    for (int r = 0; r < c->n && code == 0; r++) code = nccl_rank(c, r, part, bytes, stage[r], equal);
    int end = nccl.group_end();
    for (int r = 0; r < c->n; r++) {
        size_t off = 0;
        for (int q = 0; q < c->n; off += bytes[q++]) from[r][q] = q == r ? part[q] : (uint8_t *)stage[r] + off;
    }
    return code != 0 ? code : end;
}

static int nccl_failed(struct comm *c)
{
    for (int r = 0; r < c->n; r++) {
        int code = 0;
        if (c->state[r] && nccl.async_error(c->state[r], &code) == 0 && code != 0 && code != NCCL_IN_PROGRESS) return code;
    }
    return 0;
}

static const char *nccl_error(const struct comm *c, int code)
{
    (void)c;
    return nccl.error_text(code);
}

const struct comm_ops comm_nccl = { "nccl", nccl_open, nccl_close, nccl_spread, nccl_failed, nccl_abort, nccl_error, true };
