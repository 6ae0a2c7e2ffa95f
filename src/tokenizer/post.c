/* post.c: the post-processor section: which ids stand before and behind a text.
 *
 * Only the form for one text matters here. TemplateProcessing, BertProcessing and RobertaProcessing all come down to
 * ids before and ids behind; ByteLevel only trims offsets. In a Sequence, later steps go around earlier ones.
 */
#include <string.h>

#include "tokenizer/tokenizer_int.h"

#define SECTION "post_processor"
#define MAX_IDS 256

struct post_loader {
    int32_t before[MAX_IDS], after[MAX_IDS];
    size_t n_before, n_after;
};

static mb_status read_id(const json_t *v, int32_t *out, mb_error *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOKENIZER_MAX_ID)
        return step_bad(err, SECTION, "a token id must be an integer from 0 to %d", (int)TOKENIZER_MAX_ID - 1);
    *out = (int32_t)json_integer_value(v);
    return MB_OK;
}

static mb_status room(size_t n, size_t more, mb_error *err)
{
    if (more <= MAX_IDS - n) return MB_OK;
    return mb_fail(err, MB_TOO_LARGE, "tokenizer.json: %s: more than %d special tokens", SECTION, MAX_IDS);
}

/* New ids go to the outside: in front of `before`, behind `after`. */
static mb_status frame(struct post_loader *l, const int32_t *before, size_t n_before, const int32_t *after,
                       size_t n_after, mb_error *err)
{
    MB_TRY(room(l->n_before, n_before, err));
    MB_TRY(room(l->n_after, n_after, err));
    memmove(l->before + n_before, l->before, l->n_before * sizeof *l->before);
    memcpy(l->before, before, n_before * sizeof *before);
    memcpy(l->after + l->n_after, after, n_after * sizeof *after);
    l->n_before += n_before;
    l->n_after += n_after;
    return MB_OK;
}

static mb_status load_template(struct post_loader *l, const json_t *j, mb_error *err)
{
    const json_t *single = json_object_get(j, "single"), *specials = json_object_get(j, "special_tokens"), *item;
    int32_t ids[2][MAX_IDS];
    size_t n[2] = { 0, 0 }, i;
    int side = 0;
    if (!json_is_array(single)) return step_bad(err, SECTION, "TemplateProcessing: the list single is missing");
    json_array_foreach(single, i, item) {
        if (json_object_get(item, "Sequence")) {
            if (side++) return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: %s: the text twice in one template", SECTION);
            continue;
        }
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const json_t *list = name ? json_object_get(json_object_get(specials, name), "ids") : NULL, *id;
        size_t k;
        if (!json_is_array(list)) return step_bad(err, SECTION, "TemplateProcessing: single[%zu] names no special token", i);
        json_array_foreach(list, k, id) {
            MB_TRY(room(n[side], 1, err));
            MB_TRY(read_id(id, &ids[side][n[side]++], err));
        }
    }
    if (!side) return step_bad(err, SECTION, "TemplateProcessing: single does not hold the text");
    return frame(l, ids[0], n[0], ids[1], n[1], err);
}

static mb_status load_pair(struct post_loader *l, const json_t *j, mb_error *err)
{
    int32_t sep, cls;
    MB_TRY(read_id(json_array_get(json_object_get(j, "sep"), 1), &sep, err));
    MB_TRY(read_id(json_array_get(json_object_get(j, "cls"), 1), &cls, err));
    return frame(l, &cls, 1, &sep, 1, err);
}

static mb_status load_one(void *ctx, const json_t *j, const char *type, mb_error *err)
{
    if (strcmp(type, "ByteLevel") == 0) return MB_OK;
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(ctx, j, err);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) return load_pair(ctx, j, err);
    return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: %s: the type %.40s is not supported", SECTION, type);
}

static mb_status copy_ids(struct arena *mem, const int32_t *ids, size_t n, int32_t **out, mb_error *err)
{
    *out = arena_alloc_array(mem, n, sizeof **out);
    if (!*out) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the post-processor");
    memcpy(*out, ids, n * sizeof *ids);
    return MB_OK;
}

mb_status post_load(struct post *p, struct arena *mem, const json_t *j, mb_error *err)
{
    struct post_loader l = { .n_before = 0 };
    *p = (struct post){ 0 };
    MB_TRY(step_walk(j, SECTION, "processors", load_one, &l, err));
    MB_TRY(copy_ids(mem, l.before, l.n_before, &p->before, err));
    MB_TRY(copy_ids(mem, l.after, l.n_after, &p->after, err));
    p->n_before = l.n_before;
    p->n_after = l.n_after;
    return MB_OK;
}
