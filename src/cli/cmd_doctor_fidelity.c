/* cmd_doctor_fidelity.c: `mlx-bun doctor --fidelity MODEL`: the bars of docs/fidelity.md, measured for any model.
 *
 * Texts: the .txt files of a folder, in order of name, each tokenised with the model's own tokenizer and cut into runs of
 * 512 ids; runs are taken in turn, one from each file, until there are 8 (4,096 positions). Too short a corpus is an error:
 * fewer positions would make the bars mean something else.
 */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/doctor.h"

#define RUN_TOKENS 512
#define N_RUNS 8
#define MAX_FILES 64

struct text_ids {
    char *name; /* owned */
    int32_t *ids, n;
};
struct corpus {
    struct text_ids file[MAX_FILES];
    int n_files;
    int32_t ids[N_RUNS * RUN_TOKENS];
};

/* --- where the texts are --- */
static bool is_texts(const char *base, const char *below, char out[MODEL_PATH_MAX])
{
    int n = snprintf(out, MODEL_PATH_MAX, "%s/%s", base, below);
    return n > 0 && n < MODEL_PATH_MAX && dir_exists(out);
}

static mb_status find_texts(const struct flags *f, char out[MODEL_PATH_MAX], mb_error *err)
{
    static const char *const beside[] = { "../share/mlx-bun/fidelity", "../tests/golden/fidelity/texts" };
    char exe[PATH_MAX];
    if (f->texts.given) {
        if (is_texts(f->texts.s, "texts", out) || is_texts(f->texts.s, ".", out)) return MB_OK;
        return mb_fail(err, MB_NOT_FOUND, "--texts %.200s is not a directory", f->texts.s);
    }
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = '\0';
        char *slash = strrchr(exe, '/');
        if (slash) *slash = '\0';
        for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++)
            if (is_texts(exe, beside[i], out)) return MB_OK;
    }
    if (is_texts(".", "tests/golden/fidelity/texts", out)) return MB_OK;
    return mb_fail(err, MB_NOT_FOUND, "the texts to measure on are not installed (share/mlx-bun/fidelity beside the program): "
                   "give --texts DIR, a folder of .txt files");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct text_ids *)a)->name, ((const struct text_ids *)b)->name);
}

static mb_status list_files(const char *dir, struct corpus *c, mb_error *err)
{
    DIR *d = opendir(dir);
    if (!d) return mb_fail_errno(err, "cannot open", dir);
    for (struct dirent *e; c->n_files < MAX_FILES && (e = readdir(d)) != NULL;) {
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 4, ".txt") != 0) continue;
        c->file[c->n_files].name = mb_strdup(e->d_name);
        if (!c->file[c->n_files].name) break;
        c->n_files++;
    }
    closedir(d);
    qsort(c->file, (size_t)c->n_files, sizeof c->file[0], by_name);
    return c->n_files ? MB_OK : mb_fail(err, MB_NOT_FOUND, "%.300s holds no .txt files", dir);
}

static mb_status tokenise_file(const char *model, const char *dir, struct text_ids *t, mb_error *err)
{
    char path[MODEL_PATH_MAX];
    struct buf b;
    buf_init(&b, 0);
    mb_status st = path_join(path, sizeof path, dir, t->name, err);
    if (st == MB_OK) st = file_read(&b, path, INPUT_MAX_BYTES, err);
    if (st == MB_OK) st = mb_tokenize_dir(model, b.data ? b.data : "", b.len, true, &t->ids, &t->n, err);
    buf_free(&b);
    return st;
}

/* One run of each file in turn, until there are enough. */
static mb_status cut_runs(struct corpus *c, const char *dir, mb_error *err)
{
    int n = 0, turn = 0;
    for (bool any = true; any && n < N_RUNS; turn++) {
        any = false;
        for (int i = 0; i < c->n_files && n < N_RUNS; i++) {
            if ((turn + 1) * RUN_TOKENS > c->file[i].n) continue;
            memcpy(c->ids + n++ * RUN_TOKENS, c->file[i].ids + turn * RUN_TOKENS, RUN_TOKENS * sizeof *c->ids);
            any = true;
        }
    }
    if (n == N_RUNS) return MB_OK;
    return mb_fail(err, MB_INVALID, "the texts of %.200s give %d runs of %d tokens with this model's tokenizer, wanted %d: add "
                   "longer texts", dir, n, RUN_TOKENS, N_RUNS);
}

static mb_status read_corpus(const struct flags *f, const char *model, struct corpus *c, mb_error *err)
{
    char dir[MODEL_PATH_MAX];
    MB_TRY(find_texts(f, dir, err));
    MB_TRY(list_files(dir, c, err));
    for (int i = 0; i < c->n_files; i++) MB_TRY(tokenise_file(model, dir, &c->file[i], err));
    return cut_runs(c, dir, err);
}

static void corpus_free(struct corpus *c)
{
    if (!c) return;
    for (int i = 0; i < c->n_files; i++) {
        mb_free(c->file[i].name);
        mb_free(c->file[i].ids);
    }
    mb_free(c);
}

/* --- measuring --- */
struct bar_row {
    const char *name;
    enum fidelity_tier tier;
    const char *kv;         /* as --kv-quant */
    double max_mean_kl;
    double min_top1_percent; /* 0 = no bar */
    bool on_gpu;            /* measured with --device cuda, and nothing else then */
    bool when_asked;        /* measured when --kv-quant names it alone */
};
/* design.md section 1; docs/fidelity.md keeps the numbers of each family. */
static const struct bar_row bars[] = {
    { "l1, float32 KV", TIER_L1, "f32", 1e-6, 0, false, false },
    { "l1", TIER_L1, "off", 1e-4, 0, false, false },
    { "l2", TIER_L2, "off", 5e-3, 95, false, false },
    { "l1, 8-bit KV", TIER_L1, "8", 5e-3, 95, false, true },
    { "l1, 4-bit KV", TIER_L1, "4", 5e-1, 0, false, true },
    { "cuda", TIER_L1, "off", 3e-4, 99, true, false },
};
#define N_BARS (sizeof bars / sizeof bars[0])

static bool is_met(const struct bar_row *bar, const struct fidelity_report *r)
{
    /* written so that a NaN misses */
    return r->mean_kl <= bar->max_mean_kl && (bar->min_top1_percent <= 0 || r->top1_percent >= bar->min_top1_percent);
}

static void print_row(const struct bar_row *bar, const struct fidelity_report *r)
{
    printf("%-15s KV %-4s mean KL %.3g (bar %.0e)  p99 %.3g  max %.3g  top-1 %.2f %%", bar->name, r->kv_mode,
           r->mean_kl, bar->max_mean_kl, r->p99_kl, r->max_kl, r->top1_percent);
    if (bar->min_top1_percent > 0) printf(" (bar %.0f %%)", bar->min_top1_percent);
    printf("  %s\n", is_met(bar, r) ? "met" : "MISSED");
    fflush(stdout);
}

static void append_row(struct buf *b, const struct bar_row *bar, const struct fidelity_report *r)
{
    buf_printf(b, "%s{\"tier\":\"%s\",\"kv\":\"%s\",\"positions\":%lld,\"mean_kl\":", b->data && b->data[b->len - 1] == '}' ? "," : "",
               mb_tier_name(bar->tier), r->kv_mode, (long long)r->n_positions);
    json_write_double(b, r->mean_kl);
    buf_append_str(b, ",\"p99_kl\":");
    json_write_double(b, r->p99_kl);
    buf_append_str(b, ",\"max_kl\":");
    json_write_double(b, r->max_kl);
    buf_append_str(b, ",\"top1_percent\":");
    json_write_double(b, r->top1_percent);
    buf_append_str(b, ",\"bar_mean_kl\":");
    json_write_double(b, bar->max_mean_kl);
    buf_append_str(b, ",\"bar_top1_percent\":");
    json_write_double(b, bar->min_top1_percent);
    buf_printf(b, ",\"met\":%s}", is_met(bar, r) ? "true" : "false");
}

static mb_status measure(const struct flags *f, const char *path, const struct corpus *c, const struct bar_row *bar,
                         struct fidelity_report *out, mb_error *err)
{
    char what[64], device[64];
    struct progress p;
    MB_TRY(model_device_name(f, device, err));
    snprintf(what, sizeof what, "measuring %s", bar->name);
    progress_begin(&p, what, f->quiet.b);
    struct fidelity_options opt = { .device = device, .cpu_level = f->cpu_level.given ? f->cpu_level.s : NULL,
                                    .n_threads = (int)f->threads.i, .tier = bar->tier, .progress = progress_set, .progress_ctx = &p };
    mb_status st = mb_kv_parse(bar->kv, &opt.kv_format, err);
    if (st == MB_OK) st = fidelity_measure(path, c->ids, N_RUNS, RUN_TOKENS, &opt, out, err);
    progress_end(&p);
    return st;
}

static mb_status measure_all(const struct flags *f, const char *path, const struct corpus *c, struct buf *json,
                             int *exit_status, mb_error *err)
{
    struct fidelity_report r;
    buf_append_str(json, "{\"model\":");
    json_write_string(json, path, strlen(path));
    buf_append_str(json, ",\"tiers\":[");
    bool on_gpu = strncmp(f->device.s, "cuda", 4) == 0;
    int n_measured = 0;
    for (size_t i = 0; i < N_BARS; i++) {
        if (bars[i].on_gpu != on_gpu || (f->kv_quant.given ? strcmp(bars[i].kv, f->kv_quant.s) != 0 : bars[i].when_asked)) continue;
        MB_TRY(measure(f, path, c, &bars[i], &r, err));
        n_measured++;
        if (!is_met(&bars[i], &r)) *exit_status = 1;
        if (f->json.b) append_row(json, &bars[i], &r);
        else print_row(&bars[i], &r);
    }
    if (n_measured == 0)
        return mb_fail_at(err, MB_UNSUPPORTED, "kv-quant", "doctor --fidelity has no bar for --kv-quant %s%s; it has one for %s",
                          f->kv_quant.s, on_gpu ? " on a GPU" : "", on_gpu ? "off" : "f32, off, 8 and 4");
    buf_printf(json, "],\"met\":%s}\n", *exit_status == 0 ? "true" : "false");
    MB_TRY(buf_status(json, "the report", err));
    if (f->json.b) fwrite(json->data, 1, json->len, stdout);
    return MB_OK;
}

/* --reference: the model's numbers as they are (f32 tier) against those of another checkpoint: what a conversion cost. */
static mb_status compare(const struct flags *f, const char *path, const struct corpus *c, mb_error *err)
{
    static char reference[MODEL_PATH_MAX];
    struct fidelity_report r;
    struct progress p;
    MB_TRY(model_find(f, f->reference.s, true, reference, err));
    progress_begin(&p, "comparing", f->quiet.b);
    struct fidelity_options opt = { .cpu_level = f->cpu_level.given ? f->cpu_level.s : NULL, .n_threads = (int)f->threads.i,
                                    .reference_dir = reference, .tier = TIER_F32, .kv_format = KV_F32, .progress = progress_set,
                                    .progress_ctx = &p };
    mb_status st = fidelity_measure(path, c->ids, N_RUNS, RUN_TOKENS, &opt, &r, err);
    progress_end(&p);
    if (st != MB_OK) return st;
    if (f->json.b)
        printf("{\"positions\":%lld,\"mean_kl\":%.9g,\"p99_kl\":%.9g,\"max_kl\":%.9g,\"top1_percent\":%.4f}\n",
               (long long)r.n_positions, r.mean_kl, r.p99_kl, r.max_kl, r.top1_percent);
    else
        printf("against %s: mean KL %.4g  p99 %.4g  max %.4g  top-1 %.2f %%\n", f->reference.s, r.mean_kl, r.p99_kl, r.max_kl,
               r.top1_percent);
    return MB_OK;
}

mb_status doctor_fidelity(const struct flags *f, const char *path, int *exit_status, mb_error *err)
{
    struct buf json;
    struct corpus *c = mb_calloc(1, sizeof *c);
    if (!c) return mb_fail(err, MB_NO_MEMORY, "out of memory for the texts");
    buf_init(&json, 0);
    mb_status st = read_corpus(f, path, c, err);
    if (st == MB_OK) st = f->reference.given ? compare(f, path, c, err) : measure_all(f, path, c, &json, exit_status, err);
    buf_free(&json);
    corpus_free(c);
    return st;
}
