/* adapters.c: the routes of adapters. Listing answers at once; mounting and looking through folders read files, so they run
 * on a request worker. */
#include "server/server_int.h"

void handle_adapters(struct http_exchange *x)
{
    struct buf b;
    buf_init(&b, 0);
    api_adapters_list(&b, &x->s->client);
    http_reply(x, 200, "application/json", &b);
}

void handle_adapters_available(struct http_exchange *x)
{
    struct buf b;
    buf_init(&b, 0);
    api_adapters_available(&b, &x->s->client);
    http_reply(x, 200, "application/json", &b);
}

/* Whatever is wrong with the folder is wrong with the request (API-305). */
static int http_status_of(mb_status st)
{
    if (st == MB_NO_MEMORY) return 503;
    return st == MB_IO || st == MB_INTERNAL ? 500 : 400;
}

static void refuse(struct http_exchange *x, const mb_error *err, const struct buf *problems)
{
    struct buf text;
    buf_init(&text, 0);
    buf_append_str(&text, err->text);
    if (problems->len > 1) {
        buf_append_str(&text, "\n");
        buf_append(&text, problems->data, problems->len - 1); /* without the last line end */
    }
    http_reply_status(x, http_status_of(err->code), NULL, err->at, text.failed ? err->text : text.data);
    buf_free(&text);
}

void handle_adapter_mount(struct http_exchange *x)
{
    struct buf b, problems;
    mb_error err = { 0 };
    buf_init(&b, 0);
    buf_init(&problems, 0);
    if (api_adapter_mount(&b, &problems, &x->s->client, x->body.data ? x->body.data : "", x->body.len, &err) == MB_OK) {
        http_reply(x, 200, "application/json", &b);
    } else {
        buf_free(&b);
        refuse(x, &err, &problems);
    }
    buf_free(&problems);
}

void handle_adapter_unmount(struct http_exchange *x)
{
    struct buf b;
    mb_error err = { 0 };
    buf_init(&b, 0);
    http_reply_json(x, api_adapter_unmount(&b, &x->s->client, x->rest, &err), &b, &err);
}
