/* upload_note.c: which parts of a large content the storage has acknowledged, so that a later run goes on behind them. The batch
 * protocol itself has no such question: asked again the hub begins another upload, and parts of two do not go together. What it said
 * of the first one, where its parts go and where it is completed, is therefore kept in a file of this user's cache:
 *
 *   {"url", "oid", "size", "actions"}          what is sent where to, and the hub's answer
 *   {"partNumber": 1, "etag": "..."}           a line for each part that has arrived, in order
 *
 * One writer at a time holds a lock on it; another goes without. A torn last line is no line. The addresses are signed and good for
 * some hours or days: whoever cannot use them any more forgets them, notes that nobody has touched for a week are swept. A note that
 * cannot be kept costs the resumption and nothing else.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/filemap.h"
#include "base/log.h"
#include "base/utf8.h"
#include "hub/upload_int.h"

#define NOTE_MAX ((size_t)32 << 20)
#define NOTE_SUFFIX ".parts"
#define OLD_MS (7LL * 24 * 3600 * 1000)

static void give_up(struct upload_note *n, const char *doing)
{
    if (n->fd < 0) return;
    LOGW("upload", "%s %s: %s: an interrupted upload will begin anew", doing, n->path, strerror(errno));
    close(n->fd);
    n->fd = -1;
}

/* --- reading --- */

static bool is_part(const json_t *o, size_t i)
{
    return json_integer_value(json_object_get(o, "partNumber")) == (json_int_t)i + 1 && json_is_text(json_object_get(o, "etag"));
}

/* Of this content, for this repository? */
static bool is_ours(const json_t *o, const char *url, const struct upload_file *f)
{
    const char *u = json_string_value(json_object_get(o, "url")), *oid = json_string_value(json_object_get(o, "oid"));
    return u && oid && strcmp(u, url) == 0 && strcmp(oid, f->digest) == 0 &&
           json_integer_value(json_object_get(o, "size")) == f->size && json_is_object(json_object_get(o, "actions"));
}

/* *whole: bytes up to the end of the last good line. */
static mb_status read_lines(struct upload_note *n, const struct buf *b, const char *url, const struct upload_file *f, size_t *whole, mb_error *err)
{
    *whole = 0;
    for (const char *line = b->data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_t *o = NULL;
        mb_error why;
        mb_status st = json_read(&o, line, (size_t)(end - line), JSON_READ_DEFAULT, &why);
        if (st == MB_NO_MEMORY) return mb_fail(err, MB_NO_MEMORY, "%s", why.text);
        bool first = !n->actions, good = st == MB_OK && (first ? is_ours(o, url, f) : is_part(o, json_array_size(n->parts)));
        if (good && first) n->actions = json_incref(json_object_get(o, "actions"));
        bool kept = !good || first || json_array_append(n->parts, o) == 0;
        json_decref(o);
        if (!kept) return mb_fail(err, MB_NO_MEMORY, "no memory for the parts of an upload");
        if (!good) break;
        *whole = (size_t)(end + 1 - b->data);
    }
    return MB_OK;
}

static mb_status read_note(struct upload_note *n, const char *url, const struct upload_file *f, mb_error *err)
{
    struct buf b;
    size_t whole = 0;
    buf_init(&b, NOTE_MAX + 1);
    mb_status st = file_read(&b, n->path, NOTE_MAX, NULL);
    if (st == MB_OK) st = read_lines(n, &b, url, f, &whole, err);
    else if (st != MB_NO_MEMORY) st = MB_OK; /* too large: nothing in it is used */
    buf_free(&b);
    if (st == MB_OK && (ftruncate(n->fd, (off_t)whole) != 0 || lseek(n->fd, 0, SEEK_END) < 0)) give_up(n, "cutting");
    n->n_before = json_array_size(n->parts);
    return st;
}

/* A regular file of this user's alone, locked. */
static void open_file(struct upload_note *n)
{
    struct stat s;
    n->fd = open(n->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (n->fd < 0) {
        LOGW("upload", "opening %s: %s: an interrupted upload will begin anew", n->path, strerror(errno));
        return;
    }
    if (fstat(n->fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() && flock(n->fd, LOCK_EX | LOCK_NB) == 0) return;
    close(n->fd); /* another run sends the same */
    n->fd = -1;
}

mb_status upload_note_open(struct upload_note *n, struct upload *u, const char *url, const struct upload_file *f)
{
    memset(n, 0, sizeof *n);
    n->fd = -1;
    n->parts = json_array();
    if (!n->parts) return mb_fail(u->err, MB_NO_MEMORY, "no memory for the parts of an upload");
    const char *dir = u->o->notes_dir;
    if (!dir) return MB_OK;
    int len = snprintf(n->path, sizeof n->path, "%s/%.24s-%016llx%s", dir, f->digest, (unsigned long long)XXH3_64bits(url, strlen(url)), NOTE_SUFFIX);
    mb_error why;
    if (len >= (int)sizeof n->path || dir_make(dir, &why) != MB_OK) return MB_OK;
    open_file(n);
    return n->fd >= 0 ? read_note(n, url, f, u->err) : MB_OK;
}

/* --- writing --- */

static void append_line(struct upload_note *n, const json_t *o)
{
    struct json_write_opts plain = { 0 };
    struct buf b;
    if (n->fd < 0) return;
    buf_init(&b, NOTE_MAX);
    json_write(&b, o, &plain);
    buf_append_char(&b, '\n');
    if (b.failed != MB_OK) {
        errno = ENOMEM;
        give_up(n, "writing");
    } else if (write(n->fd, b.data, b.len) != (ssize_t)b.len) {
        give_up(n, "writing");
    }
    buf_free(&b);
}

/* "https://host/path?...&uploadId=x&..." -> the length of what is before '?', and x. */
static size_t upload_id(const char *url, const char **id, size_t *n_id)
{
    size_t n = strcspn(url, "?");
    *id = NULL;
    *n_id = 0;
    for (const char *at = url + n; *at; at += strcspn(at, "&")) {
        at++;
        if (strncasecmp(at, "uploadId=", 9) != 0) continue;
        *id = at + 9;
        *n_id = strcspn(*id, "&");
    }
    return n;
}

static bool is_same_upload(const json_t *a, const json_t *b)
{
    const json_t *ua = json_object_get(a, "upload"), *ub = json_object_get(b, "upload");
    const char *x = json_string_value(json_object_get(ua, "href")), *y = json_string_value(json_object_get(ub, "href")), *ix, *iy;
    size_t nx, ny, ns;
    if (!x || !y || !json_equal(json_object_get(json_object_get(ua, "header"), "chunk_size"),
                                json_object_get(json_object_get(ub, "header"), "chunk_size")))
        return false; /* parts of another size are other parts */
    ns = upload_id(x, &ix, &nx);
    return upload_id(y, &iy, &ny) == ns && strncmp(x, y, ns) == 0 && nx > 0 && nx == ny && memcmp(ix, iy, nx) == 0;
}

void upload_note_forget(struct upload_note *n)
{
    json_array_clear(n->parts);
    n->n_before = 0;
    json_decref(n->actions);
    n->actions = NULL;
    if (n->fd >= 0 && (ftruncate(n->fd, 0) != 0 || lseek(n->fd, 0, SEEK_SET) != 0)) give_up(n, "cutting");
}

mb_status upload_note_begin(struct upload_note *n, struct upload *u, const char *url, const struct upload_file *f, const json_t *actions)
{
    size_t i;
    json_t *part, *kept = is_same_upload(n->actions, actions) ? json_copy(n->parts) : json_array();
    json_t *first = json_pack("{s:s, s:s, s:I, s:O}", "url", url, "oid", f->digest, "size", (json_int_t)f->size, "actions", actions);
    size_t before = n->n_before;
    if (!kept || !first) {
        json_decref(kept);
        json_decref(first);
        return mb_fail(u->err, MB_NO_MEMORY, "no memory for the parts of an upload");
    }
    upload_note_forget(n);
    n->actions = json_incref((json_t *)actions);
    append_line(n, first);
    json_array_foreach(kept, i, part) append_line(n, part);
    json_decref(n->parts);
    json_decref(first);
    n->parts = kept;
    n->n_before = json_array_size(kept) ? before : 0;
    return MB_OK;
}

mb_status upload_note_part(struct upload_note *n, struct upload *u, const char *etag)
{
    if (!utf8_valid(etag, strlen(etag))) return mb_fail(u->err, MB_BAD_FORMAT, "%s: the hub's storage gives a part a name that is no text", u->what);
    json_t *part = json_pack("{s:I, s:s}", "partNumber", (json_int_t)json_array_size(n->parts) + 1, "etag", etag);
    if (json_array_append_new(n->parts, part) != 0) return mb_fail(u->err, MB_NO_MEMORY, "no memory for the parts of an upload");
    append_line(n, part);
    return MB_OK;
}

void upload_note_close(struct upload_note *n)
{
    if (n->fd >= 0) {
        if (!n->actions && unlink(n->path) != 0) LOGW("upload", "removing %s: %s", n->path, strerror(errno));
        close(n->fd);
    }
    json_decref(n->actions);
    json_decref(n->parts);
    memset(n, 0, sizeof *n);
    n->fd = -1;
}

void upload_notes_sweep(const char *dir)
{
    char path[PATH_MAX];
    struct stat s;
    DIR *d = dir ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name), suffix = sizeof NOTE_SUFFIX - 1;
        if (n <= suffix || strcmp(e->d_name + n - suffix, NOTE_SUFFIX) != 0 || path_join(path, sizeof path, dir, e->d_name, NULL) != MB_OK) continue;
        if (lstat(path, &s) == 0 && S_ISREG(s.st_mode) && (int64_t)s.st_mtim.tv_sec * 1000 < clock_unix_ms() - OLD_MS) unlink(path);
    }
    if (d) closedir(d);
}
