/* local.c: asks a server on this machine for its models: one HTTP/1.0 request over a socket of loopback, so that the command
 * line needs no HTTP client for it. */
#include "cli/local.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/json.h"

#define ANSWER_MAX ((size_t)1 << 20)

static int connect_to(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    struct timeval wait = { .tv_sec = 2 };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

/* The whole answer, headers too. */
static bool exchange(int fd, const char *api_key, struct buf *answer)
{
    struct buf ask;
    char piece[4096];
    ssize_t n;
    buf_init(&ask, ANSWER_MAX);
    buf_printf(&ask, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\n");
    if (api_key) buf_printf(&ask, "Authorization: Bearer %s\r\n", api_key);
    buf_append_str(&ask, "\r\n");
    bool ok = !ask.failed && send(fd, ask.data, ask.len, MSG_NOSIGNAL) == (ssize_t)ask.len;
    while (ok && !answer->failed && (n = recv(fd, piece, sizeof piece, 0)) != 0) {
        ok = n > 0;
        if (ok) buf_append(answer, piece, (size_t)n);
    }
    buf_free(&ask);
    return ok && !answer->failed;
}

static bool read_models(const char *answer, struct local_model *out)
{
    const char *body = strstr(answer, "\r\n\r\n");
    json_t *v = NULL;
    mb_error err;
    if (!body || json_read(&v, body + 4, strlen(body + 4), JSON_READ_DEFAULT, &err) != MB_OK) return false;
    const json_t *m = json_array_get(json_object_get(v, "data"), 0);
    const char *id = json_string_value(json_object_get(m, "id"));
    const char *owner = json_string_value(json_object_get(m, "owned_by"));
    bool ours = id && owner && strcmp(owner, "mlx-bun") == 0;
    if (ours) {
        snprintf(out->id, sizeof out->id, "%s", id);
        out->context_window = json_integer_value(json_object_get(m, "context_window"));
        out->reasoning = json_is_true(json_object_get(m, "reasoning"));
        out->vision = json_is_true(json_object_get(m, "vision"));
    }
    json_decref(v);
    return ours;
}

bool local_ask(int port, const char *api_key, struct local_model *out)
{
    struct buf answer;
    int fd = connect_to(port);
    if (fd < 0) return false;
    buf_init(&answer, ANSWER_MAX);
    bool ok = exchange(fd, api_key, &answer) && read_models(answer.data, out);
    buf_free(&answer);
    close(fd);
    return ok;
}
