/* fuzz_chat_request.c: a request body through every dialect. Nothing may crash; what is accepted holds to the ranges
 * that the waist relies on; what is refused says why, in valid UTF-8 that makes a valid JSON error body (B-049, B-050). */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) abort();
}

static void check_accepted(const struct api_request *r)
{
    const struct gen_request *g = &r->gen;
    check(g->n_choices >= 1 && g->n_choices <= API_MAX_CHOICES);
    check(g->max_tokens >= (r->dialect == &api_anthropic ? -1 : 1) || g->max_tokens == -1);
    check(g->n_top_logprobs >= 0 && g->n_top_logprobs <= API_MAX_TOP_LOGPROBS);
    for (int32_t i = 0; i < g->n_stops; i++) check(g->stops[i] && g->stops[i][0]);
    for (int32_t i = 0; i < g->bias.n; i++) check(g->bias.p[i].id >= 0);
    if (g->input == GEN_MESSAGES) {
        json_t *v = NULL;
        mb_status st = json_read(&v, g->messages_json, strlen(g->messages_json), 0, NULL);
        check(st == MB_NO_MEMORY || (st == MB_OK && json_array_size(v) > 0));
        json_decref(v);
    }
}

static void check_refused(const struct api_dialect *d, const mb_error *err)
{
    struct buf b;
    json_t *v = NULL;
    check(err->code != MB_OK && err->text[0] && utf8_valid(err->text, strlen(err->text)));
    buf_init(&b, 0);
    int status = api_error_body_of(&b, d, err);
    check(status >= 400 && status < 600);
    if (!b.failed) { /* also with failing allocations */
        mb_status st = json_read(&v, b.data, b.len, 0, NULL);
        check(st == MB_OK || st == MB_NO_MEMORY);
    }
    json_decref(v);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct api_dialect *const dialects[] = { &api_openai_chat, &api_openai_completions, &api_anthropic, &api_responses };
    const struct api_env env = { 0 };
    for (size_t i = 0; i < sizeof dialects / sizeof dialects[0]; i++) {
        struct api_request *r;
        mb_error err = { 0 };
        if (api_request_open(&r, dialects[i], &env, (const char *)data, size, &err) == MB_OK) check_accepted(r);
        else check(r == NULL), check_refused(dialects[i], &err);
        api_request_close(r);
    }
    return 0;
}
