/* upload_commit.c: what an upload asks the hub about the repository: what is there, making it, which files go by LFS, the commit. */
#include <stdlib.h>
#include <string.h>

#include "hub/upload_int.h"

#define MODES_AT_ONCE 256
#define COMMIT_BODY_MAX ((size_t)512 << 20) /* the small files of a commit, in base64 */

/* --- refusals --- */

/* What the hub said of it: {"error": ...} (the hub), {"message": ...} (LFS), or a header. */
static const char *said_text(const struct net_answer *a, const struct buf *said, char out[84])
{
    json_t *o = NULL;
    const char *text = a->message;
    out[0] = '\0';
    if (said && said->data && json_read(&o, said->data, said->len, JSON_READ_DEFAULT, NULL) == MB_OK) {
        const char *error = json_string_value(json_object_get(o, "error")), *message = json_string_value(json_object_get(o, "message"));
        if (error || message) text = error ? error : message;
    }
    name_shown(text, strlen(text), out);
    json_decref(o);
    return out;
}

static mb_status fail_with(struct upload *u, mb_status code, const char *doing, const char *text, const char *said)
{
    return mb_fail(u->err, code, "%s: %s: %s%s%s", u->what, doing, text, said[0] ? "; the hub says: " : "", said);
}

mb_status upload_refused(struct upload *u, const struct net_answer *a, const struct buf *said, const char *doing)
{
    char text[320], shown[84];
    const struct net_opts *net = &u->o->net;
    mb_status code = MB_IO;
    said_text(a, said, shown);
    if (a->status == 0) {
        snprintf(text, sizeof text, "cannot reach the hub at %.120s: %.120s", net_endpoint(net), a->curl_text[0] ? a->curl_text : "no answer");
    } else if (a->status == 401) {
        code = MB_INVALID;
        snprintf(text, sizeof text, "the hub does not accept the token (401): make one that may write at %.120s/settings/tokens",
                 net_endpoint(net));
    } else if (a->status == 403) {
        code = MB_INVALID;
        snprintf(text, sizeof text, "the token may not do this (403): it needs the permission to write to %s", u->o->repo);
    } else if (a->status == 404 && strcmp(a->code, "RevisionNotFound") == 0) {
        code = MB_NOT_FOUND;
        snprintf(text, sizeof text, "the repository has no such branch (404)");
    } else if (a->status == 404) {
        code = MB_NOT_FOUND;
        snprintf(text, sizeof text, "the hub finds nothing there (404): check the spelling, and that the token may see it");
    } else if (a->status == 409 || a->status == 412) {
        code = MB_BUSY;
        snprintf(text, sizeof text, "somebody else changed the repository meanwhile (%ld): run the same command again; what was sent is "
                 "not sent again", a->status);
    } else if (a->status == 413) {
        code = MB_TOO_LARGE;
        snprintf(text, sizeof text, "too large for the hub (413)");
    } else if (a->status == 429) {
        snprintf(text, sizeof text, "the hub asks for fewer requests (429): try again later");
    } else if (a->status >= 500) {
        snprintf(text, sizeof text, "the hub at %.120s fails (%ld): run the same command again later; what was sent is not sent again",
                 net_endpoint(net), a->status);
    } else {
        code = a->status >= 400 ? MB_INVALID : MB_IO;
        snprintf(text, sizeof text, "the hub answered with status %ld", a->status);
    }
    return fail_with(u, code, doing, text, shown);
}

/* --- requests --- */

mb_status upload_post(struct upload *u, const char *url, const char *type, const struct buf *body, struct net_answer *a,
                      struct buf *said, bool only_once)
{
    struct net_opts net = u->o->net;
    struct net_request r = { .url = url, .method = "POST", .data = body->data, .len = (int64_t)body->len, .fd = -1, .type = type,
                             .accept = strcmp(type, "application/x-ndjson") == 0 ? "application/json" : type, .only_once = only_once,
                             .going = upload_waiting, .ctx = u };
    if (only_once || net.stall_s == 0) net.stall_s = UPLOAD_STALL_S;
    return net_ask(&net, &r, a, said, u->err);
}

static bool is_good(const struct net_answer *a)
{
    return a->status >= 200 && a->status < 300;
}

static mb_status body_of(struct buf *b, json_t *o, mb_error *err)
{
    struct json_write_opts plain = { 0 };
    buf_init(b, COMMIT_BODY_MAX);
    if (o) json_write(b, o, &plain);
    json_decref(o);
    return o ? buf_status(b, "a request", err) : mb_fail(err, MB_NO_MEMORY, "no memory for a request");
}

/* --- the repository --- */

static mb_status make_repository(struct upload *u)
{
    char url[NET_URL_MAX], owner[NAME_REPO_MAX];
    struct net_answer a;
    struct buf body, said;
    const char *slash = strchr(u->o->repo, '/');
    snprintf(owner, sizeof owner, "%.*s", (int)(slash - u->o->repo), u->o->repo);
    MB_TRY(net_url_create(&u->o->net, url, u->err));
    buf_init(&said, UPLOAD_ANSWER_MAX);
    mb_status st = body_of(&body, json_pack("{s:s, s:s, s:s, s:b}", "name", slash + 1, "organization", owner, "type", u->o->kind,
                                            "private", (int)u->o->is_private), u->err);
    if (st == MB_OK) st = upload_post(u, url, "application/json", &body, &a, &said, false);
    if (st == MB_OK && !is_good(&a) && a.status != 409) st = upload_refused(u, &a, &said, "making the repository");
    u->r->created = st == MB_OK && a.status != 409; /* 409: somebody was faster */
    buf_free(&body);
    buf_free(&said);
    return st;
}

static mb_status read_listing(struct upload *u, const struct net_answer *a, const struct buf *said)
{
    json_t *answer;
    MB_TRY(net_read_json(a, said, u->what, &answer, u->err));
    listing_free(&u->there);
    mb_status st = listing_read(&u->there, answer, u->err);
    bool is_public = !json_is_true(json_object_get(answer, "private"));
    json_decref(answer);
    if (st != MB_OK) return mb_error_prefix(u->err, "%s", u->what);
    if (u->o->is_private && is_public)
        return mb_fail(u->err, MB_INVALID, "%s is there and public, asked for is --private: nothing was sent; make it private at %s/settings "
                       "or leave --private away", u->o->repo, u->r->url);
    return MB_OK;
}

/* *missing: there is no such repository. */
static mb_status look_once(struct upload *u, bool *missing)
{
    char url[NET_URL_MAX];
    struct net_answer a;
    struct buf said;
    MB_TRY(net_url_api(&u->o->net, u->o->kind, u->o->repo, "revision", u->o->revision, "?blobs=true", url, u->err));
    struct net_request r = { .url = url, .fd = -1, .accept = "application/json", .going = upload_waiting, .ctx = u };
    buf_init(&said, LISTING_JSON_MAX);
    mb_status st = net_ask(&u->o->net, &r, &a, &said, u->err);
    *missing = st == MB_OK && a.status == 404 && strcmp(a.code, "RevisionNotFound") != 0;
    if (st == MB_OK && a.status == 200) st = read_listing(u, &a, &said);
    else if (st == MB_OK && !*missing) st = upload_refused(u, &a, &said, "looking at what is there");
    buf_free(&said);
    return st;
}

mb_status upload_look(struct upload *u)
{
    bool missing;
    MB_TRY(look_once(u, &missing));
    if (!missing) return MB_OK;
    MB_TRY(make_repository(u));
    MB_TRY(look_once(u, &missing));
    if (!missing) return MB_OK;
    return mb_fail(u->err, MB_IO, "%s: the hub made the repository and does not find it: run the same command again", u->what);
}

/* --- by LFS or in the commit? --- */

/* REG-228: known suffixes and large files, whatever the hub says; of others it decides. An empty file never goes by LFS. */
static bool is_lfs(const struct upload_file *f, const char *mode)
{
    static const char *const suffixes[] = { ".safetensors", ".gguf", ".bin", ".npz", ".npy", ".pt", ".pth", ".onnx", ".parquet", ".arrow",
                                            ".zip", ".gz", ".tar", NULL };
    if (f->size == 0) return false;
    for (int i = 0; suffixes[i]; i++)
        if (name_ends(f->path, suffixes[i])) return true;
    return f->size >= UPLOAD_REGULAR_MAX || strcmp(mode, "regular") != 0;
}

static mb_status modes_read(struct upload *u, size_t first, size_t n, const json_t *answer)
{
    const json_t *files = json_object_get(answer, "files"), *o;
    char shown[84];
    size_t i_answer, n_found = 0;
    json_array_foreach(files, i_answer, o) {
        const char *path = json_string_value(json_object_get(o, "path")), *mode = json_string_value(json_object_get(o, "uploadMode"));
        for (size_t i = first; path && mode && i < first + n; i++) {
            struct upload_file *f = &u->files[i];
            if (strcmp(f->path, path) != 0 || f->is_asked) continue;
            f->is_asked = true;
            f->is_lfs = is_lfs(f, mode);
            f->is_ignored = json_is_true(json_object_get(o, "shouldIgnore"));
            n_found++;
        }
    }
    for (size_t i = first; n_found < n && i < first + n; i++)
        if (!u->files[i].is_asked)
            return mb_fail(u->err, MB_BAD_FORMAT, "%s: the hub does not say how to send %s", u->what,
                           name_shown(u->files[i].path, strlen(u->files[i].path), shown));
    return MB_OK;
}

static mb_status modes_question(struct upload *u, size_t first, size_t n, struct buf *body)
{
    buf_append_str(body, "{\"files\":[");
    for (size_t i = first; i < first + n; i++) {
        const struct upload_file *f = &u->files[i];
        unsigned char sample[UPLOAD_SAMPLE_BYTES];
        size_t n_sample;
        MB_TRY(upload_file_sample(u, f, sample, sizeof sample, &n_sample));
        buf_append_str(body, i > first ? ",{\"path\":" : "{\"path\":");
        json_write_string(body, f->path, strlen(f->path));
        buf_printf(body, ",\"size\":%lld,\"sample\":\"", (long long)f->size);
        upload_base64(body, sample, n_sample);
        buf_append_str(body, "\"}");
    }
    buf_append_str(body, "]}");
    return buf_status(body, "a request", u->err);
}

static mb_status modes_some(struct upload *u, size_t first, size_t n)
{
    char url[NET_URL_MAX];
    struct net_answer a;
    struct buf body, said;
    json_t *answer = NULL;
    MB_TRY(net_url_api(&u->o->net, u->o->kind, u->o->repo, "preupload", u->o->revision, "", url, u->err));
    buf_init(&body, COMMIT_BODY_MAX);
    buf_init(&said, UPLOAD_ANSWER_MAX);
    mb_status st = modes_question(u, first, n, &body);
    if (st == MB_OK) st = upload_post(u, url, "application/json", &body, &a, &said, false);
    if (st == MB_OK && !is_good(&a)) st = upload_refused(u, &a, &said, "asking how to send the files");
    if (st == MB_OK) st = net_read_json(&a, &said, u->what, &answer, u->err);
    if (st == MB_OK) st = modes_read(u, first, n, answer);
    json_decref(answer);
    buf_free(&body);
    buf_free(&said);
    return st;
}

mb_status upload_modes(struct upload *u)
{
    for (size_t i = 0; i < u->n_files; i += MODES_AT_ONCE)
        MB_TRY(modes_some(u, i, u->n_files - i < MODES_AT_ONCE ? u->n_files - i : MODES_AT_ONCE));
    return MB_OK;
}

/* --- the commit --- */

static mb_status put_file(struct upload *u, const struct upload_file *f, struct buf *body)
{
    struct buf content;
    if (f->is_lfs) {
        buf_append_str(body, "{\"key\":\"lfsFile\",\"value\":{\"path\":");
        json_write_string(body, f->path, strlen(f->path));
        buf_printf(body, ",\"algo\":\"sha256\",\"oid\":\"%s\",\"size\":%lld}}\n", f->digest, (long long)f->size);
        return MB_OK;
    }
    buf_init(&content, (size_t)UPLOAD_REGULAR_MAX + 1);
    mb_status st = upload_file_content(u, f, &content);
    buf_append_str(body, "{\"key\":\"file\",\"value\":{\"path\":");
    json_write_string(body, f->path, strlen(f->path));
    buf_append_str(body, ",\"encoding\":\"base64\",\"content\":\"");
    if (st == MB_OK) upload_base64(body, content.data, content.len);
    buf_append_str(body, "\"}}\n");
    buf_free(&content);
    return st;
}

static mb_status commit_body(struct upload *u, struct buf *body)
{
    buf_append_str(body, "{\"key\":\"header\",\"value\":{\"summary\":");
    json_write_string(body, u->o->message, strlen(u->o->message));
    buf_printf(body, ",\"description\":\"\",\"parentCommit\":\"%s\"}}\n", u->there.commit);
    for (size_t i = 0; i < u->n_files; i++) {
        const struct upload_file *f = &u->files[i];
        if (!f->is_ignored && !f->is_unchanged) MB_TRY(put_file(u, f, body));
    }
    return buf_status(body, "the small files of the folder", u->err);
}

/* Does the revision have every file by now? */
static bool is_committed(const struct upload *u)
{
    size_t k = 0;
    for (size_t i = 0; i < u->n_files; i++) {
        const struct upload_file *f = &u->files[i];
        if (f->is_ignored) continue;
        while (k < u->there.n_files && strcmp(u->there.files[k].path, f->path) < 0) k++;
        if (k == u->there.n_files || strcmp(u->there.files[k].path, f->path) != 0 || strcmp(u->there.files[k].digest, f->digest) != 0)
            return false;
    }
    return true;
}

/* The answer to a commit was lost or was a failure: was it made? MB_OK and *done, or not done and another try makes sense. */
static mb_status commit_look(struct upload *u, bool *done)
{
    char parent[NAME_COMMIT_LEN + 1];
    bool missing;
    strcpy(parent, u->there.commit);
    MB_TRY(look_once(u, &missing));
    *done = !missing && is_committed(u);
    if (*done) strcpy(u->r->commit, u->there.commit);
    if (*done || (!missing && strcmp(parent, u->there.commit) == 0)) return MB_OK;
    return mb_fail(u->err, MB_BUSY, "%s: somebody else changed the repository meanwhile: run the same command again; what was sent is not "
                   "sent again", u->what);
}

static mb_status take_commit(struct upload *u, const struct net_answer *a, const struct buf *said)
{
    json_t *answer;
    MB_TRY(net_read_json(a, said, u->what, &answer, u->err));
    const char *oid = json_string_value(json_object_get(answer, "commitOid"));
    bool ok = oid && name_is_commit(oid);
    if (ok) strcpy(u->r->commit, oid);
    json_decref(answer);
    return ok ? MB_OK : mb_fail(u->err, MB_BAD_FORMAT, "%s: the hub took the commit and did not say its name", u->what);
}

/* A commit that is sent twice could be made twice: before another try the revision is looked at. */
static mb_status commit_send(struct upload *u, const char *url, const struct buf *body, struct buf *said)
{
    struct net_request waiting = { .going = upload_waiting, .ctx = u };
    const struct net_opts *net = &u->o->net;
    struct net_answer a;
    int retries = net->retries == 0 ? 5 : net->retries;
    for (int i = 0;; i++) {
        bool done;
        MB_TRY(upload_post(u, url, "application/x-ndjson", body, &a, said, true));
        if (is_good(&a)) return take_commit(u, &a, said);
        if (!net_is_temporary(&a) || i >= retries) return upload_refused(u, &a, said, "the commit");
        MB_TRY(net_wait(net_delay_ms(net, &a, i), &waiting, u->err));
        MB_TRY(commit_look(u, &done));
        if (done) return MB_OK;
    }
}

/* Before hours of sending: does what goes into the commit itself fit? */
mb_status upload_commit_fits(const struct upload *u)
{
    int64_t n = 0;
    for (size_t i = 0; i < u->n_files; i++) {
        const struct upload_file *f = &u->files[i];
        if (!f->is_ignored && !f->is_unchanged && !f->is_lfs) n += (f->size + 2) / 3 * 4 + (int64_t)strlen(f->path) + 100;
    }
    if (n < (int64_t)COMMIT_BODY_MAX) return MB_OK;
    return mb_fail(u->err, MB_TOO_LARGE, "%s: the files that the hub wants inside the commit have %lld MB, at most %zu MB fit: publish them "
                   "in several folders", u->what, (long long)(n >> 20), COMMIT_BODY_MAX >> 20);
}

mb_status upload_commit(struct upload *u)
{
    char url[NET_URL_MAX];
    struct buf body, said;
    upload_phase(u, UPLOAD_COMMITTING, 0, u->n_files);
    MB_TRY(net_url_api(&u->o->net, u->o->kind, u->o->repo, "commit", u->o->revision, "", url, u->err));
    buf_init(&body, COMMIT_BODY_MAX);
    buf_init(&said, UPLOAD_ANSWER_MAX);
    mb_status st = commit_body(u, &body);
    if (st == MB_OK) st = commit_send(u, url, &body, &said);
    buf_free(&body);
    buf_free(&said);
    return st;
}
