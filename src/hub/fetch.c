/* fetch.c: see fetch.h. A transfer is a slot that takes one file after another:
 *
 *   idle -> (blob there: link) | open blob -> request -> [redirect -> request]* -> bytes -> check -> link -> idle
 *                                     ^------- later, with what has come so far ------'  (broken, 5xx)
 */
#include "hub/fetch.h"

#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "hub/blob.h"
#include "hub/net_int.h"

#define PARALLEL_MAX 16
#define POLL_MS 100
#define PROGRESS_NS 100000000

struct transfer {
    struct fetch *f;
    const struct hub_file *file;  /* NULL: idle */
    struct blob blob;
    CURL *easy;                   /* owned, reused */
    struct curl_slist *headers;
    struct net_answer answer;
    char url[NET_URL_MAX], why[CURL_ERROR_SIZE];
    int64_t range_first;          /* Content-Range's first byte, -1 = none */
    int64_t length;               /* Content-Length, -1 = unknown */
    int64_t asked_at;             /* blob.have when the request began */
    int64_t retry_at_ns;          /* 0 = a request is under way */
    int hops, n_tries;
    bool began;                   /* the first byte of a file was looked at */
    mb_status failed;             /* inside a callback; text in f->err */
};

struct fetch {
    const struct fetch_opts *o;
    struct fetch_progress *p;
    mb_error *err;
    CURLM *multi;
    struct transfer slots[PARALLEL_MAX];
    int n_slots;
    size_t next;                  /* file to begin with */
    uint64_t finished_bytes;
    int64_t t_progress_ns;
    bool stop;                    /* progress said so */
};

/* --- progress --- */

static void numbers(struct fetch *f)
{
    struct fetch_progress *p = f->p;
    p->current = NULL;
    p->done_bytes = f->finished_bytes;
    for (int i = 0; i < f->n_slots; i++) {
        if (!f->slots[i].file) continue;
        p->done_bytes += (uint64_t)f->slots[i].blob.have;
        if (!p->current) p->current = f->slots[i].file->path;
    }
}

static bool report(struct fetch *f, bool now)
{
    int64_t t = clock_now_ns();
    if (f->stop || (!now && t - f->t_progress_ns < PROGRESS_NS)) return !f->stop;
    f->t_progress_ns = t;
    numbers(f);
    if (f->o->progress && !f->o->progress(f->o->ctx, f->p)) f->stop = true;
    return !f->stop;
}

static bool is_cancelled(void *fetch)
{
    return !report(fetch, false);
}

/* --- callbacks of libcurl --- */

static int64_t number_after(const char *line, size_t len, const char *name)
{
    size_t n = strlen(name);
    if (len <= n || len > 200 || strncasecmp(line, name, n) != 0) return -1;
    int64_t v = 0;
    size_t i = n;
    while (i < len && (line[i] == ' ' || line[i] == '\t')) i++;
    if (i == len || line[i] < '0' || line[i] > '9') return -1;
    for (; i < len && line[i] >= '0' && line[i] <= '9' && v < (int64_t)1 << 50; i++) v = v * 10 + (line[i] - '0');
    return v;
}

static size_t on_header(char *data, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    size_t len = size * n;
    if (len > 5 && strncasecmp(data, "HTTP/", 5) == 0) t->range_first = t->length = -1;
    net_take_header(&t->answer, data, len);
    int64_t first = number_after(data, len, "content-range: bytes"), length = number_after(data, len, "content-length:");
    if (first >= 0) t->range_first = first;
    if (length >= 0) t->length = length;
    return len;
}

/* Before the first byte goes to disk: is this the part that was asked for, of the length that was listed? */
static mb_status begin_bytes(struct transfer *t, mb_error *err)
{
    struct blob *b = &t->blob;
    char shown[84];
    const char *name = name_shown(t->file->path, strlen(t->file->path), shown);
    t->began = true;
    if (strncasecmp(t->answer.type, "text/html", 9) == 0 && !name_ends(t->file->path, ".html"))
        return mb_fail(err, MB_BAD_FORMAT, "%s: the answer is an HTML page, not the file: a proxy or a login page stands before the "
                       "hub", name);
    bool right_place = t->answer.status == 206 && t->range_first == b->have;
    if (b->have > 0 && !right_place) {
        if (t->answer.status == 206 && t->range_first != 0)
            return mb_fail(err, MB_IO, "%s: the server sends from byte %lld on, asked for was byte %lld",
                           name, (long long)t->range_first, (long long)b->have);
        MB_TRY(blob_restart(b, err)); /* REG-021: it sends the whole */
    }
    if (t->length >= 0 && t->length > t->file->size - b->have)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the server announces %lld bytes, the hub lists %lld", name,
                       (long long)t->length, (long long)(t->file->size - b->have));
    return MB_OK;
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    size_t len = size * n;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->answer.status);
    if (t->answer.status != 200 && t->answer.status != 206) return len; /* of no interest */
    if (!t->began) t->failed = begin_bytes(t, t->f->err);
    if (t->failed == MB_OK) t->failed = blob_append(&t->blob, data, len, t->f->err);
    if (t->failed != MB_OK) return 0;
    t->f->p->received_bytes += len;
    return len;
}

/* --- a transfer --- */

static mb_status request(struct transfer *t)
{
    struct fetch *f = t->f;
    char range[40];
    curl_easy_reset(t->easy);
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    MB_TRY(net_prepare(t->easy, &f->o->net, t->url, &t->headers, f->err));
    t->answer = (struct net_answer){ 0 };
    t->why[0] = '\0';
    t->range_first = t->length = -1;
    t->began = false;
    t->failed = MB_OK;
    t->retry_at_ns = 0;
    t->asked_at = t->blob.have;
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->why);
    curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_BUFFERSIZE, 512L * 1024);
    if (t->blob.have > 0) {
        snprintf(range, sizeof range, "%lld-", (long long)t->blob.have);
        curl_easy_setopt(t->easy, CURLOPT_RANGE, range);
    }
    if (curl_multi_add_handle(f->multi, t->easy) != CURLM_OK) return mb_fail(f->err, MB_NO_MEMORY, "no memory for a request");
    return MB_OK;
}

/* From the hub again, with what is on disk as the beginning. */
static mb_status request_first(struct transfer *t)
{
    const struct fetch_opts *o = t->f->o;
    t->hops = 0;
    MB_TRY(net_url_file(&o->net, o->repo, o->list->commit, t->file->path, t->url, t->f->err));
    return request(t);
}

static mb_status file_done(struct fetch *f, const struct hub_file *file)
{
    MB_TRY(layout_link(f->o->repo_dir, f->o->list->commit, file->path, file->digest, f->err));
    f->finished_bytes += (uint64_t)file->size;
    f->p->files_done++;
    return MB_OK;
}

static mb_status complete(struct transfer *t)
{
    const struct hub_file *file = t->file;
    MB_TRY(blob_finish(&t->blob, t->f->err));
    MB_TRY(file_done(t->f, file)); /* under the lock: gc leaves a blob alone that is about to be linked */
    t->file = NULL;
    blob_close(&t->blob);
    report(t->f, true);
    return MB_OK;
}

static mb_status begin_file(struct transfer *t, const struct hub_file *file)
{
    struct fetch *f = t->f;
    if (blob_is_there(f->o->repo_dir, file)) {
        blob_clear_lock(f->o->repo_dir, file);
        return file_done(f, file);
    }
    MB_TRY(blob_open(&t->blob, f->o->repo_dir, file, is_cancelled, f, f->err));
    t->file = file;
    t->n_tries = 0;
    if (blob_is_there(f->o->repo_dir, file)) { /* another download made it while we looked */
        t->file = NULL;
        blob_close(&t->blob);
        return file_done(f, file);
    }
    return t->blob.have == file->size ? complete(t) : request_first(t);
}

static mb_status retry(struct transfer *t)
{
    const struct net_opts *net = &t->f->o->net;
    int retries = net->retries == 0 ? 5 : net->retries;
    if (t->blob.have > t->asked_at) t->n_tries = 0; /* it moves: patience begins anew */
    if (t->n_tries >= retries) {
        char shown[84];
        if (t->answer.status == 200 || t->answer.status == 206) return blob_finish(&t->blob, t->f->err); /* "sent X of Y" */
        return net_fail(net, &t->answer, t->f->o->repo, name_shown(t->file->path, strlen(t->file->path), shown), t->f->err);
    }
    t->retry_at_ns = clock_now_ns() + net_delay_ms(net, &t->answer, t->n_tries++) * 1000000;
    return MB_OK;
}

static mb_status answered(struct transfer *t, CURLcode r)
{
    struct fetch *f = t->f;
    char shown[84], next[NET_URL_MAX];
    long status = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    t->answer.status = r == CURLE_OK || r == CURLE_PARTIAL_FILE ? status : 0;
    if (t->failed != MB_OK) return t->failed;
    if (r != CURLE_OK) {
        snprintf(t->answer.curl_text, sizeof t->answer.curl_text, "%s", t->why[0] ? t->why : curl_easy_strerror(r));
        return retry(t);
    }
    if (status == 200 || status == 206) {
        if (t->blob.have == t->file->size) return complete(t);
        return t->blob.have > t->asked_at ? blob_finish(&t->blob, f->err) : retry(t); /* a whole answer, but short */
    }
    if (status >= 300 && status < 400) {
        if (t->hops++ == NET_HOPS_MAX) return mb_fail(f->err, MB_BAD_FORMAT, "the hub redirects more than %d times", NET_HOPS_MAX);
        MB_TRY(net_redirect(t->url, t->answer.location, next, f->err));
        strcpy(t->url, next);
        return request(t);
    }
    if (status == 416 && t->asked_at > 0) { /* the server's file ends before our partial */
        MB_TRY(blob_restart(&t->blob, f->err));
        return retry(t);
    }
    if (net_is_temporary(&t->answer)) return retry(t);
    return net_fail(&f->o->net, &t->answer, f->o->repo, name_shown(t->file->path, strlen(t->file->path), shown), f->err);
}

/* --- the loop --- */

static bool is_active(const struct fetch *f, const char *digest)
{
    for (int i = 0; i < f->n_slots; i++)
        if (f->slots[i].file && strcmp(f->slots[i].file->digest, digest) == 0) return true;
    return false;
}

/* Give work to idle slots and begin retries that are due. */
static mb_status start_due(struct fetch *f)
{
    int64_t now = clock_now_ns();
    for (int i = 0; i < f->n_slots; i++) {
        struct transfer *t = &f->slots[i];
        if (t->file && t->retry_at_ns && t->retry_at_ns <= now) MB_TRY(request_first(t));
        while (!t->file && f->next < f->o->list->n_files) {
            const struct hub_file *file = &f->o->list->files[f->next];
            if (is_active(f, file->digest)) break; /* the same content under another name: it will be there then */
            f->next++;
            MB_TRY(begin_file(t, file));
            if (!report(f, false)) return mb_fail(f->err, MB_CANCELLED, "cancelled");
        }
    }
    return MB_OK;
}

static mb_status take_answers(struct fetch *f)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(f->multi, &left))) {
        struct transfer *t = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode r = m->data.result; /* m is gone once the handle is removed */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        curl_multi_remove_handle(f->multi, t->easy);
        MB_TRY(answered(t, r));
    }
    return MB_OK;
}

static bool is_busy(const struct fetch *f)
{
    for (int i = 0; i < f->n_slots; i++)
        if (f->slots[i].file) return true;
    return f->next < f->o->list->n_files;
}

static mb_status loop(struct fetch *f)
{
    int running;
    for (;;) {
        MB_TRY(start_due(f));
        if (!is_busy(f)) return MB_OK;
        if (curl_multi_perform(f->multi, &running) != CURLM_OK) return mb_fail(f->err, MB_INTERNAL, "libcurl failed");
        MB_TRY(take_answers(f));
        if (!report(f, false)) return mb_fail(f->err, MB_CANCELLED, "cancelled; what was fetched is kept");
        if (is_busy(f)) curl_multi_poll(f->multi, NULL, 0, POLL_MS, NULL);
    }
}

static mb_status open_slots(struct fetch *f)
{
    int n = f->o->parallel > 0 ? f->o->parallel : FETCH_PARALLEL;
    f->n_slots = n > PARALLEL_MAX ? PARALLEL_MAX : n;
    f->multi = curl_multi_init();
    if (!f->multi) return mb_fail(f->err, MB_NO_MEMORY, "no memory for requests");
    for (int i = 0; i < f->n_slots; i++) {
        f->slots[i].f = f;
        f->slots[i].easy = curl_easy_init();
        if (!f->slots[i].easy) return mb_fail(f->err, MB_NO_MEMORY, "no memory for requests");
    }
    return MB_OK;
}

static void close_slots(struct fetch *f)
{
    for (int i = 0; i < f->n_slots; i++) {
        struct transfer *t = &f->slots[i];
        if (t->easy) curl_multi_remove_handle(f->multi, t->easy);
        curl_easy_cleanup(t->easy);
        curl_slist_free_all(t->headers);
        if (t->file) blob_close(&t->blob);
    }
    if (f->multi) curl_multi_cleanup(f->multi);
}

mb_status fetch_all(const struct fetch_opts *o, struct fetch_progress *p, mb_error *err)
{
    mb_error own;
    *p = (struct fetch_progress){ .total_bytes = o->list->total_bytes, .files_total = o->list->n_files };
    MB_TRY(net_init(err));
    struct fetch *f = mb_calloc(1, sizeof *f); /* large */
    if (!f) return mb_fail(err, MB_NO_MEMORY, "no memory for requests");
    f->o = o;
    f->p = p;
    f->err = err ? err : &own;
    mb_status st = open_slots(f);
    if (st == MB_OK) st = loop(f);
    numbers(f);
    close_slots(f);
    mb_free(f);
    p->current = NULL;
    return st;
}
