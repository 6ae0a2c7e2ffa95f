/* cmd_get.c: `mlx-bun get --starter`: the starter model into the cache; its directory is the last line of stdout. */
#include <string.h>

#include "cli/cli.h"

mb_status cmd_get(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char path[MODEL_PATH_MAX];
    (void)exit_status;
    bool named = n_pos > 0 && strcmp(pos[0], "starter") == 0;
    if (n_pos > 0 && !named)
        return mb_fail(err, MB_NOT_FOUND, "no model '%.200s': this version can fetch the starter only (mlx-bun get --starter); "
                       "download others with the hub's own client and name the directory", pos[0]);
    if (!f->starter.b && !named) return mb_fail(err, MB_INVALID, "get what? mlx-bun get --starter");
    MB_TRY(model_starter(f, path, err));
    printf("%s\n", path);
    return MB_OK;
}
