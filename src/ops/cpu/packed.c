/* packed.c: see packed.h. A head, a table of entries, then the weights as they lie in memory, each at a multiple of 64 bytes.
 * Native byte order; a file of another version, key or size is as good as none. */
#include "ops/cpu/packed.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/filemap.h"
#include "base/log.h"
#include "base/mem.h"

#define PACKED_ALIGN 64
static const char packed_magic[8] = "mlxbpak";

struct packed_head {
    char magic[8];
    uint32_t version, n_entries;
    uint64_t key, size_bytes, table_checksum;
};
struct packed_entry {
    uint64_t id;            /* of the weight's name and form */
    uint64_t off, len, checksum;
};
struct packed_cache {
    char *path;
    uint64_t key;
    struct filemap map;
    const struct packed_entry *table; /* in the map; NULL: none */
    uint32_t n_table;
    struct noted { struct packed_entry e; const uint8_t *data; } *all; /* every weight asked for */
    size_t n, cap;
    bool changed, failed;
};

/* Of the weight that is asked for next. The order counts: parts of one tensor may have one name and one form. */
static uint64_t next_id(const struct packed_cache *c, const char *name, const struct cpu_weight *w)
{
    int64_t form[7] = { w->type, w->dt, w->g, w->n, w->k, (int64_t)w->block_bytes, (int64_t)c->n };
    return XXH3_64bits_withSeed(name, strlen(name), XXH3_64bits(form, sizeof form));
}

static bool head_is_good(const struct filemap *m, uint64_t key)
{
    const struct packed_head *h = (const struct packed_head *)m->data;
    if (m->size_bytes < sizeof *h || memcmp(h->magic, packed_magic, sizeof h->magic) != 0) return false;
    if (h->version != PACKED_VERSION || h->key != key || h->size_bytes != m->size_bytes) return false;
    if (h->n_entries > (m->size_bytes - sizeof *h) / sizeof(struct packed_entry)) return false;
    return h->table_checksum == XXH3_64bits(m->data + sizeof *h, h->n_entries * sizeof(struct packed_entry));
}

struct packed_cache *packed_open(const char *path, uint64_t key)
{
    struct packed_cache *c = mb_calloc(1, sizeof *c);
    if (c) c->path = mb_strdup(path);
    if (!c || !c->path) {
        mb_free(c);
        return NULL;
    }
    c->key = key;
    if (filemap_open(&c->map, path, NULL) != MB_OK) {
        memset(&c->map, 0, sizeof c->map);
        return c;
    }
    if (!head_is_good(&c->map, key)) {
        LOGI("packed", "%s is of another model, another version or damaged: written anew", path);
        filemap_close(&c->map);
        memset(&c->map, 0, sizeof c->map);
        return c;
    }
    const struct packed_head *h = (const struct packed_head *)c->map.data;
    c->table = (const struct packed_entry *)(h + 1);
    c->n_table = h->n_entries;
    return c;
}

void packed_close(struct packed_cache *c)
{
    if (!c) return;
    if (c->map.data) filemap_close(&c->map);
    mb_free(c->all);
    mb_free(c->path);
    mb_free(c);
}

static void note(struct packed_cache *c, uint64_t id, const uint8_t *data, size_t len, uint64_t checksum)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 256;
        struct noted *all = mb_realloc(c->all, cap * sizeof *all);
        if (!all) {
            c->failed = true; /* the file would lack a weight: none is written */
            return;
        }
        c->all = all;
        c->cap = cap;
    }
    c->all[c->n++] = (struct noted){ { .id = id, .len = len, .checksum = checksum }, data };
}

bool packed_find(struct packed_cache *c, const char *name, struct cpu_weight *w)
{
    uint64_t id = next_id(c, name, w);
    size_t len = cpu_weight_bytes(w);
    const struct packed_entry *e = c->n < c->n_table ? &c->table[c->n] : NULL;
    if (!e || e->id != id || e->len != len || e->off % PACKED_ALIGN || e->off > c->map.size_bytes || len > c->map.size_bytes - e->off)
        return false;
    if (XXH3_64bits(c->map.data + e->off, len) != e->checksum) {
        LOGW("packed", "%s: %s is damaged: packed again", c->path, name);
        return false;
    }
    w->data = c->map.data + e->off;
    note(c, id, w->data, len, e->checksum);
    return true;
}

void packed_note(struct packed_cache *c, const char *name, const struct cpu_weight *w)
{
    size_t len = cpu_weight_bytes(w);
    note(c, next_id(c, name, w), w->data, len, XXH3_64bits(w->data, len));
    c->changed = true;
}

static uint64_t lay_out(struct packed_cache *c)
{
    uint64_t at = sizeof(struct packed_head) + c->n * sizeof(struct packed_entry);
    for (size_t i = 0; i < c->n; i++) {
        at = (at + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
        c->all[i].e.off = at;
        at += c->all[i].e.len;
    }
    return at;
}

static bool write_all(const struct packed_cache *c, FILE *f, uint64_t size_bytes)
{
    static const char zeros[PACKED_ALIGN];
    struct packed_head h = { .version = PACKED_VERSION, .n_entries = (uint32_t)c->n, .key = c->key, .size_bytes = size_bytes };
    struct packed_entry *table = mb_alloc(c->n * sizeof *table + 1);
    if (!table) return false;
    for (size_t i = 0; i < c->n; i++) table[i] = c->all[i].e;
    memcpy(h.magic, packed_magic, sizeof h.magic);
    h.table_checksum = XXH3_64bits(table, c->n * sizeof *table);
    bool ok = fwrite(&h, sizeof h, 1, f) == 1 && fwrite(table, sizeof *table, c->n, f) == c->n;
    uint64_t at = sizeof h + c->n * sizeof *table;
    for (size_t i = 0; i < c->n && ok; i++) {
        const struct packed_entry *e = &table[i];
        ok = fwrite(zeros, 1, (size_t)(e->off - at), f) == e->off - at && fwrite(c->all[i].data, 1, (size_t)e->len, f) == e->len;
        at = e->off + e->len;
    }
    mb_free(table);
    return ok;
}

void packed_finish(struct packed_cache *c)
{
    char temp[4096];
    if (!c->changed || c->failed || !c->n) return;
    c->changed = false;
    uint64_t size_bytes = lay_out(c);
    file_temps_sweep(c->path);
    int fd = file_temp_open(c->path, temp, sizeof temp);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    /* Renamed before it is closed, which would give the lock away. Readers of the old file keep it. */
    bool ok = f && write_all(c, f, size_bytes) && fflush(f) == 0 && rename(temp, c->path) == 0;
    if (!ok) LOGW("packed", "could not write %s (%llu bytes); the next start packs again", c->path, (unsigned long long)size_bytes);
    if (!ok && fd >= 0) unlink(temp);
    if (f) fclose(f);
    else if (fd >= 0) close(fd);
}
