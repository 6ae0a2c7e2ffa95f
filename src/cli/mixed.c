/* mixed.c: `convert --target-bpw`: the calibration texts to ids, the sensitivity pass (engine/sensitivity.h), the choice
 * (convert_mixed_plan), and what was found, for the user and for optiq_metadata.json.
 */
#include "cli/mixed.h"

#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"
#include "convert/convert.h"

#define PIECE_TOKENS 64
#define CORPUS_MAX_BYTES ((size_t)64 << 20)

/* --- candidates --- */

static const int all_groups[] = { 32, 64, 128 };

static bool is_width(long bits)
{
    return (bits >= 2 && bits <= 6) || bits == 8;
}

/* "3,4,8" in the groups that the flags allow. */
static mb_status candidates_read(const struct flags *f, struct mixed_opts *o, int *least, mb_error *err)
{
    *least = 8;
    for (const char *p = f->candidate_bits.s; *p;) {
        char *end;
        long bits = strtol(p, &end, 10);
        if (end == p || !is_width(bits) || (*end && *end != ','))
            return mb_fail(err, MB_INVALID, "--candidate-bits %.60s: a list like 3,4,8 of 2, 3, 4, 5, 6 and 8 is wanted", f->candidate_bits.s);
        for (int g = 0; g < 3; g++) {
            if (f->q_group_size.given && f->q_group_size.i != all_groups[g]) continue;
            if (o->n_candidates == MIXED_MAX_CANDIDATES) return mb_fail(err, MB_INVALID, "--candidate-bits: too many");
            o->candidates[o->n_candidates++] = (struct quant_spec){ QUANT_AFFINE, (int)bits, all_groups[g] };
        }
        *least = bits < *least ? (int)bits : *least;
        p = *end ? end + 1 : end;
    }
    if (o->n_candidates == 0) return mb_fail(err, MB_INVALID, "--q-group-size must be 32, 64 or 128, and --candidate-bits name a width");
    return MB_OK;
}

/* --- texts --- */

/* JSON lines: the "text" of each, an empty line between. */
static mb_status lines_join(const struct buf *in, const char *path, struct buf *out, mb_error *err)
{
    int line = 1;
    for (size_t at = 0; at < in->len; line++) {
        const char *from = in->data + at, *nl = memchr(from, '\n', in->len - at);
        size_t len = nl ? (size_t)(nl - from) : in->len - at;
        json_t *o = NULL;
        at += len + 1;
        if (strspn(from, " \t\r") >= len) continue;
        mb_status st = json_read(&o, from, len, JSON_READ_DEFAULT, err);
        if (st != MB_OK) return mb_error_prefix(err, "%.300s: line %d", path, line);
        const json_t *text = json_object_get(o, "text");
        if (json_is_text(text)) buf_append(out, json_string_value(text), json_string_length(text));
        buf_append_str(out, "\n\n");
        bool ok = json_is_text(text);
        json_decref(o);
        if (!ok) return mb_fail(err, MB_INVALID, "%.300s: line %d has no \"text\"", path, line);
    }
    return buf_status(out, "the calibration texts", err);
}

/* What the user named, else the texts of convert/calibration.c. */
static mb_status corpus_read(const struct flags *f, struct buf *text, mb_error *err)
{
    struct buf raw;
    const char *path = f->calibration_mix.given ? f->calibration_mix.s : NULL;
    size_t n = path ? strlen(path) : 0;
    if (!path) {
        const char *bundled = convert_calibration_text(&n);
        buf_append(text, bundled, n);
        return buf_status(text, "the calibration texts", err);
    }
    buf_init(&raw, CORPUS_MAX_BYTES);
    mb_status st = file_read_any(&raw, path, CORPUS_MAX_BYTES, err);
    bool lines = n > 6 && strcmp(path + n - 6, ".jsonl") == 0;
    if (st == MB_OK && lines) st = lines_join(&raw, path, text, err);
    if (st == MB_OK && !lines) buf_append(text, raw.data ? raw.data : "", raw.len);
    if (st == MB_OK) st = buf_status(text, "the calibration texts", err);
    buf_free(&raw);
    return st;
}

/* Pieces evenly spread over the corpus. *pieces: n * PIECE_TOKENS ids, released with mb_free. */
static mb_status pieces_cut(const struct flags *f, const char *src_dir, int32_t **pieces, mb_error *err)
{
    struct buf text;
    int32_t *ids = NULL, n_ids = 0, n = (int32_t)f->n_calibration.i;
    *pieces = NULL;
    buf_init(&text, CORPUS_MAX_BYTES);
    mb_status st = corpus_read(f, &text, err);
    if (st == MB_OK) st = mb_tokenize_dir(src_dir, text.data ? text.data : "", text.len, false, &ids, &n_ids, err);
    if (st == MB_OK && n_ids < n * PIECE_TOKENS)
        st = mb_fail(err, MB_INVALID, "%.300s holds %d tokens, %d pieces of %d are wanted: name more text with --calibration-mix or lower --n-calibration",
                     f->calibration_mix.given ? f->calibration_mix.s : "the bundled calibration text", (int)n_ids, (int)n, PIECE_TOKENS);
    if (st == MB_OK && !(*pieces = mb_alloc((size_t)n * PIECE_TOKENS * sizeof **pieces)))
        st = mb_fail(err, MB_NO_MEMORY, "out of memory for the calibration texts");
    for (int32_t i = 0; st == MB_OK && i < n; i++) {
        int64_t first = n > 1 ? (int64_t)i * (n_ids - PIECE_TOKENS) / (n - 1) : 0;
        memcpy(*pieces + (size_t)i * PIECE_TOKENS, ids + first, PIECE_TOKENS * sizeof *ids);
    }
    mb_free(ids);
    buf_free(&text);
    return st;
}

/* --- measuring and choosing --- */

static mb_status measure(const struct flags *f, const char *src_dir, const struct quant_spec *probe, json_t **figures, mb_error *err)
{
    int32_t *pieces;
    struct progress bar;
    MB_TRY(pieces_cut(f, src_dir, &pieces, err));
    progress_begin(&bar, "measuring each module", f->quiet.b);
    struct sensitivity_options opt = { .probe = *probe, .n_threads = (int)f->threads.i, .progress = progress_set, .progress_ctx = &bar };
    mb_status st = sensitivity_measure(figures, src_dir, pieces, (int32_t)f->n_calibration.i, PIECE_TOKENS, &opt, err);
    progress_end(&bar);
    mb_free(pieces);
    return st;
}

static bool on_modules(void *ctx, uint64_t done, uint64_t total)
{
    progress_set(ctx, total ? (double)done / (double)total : 1);
    return true;
}

static mb_status note_make(const struct mixed_opts *o, const struct mixed_result *r, json_t *figures, json_t **note, mb_error *err)
{
    *note = json_pack("{s:f, s:f, s:f, s:{s:i, s:i}, s:O}", "target_bpw", o->target_bpw, "bits_per_weight", r->bits_per_weight,
                      "predicted_kl", r->predicted_kl, "probe", "bits", o->probe.bits, "group_size", o->probe.group_size,
                      "per_layer_kl", figures);
    return *note ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for the figures");
}

static void say(const struct mixed_result *r)
{
    fprintf(stderr, "modules by bits:");
    for (int bits = 2; bits <= 8; bits++)
        if (r->n_by_bits[bits]) fprintf(stderr, " %zu x %d", r->n_by_bits[bits], bits);
    fprintf(stderr, "; %.3f bits per weight\n", r->bits_per_weight);
}

mb_status mixed_choose(const struct flags *f, const char *src_dir, json_t **plan, json_t **note, mb_error *err)
{
    struct mixed_opts o = { .target_bpw = f->target_bpw.d, .dtype = f->dtype.given ? f->dtype.s : NULL, .n_threads = (int)f->threads.i,
                            .progress = on_modules };
    struct mixed_result r;
    struct progress bar;
    json_t *figures = NULL;
    int least;
    *plan = *note = NULL;
    MB_TRY(candidates_read(f, &o, &least, err));
    /* Coarse enough to be seen, fine enough that loss still grows with the square of the error. */
    o.probe = (struct quant_spec){ QUANT_AFFINE, least > 3 ? least : 3, o.candidates[0].group_size };
    MB_TRY(convert_mixed_check(src_dir, &o, err));
    MB_TRY(measure(f, src_dir, &o.probe, &figures, err));
    o.figures = figures;
    o.progress_ctx = &bar;
    progress_begin(&bar, "choosing bits", f->quiet.b);
    mb_status st = convert_mixed_plan(src_dir, &o, plan, &r, err);
    progress_end(&bar);
    if (st == MB_OK) st = note_make(&o, &r, figures, note, err);
    if (st == MB_OK && !f->quiet.b) say(&r);
    if (st != MB_OK) {
        json_decref(*plan);
        *plan = NULL;
    }
    json_decref(figures);
    return st;
}
