/* inspect.c: see inspect.h. */
#include "hub/inspect.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"
#include "format/quant.h"
#include "format/safetensors.h"
#include "hub/layout.h"

#define CONFIG_LIMIT ((size_t)16 << 20)
#define README_BYTES 16384
#define HEADER_LIMIT ((uint64_t)256 << 20)
#define ARENA_LIMIT ((size_t)1 << 30)
#define SIDECAR "optiq_vision.safetensors"

/* --- configuration --- */

static json_t *read_object(const char *dir, const char *name, mb_error *err)
{
    char path[PATH_MAX];
    json_t *v = NULL;
    if (path_join(path, sizeof path, dir, name, err) != MB_OK) return NULL;
    if (!file_exists(path)) { /* a pipe would never end */
        mb_fail(err, MB_NOT_FOUND, "%s is not there, or not a file", name);
        return NULL;
    }
    if (json_read_file(&v, path, CONFIG_LIMIT, err) != MB_OK) return NULL;
    if (json_is_object(v)) return v;
    mb_fail(err, MB_BAD_FORMAT, "%s is not a JSON object", name);
    json_decref(v);
    return NULL;
}

static void take_text(char *out, size_t cap, const json_t *v)
{
    const char *s = json_is_text(v) ? json_string_value(v) : "";
    snprintf(out, cap, "%s", s);
}

/* A number of the text model: at the root or under text_config. */
static int64_t number(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (!json_is_integer(v)) v = json_object_get(json_object_get(config, "text_config"), key);
    return json_is_integer(v) && json_integer_value(v) > 0 ? json_integer_value(v) : 0;
}

static void take_quant(struct model_facts *f, const json_t *config)
{
    const json_t *q = json_object_get(config, "quantization");
    if (!json_is_object(q)) q = json_object_get(config, "quantization_config");
    if (!json_is_object(q)) return;
    f->quant_bits = (int32_t)number(q, "bits");
    f->quant_group_size = (int32_t)number(q, "group_size");
    take_text(f->quant_mode, sizeof f->quant_mode, json_object_get(q, "mode"));
    if (!f->quant_mode[0]) take_text(f->quant_mode, sizeof f->quant_mode, json_object_get(q, "quant_method"));
    if (!f->quant_mode[0] && f->quant_bits) strcpy(f->quant_mode, "affine");
}

static void take_config(struct model_facts *f, const json_t *config)
{
    char type[64];
    take_text(f->model_type, sizeof f->model_type, json_object_get(config, "model_type"));
    f->num_layers = number(config, "num_hidden_layers");
    f->hidden_size = number(config, "hidden_size");
    f->vocab_size = number(config, "vocab_size");
    f->context = number(config, "max_position_embeddings");
    take_quant(f, config);
    take_text(type, sizeof type, json_object_get(json_object_get(config, "vision_config"), "model_type"));
    if (name_ends(type, "_vision")) strcpy(f->vision_config_type, type);
}

static bool has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return path_join(path, sizeof path, dir, name, NULL) == MB_OK && file_exists(path);
}

/* A chat template that looks at `tools`. */
static bool has_tool_template(const char *dir)
{
    char path[PATH_MAX];
    struct buf b;
    bool found = false;
    buf_init(&b, CONFIG_LIMIT);
    static const char *const files[] = { "chat_template.jinja", "chat_template.json", "tokenizer_config.json" };
    for (int i = 0; i < 3 && !found; i++) {
        buf_clear(&b);
        if (path_join(path, sizeof path, dir, files[i], NULL) != MB_OK || !file_exists(path)) continue;
        if (file_read(&b, path, CONFIG_LIMIT - 1, NULL) != MB_OK || !b.data) continue;
        const char *from = i == 2 ? strstr(b.data, "\"chat_template\"") : b.data;
        found = from && strstr(from, "tools");
    }
    buf_free(&b);
    return found;
}

/* "license: apache-2.0" in the front matter of README.md. */
static void take_license(struct model_facts *f, const char *dir)
{
    char path[PATH_MAX], text[README_BYTES];
    if (path_join(path, sizeof path, dir, "README.md", NULL) != MB_OK || !file_exists(path)) return;
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = '\0';
    if (strncmp(text, "---", 3) != 0) return;
    const char *end = strstr(text + 3, "\n---"), *at = strstr(text, "\nlicense:");
    if (!at || (end && at > end)) return;
    at += 9;
    at += strspn(at, " \"'");
    size_t len = strcspn(at, "\r\n\"' #");
    if (len < sizeof f->license) snprintf(f->license, sizeof f->license, "%.*s", (int)len, at);
}

/* --- weights --- */

struct weights {
    struct model_facts *f;
    struct quant_config *quant;  /* NULL: plain */
    struct arena arena;
    mb_error err;
};

/* Into arena memory, NUL-terminated; MB_BAD_FORMAT when the file is no safetensors file. */
static mb_status read_header(struct weights *w, const char *path, char **json, size_t *len, uint64_t *data_bytes)
{
    unsigned char head[8];
    struct stat st;
    uint64_t n = 0;
    mb_status s = MB_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || pread(fd, head, 8, 0) != 8) s = mb_fail(&w->err, MB_BAD_FORMAT, "%s cannot be read", path);
    for (int i = 7; s == MB_OK && i >= 0; i--) n = n << 8 | head[i];
    if (s == MB_OK && (n > HEADER_LIMIT || n + 8 > (uint64_t)st.st_size)) s = mb_fail(&w->err, MB_BAD_FORMAT, "%s has no header", path);
    if (s == MB_OK && !(*json = arena_alloc(&w->arena, (size_t)n + 1))) s = mb_fail(&w->err, MB_NO_MEMORY, "no memory");
    if (s == MB_OK && pread(fd, *json, (size_t)n, 8) != (ssize_t)n) s = mb_fail(&w->err, MB_IO, "%s cannot be read", path);
    if (fd >= 0) close(fd);
    *len = (size_t)n;
    *data_bytes = s == MB_OK ? (uint64_t)st.st_size - 8 - n : 0;
    return s;
}

static int64_t elements(const struct tensor_view *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n)) return 0;
    return n;
}

/* Logical weights of one tensor: words of a packed one hold 32/bits each, its scales and biases none. */
static int64_t logical(const struct weights *w, const struct tensor_view *t)
{
    char module[512];
    const char *dot = strrchr(t->name, '.');
    if (!dot || (size_t)(dot - t->name) >= sizeof module) return elements(t);
    snprintf(module, sizeof module, "%.*s", (int)(dot - t->name), t->name);
    struct quant_spec q = w->quant ? quant_config_get(w->quant, module) : (struct quant_spec){ 0 };
    if (q.mode == QUANT_NONE) return elements(t);
    if (strcmp(dot, ".scales") == 0 || strcmp(dot, ".biases") == 0) return 0;
    if (strcmp(dot, ".weight") != 0 || t->dtype != DT_U32) return elements(t);
    int bits = q.bits ? q.bits : 4;
    return elements(t) * 32 / bits;
}

static mb_status take_shard(struct weights *w, const char *path, const char *name)
{
    struct tensor_view *t = NULL;
    char *json = NULL;
    size_t len, n = 0;
    uint64_t data_bytes;
    MB_TRY(read_header(w, path, &json, &len, &data_bytes));
    MB_TRY(safetensors_parse_header(&w->arena, name, json, len, data_bytes, &t, &n, &w->err));
    if (strcmp(name, SIDECAR) == 0) {
        w->f->sidecar_bytes += (int64_t)data_bytes;
        return MB_OK;
    }
    w->f->size_bytes += (int64_t)data_bytes;
    for (size_t i = 0; i < n; i++) {
        w->f->param_count += logical(w, &t[i]);
        if (strstr(t[i].name, ".experts.") || strstr(t[i].name, ".switch_mlp.")) w->f->experts_bytes += (int64_t)t[i].size_bytes;
    }
    return MB_OK;
}

static mb_status on_file(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct weights *w = ctx;
    char path[PATH_MAX];
    (void)err;
    if (!name_ends(name, ".safetensors")) return MB_OK;
    if (path_join(path, sizeof path, dir, name, &w->err) != MB_OK) return MB_TOO_LARGE;
    arena_free(&w->arena); /* one header at a time */
    arena_init(&w->arena, ARENA_LIMIT);
    return take_shard(w, path, name);
}

static mb_status take_weights(struct model_facts *f, const char *dir, const json_t *config, mb_error *err)
{
    struct weights w = { .f = f };
    quant_config_read(&w.quant, config, NULL); /* a scheme that is not known: counted as it lies there */
    arena_init(&w.arena, ARENA_LIMIT);
    mb_status st = layout_each(dir, on_file, &w, err);
    if (st != MB_OK) *err = w.err;
    arena_free(&w.arena);
    quant_config_free(w.quant);
    return st;
}

/* --- the whole --- */

void inspect_model(struct model_facts *out, const char *dir)
{
    mb_error err = { .text = "" };
    memset(out, 0, sizeof *out);
    out->has_vision_sidecar = has_file(dir, SIDECAR);
    out->has_kv_config = has_file(dir, "kv_config.json");
    out->has_tool_template = has_tool_template(dir);
    take_license(out, dir);
    json_t *config = read_object(dir, "config.json", &err);
    if (config) {
        take_config(out, config);
        out->readable = take_weights(out, dir, config, &err) == MB_OK;
        json_decref(config);
    }
    if (!out->readable) snprintf(out->problem, sizeof out->problem, "%.159s", err.text);
}

bool inspect_is_vision(const struct model_facts *f)
{
    return f->has_vision_sidecar || name_ends(f->vision_config_type, "unified_vision");
}
