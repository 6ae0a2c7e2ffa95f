/* cmd_serve.c: a model behind the HTTP server: choose it, look whether the port is free, load, print the ready card, run
 * until a signal. The first SIGINT or SIGTERM lets running requests finish, the second cuts them off (API-015). */
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/errors.h"
#include "base/fault.h"
#include "base/log.h"
#include "cli/fit.h"
#include "cli/local.h"
#include "cli/serve_isolated.h"
#include "hub/library.h"
#include "server/server.h"

/* The one thing a signal handler can reach. Set before the handlers are installed, never cleared while they are. */
static struct server *running;

static void on_signal(int sig)
{
    (void)sig;
    server_request_stop(running);
}

static void install_signals(struct server *s)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sigemptyset(&sa.sa_mask);
    running = s;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

static void restore_signals(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

/* --- is the port free? (CFG-049) --- */
static bool answers(const struct addrinfo *ai)
{
    static const char ask[] = "GET /v1 HTTP/1.0\r\nHost: localhost\r\n\r\n";
    char reply[16];
    struct timeval one_s = { .tv_sec = 1 };
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &one_s, sizeof one_s);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &one_s, sizeof one_s);
    bool ok = connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 && send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) > 0 &&
              recv(fd, reply, sizeof reply, 0) > 0;
    close(fd);
    return ok;
}

static mb_status probe_port(const struct flags *f, mb_error *err)
{
    char port[16];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list = NULL;
    if (f->unix_path.given || f->port.i == 0) return MB_OK;
    snprintf(port, sizeof port, "%d", (int)f->port.i);
    if (getaddrinfo("localhost", port, &hints, &list) != 0) return MB_OK;
    bool taken = false;
    for (struct addrinfo *ai = list; ai && !taken; ai = ai->ai_next) taken = answers(ai);
    freeaddrinfo(list);
    if (!taken) return MB_OK;
    return mb_fail(err, MB_IO, "something already serves at http://localhost:%s/v1: stop it, or give another --port", port);
}

/* --- options --- */
static void set_server_options(const struct flags *f, const char *owner, struct server_options *o)
{
    *o = (struct server_options){
        .host = f->host.s, .port = (int)f->port.i, .unix_path = f->unix_path.given ? f->unix_path.s : NULL,
        .api_key = f->api_key.given ? f->api_key.s : NULL, .allow_hosts = f->allow_host.list,
        .n_allow_hosts = f->allow_host.n_list, .allow_origins = f->allow_origin.list,
        .n_allow_origins = f->allow_origin.n_list, .body_memory_bytes = (size_t)f->body_memory.i,
        .shutdown_timeout_ms = (int64_t)f->shutdown_timeout_ms.d, .owner = owner,
        .memory_budget_bytes = (uint64_t)f->memory_budget.i, .kv_budget_bytes = (uint64_t)f->kv_budget.i,
        .trace = f->p2r_trace.b, .keep_billing_header = f->keep_billing_header.b, .host_fd = (int)f->host_fd.i,
    };
    if (o->host_fd) o->api_key = NULL; /* its host has asked for it, and nobody else can reach its socket */
}

/* Host for URLs: what a client on this machine can open (CFG-048). */
static const char *url_host(const struct flags *f)
{
    const char *h = f->host.s;
    if (strcmp(h, "0.0.0.0") == 0 || strcmp(h, "::") == 0) return "localhost";
    return h;
}

static void url_of(const struct flags *f, const struct server *s, char out[256])
{
    const char *h = url_host(f);
    bool v6 = strchr(h, ':') != NULL;
    if (f->unix_path.given) snprintf(out, 256, "http://localhost");
    else snprintf(out, 256, "http://%s%s%s:%d", v6 ? "[" : "", h, v6 ? "]" : "", server_port(s));
}

/* --- near the ceiling (ENG-134, REG-130) --- */

/* Weights that leave little for KV pages: said, with the command that allows more. What may be used is --memory-budget, or 90 % of what
 * was free at the start (engine/open.c). */
static void warn_near_ceiling(const struct flags *f, const char *path, const struct engine_loaded *l)
{
    char a[32], b[32];
    bool given = f->memory_budget.given;
    double usable = (double)l->usable_bytes, wanted = given ? (double)l->weight_bytes / 0.75 : usable / 0.9 * 0.97;
    if ((double)l->weight_bytes <= 0.8 * usable) return;
    cli_warn("the weights (%s) are %.0f %% of the memory that may be used (%s, %s), which leaves little for KV pages: %smlx-bun serve %s "
             "--memory-budget %.3g%s", model_size_text(l->weight_bytes, a), 100 * (double)l->weight_bytes / usable,
             model_size_text(l->usable_bytes, b), given ? "--memory-budget" : "90 % of what is free", given ? "" : "free memory, or ", path,
             wanted / 1e9, given ? "" : " takes nearly all of it");
}

/* --- the ready card --- */
static void print_memory(const struct engine_loaded *l)
{
    char a[32], b[32], c[32], d[32];
    printf("  memory   %s: weights %s, scratch %s, KV pool %s\n", model_size_text(l->usable_bytes, a),
           model_size_text(l->weight_bytes, b), model_size_text(l->scratch_bytes, c), model_size_text(l->pool_bytes, d));
    if (l->expert_bytes)
        printf("  experts  %s in a file, %s of memory for those in use\n", model_size_text(l->expert_bytes, a),
               model_size_text(l->expert_cache_bytes, b));
    printf("  context  %d tokens; one request can use %d\n", (int)l->n_context, (int)l->max_context_in_pool);
}

static void print_first_request(const struct flags *f, const char *url)
{
    bool on_socket = f->unix_path.given;
    printf("\n  curl %s%s%s%s/v1/chat/completions -H 'content-type: application/json'%s \\\n"
           "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n\n", on_socket ? "--unix-socket " : "",
           on_socket ? f->unix_path.s : "", on_socket ? " " : "", url, f->api_key.given ? " -H \"authorization: Bearer $KEY\"" : "");
    fflush(stdout);
}

static void print_card(const struct flags *f, mb_engine *e, const char *path, const struct server *s, struct serve_fit *fit)
{
    struct engine_client c = mb_engine_client(e);
    const struct gen_model_info *info = c.info(c.ctx);
    const struct engine_loaded *l = mb_engine_loaded(e);
    char url[256], speed[128];
    url_of(f, s, url);
    printf("\nmlx-bun %s is ready\n\n", mb_version());
    if (f->unix_path.given) printf("  socket   %s\n", f->unix_path.s);
    else printf("  url      %s/v1\n", url);
    printf("  model    %s\n           %s\n", info->id, path);
    printf("  tier     %s, KV %s; %s; up to %d requests together\n", info->tier, info->kv_mode, l->device, info->batch);
    print_memory(l);
    serve_fit_line(fit, speed);
    if (speed[0]) printf("  speed    %s\n", speed);
    print_first_request(f, url);
}

/* --- one run --- */
static mb_status find_model(const struct flags *f, const char *positional, char path[MODEL_PATH_MAX], const char **next, mb_error *err)
{
    *next = NULL;
    MB_TRY(model_find(f, positional, false, path, err));
    return path[0] ? MB_OK : pick_model(f, path, next, err);
}

/* The model of the next start comes beside the starter (REG-047). A hub that does not answer is a line in the log. */
static void fetch_next(struct library *l, const char *repo)
{
    mb_error err = { .text = "" };
    if (!l || !repo) return;
    if (library_get(l, repo, "main", &err) != MB_OK) LOGW("serve", "%s: %s", repo, err.text);
    else fprintf(stderr, "mlx-bun: %s (about 7.0 GB) is downloaded in the background; the next start serves it. GET /downloads shows how far "
                 "it is, --no-download leaves it\n", repo);
}

static mb_status load(const struct flags *f, const char *path, mb_engine **out, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    struct progress bar;
    *out = NULL;
    MB_TRY(model_options(f, &opt, &x, err));
#ifdef MB_FAULTS
    if (f->scripted.given) return scripted_open(f->scripted.s, path, &x, out, err);
#endif
    progress_begin(&bar, "loading", f->quiet.b);
    opt.progress = progress_set;
    opt.progress_ctx = &bar;
    mb_status st = mb_engine_open_extra(out, path, &opt, &x, err);
    progress_end(&bar);
    return st;
}

static bool assess(void *ctx, const char *path, struct library_assessment *out)
{
    return mb_model_assess(path, serve_fit_rates(ctx), &out->fits, &out->max_safe_context, &out->predicted_decode_tps);
}

/* The models on disk; a server without a home for them goes on without. */
static struct library *open_library(const struct flags *f, const char *path, struct serve_fit *fit)
{
    static struct store s; /* large */
    struct library *l;
    mb_error err;
    if (store_init(&s, f, &err) != MB_OK) return NULL;
    struct library_options o = { .root = s.root, .registry_path = s.registry_path, .serving_path = path, .net = s.net,
                                 .offline = s.offline, .is_known = mb_family_known, .assess = assess,
                                 .assess_ctx = fit };
    if (library_open(&l, &o, &err) == MB_OK) return l;
    LOGW("serve", "%s", err.text);
    return NULL;
}

static mb_status serve(const struct flags *f, const char *owner, mb_engine *e, const char *path, const char *next,
                       struct library *library, struct serve_fit *fit, mb_error *err)
{
    struct engine_client client = mb_engine_client(e);
    struct server_options opt;
    struct server *s = NULL;
    set_server_options(f, owner, &opt);
    opt.library = library;
    opt.fit = fit ? serve_fit_json : NULL;
    opt.fit_ctx = fit;
    MB_TRY(server_open(&s, &client, &opt, err));
    install_signals(s);
    if (!f->quiet.b && !opt.host_fd) print_card(f, e, path, s, fit);
    fetch_next(library, next);
    if (opt.host_fd) prctl(PR_SET_PDEATHSIG, 0); /* server_run sees it by the socket, when all of the host is gone */
    server_run(s);
    restore_signals();
    bool alive = client.alive(client.ctx);
    if (!alive && opt.host_fd) _exit(error_row_get(MB_ENGINE_DEAD)->exit_status); /* its host answers those who wait */
    server_close(s);
    if (opt.host_fd && server_host_gone(opt.host_fd)) engine_remove_folder(opt.unix_path);
    return alive ? MB_OK : mb_fail(err, MB_ENGINE_DEAD, "the engine had stopped before the server was; the log above says why");
}

/* --- the host of --isolate --- */
struct host { const struct flags *f; const char *path; int32_t pool; };

/* ENG-208; the card comes with the first. */
static void on_engine(void *ctx, const struct server *s, const char *id, int pid, bool first)
{
    const struct host *h = ctx;
    char url[256];
    fprintf(stderr, "mlx-bun: engine ready pid %d (%s)\n", pid, id);
    if (!first || h->f->quiet.b) return;
    url_of(h->f, s, url);
    printf("\nmlx-bun %s is ready\n\n  url      %s/v1\n  model    %s\n           %s\n  engine   process %d", mb_version(), url, id, h->path, pid);
    if (h->pool > 0) printf("; at most %d at a time, every model of /v1/models by its id", (int)h->pool);
    printf("\n");
    print_first_request(h->f, url);
}

/* The server that has no engine of its own. exit_status: of an engine that could not be started; it has said why. */
static mb_status serve_isolated(const struct flags *f, const char *owner, const char *path, const char *next, struct library *library,
                                int *exit_status, mb_error *err)
{
    static struct isolation iso;
    struct host h = { f, path, 0 };
    struct server_options opt;
    struct server *s = NULL;
    bool failed = false;
    set_server_options(f, owner, &opt);
    opt.library = library;
    MB_TRY(isolation_open(&iso, f, path, &opt, err));
    h.pool = iso.engines.pool;
    iso.engines.ready = on_engine;
    iso.engines.ready_ctx = &h;
    mb_status st = server_open(&s, NULL, &opt, err);
    if (st == MB_OK) {
        install_signals(s);
        fetch_next(library, next);
        server_run(s);
        restore_signals();
        *exit_status = server_engine_status(s, &failed);
        server_close(s);
    }
    isolation_close(&iso);
    if (st == MB_OK && failed) return mb_fail(err, MB_ENGINE_DEAD, "the engine had stopped before the server was; the log above says why");
    return st;
}

mb_status serve_run(const struct flags *f, const char *positional, const char *owner, int *exit_status, mb_error *err)
{
    char path[MODEL_PATH_MAX];
    const char *next;
    mb_engine *e;
    MB_TRY(probe_port(f, err));
    MB_TRY(find_model(f, positional, path, &next, err));
    static struct lock in_use; /* until the process ends: gc and rm leave the snapshot alone */
    get_use(&in_use, path);
    if (f->isolate.b) {
        struct library *l = open_library(f, path, NULL);
        mb_status host = serve_isolated(f, owner, path, next, l, exit_status, err);
        library_close(l);
        return host;
    }
    if (f->host_fd.i) fcntl((int)f->host_fd.i, F_SETFD, FD_CLOEXEC);
    MB_TRY(load(f, path, &e, err));
#ifdef MB_FAULTS
    if (fault_hit("engine_crash")) raise(SIGKILL);
#endif
    warn_near_ceiling(f, path, mb_engine_loaded(e));
    struct serve_fit *fit = serve_fit_open(f, path, e);
    struct library *library = f->host_fd.i ? NULL : open_library(f, path, fit);
    mb_status st = serve(f, owner, e, path, next, library, fit, err);
    library_close(library);
    serve_fit_close(fit);
    mb_engine_close(e);
    return st;
}

mb_status cmd_serve(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    return serve_run(f, n_pos > 0 ? pos[0] : NULL, "serve", exit_status, err);
}
