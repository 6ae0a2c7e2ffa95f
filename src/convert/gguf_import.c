/* gguf_import.c: convert_gguf, the whole import in one screen: read the metadata, plan every tensor, make the JSON files,
 * check the space, then fill a folder beside the target and give it its name. Nothing with the target's name ever stands
 * there half done.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/json.h"
#include "convert/gguf_import_int.h"
#include "format/safetensors_write.h"

#define SPARE_BYTES ((uint64_t)64 << 20) /* free space left over for the JSON files and the rest of the machine */

/* The JSON files of the checkpoint. */
struct import_texts {
    json_t *config, *generation, *tokenizer, *tokenizer_config; /* owned */
    char *chat_template;                                        /* owned, may be NULL */
};

void import_note(struct import *im, const char *fmt, ...)
{
    size_t used = strlen(im->report.notes), room = sizeof im->report.notes - used;
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(im->report.notes + used, room, fmt, ap);
    va_end(ap);
    if (len < 0 || (size_t)len + 1 >= room) im->report.notes[used] = 0; /* no room for the whole line */
    else strcpy(im->report.notes + used + len, "\n");
}

/* --- files --- */

static const char *const file_names[] = { "config.json", "generation_config.json", "tokenizer.json",
                                          "tokenizer_config.json", "chat_template.jinja", "model.safetensors" };

static mb_status json_file_write(const char *dir, const char *name, const json_t *v, int indent, mb_error *err)
{
    char path[PATH_MAX];
    struct buf b;
    struct json_write_opts opts = { .indent = indent };
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    buf_init(&b, (size_t)1 << 30);
    json_write(&b, v, &opts);
    buf_append_char(&b, '\n');
    mb_status st = buf_status(&b, name, err);
    if (st == MB_OK) st = file_write_atomic(path, b.data, b.len, err);
    buf_free(&b);
    return st;
}

static mb_status texts_write(const char *dir, const struct import_texts *t, mb_error *err)
{
    char path[PATH_MAX];
    MB_TRY(json_file_write(dir, "config.json", t->config, 2, err));
    MB_TRY(json_file_write(dir, "generation_config.json", t->generation, 2, err));
    MB_TRY(json_file_write(dir, "tokenizer.json", t->tokenizer, 0, err));
    MB_TRY(json_file_write(dir, "tokenizer_config.json", t->tokenizer_config, 2, err));
    if (!t->chat_template) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, "chat_template.jinja", err));
    return file_write_atomic(path, t->chat_template, strlen(t->chat_template), err);
}

static void texts_free(struct import_texts *t)
{
    json_decref(t->config);
    json_decref(t->generation);
    json_decref(t->tokenizer);
    json_decref(t->tokenizer_config);
    mb_free(t->chat_template);
}

static void folder_remove(const char *dir)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof file_names / sizeof file_names[0]; i++)
        if (path_join(path, sizeof path, dir, file_names[i], NULL) == MB_OK) unlink(path);
    rmdir(dir);
}

/* --- space --- */

static mb_status check_space(struct import *im, const char *dir, mb_error *err)
{
    struct statvfs fs;
    uint64_t need = SPARE_BYTES;
    im->report.size_bytes = 0;
    for (size_t i = 0; i < im->n_out; i++) {
        uint64_t span;
        MB_TRY(tensor_span(im->out[i].dtype, im->out[i].shape, im->out[i].n_dim, &span, err));
        im->report.size_bytes += span;
    }
    need += im->report.size_bytes;
    if (statvfs(dir, &fs) != 0) return MB_OK; /* the write itself will tell */
    uint64_t have = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (have >= need) return MB_OK;
    return mb_fail(err, MB_IO, "%s: the import needs %.1f MB, %.1f MB are free; nothing was written", dir,
                   (double)need / 1e6, (double)have / 1e6);
}

/* --- steps --- */

static mb_status texts_make(struct import *im, struct import_texts *t, mb_error *err)
{
    MB_TRY(import_config_make(im, &t->config, &t->generation, err));
    MB_TRY(import_tokenizer_make(im, &t->tokenizer, &t->tokenizer_config, &t->chat_template, err));
    /* A look-up that had no memory for its key took a default. */
    return im->arena.failed ? mb_fail(err, MB_NO_MEMORY, "%s: no memory for the metadata", im->path) : MB_OK;
}

static mb_status folder_fill(struct import *im, const char *dir, const struct import_texts *t,
                             const struct convert_opts *opts, mb_error *err)
{
    char path[PATH_MAX];
    MB_TRY(check_space(im, dir, err));
    MB_TRY(texts_write(dir, t, err));
    MB_TRY(path_join(path, sizeof path, dir, "model.safetensors", err));
    return import_write(im, path, opts, err);
}

/* rename() takes the place of an empty folder and refuses any other. */
static mb_status folder_publish(const char *tmp, const char *out_dir, mb_error *err)
{
    if (rename(tmp, out_dir) == 0) return MB_OK;
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
        return mb_fail(err, MB_INVALID, "%s exists already; name another folder or remove it", out_dir);
    return mb_fail_errno(err, "cannot rename to", out_dir);
}

static mb_status import_into(struct import *im, const char *out_dir, const struct convert_opts *opts, mb_error *err)
{
    char tmp[PATH_MAX];
    struct import_texts texts = { 0 };
    mb_status st = MB_OK;
    size_t len = strlen(out_dir);
    while (len > 1 && out_dir[len - 1] == '/') len--;
    int n = snprintf(tmp, sizeof tmp, "%.*s.part.%ld", (int)len, out_dir, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof tmp) return mb_fail(err, MB_TOO_LARGE, "the path of the output folder is too long");
    MB_TRY_GOTO(st, texts_make(im, &texts, err), done);
    folder_remove(tmp); /* a dead process had our number */
    MB_TRY_GOTO(st, dir_make(tmp, err), done);
    st = folder_fill(im, tmp, &texts, opts, err);
    if (st == MB_OK) st = folder_publish(tmp, out_dir, err);
    if (st != MB_OK) folder_remove(tmp);
done:
    texts_free(&texts);
    return st;
}

/* Before the work, so that nobody waits for a refusal; folder_publish decides. */
static mb_status check_target(const char *out_dir, mb_error *err)
{
    char path[PATH_MAX];
    if (out_dir[0] == 0) return mb_fail(err, MB_INVALID, "the output folder has no name");
    MB_TRY(path_join(path, sizeof path, out_dir, "config.json", err));
    if (file_exists(out_dir) || file_exists(path))
        return mb_fail(err, MB_INVALID, "%.400s exists already; name another folder or remove it", out_dir);
    return MB_OK;
}

mb_status convert_gguf(const char *gguf_path, const char *out_dir, const struct convert_opts *opts, mb_error *err)
{
    static const struct convert_opts no_opts;
    struct gguf *g = NULL;
    MB_TRY(check_target(out_dir, err));
    MB_TRY(gguf_open(&g, gguf_path, err));
    struct import im = { .g = g, .path = gguf_path };
    arena_init(&im.arena, (size_t)1 << 30);
    mb_status st = import_arch_read(&im, err);
    if (st == MB_OK) st = import_plan(&im, err);
    if (st == MB_OK) st = import_into(&im, out_dir, opts ? opts : &no_opts, err);
    if (st == MB_OK && opts && opts->report) *opts->report = im.report;
    arena_free(&im.arena);
    gguf_close(g);
    return st;
}
