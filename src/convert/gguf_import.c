/* gguf_import.c: convert_gguf, the whole import in one screen: read the metadata, plan every tensor, make the JSON files,
 * check the space, then fill the folder (out_folder.h), which is whole or absent.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/filemap.h"
#include "convert/gguf_import_int.h"
#include "convert/out_folder.h"
#include "format/safetensors_write.h"

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

/* config.json last: without it nothing takes the folder for a model. */
static mb_status texts_write(const struct out_folder *o, const struct import_texts *t, mb_error *err)
{
    char path[PATH_MAX];
    MB_TRY(out_folder_put_json(o, "generation_config.json", t->generation, 2, err));
    MB_TRY(out_folder_put_json(o, "tokenizer.json", t->tokenizer, 0, err));
    MB_TRY(out_folder_put_json(o, "tokenizer_config.json", t->tokenizer_config, 2, err));
    if (t->chat_template) {
        MB_TRY(path_join(path, sizeof path, o->part, "chat_template.jinja", err));
        MB_TRY(file_write_atomic(path, t->chat_template, strlen(t->chat_template), err));
    }
    return out_folder_put_json(o, "config.json", t->config, 2, err);
}

static void texts_free(struct import_texts *t)
{
    json_decref(t->config);
    json_decref(t->generation);
    json_decref(t->tokenizer);
    json_decref(t->tokenizer_config);
    mb_free(t->chat_template);
}

static mb_status check_space(struct import *im, const struct out_folder *o, mb_error *err)
{
    im->report.size_bytes = 0;
    for (size_t i = 0; i < im->n_out; i++) {
        uint64_t span;
        MB_TRY(tensor_span(im->out[i].dtype, im->out[i].shape, im->out[i].n_dim, &span, err));
        im->report.size_bytes += span;
    }
    return out_folder_check_space(o, im->report.size_bytes, err);
}

/* --- steps --- */

static mb_status texts_make(struct import *im, struct import_texts *t, mb_error *err)
{
    MB_TRY(import_config_make(im, &t->config, &t->generation, err));
    MB_TRY(import_tokenizer_make(im, &t->tokenizer, &t->tokenizer_config, &t->chat_template, err));
    /* A look-up that had no memory for its key took a default. */
    return im->arena.failed ? mb_fail(err, MB_NO_MEMORY, "%s: no memory for the metadata", im->path) : MB_OK;
}

static mb_status folder_fill(struct import *im, const struct out_folder *o, const struct import_texts *t,
                             const struct convert_opts *opts, mb_error *err)
{
    char path[PATH_MAX];
    MB_TRY(check_space(im, o, err));
    MB_TRY(path_join(path, sizeof path, o->part, "model.safetensors", err));
    MB_TRY(import_write(im, path, opts, err));
    return texts_write(o, t, err);
}

static mb_status import_into(struct import *im, const char *out_dir, const struct convert_opts *opts, mb_error *err)
{
    struct import_texts texts = { 0 };
    struct out_folder o;
    mb_status st = texts_make(im, &texts, err);
    if (st == MB_OK) st = out_folder_open(&o, out_dir, err);
    if (st == MB_OK) {
        st = folder_fill(im, &o, &texts, opts, err);
        if (st == MB_OK) st = out_folder_publish(&o, err);
        else out_folder_abort(&o);
    }
    texts_free(&texts);
    return st;
}

mb_status convert_gguf(const char *gguf_path, const char *out_dir, const struct convert_opts *opts, mb_error *err)
{
    static const struct convert_opts no_opts;
    struct gguf *g = NULL;
    MB_TRY(out_folder_check_target(out_dir, err)); /* before the work, so that nobody waits for a refusal */
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
