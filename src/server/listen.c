/* listen.c: the listening socket: TCP on a host name or address, or a unix socket (API-003). */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/server_int.h"

/* What the kernel keeps of an answer that its client does not read (connections inherit it from the listening socket). The kernel's
 * own limit grows to megabytes a connection, tens of thousands of tokens that nobody asked to see before the row is parked. */
enum { SEND_BUFFER = 256 * 1024 };

static mb_status listen_unix(struct server *s, const char *path, mb_error *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    if (strlen(path) >= sizeof a.sun_path)
        return mb_fail(err, MB_INVALID, "--unix: the path has %zu bytes, at most %zu fit", strlen(path), sizeof a.sun_path - 1);
    strcpy(a.sun_path, path);
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode)) return mb_fail(err, MB_INVALID, "--unix: %s exists and is not a socket", path);
        unlink(path); /* stale */
    }
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0) return mb_fail_errno(err, "cannot make a socket for", path);
    if (s->opt.host_fd) fchmod(s->listen_fd, 0600); /* the file's mode, from the moment that it is there */
    if (bind(s->listen_fd, (struct sockaddr *)&a, sizeof a) != 0) return mb_fail_errno(err, "cannot bind", path);
    if (listen(s->listen_fd, 1024) != 0) return mb_fail_errno(err, "cannot listen on", path);
    s->bound_unix = true;
    return MB_OK;
}

static mb_status bind_one(struct server *s, const struct addrinfo *ai, const char *where, mb_error *err)
{
    int one = 1, send_buffer = SEND_BUFFER;
    s->listen_fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0) return mb_fail_errno(err, "cannot make a socket for", where);
    setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(s->listen_fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    if (bind(s->listen_fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(s->listen_fd, 1024) == 0) return MB_OK;
    mb_status st = errno == EADDRINUSE
                       ? mb_fail(err, MB_IO, "%s is in use already; another --port is free with --port 0", where)
                       : mb_fail_errno(err, "cannot listen on", where);
    close(s->listen_fd);
    s->listen_fd = -1;
    return st;
}

static bool addr_is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static mb_status listen_tcp(struct server *s, const char *host, int port, mb_error *err)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list = NULL;
    char service[16], where[300];
    if (port < 0 || port > 65535) return mb_fail(err, MB_INVALID, "port must be at least 0 and at most 65535");
    snprintf(service, sizeof service, "%d", port);
    snprintf(where, sizeof where, "%s:%d", host, port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) return mb_fail(err, MB_INVALID, "host %s: %s", host, gai_strerror(rc));
    const struct addrinfo *pick = list;
    for (const struct addrinfo *ai = list; ai; ai = ai->ai_next) /* localhost: the address that all clients try */
        if (ai->ai_family == AF_INET) {
            pick = ai;
            break;
        }
    mb_status st = bind_one(s, pick, where, err);
    if (st == MB_OK) {
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        s->bound_loopback = addr_is_loopback(pick->ai_addr);
        getsockname(s->listen_fd, (struct sockaddr *)&a, &n);
        s->port = a.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&a)->sin6_port)
                                          : ntohs(((struct sockaddr_in *)&a)->sin_port);
    }
    freeaddrinfo(list);
    return st;
}

mb_status listen_open(struct server *s, mb_error *err)
{
    if (s->opt.unix_path) return listen_unix(s, s->opt.unix_path, err);
    return listen_tcp(s, s->opt.host, s->opt.port, err);
}

void listen_close(struct server *s)
{
    if (s->listen_fd >= 0) close(s->listen_fd);
    s->listen_fd = -1;
    if (s->bound_unix) unlink(s->opt.unix_path);
}
