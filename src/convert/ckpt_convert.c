/* ckpt_convert.c: convert_checkpoint, the whole conversion in one screen: read config and headers, plan every tensor, check the
 * space, fill OUT.part, give it its name. config.json goes in last: without it nothing takes the folder for a model.
 */
#include <stdio.h>

#include "base/json.h"
#include "convert/ckpt_int.h"
#include "model/model.h"

#define CONFIG_MAX_BYTES ((size_t)64 << 20)

static mb_status source_open(struct conv *c, mb_error *err)
{
    char path[PATH_MAX];
    MB_TRY(path_join(path, sizeof path, c->src_dir, "config.json", err));
    MB_TRY(json_read_file(&c->config, path, CONFIG_MAX_BYTES, err));
    MB_TRY(model_config_parse(&c->spec, c->config, NULL, err));
    MB_TRY(checkpoint_open(&c->ckpt, c->src_dir, err));
    MB_TRY(model_find_prefix(&c->spec, c->ckpt, err));
    snprintf(c->result.model_type, sizeof c->result.model_type, "%s", c->spec.model_type);
    return MB_OK;
}

static mb_status folder_fill(struct conv *c, const struct out_folder *o, const json_t *config, const json_t *index, mb_error *err)
{
    uint64_t text_bytes;
    MB_TRY(out_folder_copy_texts(NULL, c->src_dir, &text_bytes, err));
    MB_TRY(out_folder_check_space(o, c->result.size_bytes + c->mtp_bytes + text_bytes, err));
    MB_TRY(out_folder_copy_texts(o, c->src_dir, NULL, err));
    if (c->n_mtp > 0) MB_TRY(out_folder_make_side(o, err));
    MB_TRY(conv_write(c, o, err));
    if (c->n_mtp > 0) MB_TRY(conv_mtp_config(c, o, err));
    MB_TRY(out_folder_put_json(o, "model.safetensors.index.json", index, 4, err));
    if (c->opts->note_name) MB_TRY(out_folder_put_json(o, c->opts->note_name, c->opts->note, 2, err));
    return out_folder_put_json(o, "config.json", config, 4, err);
}

mb_status conv_folder_make(struct conv *c, const char *out_dir, mb_error *err)
{
    json_t *config = NULL, *index = NULL;
    struct out_folder o;
    mb_status st = conv_config_make(c, &config, err);
    if (st == MB_OK) st = conv_index_make(c, &index, err);
    if (st == MB_OK) st = out_folder_open(&o, out_dir, err);
    if (st == MB_OK) {
        st = folder_fill(c, &o, config, index, err);
        if (st == MB_OK) st = out_folder_publish(&o, err);
        else out_folder_abort(&o);
    }
    json_decref(config);
    json_decref(index);
    return st;
}

mb_status conv_open(struct conv *c, mb_error *err)
{
    arena_init(&c->arena, (size_t)1 << 30);
    MB_TRY(source_open(c, err));
    MB_TRY(conv_settle(c, err));
    MB_TRY(conv_plan(c, err));
    return conv_plan_check(c, err);
}

void conv_close(struct conv *c)
{
    quant_config_free(c->plan);
    checkpoint_close(c->ckpt);
    model_spec_free(&c->spec);
    json_decref(c->config);
    arena_free(&c->arena);
}

mb_status convert_checkpoint(const char *src_dir, const char *out_dir, const struct checkpoint_opts *opts, mb_error *err)
{
    static const struct checkpoint_opts no_opts;
    struct conv c = { .src_dir = src_dir, .opts = opts ? opts : &no_opts };
    MB_TRY(out_folder_check_target(out_dir, err));
    mb_status st = conv_open(&c, err);
    if (st == MB_OK) st = conv_folder_make(&c, out_dir, err);
    if (st == MB_OK && opts && opts->result) *opts->result = c.result;
    conv_close(&c);
    return st;
}
