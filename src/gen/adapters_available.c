/* adapters_available.c: adapter folders on this machine (TRN-310, TRN-311): in the folder where training puts them, in the
 * model's own folder (adapters/), and beside the model. Only what an adapter's configuration and header say is read; what
 * cannot be read is left out.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "gen/gen_int.h"

enum { LOOK_MAX = 4096 }; /* entries of one folder */

struct search {
    struct engine_adapter_entry *out;
    int32_t n, cap;
};

static bool is_known(const struct search *s, const char *path)
{
    for (int32_t i = 0; i < s->n; i++)
        if (strcmp(s->out[i].path, path) == 0) return true;
    return false;
}

static void look_into(struct search *s, const char *dir)
{
    DIR *d = dir[0] ? opendir(dir) : NULL;
    int n_looked = 0;
    if (!d) return;
    for (struct dirent *e; s->n < s->cap && n_looked++ < LOOK_MAX && (e = readdir(d));) {
        char path[sizeof s->out->path];
        mb_error err;
        if (e->d_name[0] == '.' || path_join(path, sizeof path, dir, e->d_name, &err) != MB_OK) continue;
        if (!is_known(s, path) && engine_adapter_peek(path, &s->out[s->n], &err) == MB_OK) s->n++;
    }
    closedir(d);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct engine_adapter_entry *)a)->path, ((const struct engine_adapter_entry *)b)->path);
}

int32_t client_adapter_available(void *ctx, struct engine_adapter_entry *out, int32_t cap)
{
    const struct gen_engine *g = ctx;
    struct search s = { out, 0, cap };
    char dir[sizeof out->path];
    mb_error err;
    look_into(&s, g->adapter_root);
    if (path_join(dir, sizeof dir, g->info.path, "adapters", &err) == MB_OK) look_into(&s, dir);
    size_t len = strlen(g->info.path);
    while (len > 1 && g->info.path[len - 1] == '/') len--;
    while (len > 0 && g->info.path[len - 1] != '/') len--;
    if (len > 0 && len < sizeof dir) {
        snprintf(dir, sizeof dir, "%.*s", (int)len, g->info.path);
        look_into(&s, dir);
    }
    qsort(out, (size_t)s.n, sizeof *out, by_path);
    return s.n;
}
