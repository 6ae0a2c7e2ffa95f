/* store.c: see store.h. */
#include "cli/store.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/filemap.h"

mb_status store_copy_path(char out[MODEL_PATH_MAX], const char *path, mb_error *err)
{
    out[0] = '\0';
    if (strlen(path) >= MODEL_PATH_MAX) return mb_fail(err, MB_TOO_LARGE, "a path is longer than %d bytes", MODEL_PATH_MAX);
    strcpy(out, path);
    return MB_OK;
}

/* --- settings --- */

static const char *given(const struct flag_value *v)
{
    return v->given ? v->s : NULL;
}

static bool is_true(const struct flag_value *v)
{
    static const char *const yes[] = { "1", "true", "yes", "on" };
    for (int i = 0; v->given && i < 4; i++)
        if (strcasecmp(v->s, yes[i]) == 0) return true;
    return false;
}

/* What `hf auth login` wrote: $HF_HOME/token, else ~/.cache/huggingface/token (REG-024, REG-025). */
static void read_token(struct store *s, const struct flags *f)
{
    char path[PATH_MAX] = "";
    struct buf b;
    mb_status st = MB_NOT_FOUND;
    if (f->hf_token.given) {
        snprintf(s->token, sizeof s->token, "%s", f->hf_token.s);
        return;
    }
    if (f->hf_token_path.given) st = store_copy_path(path, f->hf_token_path.s, NULL);
    else if (f->hf_home.given) st = path_join(path, sizeof path, f->hf_home.s, "token", NULL);
    else if (f->xdg_cache_home.given && f->xdg_cache_home.s[0] == '/')
        st = path_join(path, sizeof path, f->xdg_cache_home.s, "huggingface/token", NULL);
    else if (f->home.given) st = path_join(path, sizeof path, f->home.s, ".cache/huggingface/token", NULL);
    if (st != MB_OK || !file_exists(path)) return;
    buf_init(&b, sizeof s->token);
    if (file_read(&b, path, sizeof s->token - 1, NULL) == MB_OK && b.data) {
        size_t at = strspn(b.data, " \t\r\n"), len = strcspn(b.data + at, " \t\r\n");
        memcpy(s->token, b.data + at, len);
        s->token[len] = '\0';
    }
    buf_free(&b);
}

mb_status store_upload_token(struct store *s, const struct flags *f, mb_error *err)
{
    char path[PATH_MAX];
    json_t *o;
    if (!f->home.given) return MB_OK;
    MB_TRY(path_join(path, sizeof path, f->home.s, ".mlx-bun/hf.json", err));
    if (!file_exists(path)) return MB_OK;
    MB_TRY(json_read_file(&o, path, 65536, err));
    const char *token = json_string_value(json_object_get(o, "token"));
    bool ok = token && strlen(token) < sizeof s->token;
    if (ok && *token) strcpy(s->token, token);
    json_decref(o);
    if (!ok) return mb_fail(err, MB_BAD_FORMAT, "%s: wanted is {\"token\": \"hf_...\"}", path);
    s->net.token = s->token[0] ? s->token : NULL;
    return MB_OK;
}

mb_status store_init(struct store *s, const struct flags *f, mb_error *err)
{
    char cache[PATH_MAX];
    memset(s, 0, sizeof *s);
    MB_TRY(layout_root(given(&f->hf_hub_cache), given(&f->hf_home), given(&f->xdg_cache_home), given(&f->home), s->root, err));
    MB_TRY(model_cache_dir(f, cache, sizeof cache, err));
    MB_TRY(path_join(s->registry_path, sizeof s->registry_path, cache, "registry.sqlite", err));
    MB_TRY(path_join(s->packed_dir, sizeof s->packed_dir, cache, "packed", err));
    MB_TRY(path_join(s->notes_dir, sizeof s->notes_dir, cache, "uploads", err));
    s->expert_dir = f->expert_offload_dir.given && f->expert_offload_dir.s[0] ? f->expert_offload_dir.s : NULL;
    if (s->registry_path[0] != '/') { /* --cache-dir may be relative */
        char full[PATH_MAX];
        MB_TRY(dir_make(cache, err));
        if (!realpath(cache, full)) return mb_fail_errno(err, "cannot find the folder", cache);
        MB_TRY(path_join(s->registry_path, sizeof s->registry_path, full, "registry.sqlite", err));
    }
    if (f->hf_endpoint.given) MB_TRY(net_check_endpoint(f->hf_endpoint.s, err));
    read_token(s, f);
    s->offline = is_true(&f->hf_offline);
    s->net = (struct net_opts){ .endpoint = given(&f->hf_endpoint), .token = s->token[0] ? s->token : NULL,
                                .retries = f->retries.i > 0 ? (int)f->retries.i : -1 };
    return MB_OK;
}

mb_status store_registry(const struct store *s, bool full, struct registry **out, mb_error *err)
{
    MB_TRY(registry_open(out, s->registry_path, err));
    mb_status st = registry_scan(*out, s->root, full, NULL, NULL, err);
    if (st != MB_OK) {
        registry_close(*out);
        *out = NULL;
    }
    return st;
}

mb_status store_parse_gb(const char *text, const char *flag, uint64_t *bytes, mb_error *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end != text && v >= 0 && v < 1e9 && (*end == '\0' || strcasecmp(end, "GB") == 0 || strcasecmp(end, "G") == 0)) {
        *bytes = (uint64_t)(v * 1e9);
        return MB_OK;
    }
    return mb_fail(err, MB_INVALID, "--%s must be a size in GB like 8GB or 0.5, found '%.40s'", flag, text);
}

/* --- finding --- */

mb_status store_check_path(const char *path, mb_error *err)
{
    char root[PATH_MAX], repo[NAME_REPO_MAX], commit[NAME_COMMIT_LEN + 1], dir[PATH_MAX];
    struct snapshot_state state;
    if (!layout_split(path, root, repo, commit) || !commit[0]) return MB_OK;
    MB_TRY(layout_path(root, repo, NULL, NULL, dir, err));
    layout_check(dir, commit, &state);
    return state.complete ? MB_OK : layout_incomplete(repo, &state, err);
}

/* A query: part of a name (REG-078..083). */
static mb_status find_by_query(const struct store *s, const char *query, char path[MODEL_PATH_MAX], mb_error *err)
{
    struct registry *r;
    struct model_list list;
    MB_TRY(store_registry(s, false, &r, err));
    mb_status st = registry_resolve(r, s->root, query, &list, err);
    if (st == MB_OK) st = store_copy_path(path, list.rows[0].path, err);
    model_list_free(&list);
    registry_close(r);
    return st == MB_OK ? store_check_path(path, err) : st;
}

mb_status store_find(const struct flags *f, const char *arg, char path[MODEL_PATH_MAX], mb_error *err)
{
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX], commit[NAME_COMMIT_LEN + 1], found[PATH_MAX];
    struct store s;
    path[0] = '\0';
    MB_TRY(store_init(&s, f, err));
    if (!strchr(arg, '/')) return find_by_query(&s, arg, path, err);
    MB_TRY(name_parse_model(arg, "main", repo, revision, err));
    MB_TRY(get_find(s.root, repo, revision, found, commit, err));
    return store_copy_path(path, found, err);
}
