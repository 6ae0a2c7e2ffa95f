/* cmd_convert.c: `mlx-bun convert FILE.gguf OUT/`: the import of src/convert with a bar and a report. */
#include "base/json.h"
#include "cli/cli.h"
#include "convert/convert.h"

static bool on_bytes(void *ctx, uint64_t done, uint64_t total)
{
    progress_set(ctx, total ? (double)done / (double)total : 1);
    return true;
}

static void print_text(const struct convert_report *r, const char *out_dir)
{
    char size[32];
    printf("%s: %s, %zu tensors, %s\n", out_dir, r->arch, r->n_tensors, model_size_text(r->size_bytes, size));
    printf("  %zu as they are, %zu quantised without loss", r->n_plain, r->n_exact);
    if (r->n_f32_scales) printf(" (%zu of all with float32 scales)", r->n_f32_scales);
    printf(", %zu rounded\n", r->n_rounded);
    if (r->n_rounded)
        printf("  largest error %.3g, at most %.3g of the largest weight of its group (%s)\n", r->worst_error,
               r->worst_error_share, r->worst_tensor);
    for (const char *p = r->notes; *p; p++) { /* each line indented */
        if (p == r->notes || p[-1] == '\n') fputs("  ", stdout);
        putchar(*p);
    }
}

static mb_status print_json(const struct convert_report *r, const char *out_dir, mb_error *err)
{
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:I, s:s}", "directory", out_dir, "arch", r->arch,
                          "tensors", (json_int_t)r->n_tensors, "plain", (json_int_t)r->n_plain, "exact",
                          (json_int_t)r->n_exact, "rounded", (json_int_t)r->n_rounded, "f32_scales",
                          (json_int_t)r->n_f32_scales, "worst_error", r->worst_error, "worst_error_share",
                          r->worst_error_share, "worst_tensor", r->worst_tensor, "size_bytes", (json_int_t)r->size_bytes,
                          "notes", r->notes);
    struct buf b;
    struct json_write_opts opts = { 0 };
    buf_init(&b, 0);
    if (o) json_write(&b, o, &opts);
    buf_append_char(&b, '\n');
    mb_status st = o ? buf_status(&b, "the report", err) : mb_fail(err, MB_NO_MEMORY, "out of memory for the report");
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    json_decref(o);
    return st;
}

mb_status cmd_convert(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    struct convert_report report;
    struct progress bar;
    (void)exit_status;
    if (n_pos != 2)
        return mb_fail(err, MB_INVALID, "convert takes two arguments: the GGUF file and the new directory; see mlx-bun help convert");
    progress_begin(&bar, "importing", f->quiet.b);
    struct convert_opts opt = { .progress = on_bytes, .progress_ctx = &bar, .report = &report };
    mb_status st = convert_gguf(pos[0], pos[1], &opt, err);
    progress_end(&bar);
    if (st != MB_OK) return st;
    if (f->json.b) return print_json(&report, pos[1], err);
    print_text(&report, pos[1]);
    return MB_OK;
}
