/* cmd_embed.c: embeddings of texts on the command line, without a server: --prompt TEXT, or --text FILE with one text a line;
 * one JSON object a text on standard output. The same vectors as POST /v1/embeddings. */
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

enum { EMBED_AT_ONCE = 256 }; /* texts of one call: what was computed is printed before the rest is begun */

struct lines {
    struct gen_embed_input *list; /* owned */
    int32_t n;
};

static int32_t count_lines(const struct buf *b)
{
    int32_t n = 0;
    for (size_t i = 0; i < b->len; i++) n += b->data[i] == '\n' && n < INT32_MAX - 1;
    return n + (b->len > 0 && b->data[b->len - 1] != '\n');
}

static mb_status split_lines(const struct buf *b, struct lines *out, mb_error *err)
{
    int32_t n = count_lines(b);
    if (n == 0) return mb_fail(err, MB_INVALID, "there is no text to embed");
    out->list = mb_calloc((size_t)n, sizeof *out->list);
    if (!out->list) return mb_fail(err, MB_NO_MEMORY, "out of memory for %d texts", (int)n);
    for (size_t at = 0; at < b->len; out->n++) {
        const char *end = memchr(b->data + at, '\n', b->len - at);
        size_t len = end ? (size_t)(end - (b->data + at)) : b->len - at;
        size_t cr = len > 0 && b->data[at + len - 1] == '\r';
        out->list[out->n].text = (struct str){ b->data + at, len - cr };
        at += len + 1;
    }
    return MB_OK;
}

static void print_vectors(const struct gen_embeddings *v, int32_t first)
{
    for (int32_t i = 0; i < v->n; i++) {
        printf("{\"index\": %d, \"embedding\": [", (int)(first + i));
        for (int32_t k = 0; k < v->d; k++) printf(k ? ", %.9g" : "%.9g", (double)v->values[(int64_t)i * v->d + k]);
        printf("]}\n");
    }
}

static mb_status embed_all(mb_engine *e, const struct flags *f, const struct lines *l, mb_error *err)
{
    struct engine_client c = mb_engine_client(e);
    struct progress bar;
    mb_status st = MB_OK;
    progress_begin(&bar, "embedding", f->quiet.b);
    for (int32_t i = 0; i < l->n && st == MB_OK; i += EMBED_AT_ONCE) {
        struct gen_embed_request r = { .inputs = l->list + i, .n_inputs = l->n - i < EMBED_AT_ONCE ? l->n - i : EMBED_AT_ONCE,
                                       .dimensions = (int32_t)f->dimensions.i };
        struct gen_embeddings v;
        if (f->instruction.given) r.instruction = str_of(f->instruction.s);
        st = c.embed(c.ctx, &r, &v, err);
        if (st != MB_OK) break;
        print_vectors(&v, i);
        gen_embeddings_free(&v);
        progress_set(&bar, (double)(i + r.n_inputs) / l->n);
    }
    progress_end(&bar);
    return st;
}

mb_status cmd_embed(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    struct buf text;
    struct lines l = { NULL, 0 };
    struct gen_embed_input one = { .text = { NULL, 0 } };
    mb_engine *e = NULL;
    mb_status st = MB_OK;
    (void)exit_status;
    if (f->prompt.given == f->text.given) return mb_fail(err, MB_INVALID, "give either --prompt TEXT or --text FILE");
    buf_init(&text, 0);
    if (f->prompt.given) {
        one.text = str_of(f->prompt.s);
        l = (struct lines){ &one, 1 };
    } else {
        st = input_read(&text, f->text.s, INPUT_MAX_BYTES, err);
        if (st == MB_OK) st = split_lines(&text, &l, err);
    }
    if (st == MB_OK) st = model_open_flags(f, n_pos > 0 ? pos[0] : NULL, &e, NULL, err);
    if (st == MB_OK) st = embed_all(e, f, &l, err);
    mb_engine_close(e);
    if (l.list != &one) mb_free(l.list);
    buf_free(&text);
    return st;
}
