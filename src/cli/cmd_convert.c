/* cmd_convert.c: `mlx-bun convert`: a GGUF file imported, or a checkpoint quantised or cast (src/convert), with a bar and a
 * report. A repository that is not in the cache is fetched first, as `get` does.
 */
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
#include "cli/mixed.h"
#include "cli/store.h"
#include "convert/convert.h"
#include "convert/out_folder.h"
#include "hub/names.h"

#define PLAN_MAX_BYTES ((size_t)64 << 20)

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

mb_status print_object(json_t *o, mb_error *err)
{
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

static json_t *report_json(const struct convert_report *r, const char *out_dir)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:I, s:s}", "directory", out_dir, "arch", r->arch,
                     "tensors", (json_int_t)r->n_tensors, "plain", (json_int_t)r->n_plain, "exact",
                     (json_int_t)r->n_exact, "rounded", (json_int_t)r->n_rounded, "f32_scales",
                     (json_int_t)r->n_f32_scales, "worst_error", r->worst_error, "worst_error_share",
                     r->worst_error_share, "worst_tensor", r->worst_tensor, "size_bytes", (json_int_t)r->size_bytes,
                     "notes", r->notes);
}

/* What was made, and with --upload-repo (`up`) published then. o: the report as an object, taken; NULL in text, which is printed by now.
 * A model that could not be published is there nevertheless, and said so. */
static mb_status end_with(const struct flags *f, json_t *o, const char *out_dir, const struct upload_opts *up, mb_error *err)
{
    static struct upload_result r; /* large */
    mb_status st = MB_OK;
    if (f->json.b && !o) return mb_fail(err, MB_NO_MEMORY, "out of memory for the report");
    if (up) st = publish(f, up, &r, err);
    if (st != MB_OK)
        mb_error_prefix(err, "%.200s is made but not published (mlx-bun upload %.200s --upload-repo %s does so)", out_dir, out_dir, up->repo);
    if (up && o && json_object_set_new(o, "upload", st == MB_OK ? publish_json(up, &r) : json_null()) != 0 && st == MB_OK)
        st = mb_fail(err, MB_NO_MEMORY, "out of memory for the report");
    if (o) {
        mb_status printed = print_object(o, st == MB_OK ? err : NULL);
        return st != MB_OK ? st : printed;
    }
    if (up && st == MB_OK) publish_print(f, up, &r);
    return st;
}

static mb_status import_gguf_file(const struct flags *f, const char *file, const char *out_dir, const struct upload_opts *up, mb_error *err)
{
    struct convert_report report;
    struct progress bar;
    progress_begin(&bar, "importing", f->quiet.b);
    struct convert_opts opt = { .progress = on_bytes, .progress_ctx = &bar, .report = &report };
    mb_status st = convert_gguf(file, out_dir, &opt, err);
    progress_end(&bar);
    if (st != MB_OK) return st;
    if (!f->json.b) print_text(&report, out_dir);
    return end_with(f, f->json.b ? report_json(&report, out_dir) : NULL, out_dir, up, err);
}

/* --- checkpoints --- */

static json_t *result_json(const struct checkpoint_result *r, const char *out_dir)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s}", "directory", out_dir,
                     "model_type", r->model_type, "tensors", (json_int_t)r->n_tensors, "quantised",
                     (json_int_t)r->n_quantised, "kept", (json_int_t)r->n_kept, "requantised",
                     (json_int_t)r->n_requantised, "indivisible", (json_int_t)r->n_indivisible, "dropped",
                     (json_int_t)r->n_dropped, "mtp", (json_int_t)r->n_mtp, "shards", (json_int_t)r->n_shards, "size_bytes",
                     (json_int_t)r->size_bytes, "parameters", (json_int_t)r->n_parameters, "bits_per_weight",
                     r->bits_per_weight, "dtype", r->dtype);
}

static void print_result(const struct checkpoint_result *r, const char *out_dir)
{
    char size[32];
    printf("%s: %s, %s in %zu file%s, %.3f bits per weight\n", out_dir, r->model_type, model_size_text(r->size_bytes, size),
           r->n_shards, r->n_shards == 1 ? "" : "s", r->bits_per_weight);
    printf("  %zu modules quantised, floats %s\n", r->n_quantised, r->dtype);
    if (r->n_kept) printf("  %zu of them had these bits already and kept their bytes\n", r->n_kept);
    if (r->n_requantised)
        printf("  %zu of them were quantised otherwise before and lost a little more; 16-bit weights are the better source\n",
               r->n_requantised);
    if (r->n_indivisible) printf("  %zu modules stay in floats: their inputs are no multiple of the group\n", r->n_indivisible);
    if (r->n_mtp) printf("  %zu tensors of the head for several tokens at once are kept in mtp/, which this version does not run\n", r->n_mtp);
    if (r->n_dropped) printf("  %zu tensors that the text model does not read were left out\n", r->n_dropped);
}

/* --q-config: an object as config.json's "quantization", alone or in a config.json. *plan: a new reference. */
static mb_status plan_read(const char *path, json_t **plan, mb_error *err)
{
    json_t *root;
    MB_TRY(json_read_file_any(&root, path, PLAN_MAX_BYTES, err));
    json_t *inner = json_object_get(root, "quantization");
    if (json_object_get(root, "model_type") && !inner) {
        json_decref(root);
        return mb_fail(err, MB_INVALID, "%.300s has no \"quantization\": the model that it describes is not quantised", path);
    }
    *plan = json_incref(inner ? inner : root);
    json_decref(root);
    return MB_OK;
}

/* The folder that a source argument names; a repository that is not here is fetched. */
mb_status convert_find_source(const struct flags *f, const char *arg, char path[MODEL_PATH_MAX], mb_error *err)
{
    static struct store s;      /* large, as is the next */
    static struct get_result r;
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX];
    mb_status st = model_find(f, arg, true, path, err);
    if (st != MB_NOT_FOUND || dir_exists(arg) || !name_looks_like_repo(arg)) return st;
    MB_TRY(store_init(&s, f, err));
    MB_TRY(name_parse_model(arg, "main", repo, revision, err));
    MB_TRY(download_model(f, &s, repo, revision, NULL, &r, err));
    return store_copy_path(path, r.path, err);
}

/* --target-bpw excludes the flags that say the bits themselves. */
static mb_status check_mixed(const struct flags *f, mb_error *err)
{
    if (f->q_bits.given || f->quant_predicate.given || f->q_config.given || f->q_mode.given)
        return mb_fail(err, MB_INVALID, "--target-bpw chooses the bits of affine codes; --q-mode, --q-bits, --quant-predicate and --q-config do not go with it");
    return MB_OK;
}

/* What is asked for must be said: a bare convert would only copy. */
static mb_status check_wish(const struct flags *f, mb_error *err)
{
    bool quantise = f->quantize.b || f->q_config.given;
    if (f->dequantize.b) return mb_fail(err, MB_INVALID, "--dequantize is not offered: a quantised checkpoint runs as it is");
    if (f->target_bpw.given) return check_mixed(f, err);
    if (!quantise && (f->q_mode.given || f->q_bits.given || f->q_group_size.given || f->quant_predicate.given))
        return mb_fail(err, MB_INVALID, "--q-mode, --q-bits, --q-group-size and --quant-predicate go with -q");
    if (f->q_config.given && f->q_mode.given)
        return mb_fail(err, MB_INVALID, "--q-config says the modes too; --q-mode does not go with it");
    if (f->q_config.given && (f->q_bits.given || f->q_group_size.given || f->quant_predicate.given))
        return mb_fail(err, MB_INVALID, "--q-config says bits and groups; --q-bits, --q-group-size and --quant-predicate do not go with it");
    if (f->quant_predicate.given && f->q_bits.given)
        return mb_fail(err, MB_INVALID, "--quant-predicate chooses the bits; --q-bits does not go with it");
    if (!quantise && !f->dtype.given)
        return mb_fail(err, MB_INVALID, "what shall become of it? -q quantises (4 bits, groups of 64), --dtype casts; a conversion "
                       "without either is not offered: plain checkpoints run as they are");
    return MB_OK;
}

static mb_status convert_model(const struct flags *f, const char *src_dir, const char *out_dir, const struct upload_opts *up, mb_error *err)
{
    struct checkpoint_result result;
    struct progress bar;
    json_t *plan = NULL, *note = NULL;
    MB_TRY(out_folder_check_target(out_dir, err)); /* before minutes of measuring */
    if (f->q_config.given) MB_TRY(plan_read(f->q_config.s, &plan, err));
    if (f->target_bpw.given) MB_TRY(mixed_choose(f, src_dir, &plan, &note, err));
    progress_begin(&bar, "converting", f->quiet.b);
    struct checkpoint_opts opt = { .quantise = f->quantize.b || plan, .plan = plan, .n_threads = (int)f->threads.i,
                                   .dtype = f->dtype.given ? f->dtype.s : NULL,
                                   .mode = strcmp(f->q_mode.s, "trellis") == 0 ? QUANT_TRELLIS : QUANT_AFFINE, .bits = (int)f->q_bits.i,
                                   .group_size = (int)f->q_group_size.i, .max_shard_bytes = (uint64_t)f->max_shard_size.i,
                                   .recipe = f->quant_predicate.given ? f->quant_predicate.s : NULL, .progress = on_bytes,
                                   .progress_ctx = &bar, .result = &result, .note = note,
                                   .note_name = note ? "optiq_metadata.json" : NULL };
    mb_status st = convert_checkpoint(src_dir, out_dir, &opt, err);
    progress_end(&bar);
    json_decref(plan);
    json_decref(note);
    if (st != MB_OK) return st;
    if (!f->json.b) print_result(&result, out_dir);
    return end_with(f, f->json.b ? result_json(&result, out_dir) : NULL, out_dir, up, err);
}

static bool is_gguf(const char *arg)
{
    size_t n = strlen(arg);
    return file_exists(arg) || (n > 5 && strcmp(arg + n - 5, ".gguf") == 0 && !dir_exists(arg));
}

mb_status cmd_convert(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char src_dir[MODEL_PATH_MAX];
    static struct store s; /* large, as is the next */
    static struct upload_opts opts;
    const struct upload_opts *up = f->upload_repo.given ? &opts : NULL;
    const char *arg = f->hf_path.given ? f->hf_path.s : n_pos > 0 ? pos[0] : NULL;
    int i_out = f->hf_path.given ? 0 : 1;
    const char *out_dir = f->mlx_path.given || n_pos <= i_out ? f->mlx_path.s : pos[i_out];
    (void)exit_status;
    if (!arg) return mb_fail(err, MB_INVALID, "convert what? a GGUF file or a model, and the new folder; see mlx-bun help convert");
    if (n_pos > i_out + 1) return mb_fail(err, MB_INVALID, "convert takes a source and a new folder, %.100s is too much", pos[i_out + 1]);
    if (is_gguf(arg)) {
        if (!f->mlx_path.given && n_pos <= i_out)
            return mb_fail(err, MB_INVALID, "convert takes two arguments here: the GGUF file and the new folder; see mlx-bun help convert");
        if (up) MB_TRY(publish_prepare(f, out_dir, "model", &s, &opts, err));
        return import_gguf_file(f, arg, out_dir, up, err);
    }
    MB_TRY(check_wish(f, err));
    if (up) MB_TRY(publish_prepare(f, out_dir, "model", &s, &opts, err)); /* before the work: names and the token */
    MB_TRY(convert_find_source(f, arg, src_dir, err));
    return convert_model(f, src_dir, out_dir, up, err);
}
