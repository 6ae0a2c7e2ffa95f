/* cmd_ls.c: `mlx-bun scan` and `mlx-bun ls`: the registry brought up to date, and shown. */
#include <string.h>

#include "cli/store.h"
#include "hub/packed.h"
#include "hub/partials.h"
#include "hub/starter.h"

/* --- scan --- */

mb_status cmd_scan(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    static struct store s; /* large */
    struct registry *r;
    size_t n_models = 0, n_read = 0;
    (void)pos, (void)n_pos, (void)exit_status;
    MB_TRY(store_init(&s, f, err));
    MB_TRY(registry_open(&r, s.registry_path, err));
    mb_status st = registry_scan(r, s.root, true, &n_models, &n_read, err);
    registry_close(r);
    if (st != MB_OK) return st;
    if (f->json.b) printf("{\"snapshots\": %zu, \"registry\": \"%s\"}\n", n_models, s.registry_path);
    else printf("%zu snapshot%s in %s\n", n_models, n_models == 1 ? "" : "s", s.root);
    return MB_OK;
}

/* --- one row --- */

static const char *support(const struct model_row *m)
{
    if (!m->complete) return "incomplete";
    if (!m->facts.readable) return "unreadable";
    return mb_family_known(m->facts.model_type) ? "supported (targeted)" : "not supported";
}

static const char *params_text(int64_t n, char out[16])
{
    if (n >= 1000000000) snprintf(out, 16, "%.1fB", (double)n / 1e9);
    else snprintf(out, 16, "%.0fM", (double)n / 1e6);
    return n > 0 ? out : "-";
}

static const char *quant_text(const struct model_facts *q, char out[48])
{
    if (!q->quant_bits) return q->quant_mode[0] ? q->quant_mode : "-";
    if (q->quant_group_size) snprintf(out, 48, "%d bit g%d", (int)q->quant_bits, (int)q->quant_group_size);
    else snprintf(out, 48, "%d bit", (int)q->quant_bits);
    return out;
}

static void print_row(const struct flags *f, const struct model_row *m)
{
    char size[32], params[16], quant[48], name[NAME_REPO_MAX + 48], more[160] = "";
    if (f->all_revisions.b) snprintf(name, sizeof name, "%s %s@%.12s", m->canonical ? "*" : " ", m->repo, m->commit);
    else snprintf(name, sizeof name, "%s", m->repo);
    if (!m->complete) snprintf(more, sizeof more, ", %d file%s missing", (int)m->n_missing, m->n_missing == 1 ? "" : "s");
    else if (!m->facts.readable) snprintf(more, sizeof more, ": %.150s", m->facts.problem);
    printf("%-52s %9s %7s  %-12s %s%s%s%s\n", name, model_size_text((uint64_t)m->facts.size_bytes, size),
           params_text(m->facts.param_count, params), quant_text(&m->facts, quant), support(m), more,
           inspect_is_vision(&m->facts) ? ", vision" : "", m->facts.has_tool_template ? ", tools" : "");
}

static void write_text(struct buf *b, const char *key, const char *s)
{
    buf_printf(b, "\"%s\": ", key);
    if (s && *s) json_write_string(b, s, strlen(s));
    else buf_append_str(b, "null");
    buf_append_str(b, ", ");
}

static void write_row(struct buf *b, const struct model_row *m)
{
    const struct model_facts *x = &m->facts;
    buf_append_char(b, '{');
    write_text(b, "repo_id", m->repo);
    write_text(b, "commit", m->commit);
    write_text(b, "path", m->path);
    write_text(b, "model_type", x->model_type);
    write_text(b, "quant_mode", x->quant_mode);
    write_text(b, "license", x->license);
    write_text(b, "support", support(m));
    buf_printf(b, "\"param_count\": %lld, \"num_layers\": %lld, \"hidden_size\": %lld, \"vocab_size\": %lld, ",
               (long long)x->param_count, (long long)x->num_layers, (long long)x->hidden_size, (long long)x->vocab_size);
    buf_printf(b, "\"size_bytes\": %lld, \"sidecar_bytes\": %lld, \"experts_bytes\": %lld, \"quant_bits\": %d, "
               "\"quant_group_size\": %d, ", (long long)x->size_bytes, (long long)x->sidecar_bytes, (long long)x->experts_bytes,
               (int)x->quant_bits, (int)x->quant_group_size);
    buf_printf(b, "\"vision\": %s, \"tools\": %s, \"canonical\": %s, \"complete\": %s, \"missing_files\": %d}",
               inspect_is_vision(x) ? "true" : "false", x->has_tool_template ? "true" : "false", m->canonical ? "true" : "false",
               m->complete ? "true" : "false", (int)m->n_missing);
}

/* --- partial downloads --- */

struct shown {
    const struct flags *f;
    const char *query;
    struct buf *json;  /* NULL: text */
    size_t n;
};

static mb_status show_partial(void *ctx, const struct partial *p, mb_error *err)
{
    struct shown *s = ctx;
    char size[32];
    (void)err;
    if (s->query && !strstr(p->repo, s->query)) return MB_OK;
    s->n++;
    if (!s->json) {
        printf("%-52s %9s  partial: %d unfinished file%s%s\n", p->repo, model_size_text(p->bytes, size), (int)p->n_files,
               p->n_files == 1 ? "" : "s", p->active ? ", a download is running" : " (mlx-bun get continues, gc or rm frees)");
        return MB_OK;
    }
    buf_append_str(s->json, s->n > 1 ? ", {\"repo_id\": " : "{\"repo_id\": ");
    json_write_string(s->json, p->repo, strlen(p->repo));
    buf_printf(s->json, ", \"partial_bytes\": %llu, \"files\": %d, \"active\": %s}", (unsigned long long)p->bytes, (int)p->n_files,
               p->active ? "true" : "false");
    return MB_OK;
}

/* --- packed weights --- */

/* Whose packed weights are these? keys[i] is that of l->rows[i]; the starter's is behind them. NULL: of a folder that nobody knows. */
struct packed_shown {
    struct shown shown;
    const struct model_list *l;
    char (*keys)[PACKED_KEY_LEN + 1];
};

static const char *model_of(const struct packed_shown *s, const char *key)
{
    for (size_t i = 0; i < s->l->n; i++)
        if (strcmp(s->keys[i], key) == 0) return s->l->rows[i].repo;
    return strcmp(s->keys[s->l->n], key) == 0 ? "starter" : NULL;
}

static mb_status show_packed(void *ctx, const struct packed_file *p, mb_error *err)
{
    struct packed_shown *s = ctx;
    const char *model = model_of(s, p->key), *of = model ? model : "a folder that is not in the cache";
    char size[32];
    (void)err;
    if (s->shown.query && (!model || !strstr(model, s->shown.query))) return MB_OK;
    s->shown.n++;
    if (!s->shown.json) {
        printf("%-52s %9s  %s%s\n", of, model_size_text(p->bytes, size), p->is_leftover ? "packed weights, unfinished" : "packed weights",
               p->in_use ? ", in use" : " (mlx-bun gc frees them)");
        return MB_OK;
    }
    buf_append_str(s->shown.json, s->shown.n > 1 ? ", {\"path\": " : "{\"path\": ");
    json_write_string(s->shown.json, p->path, strlen(p->path));
    buf_append_str(s->shown.json, ", ");
    write_text(s->shown.json, "model", model);
    buf_printf(s->shown.json, "\"bytes\": %llu, \"in_use\": %s}", (unsigned long long)p->bytes, p->in_use ? "true" : "false");
    return MB_OK;
}

static mb_status list_packed(const struct flags *f, const struct store *s, struct packed_shown *p, mb_error *err)
{
    char cache[MODEL_PATH_MAX], starter[MODEL_PATH_MAX];
    p->keys = mb_calloc(p->l->n + 1, sizeof *p->keys);
    if (!p->keys) return mb_fail(err, MB_NO_MEMORY, "no memory for the list");
    for (size_t i = 0; i < p->l->n; i++) mb_packed_key(p->l->rows[i].path, p->keys[i]);
    if (model_cache_dir(f, cache, sizeof cache, NULL) == MB_OK && starter_is_ready(cache, starter, sizeof starter))
        mb_packed_key(starter, p->keys[p->l->n]);
    mb_status st = packed_each(s->packed_dir, show_packed, p, err);
    if (st == MB_OK && s->expert_dir) st = packed_each(s->expert_dir, show_packed, p, err);
    mb_free(p->keys);
    return st;
}

/* Of every snapshot, not of those alone that are shown. */
static mb_status each_packed(const struct flags *f, const struct store *s, struct registry *r, struct shown *shown, mb_error *err)
{
    struct model_list all;
    struct packed_shown p = { .shown = *shown, .l = &all };
    p.shown.n = 0;
    mb_status st = registry_list(r, s->root, NULL, true, &all, err);
    if (st == MB_OK) st = list_packed(f, s, &p, err);
    model_list_free(&all);
    shown->n += p.shown.n;
    return st;
}

/* --- ls --- */

static mb_status filter(const struct flags *f, struct model_list *l, mb_error *err)
{
    uint64_t max = UINT64_MAX;
    size_t n = 0;
    if (f->max_size.given) MB_TRY(store_parse_gb(f->max_size.s, "max-size", &max, err));
    for (size_t i = 0; i < l->n; i++) {
        const struct model_row *m = &l->rows[i];
        if (f->vision.b && !inspect_is_vision(&m->facts)) continue;
        if ((uint64_t)(m->facts.size_bytes + m->facts.sidecar_bytes) > max) continue;
        l->rows[n++] = *m;
    }
    l->n = n;
    return MB_OK;
}

static mb_status print_text(const struct flags *f, const struct store *s, struct registry *r, const struct model_list *l,
                            const char *query, mb_error *err)
{
    struct shown shown = { .f = f, .query = query };
    for (size_t i = 0; i < l->n; i++) print_row(f, &l->rows[i]);
    MB_TRY(partials_each(s->root, show_partial, &shown, err));
    MB_TRY(each_packed(f, s, r, &shown, err));
    if (l->n + shown.n == 0 && !f->quiet.b)
        fprintf(stderr, query ? "nothing in %s matches '%.80s'\n" : "no models in %s: mlx-bun get OWNER/NAME fetches one\n", s->root,
                query);
    return MB_OK;
}

static mb_status print_json(const struct flags *f, const struct store *s, struct registry *r, const struct model_list *l,
                            const char *query, mb_error *err)
{
    struct buf b;
    struct shown shown = { .f = f, .query = query, .json = &b };
    buf_init(&b, (size_t)256 << 20);
    buf_append_str(&b, "{\"models\": [");
    for (size_t i = 0; i < l->n; i++) {
        if (i) buf_append_str(&b, ", ");
        write_row(&b, &l->rows[i]);
    }
    buf_append_str(&b, "], \"partial\": [");
    mb_status st = partials_each(s->root, show_partial, &shown, err);
    buf_append_str(&b, "], \"packed\": [");
    if (st == MB_OK) st = each_packed(f, s, r, &shown, err);
    buf_append_str(&b, "]}\n");
    if (st == MB_OK) st = buf_status(&b, "answer", err);
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    return st;
}

mb_status cmd_ls(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    static struct store s; /* large */
    struct registry *r;
    struct model_list list;
    const char *query = n_pos > 0 ? pos[0] : NULL;
    (void)exit_status;
    MB_TRY(store_init(&s, f, err));
    MB_TRY(store_registry(&s, false, &r, err));
    mb_status st = registry_list(r, s.root, query, f->all_revisions.b, &list, err);
    if (st == MB_OK) st = filter(f, &list, err);
    if (st == MB_OK) st = f->json.b ? print_json(f, &s, r, &list, query, err) : print_text(f, &s, r, &list, query, err);
    model_list_free(&list);
    registry_close(r);
    return st;
}
