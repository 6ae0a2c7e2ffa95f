/* checkpoint.c: the weights of a model directory as one set of tensors.
 *
 * Owns which files make up a checkpoint, reading and checking their headers (safetensors_header.c), then mapping them,
 * and the look-up by name. A header is read with pread and checked before its file is mapped; all files are checked
 * before anything is handed out. One arena holds names and views; the maps live until checkpoint_close.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "format/safetensors_write.h"

#define MAX_HEADER_BYTES ((uint64_t)100 << 20) /* the format's own ceiling */
#define MAX_INDEX_BYTES ((size_t)64 << 20)
#define MAX_SHARDS 4096
#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

struct shard {
    const char *name; /* inside the directory; arena */
    struct filemap map;
    struct tensor_view *tensors; /* arena, by offset */
    size_t n_tensors;
    size_t data_first; /* byte of the file where tensor data begin */
};

struct checkpoint {
    struct arena arena;
    const char *dir;
    struct shard *shards; /* arena */
    size_t n_shards;
    struct tensor_view *tensors; /* arena: all of them, shard by shard */
    size_t n_tensors;
    uint32_t *slots; /* arena: open addressing, index + 1 into tensors, 0 = empty */
    size_t n_slots;  /* power of two */
    size_t total_bytes;
    json_t *weight_map; /* owned, only while opening; NULL without an index */
};

static mb_status no_memory(const struct checkpoint *c, mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the list of tensors", c->dir);
}

/* --- which files --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_safetensors(const char *name)
{
    size_t len = strlen(name);
    return len > 12 && strcmp(name + len - 12, ".safetensors") == 0 && name[0] != '.';
}

/* A plain file name: an index must not lead out of the directory. */
static bool is_plain_name(const char *name)
{
    return is_safetensors(name) && !strchr(name, '/') && strlen(name) < 256;
}

static mb_status shards_alloc(struct checkpoint *c, char **names, size_t n, mb_error *err)
{
    qsort(names, n, sizeof *names, by_name);
    c->shards = arena_alloc_array(&c->arena, n + 1, sizeof *c->shards);
    if (!c->shards) return no_memory(c, err);
    for (size_t i = 0; i < n; i++) {
        if (c->n_shards > 0 && strcmp(c->shards[c->n_shards - 1].name, names[i]) == 0) continue;
        c->shards[c->n_shards].map.fd = -1;
        c->shards[c->n_shards++].name = names[i];
    }
    return MB_OK;
}

/* Every *.safetensors; those that begin with "model" alone when there are any (a folder may hold adapters too). */
static mb_status shards_from_folder(struct checkpoint *c, mb_error *err)
{
    char **names = arena_alloc_array(&c->arena, MAX_SHARDS, sizeof *names);
    size_t n = 0;
    bool models_only = false;
    DIR *d = opendir(c->dir);
    if (!d) return mb_fail_errno(err, "cannot open the folder", c->dir);
    for (struct dirent *e; names && n < MAX_SHARDS && (e = readdir(d));) {
        if (!is_safetensors(e->d_name)) continue;
        bool is_model = strncmp(e->d_name, "model", 5) == 0;
        if (is_model && !models_only) {
            models_only = true;
            n = 0;
        }
        if (is_model == models_only && (names[n] = arena_strdup(&c->arena, e->d_name))) n++;
    }
    closedir(d);
    if (c->arena.failed) return no_memory(c, err);
    if (n == 0)
        return mb_fail(err, MB_NOT_FOUND, "%s: no weights: neither %s nor %s nor any *.safetensors stands there", c->dir,
                       SINGLE_FILE, INDEX_FILE);
    return shards_alloc(c, names, n, err);
}

/* Shards are few and repeat for thousands of tensors: remember those seen in a small hash by value. */
static mb_status shards_from_index(struct checkpoint *c, mb_error *err)
{
    const char *tensor;
    json_t *v;
    char **names = arena_alloc_array(&c->arena, MAX_SHARDS, sizeof *names);
    json_t *seen = json_object();
    size_t n = 0;
    mb_status st = names && seen ? MB_OK : no_memory(c, err);
    json_object_foreach(c->weight_map, tensor, v) {
        if (st != MB_OK) break;
        const char *file = json_string_value(v);
        if (!file || !is_plain_name(file)) {
            char safe[128];
            st = mb_fail(err, MB_BAD_FORMAT, "%s/%s: tensor %s must name a .safetensors file of the same folder", c->dir,
                         INDEX_FILE, tensor_safe_name(safe, sizeof safe, tensor));
        } else if (!json_object_get(seen, file)) {
            if (n == MAX_SHARDS)
                st = mb_fail(err, MB_TOO_LARGE, "%s/%s: more than %d shards", c->dir, INDEX_FILE, MAX_SHARDS);
            else if (!(names[n] = arena_strdup(&c->arena, file)) || json_object_set_new(seen, file, json_true()) != 0)
                st = no_memory(c, err);
            else n++;
        }
    }
    json_decref(seen);
    if (st != MB_OK) return st;
    if (n == 0) return mb_fail(err, MB_BAD_FORMAT, "%s/%s: weight_map is empty", c->dir, INDEX_FILE);
    return shards_alloc(c, names, n, err);
}

/* Sets weight_map; without an index, or beside a model.safetensors that the index does not speak of, it stays NULL. */
static mb_status index_read(struct checkpoint *c, bool has_single, mb_error *err)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    MB_TRY(path_join(path, sizeof path, c->dir, INDEX_FILE, err));
    if (!path_exists(path)) return MB_OK;
    MB_TRY(json_read_file(&root, path, MAX_INDEX_BYTES, err));
    json_t *map = json_object_get(root, "weight_map");
    mb_status st = MB_OK;
    if (!json_is_object(map)) {
        st = mb_fail(err, MB_BAD_FORMAT, "%s: weight_map must be an object of tensor: file", path);
    } else {
        const char *tensor;
        json_t *v;
        bool names_single = false;
        json_object_foreach(map, tensor, v)
            if (json_is_string(v) && strcmp(json_string_value(v), SINGLE_FILE) == 0) names_single = true;
        if (!has_single || names_single) c->weight_map = json_incref(map);
    }
    json_decref(root);
    return st;
}

static mb_status shards_find(struct checkpoint *c, mb_error *err)
{
    char path[PATH_MAX];
    MB_TRY(path_join(path, sizeof path, c->dir, SINGLE_FILE, err));
    bool has_single = path_exists(path);
    MB_TRY(index_read(c, has_single, err));
    if (c->weight_map) return shards_from_index(c, err);
    if (!has_single) return shards_from_folder(c, err);
    char *name = arena_strdup(&c->arena, SINGLE_FILE);
    if (!name) return no_memory(c, err);
    return shards_alloc(c, &name, 1, err);
}

/* --- one file --- */

static mb_status read_exact(int fd, void *to, size_t len, off_t off, const char *path, mb_error *err)
{
    for (char *p = to; len > 0;) {
        ssize_t got = pread(fd, p, len, off);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return mb_fail_errno(err, "cannot read", path);
        if (got == 0) return mb_fail(err, MB_BAD_FORMAT, "%s: the file became shorter while it was read", path);
        p += got;
        off += got;
        len -= (size_t)got;
    }
    return MB_OK;
}

static mb_status header_length(int fd, uint64_t file_bytes, const char *path, uint64_t *len, mb_error *err)
{
    uint8_t raw[8];
    if (file_bytes < 8)
        return mb_fail(err, MB_BAD_FORMAT, "%s: incomplete: have %llu of at least 8 bytes", path,
                       (unsigned long long)file_bytes);
    MB_TRY(read_exact(fd, raw, sizeof raw, 0, path, err));
    *len = 0;
    for (int i = 0; i < 8; i++) *len |= (uint64_t)raw[i] << 8 * i;
    if (*len < 2)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the header is %llu bytes long, at least 2 are wanted", path,
                       (unsigned long long)*len);
    if (*len > MAX_HEADER_BYTES)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the header says it is %llu bytes long, at most %llu are allowed", path,
                       (unsigned long long)*len, (unsigned long long)MAX_HEADER_BYTES);
    if (*len > file_bytes - 8)
        return mb_fail(err, MB_BAD_FORMAT, "%s: incomplete: have %llu of at least %llu bytes (the header's length)", path,
                       (unsigned long long)file_bytes, (unsigned long long)(*len + 8));
    return MB_OK;
}

static mb_status header_read(struct checkpoint *c, struct shard *s, int fd, uint64_t file_bytes, const char *path,
                             mb_error *err)
{
    uint64_t len = 0;
    MB_TRY(header_length(fd, file_bytes, path, &len, err));
    char *text = mb_alloc((size_t)len);
    if (!text) return no_memory(c, err);
    mb_status st = read_exact(fd, text, (size_t)len, 8, path, err);
    if (st == MB_OK)
        st = safetensors_parse_header(&c->arena, path, text, (size_t)len, file_bytes - 8 - len, &s->tensors,
                                      &s->n_tensors, err);
    mb_free(text);
    s->data_first = (size_t)len + 8;
    return st;
}

/* Header first, map second. */
static mb_status shard_open(struct checkpoint *c, struct shard *s, mb_error *err)
{
    char path[PATH_MAX];
    struct stat info;
    MB_TRY(path_join(path, sizeof path, c->dir, s->name, err));
    int fd;
    mb_status st = file_open_read(&fd, &info, path, err);
    if (st == MB_NOT_FOUND)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the shard %s is missing; fetch the model again", c->dir, s->name);
    MB_TRY(st);
    st = header_read(c, s, fd, (uint64_t)info.st_size, path, err);
    close(fd);
    MB_TRY(st);
    MB_TRY(filemap_open(&s->map, path, err));
    if (s->map.size_bytes != (size_t)info.st_size)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the file changed while it was opened", path);
    return MB_OK;
}

/* --- all files together --- */

static uint64_t name_hash(const char *name)
{
    uint64_t h = 14695981039346656037ull; /* FNV-1a */
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211ull;
    return h ^ h >> 29;
}

static size_t slot_find(const struct checkpoint *c, const char *name)
{
    size_t i = (size_t)name_hash(name) & (c->n_slots - 1);
    while (c->slots[i] && strcmp(c->tensors[c->slots[i] - 1].name, name) != 0) i = (i + 1) & (c->n_slots - 1);
    return i;
}

/* The index must send the tensor to the shard it is in. */
static mb_status check_place(const struct checkpoint *c, const struct tensor_view *t, mb_error *err)
{
    if (!c->weight_map) return MB_OK;
    const char *wanted = json_string_value(json_object_get(c->weight_map, t->name));
    const char *have = c->shards[t->i_shard].name;
    char safe[128];
    if (!wanted || strcmp(wanted, have) == 0) return MB_OK;
    return mb_fail(err, MB_BAD_FORMAT, "%s: tensor %s is in the wrong shard: the index says %s, it stands in %s", c->dir,
                   tensor_safe_name(safe, sizeof safe, t->name), wanted, have);
}

static mb_status tensor_add(struct checkpoint *c, const struct tensor_view *from, size_t i_shard, mb_error *err)
{
    struct tensor_view *t = &c->tensors[c->n_tensors];
    struct shard *s = &c->shards[i_shard];
    *t = *from;
    t->i_shard = (int)i_shard;
    t->data = s->map.data + s->data_first + (size_t)(uintptr_t)from->data;
    MB_TRY(check_place(c, t, err));
    size_t slot = slot_find(c, t->name);
    if (c->slots[slot]) {
        char safe[128];
        return mb_fail(err, MB_BAD_FORMAT, "%s: tensor %s stands in two files, %s and %s", c->dir,
                       tensor_safe_name(safe, sizeof safe, t->name),
                       c->shards[c->tensors[c->slots[slot] - 1].i_shard].name, s->name);
    }
    c->slots[slot] = (uint32_t)++c->n_tensors;
    c->total_bytes += t->size_bytes;
    return MB_OK;
}

static mb_status tensors_merge(struct checkpoint *c, mb_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_shards; i++) n += c->shards[i].n_tensors;
    if (n > UINT32_MAX / 4) return mb_fail(err, MB_TOO_LARGE, "%s: more than 2^30 tensors", c->dir);
    for (c->n_slots = 16; c->n_slots < 2 * n; c->n_slots *= 2) continue;
    c->tensors = arena_alloc_array(&c->arena, n + 1, sizeof *c->tensors);
    c->slots = arena_alloc_array(&c->arena, c->n_slots, sizeof *c->slots);
    if (!c->tensors || !c->slots) return no_memory(c, err);
    for (size_t i = 0; i < c->n_shards; i++)
        for (size_t k = 0; k < c->shards[i].n_tensors; k++) MB_TRY(tensor_add(c, &c->shards[i].tensors[k], i, err));
    return MB_OK;
}

/* Every tensor of the index must have turned up. */
static mb_status check_index_whole(const struct checkpoint *c, mb_error *err)
{
    const char *tensor;
    json_t *v;
    char safe[128];
    if (!c->weight_map) return MB_OK;
    json_object_foreach(c->weight_map, tensor, v) {
        if (!checkpoint_find(c, tensor))
            return mb_fail(err, MB_BAD_FORMAT, "%s: tensor %s of the index is missing from %s", c->dir,
                           tensor_safe_name(safe, sizeof safe, tensor), json_string_value(v));
    }
    return MB_OK;
}

static mb_status file_alone(struct checkpoint *c, const char *name, mb_error *err)
{
    char *own = arena_strdup(&c->arena, name);
    return own ? shards_alloc(c, &own, 1, err) : no_memory(c, err);
}

/* name NULL: what the folder holds. */
static mb_status checkpoint_read(struct checkpoint *c, const char *dir, const char *name, mb_error *err)
{
    c->dir = arena_strdup(&c->arena, dir);
    if (!c->dir) return mb_fail(err, MB_NO_MEMORY, "%.400s: no memory for the list of tensors", dir);
    if (!dir_exists(dir)) return mb_fail(err, MB_NOT_FOUND, "%.400s is not a folder", dir);
    MB_TRY(name ? file_alone(c, name, err) : shards_find(c, err));
    for (size_t i = 0; i < c->n_shards; i++) MB_TRY(shard_open(c, &c->shards[i], err));
    MB_TRY(tensors_merge(c, err));
    return check_index_whole(c, err);
}

static mb_status open_any(struct checkpoint **out, const char *dir, const char *name, mb_error *err)
{
    *out = NULL;
    struct checkpoint *c = mb_calloc(1, sizeof *c);
    if (!c) return mb_fail(err, MB_NO_MEMORY, "%.400s: no memory for the list of tensors", dir);
    arena_init(&c->arena, (size_t)2 << 30);
    mb_status st = checkpoint_read(c, dir, name, err);
    json_decref(c->weight_map);
    c->weight_map = NULL;
    if (st == MB_OK) *out = c;
    else checkpoint_close(c);
    return st;
}

mb_status checkpoint_open(struct checkpoint **out, const char *dir, mb_error *err)
{
    return open_any(out, dir, NULL, err);
}

mb_status checkpoint_open_file(struct checkpoint **out, const char *dir, const char *name, mb_error *err)
{
    return open_any(out, dir, name, err);
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_shards; i++)
        if (c->shards[i].map.fd >= 0) filemap_close(&c->shards[i].map);
    arena_free(&c->arena);
    mb_free(c);
}

size_t checkpoint_n_tensors(const struct checkpoint *c)
{
    return c->n_tensors;
}

const struct tensor_view *checkpoint_at(const struct checkpoint *c, size_t i)
{
    return &c->tensors[i];
}

const struct tensor_view *checkpoint_find(const struct checkpoint *c, const char *name)
{
    uint32_t i = c->slots[slot_find(c, name)];
    return i ? &c->tensors[i - 1] : NULL;
}

const struct tensor_view *checkpoint_findf(const struct checkpoint *c, const char *fmt, ...)
{
    char name[1024];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return len < 0 || (size_t)len >= sizeof name ? NULL : checkpoint_find(c, name);
}

size_t checkpoint_total_bytes(const struct checkpoint *c)
{
    return c->total_bytes;
}

void checkpoint_drop(const struct checkpoint *c, const struct tensor_view *t)
{
    const struct shard *s = &c->shards[t->i_shard];
    filemap_drop(&s->map, (size_t)(t->data - s->map.data), t->size_bytes);
}
