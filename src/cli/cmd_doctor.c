/* cmd_doctor.c: what this machine has, what a model would take, its plan (--plan). --fidelity is cmd_doctor_fidelity.c. */
#include <string.h>

#include "base/json.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "cli/doctor.h"

static const char *const levels[] = { "portable", "avx2", "avx512", "amx" };
#define N_LEVELS 4

static mb_status estimate(const struct flags *f, const char *path, struct engine_loaded *out, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    struct engine_load load;
    MB_TRY(model_options(f, &opt, &x, err));
    MB_TRY(mb_extra_to_load(path, &opt, &x, &load, err));
    return engine_load_estimate(&load, out, NULL, err);
}

/* --- text --- */
static void print_machine(void)
{
    char text[96], size[32], gpu[MB_GPU_TEXT];
    mb_error err;
    printf("mlx-bun %s\n\ncpu levels (--cpu-level; every level gives the same bits)\n", mb_version());
    for (int i = 0; i < N_LEVELS; i++) {
        bool has = mb_device_text(levels[i], text, &err) == MB_OK;
        printf("  %-9s %s\n", levels[i], has ? "available" : "not on this machine");
    }
    if (mb_device_text(NULL, text, &err) == MB_OK) printf("chosen      %s\n", text);
    mb_gpu_text(gpu);
    printf("gpu         %s\n", gpu);
    printf("memory      %s may be used (least of free memory, cgroup and address space limits)\n",
           model_size_text(engine_memory_available(), size));
}

static void print_estimate(const char *path, const struct engine_loaded *l)
{
    char a[32], b[32], c[32], d[32], e[32];
    printf("\n%s\n  device    %s\n", path, l->device);
    printf("  memory    %s: weights %s, scratch %s, KV pool %s\n", model_size_text(l->usable_bytes, a),
           model_size_text(l->weight_bytes, b), model_size_text(l->scratch_bytes, c), model_size_text(l->pool_bytes, d));
    if (l->expert_bytes)
        printf("  experts   %s in a file, %s of memory for those in use\n", model_size_text(l->expert_bytes, a),
               model_size_text(l->expert_cache_bytes, b));
    printf("  context   %d tokens; %d fit the pool; a token of full attention takes %s\n", (int)l->n_context,
           (int)l->max_context_in_pool, model_size_text(l->kv_bytes_per_token, e));
    printf("  layers    %d with full attention, %d with a window; vocabulary %d\n", (int)l->n_layer_full,
           (int)l->n_layer_window, (int)l->n_vocab);
}

/* --- JSON --- */
static void append_machine(struct buf *b)
{
    char text[96], gpu[MB_GPU_TEXT];
    mb_error err;
    buf_append_str(b, "{\"version\":");
    json_write_string(b, mb_version(), strlen(mb_version()));
    buf_append_str(b, ",\"cpu_levels\":[");
    for (int i = 0, any = 0; i < N_LEVELS; i++)
        if (mb_device_text(levels[i], text, &err) == MB_OK) buf_printf(b, "%s\"%s\"", any++ ? "," : "", levels[i]);
    buf_append_str(b, "],\"device\":");
    if (mb_device_text(NULL, text, &err) != MB_OK) text[0] = '\0';
    json_write_string(b, text, strlen(text));
    mb_gpu_text(gpu);
    buf_append_str(b, ",\"gpu\":");
    json_write_string(b, gpu, strlen(gpu));
    buf_printf(b, ",\"threads\":%d,\"memory_available_bytes\":%zu", threads_default_count(), engine_memory_available());
}

static void append_estimate(struct buf *b, const char *path, const struct engine_loaded *l)
{
    buf_append_str(b, ",\"model\":{\"path\":");
    json_write_string(b, path, strlen(path));
    buf_printf(b, ",\"usable_bytes\":%zu,\"weight_bytes\":%zu,\"scratch_bytes\":%zu,\"pool_bytes\":%zu,\"n_context\":%d,"
               "\"max_context_in_pool\":%d,\"expert_bytes\":%zu,\"expert_cache_bytes\":%zu,\"kv_bytes_per_token\":%zu,\"n_vocab\":%d,\"n_layer_full\":%d,\"n_layer_window\":%d}",
               l->usable_bytes, l->weight_bytes, l->scratch_bytes, l->pool_bytes, (int)l->n_context,
               (int)l->max_context_in_pool, l->expert_bytes, l->expert_cache_bytes, l->kv_bytes_per_token, (int)l->n_vocab, (int)l->n_layer_full,
               (int)l->n_layer_window);
}

static mb_status print_json(const char *path, const struct engine_loaded *l, mb_error *err)
{
    struct buf b;
    buf_init(&b, 0);
    append_machine(&b);
    if (path[0]) append_estimate(&b, path, l);
    buf_append_str(&b, "}\n");
    mb_status st = buf_status(&b, "the report", err);
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    return st;
}

/* --- the plan --- */
static void print_line(void *ctx, const char *text)
{
    (void)ctx;
    printf("%s\n", text);
}

static mb_status print_plan(const struct flags *f, const char *path, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    struct engine_load load;
    MB_TRY(model_options(f, &opt, &x, err));
    MB_TRY(mb_options_to_load(path, &opt, &load, err));
    printf("plan of %s on %s\n", path, load.device);
    return engine_plan_describe(&load, print_line, NULL, err);
}

mb_status cmd_doctor(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char path[MODEL_PATH_MAX];
    struct engine_loaded info = { 0 };
    bool needs_model = f->plan.b || f->fidelity.b;
    MB_TRY(model_find(f, n_pos > 0 ? pos[0] : NULL, needs_model, path, err));
    if (f->fidelity.b) return doctor_fidelity(f, path, exit_status, err);
    if (f->plan.b) return print_plan(f, path, err);
    if (path[0]) MB_TRY(estimate(f, path, &info, err));
    if (f->json.b) return print_json(path, &info, err);
    print_machine();
    if (path[0]) print_estimate(path, &info);
    return MB_OK;
}
