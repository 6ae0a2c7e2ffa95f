/* cmd_harness.c: `harness pi`: the extension that makes a served model known to pi (API-430, API-431, CFG-197, CFG-198).
 * It is one file below HOME; --remove deletes it when it is ours. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/json.h"
#include "cli/local.h"

#define FOLDER ".pi/agent/extensions"
#define NAME "mlx-bun-provider.ts"
#define FIRST_LINE "// Written by `mlx-bun harness pi`"

static const char after_values[] =
    "const key = process.env.MLX_BUN_API_KEY || \"any\";\n"
    "\n"
    "export default async function (pi: any) {\n"
    "  let served = fallback;\n"
    "  try {\n"
    "    const answer = await fetch(url + \"/models\", { headers: { authorization: `Bearer ${key}` }, signal: AbortSignal.timeout(2000) });\n"
    "    served = (await answer.json()).data?.[0] ?? fallback;\n"
    "  } catch {\n"
    "    // no server yet: what was served when this file was written\n"
    "  }\n"
    "  pi.registerProvider(\"mlx-bun\", {\n"
    "    name: \"mlx-bun\", baseUrl: url, apiKey: key, api: \"openai-completions\",\n"
    "    models: [{\n"
    "      id: \"local\", name: served.id, reasoning: served.reasoning, input: served.vision ? [\"text\", \"image\"] : [\"text\"],\n"
    "      cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },\n"
    "      contextWindow: served.context_window, maxTokens: Math.min(served.context_window, 16384),\n"
    "    }],\n"
    "  });\n"
    "}\n";

void harness_pi_text(struct buf *out, int port, const struct local_model *baked)
{
    static const struct local_model unknown = { .id = "local", .context_window = 8192 };
    const struct local_model *m = baked ? baked : &unknown;
    buf_printf(out, FIRST_LINE "; `mlx-bun harness pi --remove` deletes it.\n"
                    "// pi asks the server for its model when it starts: mlx-bun/local is always the one that is served.\n"
                    "const url = process.env.MLX_BUN_URL || \"http://127.0.0.1:%d/v1\";\nconst fallback = { id: ", port);
    json_write_string(out, m->id, strlen(m->id));
    buf_printf(out, ", context_window: %lld, reasoning: %s, vision: %s };\n", (long long)m->context_window,
               m->reasoning ? "true" : "false", m->vision ? "true" : "false");
    buf_append_str(out, after_values);
}

static mb_status remove_extension(const char *path, mb_error *err)
{
    struct buf b;
    buf_init(&b, INPUT_MAX_BYTES);
    if (!file_exists(path)) {
        printf("%s is not there: nothing to remove\n", path);
        return MB_OK;
    }
    mb_status st = file_read(&b, path, INPUT_MAX_BYTES, err);
    bool ours = st == MB_OK && b.len >= strlen(FIRST_LINE) && memcmp(b.data, FIRST_LINE, strlen(FIRST_LINE)) == 0;
    buf_free(&b);
    MB_TRY(st);
    if (!ours) return mb_fail(err, MB_INVALID, "%s was not written by mlx-bun harness: it stays", path);
    if (unlink(path) != 0) return mb_fail(err, MB_IO, "cannot remove %s: %s", path, strerror(errno));
    printf("removed %s\n", path);
    return MB_OK;
}

static mb_status write_extension(const struct flags *f, const char *folder, const char *path, mb_error *err)
{
    struct local_model served;
    struct buf text;
    bool up = local_ask((int)f->port.i, f->api_key.given ? f->api_key.s : NULL, &served);
    MB_TRY(dir_make(folder, err));
    buf_init(&text, INPUT_MAX_BYTES);
    harness_pi_text(&text, (int)f->port.i, up ? &served : NULL);
    mb_status st = buf_status(&text, "the extension", err);
    if (st == MB_OK) st = file_write_atomic(path, text.data, text.len, err);
    buf_free(&text);
    MB_TRY(st);
    printf("wrote %s\n%s\n\n  pi --provider mlx-bun --model local\n", path,
           up ? "The server is up; pi asks it for its model whenever it starts." : "Start the server before pi: mlx-bun serve");
    return MB_OK;
}

mb_status cmd_harness(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char folder[MODEL_PATH_MAX], path[MODEL_PATH_MAX];
    (void)exit_status;
    if (n_pos < 1) return mb_fail(err, MB_INVALID, "harness needs the name of a client: pi");
    if (strcmp(pos[0], "pi") != 0)
        return mb_fail(err, MB_INVALID, "harness knows pi only, not '%.40s'; recipes for other clients are in docs/clients.md", pos[0]);
    if (!f->home.given || !f->home.s[0]) return mb_fail(err, MB_INVALID, "HOME is not set: where is pi's folder?");
    MB_TRY(path_join(folder, sizeof folder, f->home.s, FOLDER, err));
    MB_TRY(path_join(path, sizeof path, folder, NAME, err));
    return f->remove.b ? remove_extension(path, err) : write_extension(f, folder, path, err);
}
