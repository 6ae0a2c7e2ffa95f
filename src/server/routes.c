/* routes.c: the route table and how a path finds its row. Body limits of 0 mean that no body is wanted; the server puts
 * its own limit where the row says BODY_JSON. */
#include <string.h>

#include "server/server_int.h"

#define MB_256 ((size_t)256 << 20)
#define BODY_S 600 /* seconds for a whole body */

static const struct route_row ROWS[] = {
    { .method = "POST", .path = "/v1/chat/completions", .alias = "/chat/completions", .home = HOME_ENGINE, .by_model = true,
      .dialect = &api_openai_chat, .handle = handle_generate, .streams = true, .queue = QUEUE_GENERATE, .body_limit_bytes = MB_256,
      .deadline_s = BODY_S, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-040", .help = "chat completion" },
    { .method = "POST", .path = "/v1/completions", .home = HOME_ENGINE, .by_model = true, .dialect = &api_openai_completions,
      .handle = handle_generate, .streams = true, .queue = QUEUE_GENERATE, .body_limit_bytes = MB_256,
      .deadline_s = BODY_S, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-206", .help = "raw text completion" },
    { .method = "POST", .path = "/v1/messages", .home = HOME_ENGINE, .by_model = true, .dialect = &api_anthropic,
      .handle = handle_generate, .streams = true, .queue = QUEUE_GENERATE, .body_limit_bytes = MB_256,
      .deadline_s = BODY_S, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-220", .help = "Anthropic message" },
    { .method = "POST", .path = "/v1/messages/count_tokens", .home = HOME_ENGINE, .by_model = true, .dialect = &api_anthropic,
      .handle = handle_count_tokens, .queue = QUEUE_PREPARE, .body_limit_bytes = MB_256, .deadline_s = BODY_S,
      .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-220", .help = "prompt tokens of an Anthropic message" },
    { .method = "POST", .path = "/v1/responses", .home = HOME_ENGINE, .by_model = true, .dialect = &api_responses,
      .handle = handle_generate, .streams = true, .queue = QUEUE_GENERATE, .body_limit_bytes = MB_256,
      .deadline_s = BODY_S, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-237", .help = "OpenAI response" },
    { .method = "GET", .path = "/v1/responses/*", .home = HOME_HOST, .dialect = &api_responses, .handle = handle_response,
      .queue = QUEUE_PREPARE, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-245",
      .help = "a stored response, or its /input_items" },
    { .method = "DELETE", .path = "/v1/responses/*", .home = HOME_HOST, .dialect = &api_responses,
      .handle = handle_response_delete, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-245", .help = "forget a response" },
    { .method = "POST", .path = "/v1/embeddings", .alias = "/embeddings", .home = HOME_ENGINE, .by_model = true,
      .handle = handle_embeddings, .queue = QUEUE_PREPARE, .body_limit_bytes = MB_256, .deadline_s = BODY_S, .cors = CORS_API,
      .auth = AUTH_KEY, .spec = "API-251", .help = "vectors of texts or token ids" },
    { .method = "GET", .path = "/v1/adapters", .home = HOME_ENGINE, .handle = handle_adapters, .auth = AUTH_KEY,
      .spec = "API-302", .help = "the mounted LoRA adapters" },
    { .method = "POST", .path = "/v1/adapters", .home = HOME_ENGINE, .handle = handle_adapter_mount, .queue = QUEUE_PREPARE,
      .body_limit_bytes = (size_t)1 << 20, .deadline_s = BODY_S, .auth = AUTH_MANAGE, .spec = "API-303",
      .help = "mount an adapter folder under a name" },
    { .method = "GET", .path = "/v1/adapters/available", .home = HOME_ENGINE, .handle = handle_adapters_available,
      .queue = QUEUE_PREPARE, .auth = AUTH_MANAGE, .spec = "TRN-310", .help = "adapter folders on this machine" },
    { .method = "DELETE", .path = "/v1/adapters/*", .home = HOME_ENGINE, .handle = handle_adapter_unmount, .auth = AUTH_MANAGE,
      .spec = "API-306", .help = "unmount an adapter" },
    { .method = "GET", .path = "/v1/models", .home = HOME_HOST, .wants_model = true, .handle = handle_models,
      .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-261", .help = "the served model, then the others on disk" },
    { .method = "GET", .path = "/v1/models/*", .home = HOME_HOST, .wants_model = true, .handle = handle_model,
      .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-265", .help = "the list, filtered to one id" },
    { .method = "GET", .path = "/library", .home = HOME_HOST, .handle = handle_library, .queue = QUEUE_PREPARE, .cors = CORS_API,
      .auth = AUTH_KEY, .spec = "API-285", .help = "models on disk" },
    { .method = "GET", .path = "/fit", .home = HOME_ENGINE, .handle = handle_fit, .queue = QUEUE_PREPARE, .cors = CORS_API,
      .auth = AUTH_KEY, .spec = "API-294", .help = "memory and speed of the served model, here and on other machines" },
    { .method = "GET", .path = "/downloads", .home = HOME_HOST, .handle = handle_downloads, .cors = CORS_API, .auth = AUTH_KEY,
      .spec = "API-289", .help = "the last five downloads of all processes" },
    { .method = "POST", .path = "/downloads", .home = HOME_HOST, .handle = handle_download_start, .queue = QUEUE_PREPARE,
      .body_limit_bytes = (size_t)1 << 20, .deadline_s = BODY_S, .auth = AUTH_MANAGE, .spec = "API-293 Q56",
      .help = "download a model: {\"repo_id\", \"revision\"}" },
    { .method = "POST", .path = "/downloads/cancel", .home = HOME_HOST, .handle = handle_download_cancel, .queue = QUEUE_PREPARE,
      .body_limit_bytes = (size_t)1 << 20, .deadline_s = BODY_S, .auth = AUTH_MANAGE, .spec = "API-293",
      .help = "end a download that this server began: {\"repo_id\"}; what is there is kept" },
    { .method = "GET", .path = "/health", .home = HOME_HOST, .handle = handle_health, .cors = CORS_API, .auth = AUTH_OPEN,
      .spec = "API-267", .help = "is the engine alive" },
    { .method = "GET", .path = "/stats", .home = HOME_ENGINE, .looks_only = true, .handle = handle_stats, .auth = AUTH_KEY, .spec = "API-268",
      .help = "counters as JSON" },
    { .method = "GET", .path = "/metrics", .home = HOME_ENGINE, .looks_only = true, .handle = handle_metrics, .auth = AUTH_KEY,
      .spec = "API-268", .help = "counters as Prometheus text" },
    { .method = "GET", .path = "/engine", .home = HOME_HOST, .handle = handle_engine, .auth = AUTH_KEY, .spec = "API-360",
      .help = "the engine's process, and the pool of --model-pool" },
    { .method = "POST", .path = "/admin/drain", .home = HOME_ENGINE, .handle = handle_drain, .body_limit_bytes = (size_t)1 << 20,
      .auth = AUTH_MANAGE, .socket_only = true, .spec = "API-357 ENG-220", .help = "finish what runs, take no more, end; on a Unix socket only" },
    { .method = "GET", .path = "/ws/chat", .home = HOME_HOST, .handle = handle_ws_chat, .auth = AUTH_KEY, .spec = "API-363",
      .help = "not in this version; 501 under --isolate" },
    { .method = "POST", .path = "/tokenize", .home = HOME_ENGINE, .handle = handle_tokenize, .queue = QUEUE_PREPARE,
      .body_limit_bytes = MB_256, .deadline_s = BODY_S, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-207",
      .help = "text to token ids" },
    { .method = "POST", .path = "/detokenize", .home = HOME_ENGINE, .handle = handle_detokenize, .queue = QUEUE_PREPARE,
      .body_limit_bytes = MB_256, .deadline_s = BODY_S, .cors = CORS_API, .auth = AUTH_KEY, .spec = "API-207",
      .help = "token ids to text" },
    { .method = "GET", .path = "/", .home = HOME_HOST, .handle = handle_root, .auth = AUTH_OPEN, .spec = "API-417",
      .help = "a notice" },
};

const struct route_row *route_rows(size_t *n)
{
    *n = sizeof ROWS / sizeof ROWS[0];
    return ROWS;
}

static bool path_matches(const char *pattern, const char *path, const char **rest)
{
    size_t n = pattern ? strlen(pattern) : 0;
    if (n == 0) return false;
    if (n < 2 || strcmp(pattern + n - 2, "/*") != 0) return strcmp(pattern, path) == 0;
    if (strncmp(pattern, path, n - 1) != 0 || path[n - 1] == '\0') return false;
    *rest = path + n - 1;
    return true;
}

static bool method_matches(const char *row, const char *method)
{
    return strcmp(row, method) == 0 || (strcmp(row, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

const struct route_row *route_find(const char *method, const char *path, const char **rest, char allowed[64])
{
    allowed[0] = '\0';
    *rest = NULL;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        const char *r = NULL;
        if (!path_matches(ROWS[i].path, path, &r) && !path_matches(ROWS[i].alias, path, &r)) continue;
        if (method_matches(ROWS[i].method, method)) {
            *rest = r;
            return &ROWS[i];
        }
        const char *m = strcmp(ROWS[i].method, "GET") == 0 ? "GET, HEAD" : ROWS[i].method;
        if (strlen(allowed) + strlen(m) + 3 < 64) {
            if (allowed[0]) strcat(allowed, ", ");
            strcat(allowed, m);
        }
    }
    return NULL;
}

const struct api_dialect *route_dialect(const char *path)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        size_t n = strlen(ROWS[i].path);
        if (!ROWS[i].dialect || strchr(ROWS[i].path, '*')) continue;
        if (strncmp(path, ROWS[i].path, n) == 0 && (path[n] == '\0' || path[n] == '/')) return ROWS[i].dialect;
    }
    return NULL;
}
