/* library.c: the routes about models on disk: /library, /downloads, /fit, and the rest of /v1/models. What they say is made in
 * hub/library.c; a server without a library (an embedding program's) answers 404. */
#include <string.h>

#include "hub/library.h"
#include "server/server_int.h"

typedef mb_status (*answer_fn)(struct library *l, struct buf *out, mb_error *err);

static bool has_library(struct http_exchange *x)
{
    if (x->s->opt.library) return true;
    http_reply_status(x, 404, "not_found", NULL, "this server has no library of models");
    return false;
}

static void reply_of(struct http_exchange *x, answer_fn fn)
{
    struct buf b;
    mb_error err = { 0 };
    if (!has_library(x)) return;
    buf_init(&b, 0);
    http_reply_json(x, fn(x->s->opt.library, &b, &err), &b, &err);
}

void handle_library(struct http_exchange *x)
{
    reply_of(x, library_models);
}

void handle_downloads(struct http_exchange *x)
{
    reply_of(x, library_downloads);
}

void handle_fit(struct http_exchange *x)
{
    struct buf b;
    mb_error err = { 0 };
    const struct server_options *o = &x->s->opt;
    buf_init(&b, 0);
    if (o->fit) http_reply_json(x, o->fit(o->fit_ctx, &b, &err), &b, &err);
    else http_reply_status(x, 404, "not_found", NULL, "this server does not know what its model takes");
}

/* --- starting and cancelling --- */

/* {"repo_id", "revision"}; revision may be absent. Strings point into *body (json_decref). */
static mb_status read_body(struct http_exchange *x, json_t **body, const char **repo, const char **revision, mb_error *err)
{
    MB_TRY(api_body_read(body, x->body.data ? x->body.data : "", x->body.len, err));
    MB_TRY(json_get_str(*body, "repo_id", NULL, repo, err));
    MB_TRY(json_get_str(*body, "revision", "main", revision, err));
    return *repo ? MB_OK : mb_fail_at(err, MB_INVALID, "repo_id", "repo_id is required: the model's name, owner/name");
}

static void reply_state(struct http_exchange *x, int status, const char *repo, const char *revision, const char *state)
{
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, "{\"repo_id\": ");
    json_write_string(&b, repo, strlen(repo));
    buf_append_str(&b, ", \"revision\": ");
    json_write_string(&b, revision, strlen(revision));
    buf_printf(&b, ", \"state\": \"%s\"}", state);
    http_reply(x, status, "application/json", &b);
}

static void start_or_cancel(struct http_exchange *x, bool start)
{
    json_t *body = NULL;
    const char *repo = NULL, *revision = NULL;
    mb_error err = { 0 };
    if (!has_library(x)) return;
    mb_status st = read_body(x, &body, &repo, &revision, &err);
    if (st == MB_OK) st = start ? library_get(x->s->opt.library, repo, revision, &err) : library_cancel(x->s->opt.library, repo, &err);
    if (st == MB_OK) reply_state(x, start ? 202 : 200, repo, revision, start ? "active" : "cancelled");
    else http_reply_error(x, &err);
    json_decref(body);
}

void handle_download_start(struct http_exchange *x)
{
    start_or_cancel(x, true);
}

void handle_download_cancel(struct http_exchange *x)
{
    start_or_cancel(x, false);
}

/* --- /v1/models --- */

void library_append_models(struct http_exchange *x, const char *only_id, struct buf *list)
{
    static const char end[] = "]}";
    const struct gen_model_info *m = x->s->client.info(x->s->client.ctx);
    mb_error err;
    if (!x->s->opt.library || list->failed || list->len < 2 || memcmp(list->data + list->len - 2, end, 2) != 0) return;
    bool first = list->data[list->len - 3] == '[';
    list->data[list->len -= 2] = '\0';
    size_t len = list->len;
    if (library_servable(x->s->opt.library, m->id, only_id, first, list, &err) != MB_OK) list->data[list->len = len] = '\0';
    buf_append_str(list, end);
}
