/* store.h: what the verbs about models on disk share: where the cache, the registry and the hub are, as flags and environment say. */
#ifndef CLI_STORE_H
#define CLI_STORE_H

#include <signal.h>

#include "cli/cli.h"
#include "hub/get.h"
#include "hub/registry.h"
#include "hub/upload.h"

struct store {
    char root[PATH_MAX];          /* the hub's cache */
    char registry_path[PATH_MAX];
    char packed_dir[PATH_MAX];    /* of packed weights; the experts' other one is borrowed from the flags, NULL: none */
    const char *expert_dir;
    char notes_dir[PATH_MAX];     /* of uploads in parts */
    char token[512];              /* "" = none */
    struct net_opts net;          /* borrows token and the endpoint of the flags */
    bool offline;
};

/* The token for publishing, which is looked for in ~/.mlx-bun/hf.json first (REG-229). MB_BAD_FORMAT, MB_IO. */
mb_status store_upload_token(struct store *s, const struct flags *f, mb_error *err);
/* MB_INVALID: no folder for models, a bad HF_ENDPOINT. */
mb_status store_init(struct store *s, const struct flags *f, mb_error *err);
/* Open the registry and bring it up to date with the cache. */
mb_status store_registry(const struct store *s, bool full, struct registry **out, mb_error *err);
/* A model argument that is no path: owner/name[@revision] or a query, to its whole snapshot in the cache. */
mb_status store_find(const struct flags *f, const char *arg, char path[MODEL_PATH_MAX], mb_error *err);
/* What a path inside the cache holds must be whole (B-116); any other path passes. */
mb_status store_check_path(const char *path, mb_error *err);
mb_status store_copy_path(char out[MODEL_PATH_MAX], const char *path, mb_error *err);
/* A bad size like "8GB" or "0.5": MB_INVALID. Decimal gigabytes. */
mb_status store_parse_gb(const char *text, const char *flag, uint64_t *bytes, mb_error *err);

/* pick.c: the model of `serve` without one (REG-046..049): e4b when it is there, else the largest that fits and is supported;
 * else the hub's starter; else ours, saying why. *next: a repository to be downloaded in the background for the next start, or NULL. */
mb_status pick_model(const struct flags *f, char path[MODEL_PATH_MAX], const char **next, mb_error *err);

/* watch.c: bytes on their way that a person watches: one line on a terminal, plain lines elsewhere, nothing with quiet; and an
 * orderly end at SIGINT and SIGTERM, which are taken from begin to end. One at a time. */
struct watch {
    const char *what;             /* in front of plain lines */
    bool quiet, is_tty, shown;
    int64_t t_draw_ns;
    struct sigaction was_int, was_term;
};
void watch_begin(struct watch *w, const char *what, bool quiet);
/* label: in front of the bar, "" = none. False: a signal came. */
bool watch_show(struct watch *w, const char *label, const struct fetch_progress *p, int64_t bytes_per_sec);
void watch_end(struct watch *w);

/* cmd_upload.c: publishing, for upload and convert. Check first what can be checked before the work: names and a token. *o borrows
 * from s and the flags. */
mb_status publish_prepare(const struct flags *f, const char *dir, const char *kind, struct store *s, struct upload_opts *o, mb_error *err);
mb_status publish(const struct flags *f, const struct upload_opts *o, struct upload_result *r, mb_error *err);
/* A new reference; NULL: no memory. And the same for people, on standard output. */
json_t *publish_json(const struct upload_opts *o, const struct upload_result *r);
void publish_print(const struct flags *f, const struct upload_opts *o, const struct upload_result *r);

/* download.c: get with progress on stderr and a row among the downloads. */
mb_status download_model(const struct flags *f, const struct store *s, const char *repo, const char *revision,
                         const json_t *locked, struct get_result *r, mb_error *err);

mb_status cmd_scan(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_ls(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_rm(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_gc(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);

#endif
