/* library.c: the answers; the background thread is library_get.c. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "hub/library_int.h"

#define FRESH_NS 30000000000 /* REG-135 */
#define BODY_LIMIT ((size_t)64 << 20)

/* --- writing --- */

static void text(struct buf *b, const char *key, const char *s)
{
    buf_printf(b, "\"%s\": ", key);
    if (s && *s) json_write_string(b, s, strlen(s));
    else buf_append_str(b, "null");
    buf_append_str(b, ", ");
}

static void flag(struct buf *b, const char *key, bool v)
{
    buf_printf(b, "\"%s\": %s, ", key, v ? "true" : "false");
}

static bool is_supported(const struct library *l, const struct model_row *m)
{
    return m->complete && m->facts.readable && l->o.is_known(m->facts.model_type);
}

static void assessment(struct buf *b, const struct library *l, const struct model_row *m)
{
    struct library_assessment a;
    if (!is_supported(l, m) || !l->o.assess || !l->o.assess(l->o.assess_ctx, m->path, &a)) {
        buf_append_str(b, "\"assessment\": null}");
        return;
    }
    buf_printf(b, "\"assessment\": {\"fits\": %s, \"max_safe_context\": %lld, \"predicted_decode_tps\": ",
               a.fits ? "true" : "false", (long long)a.max_safe_context);
    if (a.predicted_decode_tps > 0) json_write_double(b, a.predicted_decode_tps);
    else buf_append_str(b, "null");
    buf_append_str(b, "}}");
}

static void write_model(struct buf *b, const struct library *l, const struct model_row *m)
{
    const struct model_facts *f = &m->facts;
    buf_append_char(b, '{');
    text(b, "repo_id", m->repo);
    text(b, "model_type", f->model_type);
    buf_printf(b, "\"size_bytes\": %lld, ", (long long)f->size_bytes);
    if (f->quant_bits) buf_printf(b, "\"quant_bits\": %d, ", (int)f->quant_bits);
    else buf_append_str(b, "\"quant_bits\": null, ");
    flag(b, "vision", inspect_is_vision(f));
    flag(b, "supported", is_supported(l, m));
    text(b, "tier", is_supported(l, m) ? "targeted" : NULL);
    flag(b, "serving", l->o.serving_path && strcmp(l->o.serving_path, m->path) == 0);
    flag(b, "complete", m->complete);
    assessment(b, l, m);
}

/* --- the registry, under the lock --- */

static mb_status open_registry(struct library *l, mb_error *err)
{
    if (!l->registry) MB_TRY(registry_open(&l->registry, l->o.registry_path, err));
    return MB_OK;
}

static bool is_fresh(int64_t t_ns)
{
    return t_ns && clock_now_ns() - t_ns < FRESH_NS;
}

/* l->list, at most 30 s old. */
static mb_status list_models(struct library *l, mb_error *err)
{
    if (is_fresh(l->t_list_ns)) return MB_OK;
    l->t_list_ns = l->t_models_ns = 0;
    model_list_free(&l->list);
    MB_TRY(open_registry(l, err));
    MB_TRY(registry_scan(l->registry, l->o.root, false, NULL, NULL, err));
    MB_TRY(registry_list(l->registry, l->o.root, NULL, false, &l->list, err));
    l->t_list_ns = clock_now_ns();
    return MB_OK;
}

static mb_status refresh(struct library *l, mb_error *err)
{
    MB_TRY(list_models(l, err));
    buf_clear(&l->models);
    buf_append_str(&l->models, "{\"models\": [");
    for (size_t i = 0; i < l->list.n; i++) {
        if (i) buf_append_str(&l->models, ", ");
        write_model(&l->models, l, &l->list.rows[i]);
    }
    buf_append_str(&l->models, "]}");
    l->t_models_ns = l->t_list_ns;
    return buf_status(&l->models, "answer", err);
}

mb_status library_models(struct library *l, struct buf *out, mb_error *err)
{
    pthread_mutex_lock(&l->lock);
    mb_status st = is_fresh(l->t_models_ns) ? MB_OK : refresh(l, err);
    if (st == MB_OK) buf_append(out, l->models.data, l->models.len);
    pthread_mutex_unlock(&l->lock);
    return st == MB_OK ? buf_status(out, "answer", err) : st;
}

static void write_servable(struct buf *out, const struct model_row *m)
{
    buf_append_str(out, "{\"id\": ");
    json_write_string(out, m->repo, strlen(m->repo));
    buf_printf(out, ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"", (long long)(m->scanned_at / 1000));
    buf_append(out, m->repo, strcspn(m->repo, "/"));
    buf_append_str(out, "\", \"context_window\": ");
    if (m->facts.context) buf_printf(out, "%lld", (long long)m->facts.context);
    else buf_append_str(out, "null");
    buf_printf(out, ", \"reasoning\": false, \"vision\": %s}", inspect_is_vision(&m->facts) ? "true" : "false");
}

mb_status library_servable(struct library *l, const char *served_id, const char *only_id, bool first, struct buf *out, mb_error *err)
{
    pthread_mutex_lock(&l->lock);
    mb_status st = list_models(l, err);
    for (size_t i = 0; st == MB_OK && i < l->list.n; i++) {
        const struct model_row *m = &l->list.rows[i];
        if (!is_supported(l, m) || strcmp(m->repo, served_id) == 0 || (only_id && strcmp(only_id, m->repo) != 0)) continue;
        if (l->o.serving_path && strcmp(l->o.serving_path, m->path) == 0) continue;
        if (!first) buf_append_str(out, ", ");
        write_servable(out, m);
        first = false;
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

mb_status library_path(struct library *l, const char *id, char *out, size_t cap, mb_error *err)
{
    const char *path = NULL;
    pthread_mutex_lock(&l->lock);
    mb_status st = list_models(l, err);
    for (size_t i = 0; st == MB_OK && i < l->list.n; i++)
        if (is_supported(l, &l->list.rows[i]) && strcmp(l->list.rows[i].repo, id) == 0) path = l->list.rows[i].path;
    if (st == MB_OK && (!path || strlen(path) >= cap)) st = mb_fail(err, MB_NOT_FOUND, "there is no model of this name");
    if (st == MB_OK) strcpy(out, path);
    pthread_mutex_unlock(&l->lock);
    return st;
}

/* --- downloads --- */

static void write_download(struct buf *b, const struct download_row *d)
{
    buf_append_char(b, '{');
    text(b, "repo_id", d->repo);
    text(b, "state", d->state);
    text(b, "current_file", d->current_file);
    buf_printf(b, "\"received_bytes\": %lld, \"total_bytes\": %lld, \"files_done\": %lld, \"files_total\": %lld, \"bytes_per_sec\": %lld, "
               "\"started_at\": %lld, \"finished_at\": ", (long long)d->received_bytes, (long long)d->total_bytes,
               (long long)d->files_done, (long long)d->files_total, (long long)d->bytes_per_sec, (long long)d->started_at);
    if (d->finished_at) buf_printf(b, "%lld", (long long)d->finished_at);
    else buf_append_str(b, "null");
    if (strcmp(d->state, "error") == 0) {
        buf_append_str(b, ", \"error\": ");
        json_write_string(b, d->error, strlen(d->error));
    }
    buf_append_char(b, '}');
}

mb_status library_downloads(struct library *l, struct buf *out, mb_error *err)
{
    struct download_row rows[DOWNLOADS_MAX];
    size_t n = 0;
    pthread_mutex_lock(&l->lock);
    mb_status st = open_registry(l, err);
    if (st == MB_OK) st = registry_downloads(l->registry, rows, &n, err);
    pthread_mutex_unlock(&l->lock);
    buf_append_str(out, "{\"downloads\": [");
    for (size_t i = 0; i < n; i++) {
        if (i) buf_append_str(out, ", ");
        write_download(out, &rows[i]);
    }
    buf_append_str(out, "]}");
    return st == MB_OK ? buf_status(out, "answer", err) : st;
}

/* --- life --- */

static mb_status copy_options(struct library *l, const struct library_options *o, mb_error *err)
{
    l->o = *o;
    l->o.root = arena_strdup(&l->arena, o->root);
    l->o.registry_path = arena_strdup(&l->arena, o->registry_path);
    l->o.serving_path = o->serving_path ? arena_strdup(&l->arena, o->serving_path) : NULL;
    l->o.net.endpoint = o->net.endpoint ? arena_strdup(&l->arena, o->net.endpoint) : NULL;
    l->o.net.token = o->net.token ? arena_strdup(&l->arena, o->net.token) : NULL;
    return l->arena.failed ? mb_fail(err, MB_NO_MEMORY, "no memory for the library") : MB_OK;
}

mb_status library_open(struct library **out, const struct library_options *o, mb_error *err)
{
    struct library *l = mb_calloc(1, sizeof *l);
    *out = NULL;
    if (!l) return mb_fail(err, MB_NO_MEMORY, "no memory for the library");
    arena_init(&l->arena, 1 << 20);
    buf_init(&l->models, BODY_LIMIT);
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->work_lock, NULL);
    pthread_cond_init(&l->work_cond, NULL);
    mb_status st = copy_options(l, o, err);
    if (st == MB_OK) *out = l;
    else library_close(l);
    return st;
}

void library_close(struct library *l)
{
    if (!l) return;
    library_stop(l);
    model_list_free(&l->list);
    registry_close(l->registry);
    buf_free(&l->models);
    arena_free(&l->arena);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->work_lock);
    pthread_cond_destroy(&l->work_cond);
    mb_free(l);
}
