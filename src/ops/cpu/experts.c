/* experts.c: see experts.h. A slot goes EMPTY -> LOADING -> READY or FAILED; only its reader leaves LOADING. Slots that wait for
 * a reader are in a ring, in the order in which they were asked for. */
#include "ops/cpu/experts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/threads.h"
#include "ops/cpu/cpu_int.h"

#define N_READERS 4       /* reads in flight: enough for a drive of many queues, little for the processor */
#define HALVE_TOKENS 256  /* counts are halved when about so many tokens have gone through all layers */

enum slot_state { SLOT_EMPTY = 0, SLOT_LOADING, SLOT_READY, SLOT_FAILED };

struct slot {
    int32_t i_group, i, i_record; /* i_record -1: none */
    atomic_int state;
    bool held;
    uint64_t used_at;
};

struct experts {
    struct expert_file *file;
    uint8_t *data;             /* [n_slots][slot_bytes] */
    size_t slot_bytes, data_bytes;
    struct slot *slots;
    int32_t n_slots;
    int32_t *slot_of;          /* [n_records] -1: not in memory */
    uint32_t *n_uses;          /* [n_records] */
    uint64_t tick, halve_at;   /* layers begun */
    /* Under lock. */
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* the ring is not empty; a read has ended */
    int32_t *ring;             /* [n_slots] */
    int32_t ring_first, ring_n, n_loading;
    bool stop;
    mb_error failure;
    atomic_bool failed;
    atomic_ullong n_hits, n_misses, read_bytes, wait_ns, n_errors;
    pthread_t readers[N_READERS];
    int n_readers;
};

static uint8_t *slot_data(const struct experts *x, int32_t i_slot)
{
    return x->data + (size_t)i_slot * x->slot_bytes;
}

/* --- readers --- */

static void read_slot(struct experts *x, int32_t i_slot)
{
    struct slot *s = &x->slots[i_slot];
    mb_error err;
    mb_status st = expert_file_read(x->file, s->i_group, s->i, slot_data(x, i_slot), &err);
    if (st == MB_OK) atomic_fetch_add(&x->read_bytes, expert_file_record_bytes(x->file, s->i_group));
    else {
        atomic_fetch_add(&x->n_errors, 1);
        LOGE("experts", "%s", err.text);
    }
    pthread_mutex_lock(&x->lock);
    if (st != MB_OK && !atomic_load(&x->failed)) {
        x->failure = err;
        atomic_store(&x->failed, true);
    }
    atomic_store(&s->state, st == MB_OK ? SLOT_READY : SLOT_FAILED);
    x->n_loading--;
    pthread_cond_broadcast(&x->done);
    pthread_mutex_unlock(&x->lock);
}

static void *reader_main(void *arg)
{
    struct experts *x = arg;
    threads_set_name("mb-experts");
    pthread_mutex_lock(&x->lock);
    for (;;) {
        while (x->ring_n == 0 && !x->stop) pthread_cond_wait(&x->work, &x->lock);
        if (x->stop) break;
        int32_t i_slot = x->ring[x->ring_first];
        x->ring_first = (x->ring_first + 1) % x->n_slots;
        x->ring_n--;
        pthread_mutex_unlock(&x->lock);
        read_slot(x, i_slot);
        pthread_mutex_lock(&x->lock);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

static void enqueue(struct experts *x, int32_t i_slot)
{
    pthread_mutex_lock(&x->lock);
    x->ring[(x->ring_first + x->ring_n++) % x->n_slots] = i_slot;
    x->n_loading++;
    pthread_cond_signal(&x->work);
    pthread_mutex_unlock(&x->lock);
}

/* --- life --- */

mb_status experts_open(struct experts **out, const char *path, uint64_t key, mb_error *err)
{
    *out = NULL;
    struct experts *x = mb_calloc(1, sizeof *x);
    if (!x) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->work, NULL);
    pthread_cond_init(&x->done, NULL);
    mb_status st = expert_file_open(&x->file, path, key, err);
    while (st == MB_OK && x->n_readers < N_READERS) {
        if (pthread_create(&x->readers[x->n_readers], NULL, reader_main, x) == 0) x->n_readers++;
        else if (x->n_readers > 0) break;
        else st = mb_fail(err, MB_IO, "cannot start a thread that reads experts");
    }
    if (st != MB_OK) {
        experts_close(x);
        return st;
    }
    *out = x;
    return MB_OK;
}

static void forget(struct experts *x)
{
    huge_unmap(x->data, x->data_bytes);
    mb_free(x->slots);
    mb_free(x->slot_of);
    mb_free(x->n_uses);
    mb_free(x->ring);
    x->data = NULL;
    x->slots = NULL;
    x->slot_of = x->ring = NULL;
    x->n_uses = NULL;
    x->n_slots = x->ring_first = x->ring_n = 0;
}

void experts_close(struct experts *x)
{
    if (!x) return;
    pthread_mutex_lock(&x->lock);
    x->stop = true;
    pthread_cond_broadcast(&x->work);
    pthread_mutex_unlock(&x->lock);
    for (int i = 0; i < x->n_readers; i++) pthread_join(x->readers[i], NULL);
    forget(x);
    expert_file_close(x->file);
    pthread_cond_destroy(&x->work);
    pthread_cond_destroy(&x->done);
    pthread_mutex_destroy(&x->lock);
    mb_free(x);
}

struct expert_file *experts_file(struct experts *x) { return x->file; }

mb_status experts_reserve(struct experts *x, size_t bytes, mb_error *err)
{
    int32_t n_records = expert_file_n_records(x->file);
    forget(x);
    if (n_records == 0) return MB_OK;
    x->slot_bytes = expert_file_largest_bytes(x->file);
    size_t n = bytes / x->slot_bytes;
    x->n_slots = n < 1 ? 1 : n > (size_t)n_records ? n_records : (int32_t)n;
    x->data_bytes = (size_t)x->n_slots * x->slot_bytes;
    x->slots = mb_calloc((size_t)x->n_slots, sizeof *x->slots);
    x->ring = mb_calloc((size_t)x->n_slots, sizeof *x->ring);
    x->slot_of = mb_calloc((size_t)n_records, sizeof *x->slot_of);
    x->n_uses = mb_calloc((size_t)n_records, sizeof *x->n_uses);
    x->data = huge_map(x->data_bytes, true);
    if (!x->slots || !x->ring || !x->slot_of || !x->n_uses || !x->data) {
        forget(x);
        return mb_fail(err, MB_NO_MEMORY, "out of memory for a cache of experts of %zu bytes", x->data_bytes);
    }
    for (int32_t i = 0; i < x->n_slots; i++) x->slots[i].i_record = -1;
    for (int32_t i = 0; i < n_records; i++) x->slot_of[i] = -1;
    x->halve_at = (uint64_t)HALVE_TOKENS * (uint64_t)expert_file_n_groups(x->file);
    return MB_OK;
}

void experts_stats(struct experts *x, struct ops_expert_stats *out)
{
    *out = (struct ops_expert_stats){
        .n_slots = x->n_slots, .cache_bytes = x->data_bytes, .file_bytes = expert_file_size_bytes(x->file),
        .n_hits = atomic_load(&x->n_hits), .n_misses = atomic_load(&x->n_misses), .read_bytes = atomic_load(&x->read_bytes),
        .wait_ns = atomic_load(&x->wait_ns), .n_errors = atomic_load(&x->n_errors),
        .direct = expert_file_is_direct(x->file),
    };
}

/* --- slots --- */

void experts_begin(struct experts *x)
{
    if (++x->tick < x->halve_at) return;
    for (int32_t i = 0; i < expert_file_n_records(x->file); i++) x->n_uses[i] /= 2;
    x->halve_at = x->tick + (uint64_t)HALVE_TOKENS * (uint64_t)expert_file_n_groups(x->file);
}

/* Is slot a given up before b? */
static bool less_used(const struct experts *x, const struct slot *a, const struct slot *b)
{
    if ((a->i_record < 0) != (b->i_record < 0)) return a->i_record < 0;
    if (a->i_record < 0) return false;
    uint32_t na = x->n_uses[a->i_record], nb = x->n_uses[b->i_record];
    return na != nb ? na < nb : a->used_at < b->used_at;
}

static int32_t victim(const struct experts *x)
{
    int32_t best = -1;
    for (int32_t i = 0; i < x->n_slots; i++) {
        if (x->slots[i].held || (best >= 0 && !less_used(x, &x->slots[i], &x->slots[best]))) continue;
        best = i;
        if (x->slots[i].i_record < 0) break;
    }
    return best;
}

/* A slot that is being read is held: releases come after waits, or with end_run, which waits for all. */
int32_t experts_ask(struct experts *x, int32_t i_group, int32_t i)
{
    int32_t i_record = expert_file_first(x->file, i_group) + i, at = x->slot_of[i_record];
    bool hit = at >= 0;
    if (!hit && (at = victim(x)) < 0) return -1;
    struct slot *s = &x->slots[at];
    s->held = true;
    s->used_at = x->tick;
    x->n_uses[i_record] += x->n_uses[i_record] < UINT32_MAX;
    atomic_fetch_add(hit ? &x->n_hits : &x->n_misses, 1);
    if (hit) return at;
    if (s->i_record >= 0) x->slot_of[s->i_record] = -1;
    s->i_group = i_group;
    s->i = i;
    s->i_record = i_record;
    x->slot_of[i_record] = at;
    atomic_store(&s->state, SLOT_LOADING);
    enqueue(x, at);
    return at;
}

bool experts_is_ready(const struct experts *x, int32_t i_slot)
{
    return atomic_load(&x->slots[i_slot].state) == SLOT_READY;
}

const uint8_t *experts_wait(struct experts *x, int32_t i_slot)
{
    struct slot *s = &x->slots[i_slot];
    int state = atomic_load(&s->state);
    if (state == SLOT_LOADING) {
        int64_t t = clock_now_ns();
        pthread_mutex_lock(&x->lock);
        while ((state = atomic_load(&s->state)) == SLOT_LOADING) pthread_cond_wait(&x->done, &x->lock);
        pthread_mutex_unlock(&x->lock);
        atomic_fetch_add(&x->wait_ns, (uint64_t)(clock_now_ns() - t));
    }
    return state == SLOT_READY ? slot_data(x, i_slot) : NULL;
}

void experts_release(struct experts *x, int32_t i_slot)
{
    x->slots[i_slot].held = false;
}

bool experts_failed(const struct experts *x)
{
    return atomic_load(&x->failed);
}

mb_status experts_end_run(struct experts *x, mb_error *err)
{
    mb_error failure = { 0 };
    pthread_mutex_lock(&x->lock);
    for (; atomic_load(&x->failed) && x->ring_n > 0; x->ring_n--, x->n_loading--) { /* nobody wants these any more */
        atomic_store(&x->slots[x->ring[x->ring_first]].state, SLOT_FAILED);
        x->ring_first = (x->ring_first + 1) % x->n_slots;
    }
    while (x->n_loading > 0) pthread_cond_wait(&x->done, &x->lock);
    bool failed = atomic_load(&x->failed);
    if (failed) failure = x->failure;
    atomic_store(&x->failed, false);
    pthread_mutex_unlock(&x->lock);
    if (!failed) return MB_OK;
    for (int32_t i = 0; i < x->n_slots; i++) {
        struct slot *s = &x->slots[i];
        s->held = false;
        if (atomic_load(&s->state) != SLOT_FAILED) continue;
        x->slot_of[s->i_record] = -1;
        s->i_record = -1;
        atomic_store(&s->state, SLOT_EMPTY);
    }
    return mb_fail(err, failure.code, "%s", failure.text);
}
