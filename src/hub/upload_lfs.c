/* upload_lfs.c: contents by the LFS batch protocol: ask which are missing, send each to the address that the hub gives, whole
 * ("basic") or in parts ("multipart", the hub's own way for large files), and let the hub check it where it wants to.
 *
 * Addresses are signed for a while only, so each is asked for right before it is used; when the storage refuses it nevertheless,
 * it is asked for once more. An upload in parts that an earlier run has left is gone on with first (upload_note.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hub/upload_int.h"

#define OBJECTS_AT_ONCE 100
#define PARTS_MAX 10000
#define ADDRESSES_MAX 3 /* times that one content's address is asked for */
#define CHUNK_MAX (1LL << 40) /* bytes of a part; times the parts that a note can hold it is far below 2^63 */
#define LFS_TYPE "application/vnd.git-lfs+json"

struct lfs {
    struct upload *u;
    char url[NET_URL_MAX];        /* of the batch protocol */
    struct upload_file **objects; /* [n], one a content, in arena */
    size_t n;
};

static const char *shown_path(const struct upload_file *f, char out[84])
{
    return name_shown(f->path, strlen(f->path), out);
}

/* --- asking --- */

static json_t *question(const struct upload *u, struct upload_file *const *objects, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, json_pack("{s:s, s:I}", "oid", objects[i]->digest, "size", (json_int_t)objects[i]->size)) != 0) {
            json_decref(list);
            return NULL;
        }
    return json_pack("{s:s, s:[s, s], s:s, s:{s:s}, s:o}", "operation", "upload", "transfers", "basic", "multipart", "hash_algo", "sha256",
                     "ref", "name", u->o->revision, "objects", list);
}

/* The entry of a content in an answer. *out NULL with MB_OK: the hub has it. Borrowed. */
static mb_status actions_of(struct upload *u, const json_t *answer, const struct upload_file *f, const json_t **out)
{
    char shown[84], said[84];
    const json_t *list = json_object_get(answer, "objects"), *o;
    size_t i;
    json_array_foreach(list, i, o) {
        const char *oid = json_string_value(json_object_get(o, "oid"));
        if (!oid || strcmp(oid, f->digest) != 0) continue;
        const json_t *error = json_object_get(o, "error");
        const char *text = json_string_value(json_object_get(error, "message"));
        if (error)
            return mb_fail(u->err, MB_INVALID, "%s: the hub refuses %s: %s (%lld)", u->what, shown_path(f, shown),
                           text ? name_shown(text, strlen(text), said) : "it does not say why",
                           (long long)json_integer_value(json_object_get(error, "code")));
        *out = json_object_get(o, "actions");
        if (!json_object_get(*out, "upload")) *out = NULL;
        return MB_OK;
    }
    return mb_fail(u->err, MB_BAD_FORMAT, "%s: the hub does not say where to send %s", u->what, shown_path(f, shown));
}

static mb_status ask(struct lfs *l, struct upload_file *const *objects, size_t n, json_t **answer)
{
    struct upload *u = l->u;
    struct json_write_opts plain = { 0 };
    struct net_answer a;
    struct buf body, said;
    json_t *q = question(u, objects, n);
    *answer = NULL;
    buf_init(&body, UPLOAD_ANSWER_MAX);
    buf_init(&said, UPLOAD_ANSWER_MAX);
    if (q) json_write(&body, q, &plain);
    json_decref(q);
    mb_status st = q ? buf_status(&body, "a request", u->err) : mb_fail(u->err, MB_NO_MEMORY, "no memory for a request");
    if (st == MB_OK) st = upload_post(u, l->url, LFS_TYPE, &body, &a, &said, false);
    if (st == MB_OK && a.status != 200) st = upload_refused(u, &a, &said, "asking where to send the weights");
    if (st == MB_OK) st = net_read_json(&a, &said, u->what, answer, u->err);
    buf_free(&body);
    buf_free(&said);
    return st;
}

/* Which contents does the hub have? The addresses of the others are asked for again when it is their turn. */
static mb_status find_missing(struct lfs *l)
{
    for (size_t i = 0; i < l->n; i += OBJECTS_AT_ONCE) {
        size_t n = l->n - i < OBJECTS_AT_ONCE ? l->n - i : OBJECTS_AT_ONCE;
        json_t *answer;
        MB_TRY(ask(l, l->objects + i, n, &answer));
        mb_status st = MB_OK;
        for (size_t k = i; st == MB_OK && k < i + n; k++) {
            const json_t *actions = NULL;
            st = actions_of(l->u, answer, l->objects[k], &actions);
            l->objects[k]->is_sent = st == MB_OK && !actions;
        }
        json_decref(answer);
        MB_TRY(st);
    }
    return MB_OK;
}

/* --- sending --- */

/* An address of an action: absolute, and not from https down to http. */
static mb_status address(struct lfs *l, const json_t *href, char out[NET_URL_MAX])
{
    const char *text = json_string_value(href);
    if (text && net_redirect(l->url, text, out, NULL) == MB_OK) return MB_OK;
    return mb_fail(l->u->err, MB_BAD_FORMAT, "%s: the hub gives an address to send to that cannot be used", l->u->what);
}

static bool is_good(const struct net_answer *a)
{
    return a->status >= 200 && a->status < 300;
}

/* A signature that is too old is 403 (or 400), an upload in parts that the storage has given up 404; what else it says is final. */
static bool is_stale(const struct net_answer *a)
{
    return a->status == 400 || a->status == 401 || a->status == 403 || a->status == 404;
}

static mb_status storage_refused(struct lfs *l, const struct upload_file *f, const struct net_answer *a)
{
    char shown[84];
    shown_path(f, shown);
    if (a->status == 0)
        return mb_fail(l->u->err, MB_IO, "%s: the connection broke while %s was sent: %.120s; run the same command again, what was sent is "
                       "not sent again", l->u->what, shown, a->curl_text);
    return mb_fail(l->u->err, a->status == 413 ? MB_TOO_LARGE : MB_IO, "%s: the hub's storage refuses %s (%ld)%s", l->u->what, shown, a->status,
                   a->status >= 500 ? ": run the same command again later, what was sent is not sent again" : "");
}

/* PUT [off, off + len) of a file. *a says what came of it. */
static mb_status put(struct lfs *l, const char *url, const json_t *headers, int fd, int64_t off, int64_t len, struct net_answer *a)
{
    struct upload *u = l->u;
    struct buf said;
    struct net_request r = { .url = url, .method = "PUT", .fd = fd, .off = off, .len = len, .headers = headers, .going = upload_going,
                             .ctx = u };
    buf_init(&said, UPLOAD_ANSWER_MAX);
    mb_status st = net_ask(&u->o->net, &r, a, &said, u->err);
    buf_free(&said);
    if (st == MB_OK && is_good(a)) {
        u->base_bytes += (uint64_t)len;
        u->r->sent_bytes += (uint64_t)len;
    }
    return st;
}

static int64_t number_of(const json_t *v)
{
    const char *s = json_string_value(v);
    if (json_is_integer(v)) return json_integer_value(v);
    return s && strspn(s, "0123456789") == strlen(s) ? strtoll(s, NULL, 10) : 0;
}

/* "1", "2", ... or "00001", ... -> their addresses. */
static const json_t *part_address(const json_t *header, int64_t i_part)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)header, key, value)
        if (*key && strspn(key, "0123456789") == strlen(key) && strtoll(key, NULL, 10) == i_part) return value;
    return NULL;
}

static mb_status tell_parts(struct lfs *l, const char *url, const struct upload_file *f, json_t *parts, struct net_answer *a)
{
    struct json_write_opts plain = { 0 };
    struct buf body, said;
    json_t *o = json_pack("{s:s, s:O}", "oid", f->digest, "parts", parts);
    buf_init(&body, UPLOAD_ANSWER_MAX);
    buf_init(&said, UPLOAD_ANSWER_MAX);
    if (o) json_write(&body, o, &plain);
    json_decref(o);
    mb_status st = o ? buf_status(&body, "a request", l->u->err) : mb_fail(l->u->err, MB_NO_MEMORY, "no memory for a request");
    if (st == MB_OK) st = upload_post(l->u, url, LFS_TYPE, &body, a, &said, false);
    buf_free(&body);
    buf_free(&said);
    return st;
}

/* 0: none, or none that can be worked with. */
static int64_t chunk_of(const json_t *actions)
{
    int64_t n = number_of(json_object_get(json_object_get(json_object_get(actions, "upload"), "header"), "chunk_size"));
    return n > 0 && n <= CHUNK_MAX ? n : 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The first part that has not arrived. */
static mb_status send_part(struct lfs *l, const struct upload_file *f, int fd, struct upload_note *n, int64_t chunk, struct net_answer *a)
{
    char url[NET_URL_MAX];
    int64_t i = (int64_t)json_array_size(n->parts), off = i * chunk;
    MB_TRY(address(l, part_address(json_object_get(json_object_get(n->actions, "upload"), "header"), i + 1), url));
    MB_TRY(put(l, url, NULL, fd, off, least(chunk, f->size - off), a));
    if (!is_good(a)) return MB_OK;
    if (!a->etag[0]) return mb_fail(l->u->err, MB_BAD_FORMAT, "%s: the hub's storage gives a part no name", l->u->what);
    return upload_note_part(n, l->u, a->etag);
}

static mb_status send_parts(struct lfs *l, const struct upload_file *f, int fd, struct upload_note *note, struct net_answer *a)
{
    char url[NET_URL_MAX], shown[84];
    int64_t chunk = chunk_of(note->actions), n = f->size / chunk + (f->size % chunk != 0);
    if (n > PARTS_MAX)
        return mb_fail(l->u->err, MB_TOO_LARGE, "%s: the hub wants %s in %lld parts, at most %d are sent", l->u->what, shown_path(f, shown),
                       (long long)n, PARTS_MAX);
    MB_TRY(address(l, json_object_get(json_object_get(note->actions, "upload"), "href"), url));
    uint64_t resumed = (uint64_t)least((int64_t)note->n_before * chunk, f->size);
    *a = (struct net_answer){ .status = 200 };
    while (is_good(a) && (int64_t)json_array_size(note->parts) < n) MB_TRY(send_part(l, f, fd, note, chunk, a));
    if (!is_good(a)) return MB_OK;
    MB_TRY(tell_parts(l, url, f, note->parts, a));
    if (is_good(a)) l->u->r->resumed_bytes += resumed;
    if (is_good(a) || a->status == 400 || a->status == 404) upload_note_forget(note); /* done, or these parts are of no use */
    return MB_OK;
}

static mb_status send_whole(struct lfs *l, const struct upload_file *f, int fd, const json_t *upload, struct net_answer *a)
{
    char url[NET_URL_MAX];
    MB_TRY(address(l, json_object_get(upload, "href"), url));
    return put(l, url, json_object_get(upload, "header"), fd, 0, f->size, a);
}

static mb_status verify(struct lfs *l, const struct upload_file *f, const json_t *action)
{
    struct upload *u = l->u;
    char url[NET_URL_MAX], doing[112], shown[84];
    struct net_answer a;
    struct buf body, said;
    if (!json_is_object(action)) return MB_OK;
    MB_TRY(address(l, json_object_get(action, "href"), url));
    buf_init(&body, 4096);
    buf_init(&said, UPLOAD_ANSWER_MAX);
    buf_printf(&body, "{\"oid\":\"%s\",\"size\":%lld}", f->digest, (long long)f->size);
    struct net_request r = { .url = url, .method = "POST", .data = body.data, .len = (int64_t)body.len, .fd = -1, .type = LFS_TYPE,
                             .accept = LFS_TYPE, .headers = json_object_get(action, "header"), .going = upload_waiting, .ctx = u };
    mb_status st = buf_status(&body, "a request", u->err);
    struct net_opts net = u->o->net;
    if (net.stall_s == 0) net.stall_s = UPLOAD_STALL_S;
    if (st == MB_OK) st = net_ask(&net, &r, &a, &said, u->err);
    snprintf(doing, sizeof doing, "checking %s", shown_path(f, shown));
    if (st == MB_OK && !is_good(&a)) st = upload_refused(u, &a, &said, doing);
    buf_free(&body);
    buf_free(&said);
    return st;
}

/* Where it goes: by the note of an upload that is under way, at the first try, or as the hub says. *actions NULL: the hub has it. */
static mb_status find_way(struct lfs *l, struct upload_file *f, struct upload_note *note, bool anew, json_t **actions)
{
    json_t *answer;
    const json_t *said = NULL, *header;
    if (note->actions && chunk_of(note->actions) <= 0) upload_note_forget(note);
    *actions = anew ? NULL : json_incref(note->actions);
    if (*actions) return MB_OK;
    MB_TRY(ask(l, &f, 1, &answer));
    mb_status st = actions_of(l->u, answer, f, &said);
    header = json_object_get(json_object_get(json_object_get(said, "upload"), "header"), "chunk_size");
    if (st == MB_OK && header && chunk_of(said) <= 0) st = mb_fail(l->u->err, MB_BAD_FORMAT, "%s: the hub wants parts of a size that cannot be", l->u->what);
    if (st == MB_OK && header) st = upload_note_begin(note, l->u, l->url, f, said);
    else if (st == MB_OK) upload_note_forget(note);
    if (st == MB_OK) *actions = json_incref((json_t *)said);
    json_decref(answer);
    return st;
}

/* With one address. *a: what the storage said last; a good status means sent and checked. */
static mb_status send_once(struct lfs *l, struct upload_file *f, int fd, struct upload_note *note, bool anew, struct net_answer *a)
{
    json_t *actions;
    uint64_t before = l->u->base_bytes;
    *a = (struct net_answer){ .status = 200 };
    MB_TRY(find_way(l, f, note, anew, &actions));
    if (!actions) return MB_OK;
    l->u->base_bytes += (uint64_t)least((int64_t)json_array_size(note->parts) * chunk_of(actions), f->size);
    l->u->p.done_bytes = l->u->base_bytes;
    mb_status st = note->actions ? send_parts(l, f, fd, note, a) : send_whole(l, f, fd, json_object_get(actions, "upload"), a);
    if (st == MB_OK && is_good(a)) st = upload_file_check(l->u, f, fd);
    if (st == MB_OK && is_good(a)) st = verify(l, f, json_object_get(actions, "verify"));
    if (!is_good(a)) l->u->base_bytes = before;
    json_decref(actions);
    return st;
}

static mb_status send_object(struct lfs *l, struct upload_file *f)
{
    struct upload *u = l->u;
    struct upload_note note;
    struct net_answer a = { 0 };
    int fd;
    MB_TRY(upload_file_open(u, f, &fd));
    mb_status st = upload_note_open(&note, u, l->url, f);
    bool noted = note.actions != NULL; /* its addresses may be too old: another try */
    for (int i = 0; st == MB_OK && i < ADDRESSES_MAX + noted; i++) {
        st = send_once(l, f, fd, &note, i > 0, &a);
        if (st != MB_OK || !is_stale(&a)) break;
    }
    if (st == MB_OK && !is_good(&a)) st = upload_file_check(u, f, fd); /* the wrong bytes are refused too */
    if (st == MB_OK && !is_good(&a)) st = storage_refused(l, f, &a);
    f->is_sent = st == MB_OK;
    upload_note_close(&note);
    close(fd);
    return st;
}

/* --- all --- */

static int by_digest(const void *a, const void *b)
{
    const struct upload_file *x = *(struct upload_file *const *)a, *y = *(struct upload_file *const *)b;
    int order = strcmp(x->digest, y->digest);
    return order ? order : strcmp(x->path, y->path);
}

static int by_path(const void *a, const void *b)
{
    return strcmp((*(struct upload_file *const *)a)->path, (*(struct upload_file *const *)b)->path);
}

/* What is new or another and goes by LFS, each content once, in the order of the names. */
static mb_status collect(struct lfs *l)
{
    struct upload *u = l->u;
    l->objects = arena_alloc_array(&u->arena, u->n_files + 1, sizeof *l->objects);
    if (!l->objects) return mb_fail(u->err, MB_NO_MEMORY, "no memory for the files of %s", u->o->dir);
    size_t n = 0;
    for (size_t i = 0; i < u->n_files; i++) {
        struct upload_file *f = &u->files[i];
        if (f->is_lfs && !f->is_ignored && !f->is_unchanged) l->objects[n++] = f;
    }
    if (n > 1) qsort(l->objects, n, sizeof *l->objects, by_digest);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(l->objects[i]->digest, l->objects[l->n - 1]->digest) != 0) l->objects[l->n++] = l->objects[i];
    if (l->n > 1) qsort(l->objects, l->n, sizeof *l->objects, by_path);
    return MB_OK;
}

mb_status upload_lfs(struct upload *u)
{
    struct lfs l = { .u = u };
    uint64_t bytes = 0;
    size_t n_missing = 0;
    MB_TRY(net_url_lfs(&u->o->net, u->o->kind, u->o->repo, l.url, u->err));
    upload_notes_sweep(u->o->notes_dir);
    MB_TRY(collect(&l));
    MB_TRY(find_missing(&l));
    for (size_t i = 0; i < l.n; i++) {
        n_missing += !l.objects[i]->is_sent;
        bytes += l.objects[i]->is_sent ? 0 : (uint64_t)l.objects[i]->size;
    }
    u->r->n_lfs_present = l.n - n_missing;
    upload_phase(u, UPLOAD_SENDING, bytes, n_missing);
    for (size_t i = 0; i < l.n; i++) {
        if (l.objects[i]->is_sent) continue;
        u->p.current = l.objects[i]->path;
        MB_TRY(send_object(&l, l.objects[i]));
        u->p.files_done++;
    }
    return MB_OK;
}
