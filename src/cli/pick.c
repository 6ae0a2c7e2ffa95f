/* pick.c: the model of `serve` when none is named (REG-046..049, CFG-037, CFG-038): what is in the cache, best first; else the hub's
 * starter, when this version can run it, with a better one to come in the background; else our own starter, saying why. */
#include <string.h>

#include "base/filemap.h"
#include "cli/store.h"

#define FIRST_CHOICE "mlx-community/gemma-4-e4b-it-OptiQ-4bit" /* REG-049 */
#define HUB_STARTER "mlx-community/MiniCPM5-1B-OptiQ-4bit"     /* REG-048 */
#define FIRST_CHOICE_BYTES 7000000000u                         /* REG-049: about; asking the hub would keep the starter waiting */

static bool can_run(const struct model_row *m, uint64_t room)
{
    return m->complete && m->facts.readable && mb_family_known(m->facts.model_type) && !name_ends(m->facts.model_type, "_assistant") &&
           (uint64_t)m->facts.size_bytes < room;
}

/* e4b, else the largest that fits. NULL: none. */
static const struct model_row *best_of(const struct model_list *l, uint64_t room)
{
    const struct model_row *best = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const struct model_row *m = &l->rows[i];
        if (!can_run(m, room)) continue;
        if (strcmp(m->repo, FIRST_CHOICE) == 0) return m;
        if (!best || m->facts.size_bytes > best->facts.size_bytes) best = m;
    }
    return best;
}

/* Bytes that a model may have. */
static uint64_t room_of(const struct flags *f)
{
    return f->memory_budget.given ? (uint64_t)f->memory_budget.i : (uint64_t)mb_memory_available() / 10 * 9;
}

/* *repo: its name, or "". */
static bool pick_cached(const struct flags *f, const struct store *s, char path[MODEL_PATH_MAX], char repo[NAME_REPO_MAX])
{
    struct registry *r;
    struct model_list list;
    mb_error err;
    bool found = false;
    repo[0] = '\0';
    if (store_registry(s, false, &r, &err) != MB_OK) {
        cli_warn("%s", err.text);
        return false;
    }
    if (registry_list(r, s->root, NULL, false, &list, &err) == MB_OK) {
        const struct model_row *m = best_of(&list, room_of(f));
        found = m && store_copy_path(path, m->path, NULL) == MB_OK;
        if (found) snprintf(repo, NAME_REPO_MAX, "%s", m->repo);
        if (found) fprintf(stderr, "mlx-bun: no model given: serving %s from the cache\n", m->repo);
    }
    model_list_free(&list);
    registry_close(r);
    return found;
}

/* Is the better model to come behind the starter? Not one that does not fit; beside a starter that was there already only when
 * somebody has begun it. */
static bool wants_first_choice(const struct flags *f, const struct store *s, bool fresh)
{
    char dir[PATH_MAX];
    if (f->no_download.b || s->offline || FIRST_CHOICE_BYTES >= room_of(f)) return false;
    return fresh || (layout_path(s->root, FIRST_CHOICE, NULL, NULL, dir, NULL) == MB_OK && dir_exists(dir));
}

/* The hub's starter, when its family is one that this version runs: asked by its listing first, then fetched. */
static mb_status pick_from_hub(const struct flags *f, struct store *s, char path[MODEL_PATH_MAX], mb_error *err)
{
    static struct get_result r; /* large */
    char url[NET_URL_MAX];
    json_t *config;
    s->net.retries = -1; /* a first start does not wait for a hub that does not answer */
    s->net.connect_ms = 5000;
    if (s->offline) return mb_fail(err, MB_IO, "HF_HUB_OFFLINE is set");
    if (f->no_download.b) return mb_fail(err, MB_IO, "--no-download is given");
    MB_TRY(net_url_file(&s->net, HUB_STARTER, "main", "config.json", url, err));
    MB_TRY(net_get_json(&s->net, url, HUB_STARTER, HUB_STARTER, NULL, NULL, &config, err));
    char type[64];
    const char *t = json_string_value(json_object_get(config, "model_type"));
    snprintf(type, sizeof type, "%.60s", t ? t : "");
    json_decref(config);
    if (!mb_family_known(type)) return mb_fail(err, MB_UNSUPPORTED, HUB_STARTER " is of the family '%s', which this version cannot run", type);
    MB_TRY(download_model(f, s, HUB_STARTER, "main", NULL, &r, err));
    return store_copy_path(path, r.path, err);
}

mb_status pick_model(const struct flags *f, char path[MODEL_PATH_MAX], const char **next, mb_error *err)
{
    static struct store s; /* large */
    char repo[NAME_REPO_MAX];
    mb_error why = { .text = "" };
    mb_status st = store_init(&s, f, &why);
    path[0] = '\0';
    *next = NULL;
    if (st == MB_OK && pick_cached(f, &s, path, repo)) {
        if (strcmp(repo, HUB_STARTER) == 0 && wants_first_choice(f, &s, false)) *next = FIRST_CHOICE;
        return MB_OK;
    }
    if (st == MB_OK) st = pick_from_hub(f, &s, path, &why);
    if (st == MB_OK && wants_first_choice(f, &s, true)) *next = FIRST_CHOICE;
    if (st == MB_OK || st == MB_CANCELLED) return st;
    fprintf(stderr, "mlx-bun: no model given: serving the starter, SmolLM2-135M-Instruct (nothing in the cache to serve; %s). Name a "
            "model to serve that\n", why.text);
    return model_starter(f, path, err);
}
