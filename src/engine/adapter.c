/* adapter.c: the adapters that are mounted: a small table of names, each with a loaded adapter that is counted.
 *
 * Mounting and unmounting change the table alone, never a step: a job holds its adapters (a pin) from before it is queued
 * until the engine has dropped it, so a forward pass always reads what it began with, and an adapter that was unmounted or
 * replaced goes when its last job ends. Loading is done before the lock is taken, on the caller's thread: all or nothing.
 * Threads: any. Locks: `lock` of the table, held for look-ups only.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_int.h"

struct engine_adapter {
    struct adapter_handle *handle; /* owned through the stepper */
    char *id, *path;
    struct adapter_info info;
    atomic_int n_refs;             /* the table's and one a pin */
};

static void adapter_unref(struct engine *e, struct engine_adapter *a)
{
    if (!a || atomic_fetch_sub(&a->n_refs, 1) > 1) return;
    if (a->handle) e->st.adapter_free(e->st.ctx, a->handle);
    mb_free(a->id);
    mb_free(a->path);
    mb_free(a);
}

mb_status adapters_open(struct engine *e, mb_error *err)
{
    (void)err;
    pthread_mutex_init(&e->adapters.lock, NULL);
    return MB_OK;
}

/* The thread has ended and no job lives: the table holds the last references. */
void adapters_close(struct engine *e)
{
    for (int32_t i = 0; i < e->adapters.n; i++) adapter_unref(e, e->adapters.list[i]);
    e->adapters.n = 0;
    pthread_mutex_destroy(&e->adapters.lock);
}

/* Index of a name; -1. lock is held. */
static int32_t find(const struct adapter_table *t, const char *id)
{
    for (int32_t i = 0; i < t->n; i++)
        if (strcmp(t->list[i]->id, id) == 0) return i;
    return -1;
}

static size_t bytes_mounted(const struct adapter_table *t)
{
    size_t n = 0;
    for (int32_t i = 0; i < t->n; i++) n += t->list[i]->info.memory_bytes;
    return n;
}

/* Put a into the table; *old: what it replaces. lock is held. */
static mb_status insert(struct adapter_table *t, struct engine_adapter *a, struct engine_adapter **old, mb_error *err)
{
    int32_t at = find(t, a->id);
    size_t before = bytes_mounted(t) - (at >= 0 ? t->list[at]->info.memory_bytes : 0);
    *old = NULL;
    if (at < 0 && t->n == ENGINE_MAX_ADAPTERS)
        return mb_fail_at(err, MB_TOO_LARGE, "id", "%d adapters are mounted, the most there can be; unmount one first",
                          ENGINE_MAX_ADAPTERS);
    if (before + a->info.memory_bytes > ENGINE_ADAPTER_BYTES)
        return mb_fail_at(err, MB_TOO_LARGE, "id", "the mounted adapters would take %zu MB, at most %zu are allowed; unmount one "
                          "first", (before + a->info.memory_bytes) >> 20, (size_t)ENGINE_ADAPTER_BYTES >> 20);
    if (at >= 0) *old = t->list[at];
    t->list[at >= 0 ? at : t->n++] = a;
    return MB_OK;
}

static void set_entry(struct engine_adapter_entry *out, const struct engine_adapter *a)
{
    snprintf(out->id, sizeof out->id, "%s", a->id);
    snprintf(out->path, sizeof out->path, "%s", a->path);
    out->info = a->info;
}

mb_status engine_adapter_mount(struct engine *e, const char *id, const char *path, struct engine_adapter_entry *out,
                               struct buf *problems, mb_error *err)
{
    memset(out, 0, sizeof *out);
    if (!e->st.adapter_load) return mb_fail(err, MB_UNSUPPORTED, "this engine takes no adapters");
    if (strlen(id) >= sizeof out->id || strlen(path) >= sizeof out->path)
        return mb_fail_at(err, MB_INVALID, "path", "the adapter's name or path is too long");
    struct engine_adapter *a = mb_calloc(1, sizeof *a), *old = NULL;
    if (!a) return mb_fail(err, MB_NO_MEMORY, "no memory for adapter %.64s", id);
    atomic_init(&a->n_refs, 1);
    a->id = mb_strdup(id);
    a->path = mb_strdup(path);
    mb_status st = a->id && a->path ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for adapter %.64s", id);
    if (st == MB_OK) st = e->st.adapter_load(e->st.ctx, id, path, &a->handle, &a->info, problems, err);
    if (st == MB_OK) {
        pthread_mutex_lock(&e->adapters.lock);
        st = insert(&e->adapters, a, &old, err);
        pthread_mutex_unlock(&e->adapters.lock);
    }
    if (st == MB_OK) set_entry(out, a);
    else old = a;
    adapter_unref(e, old);
    return st;
}

mb_status engine_adapter_unmount(struct engine *e, const char *id, mb_error *err)
{
    struct adapter_table *t = &e->adapters;
    pthread_mutex_lock(&t->lock);
    int32_t at = find(t, id);
    struct engine_adapter *a = at >= 0 ? t->list[at] : NULL;
    if (a) {
        memmove(&t->list[at], &t->list[at + 1], (size_t)(t->n - at - 1) * sizeof *t->list);
        t->n--;
    }
    pthread_mutex_unlock(&t->lock);
    if (!a) return mb_fail_at(err, MB_NOT_FOUND, "id", "no adapter of this name is mounted");
    adapter_unref(e, a);
    return MB_OK;
}

int32_t engine_adapter_list(struct engine *e, struct engine_adapter_entry *out, int32_t cap)
{
    struct adapter_table *t = &e->adapters;
    pthread_mutex_lock(&t->lock);
    int32_t n = t->n < cap ? t->n : cap;
    for (int32_t i = 0; i < n; i++) set_entry(&out[i], t->list[i]);
    pthread_mutex_unlock(&t->lock);
    return n;
}

mb_status engine_adapter_peek(const char *path, struct engine_adapter_entry *out, mb_error *err)
{
    const char *slash = strrchr(path, '/');
    memset(out, 0, sizeof *out);
    MB_TRY(adapter_peek(&out->info, path, err));
    snprintf(out->id, sizeof out->id, "%s", slash ? slash + 1 : path);
    snprintf(out->path, sizeof out->path, "%s", path);
    return MB_OK;
}

bool engine_adapter_pin(struct engine *e, const char *const *ids, int32_t n, struct adapter_pin *out, int32_t *missing)
{
    struct adapter_table *t = &e->adapters;
    memset(out, 0, sizeof *out);
    *missing = -1;
    pthread_mutex_lock(&t->lock);
    for (int32_t i = 0; i < n && *missing < 0; i++) {
        int32_t at = i < PLAN_MAX_STACK ? find(t, ids[i]) : -1;
        if (at < 0) *missing = i;
        else out->held[i] = t->list[at];
    }
    for (int32_t i = 0; i < n && *missing < 0; i++) {
        out->handles[i] = out->held[i]->handle;
        atomic_fetch_add(&out->held[i]->n_refs, 1);
        out->n = i + 1;
    }
    pthread_mutex_unlock(&t->lock);
    return *missing < 0;
}

void engine_adapter_unpin(struct engine *e, struct adapter_pin *pin)
{
    for (int32_t i = 0; i < pin->n; i++) adapter_unref(e, pin->held[i]);
    memset(pin, 0, sizeof *pin);
}
