/* batch_file.c: lines in, lines out, and what is done: see batch.h.
 *
 * OUT is only ever appended to, a line by one write. A crash can leave half a line at its end, which the next run cuts off; its
 * request is then answered again; no other text is ever cut. Answers that failed on our side (status 429, 500 and above) count as
 * not done.
 */
#include "cli/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/fault.h"
#include "base/mem.h"

/* --- sets of ids --- */

static bool slot_is(const uint64_t slot[2], XXH128_hash_t h)
{
    return slot[0] == h.low64 && slot[1] == h.high64;
}

/* Where h is, or where it belongs. cap is a power of two and never full. */
static uint64_t *slot_of(const struct id_set *s, XXH128_hash_t h)
{
    size_t i = (size_t)h.low64 & (s->cap - 1);
    while ((s->slots[i][0] | s->slots[i][1]) && !slot_is(s->slots[i], h)) i = (i + 1) & (s->cap - 1);
    return s->slots[i];
}

static mb_status grow(struct id_set *s, mb_error *err)
{
    struct id_set more = { .cap = s->cap ? 2 * s->cap : 1024 };
    if (s->n >= BATCH_LINES_MAX) return mb_fail(err, MB_TOO_LARGE, "more than %zu lines: split the file", BATCH_LINES_MAX);
    more.slots = mb_calloc(more.cap, sizeof *more.slots);
    if (!more.slots) return mb_fail(err, MB_NO_MEMORY, "no memory for %zu ids", more.cap);
    for (size_t i = 0; i < s->cap; i++) {
        if (!(s->slots[i][0] | s->slots[i][1])) continue;
        memcpy(slot_of(&more, (XXH128_hash_t){ s->slots[i][0], s->slots[i][1] }), s->slots[i], sizeof s->slots[i]);
    }
    mb_free(s->slots);
    s->slots = more.slots;
    s->cap = more.cap;
    return MB_OK;
}

/* *had: it was there already. */
static mb_status id_add(struct id_set *s, const char *id, bool *had, mb_error *err)
{
    XXH128_hash_t h = XXH3_128bits(id, strlen(id));
    if (!(h.low64 | h.high64)) h.low64 = 1;
    if (2 * (s->n + 1) > s->cap) MB_TRY(grow(s, err));
    uint64_t *slot = slot_of(s, h);
    *had = slot_is(slot, h);
    if (*had) return MB_OK;
    slot[0] = h.low64;
    slot[1] = h.high64;
    s->n++;
    return MB_OK;
}

static bool id_has(const struct id_set *s, const char *id)
{
    XXH128_hash_t h = XXH3_128bits(id, strlen(id));
    if (!(h.low64 | h.high64)) h.low64 = 1;
    return s->cap > 0 && slot_is(slot_of(s, h), h);
}

/* --- lines --- */

static bool is_blank(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r", s[i]) || s[i] == '\0') return false;
    return true;
}

/* The next line that is not blank: *line, *len without its newline; *whole: it has one. */
static bool next_line(const char *text, size_t size, size_t *off, size_t *number, const char **line, size_t *len, bool *whole)
{
    while (*off < size) {
        const char *at = text + *off, *end = memchr(at, '\n', size - *off);
        *len = end ? (size_t)(end - at) : size - *off;
        *off += *len + (end != NULL);
        ++*number;
        *line = at;
        *whole = end != NULL;
        if (!is_blank(at, *len)) return true;
    }
    return false;
}

/* A text or an integer, as JSON. */
static bool id_text(const json_t *v, char out[300])
{
    struct buf b;
    if (!json_is_text(v) && !json_is_integer(v)) return false;
    buf_init(&b, 299);
    json_write(&b, v, &(struct json_write_opts){ 0 });
    bool ok = !b.failed && b.len > 0;
    if (ok) memcpy(out, b.data, b.len + 1);
    buf_free(&b);
    return ok;
}

static void take_id(struct batch_line *l)
{
    const json_t *v = json_object_get(l->value, "custom_id");
    l->openai = v != NULL;
    if (!v) v = json_object_get(l->value, "id");
    if (!v || json_is_null(v) || id_text(v, l->id)) return;
    mb_fail_at(&l->why, MB_INVALID, l->openai ? "custom_id" : "id", "the id must be a text of at most 290 bytes, or an integer");
    json_decref(l->value);
    l->value = NULL;
}

bool batch_line_next(const struct batch_files *b, size_t *off, size_t *number, struct batch_line *out)
{
    bool whole;
    memset(out, 0, sizeof *out);
    if (!next_line(b->in, b->in_bytes, off, number, &out->text, &out->len, &whole)) return false;
    out->number = *number;
    snprintf(out->id, sizeof out->id, "\"line %zu\"", *number);
    mb_status st = out->len <= BATCH_LINE_MAX ? json_read(&out->value, out->text, out->len, JSON_READ_REJECT_DUPLICATES | JSON_READ_ANY, &out->why)
                                              : mb_fail(&out->why, MB_TOO_LARGE, "a line is longer than %zu MB", BATCH_LINE_MAX >> 20);
    if (st == MB_OK && !json_is_object(out->value)) {
        mb_fail(&out->why, MB_INVALID, "a line must be a JSON object");
        json_decref(out->value);
        out->value = NULL;
    }
    if (out->value) take_id(out);
    return true;
}

void batch_line_free(struct batch_line *l)
{
    json_decref(l->value);
    l->value = NULL;
}

bool batch_is_done(const struct batch_files *b, const struct batch_line *l)
{
    return id_has(&b->done, l->id);
}

/* --- what OUT holds --- */

/* An answer of ours: its id, and whether it is final. */
static bool read_answer(const char *line, size_t len, char id[300], bool *final)
{
    json_t *v = NULL;
    if (json_read(&v, line, len, JSON_READ_ANY, NULL) != MB_OK) return false;
    const json_t *x = json_object_get(v, "custom_id"), *status = json_object_get(json_object_get(v, "response"), "status_code");
    bool ok = id_text(x ? x : json_object_get(v, "id"), id) && json_is_integer(status);
    *final = ok && json_integer_value(status) < 500 && json_integer_value(status) != 429;
    json_decref(v);
    return ok;
}

/* Half a line of ours, or the hole that a crash leaves: all that may be cut off the end of a file. */
static bool is_torn(const char *line, size_t len)
{
    static const char *const starts[] = { "{\"id\": ", "{\"custom_id\": " };
    if (len > 0 && line[0] == '\0') return true;
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(starts[i]);
        if (memcmp(line, starts[i], len < n ? len : n) == 0) return true;
    }
    return false;
}

static mb_status take_answers(struct batch_files *b, const struct filemap *out, size_t *good_bytes, mb_error *err)
{
    size_t off = 0, number = 0, len;
    const char *line;
    bool whole, final, had;
    char id[300];
    *good_bytes = 0;
    while (next_line((const char *)out->data, out->size_bytes, &off, &number, &line, &len, &whole)) {
        bool ok = whole && read_answer(line, len, id, &final);
        if (!whole && is_torn(line, len)) return MB_OK;
        if (!ok)
            return mb_fail(err, MB_BAD_FORMAT, "%s: line %zu is no answer of a batch: name another --output, or remove that line",
                           b->out_path, number);
        if (final) MB_TRY(id_add(&b->done, id, &had, err));
        *good_bytes = off;
    }
    *good_bytes = out->size_bytes; /* blank lines at the end stay */
    return MB_OK;
}

static bool same_file(const char *in_path, int fd)
{
    struct stat a, b;
    return stat(in_path, &a) == 0 && fstat(fd, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static mb_status open_out(struct batch_files *b, const char *in_path, mb_error *err)
{
    struct filemap m;
    size_t good_bytes;
    b->fd = open(b->out_path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (b->fd < 0) return mb_fail_errno(err, "cannot write", b->out_path);
    if (same_file(in_path, b->fd)) return mb_fail(err, MB_INVALID, "--batch-file and --output are one file");
    if (flock(b->fd, LOCK_EX | LOCK_NB) != 0)
        return mb_fail(err, MB_BUSY, "%s: another process writes its answers there", b->out_path);
    MB_TRY(filemap_open(&m, b->out_path, err));
    mb_status st = take_answers(b, &m, &good_bytes, err);
    b->repaired = st == MB_OK && good_bytes < m.size_bytes;
    filemap_close(&m);
    if (st == MB_OK && b->repaired && ftruncate(b->fd, (off_t)good_bytes) != 0) return mb_fail_errno(err, "cannot repair", b->out_path);
    return st;
}

/* --- IN --- */

static mb_status open_in(struct batch_files *b, const char *path, mb_error *err)
{
    buf_init(&b->text, INPUT_MAX_BYTES + 1);
    if (strcmp(path, "-") == 0 || !file_exists(path)) { /* what may be a pipe is read to its end first */
        MB_TRY(input_read(&b->text, path, INPUT_MAX_BYTES, err));
        b->in = b->text.data;
        b->in_bytes = b->text.len;
        return MB_OK;
    }
    MB_TRY(filemap_open(&b->map, path, err));
    b->in = (const char *)b->map.data;
    b->in_bytes = b->map.size_bytes;
    return MB_OK;
}

/* Count the lines; two with one id could not be told apart. */
static mb_status look_through(struct batch_files *b, mb_error *err)
{
    struct id_set ids = { 0 };
    struct batch_line l;
    size_t off = 0, number = 0;
    mb_status st = MB_OK;
    while (st == MB_OK && batch_line_next(b, &off, &number, &l)) {
        bool had;
        st = id_add(&ids, l.id, &had, err);
        if (st == MB_OK && had) st = mb_fail(err, MB_INVALID, "line %zu: the id %.100s was there before; ids must differ", l.number, l.id);
        b->n_lines++;
        b->n_done += batch_is_done(b, &l);
        batch_line_free(&l);
    }
    mb_free(ids.slots);
    return st;
}

mb_status batch_files_open(struct batch_files *b, const char *in_path, const char *out_path, mb_error *err)
{
    memset(b, 0, sizeof *b);
    b->fd = b->map.fd = -1;
    b->out_path = out_path;
    MB_TRY(open_in(b, in_path, err));
    MB_TRY(open_out(b, in_path, err));
    return look_through(b, err);
}

void batch_files_close(struct batch_files *b)
{
    filemap_close(&b->map);
    buf_free(&b->text);
    if (b->fd >= 0) close(b->fd);
    mb_free(b->done.slots);
}

mb_status batch_write(struct batch_files *b, const struct buf *line, mb_error *err)
{
    size_t at = 0;
    MB_TRY(buf_status(line, "an answer", err));
    while (at < line->len) {
        bool full = fault_hit("disk_full");
        ssize_t n = full ? -1 : write(b->fd, line->data + at, line->len - at);
        if (full) errno = ENOSPC;
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return mb_fail_errno(err, "cannot write", b->out_path);
        at += (size_t)n;
    }
    return MB_OK;
}
