/* upload.h: a folder into a repository of the hub, as one commit (REG-225..234):
 *
 *   look at the folder -> what is there already? (make the repository) -> which files go by LFS? -> hash each file once
 *     -> LFS: which contents are missing? send those -> one commit with every file that is new or another
 *
 * Nothing is visible in the repository before the commit, and the commit is refused by the hub when somebody else committed in
 * between. What was sent by LFS stays there: after an interruption the same command sends only the rest, of a content in parts
 * those that have not arrived (upload_note.c; nothing else is written on this machine). The folder must not change meanwhile: size
 * and times of each file are compared before it is sent, after it was sent and before the commit.
 */
#ifndef HUB_UPLOAD_H
#define HUB_UPLOAD_H

#include "hub/net.h"

enum upload_phase { UPLOAD_LOOKING, UPLOAD_HASHING, UPLOAD_SENDING, UPLOAD_COMMITTING };

struct upload_progress {
    enum upload_phase phase;
    const char *current;          /* a file at work, NULL = none */
    uint64_t done_bytes, total_bytes; /* of this phase */
    size_t files_done, files_total;
};

struct upload_opts {
    struct net_opts net;          /* with a token */
    const char *dir;
    const char *repo;             /* "owner/name" */
    const char *revision;         /* a branch; "main" */
    const char *kind;             /* "model" (an adapter too) or "dataset" */
    const char *message;          /* of the commit, one line */
    const char *notes_dir;        /* notes of uploads in parts, to go on with them after an interruption; made. NULL: none */
    bool is_private;              /* make it so; a repository that is there and public is refused */
    bool (*progress)(void *ctx, const struct upload_progress *p); /* a few times a second; false cancels. May be NULL */
    void *ctx;
};

struct upload_result {
    char commit[NAME_COMMIT_LEN + 1]; /* what the revision names now */
    char url[NET_URL_MAX];        /* of the repository, for people */
    bool created, up_to_date;     /* the repository was made; nothing differed and nothing was committed */
    size_t n_files;               /* of the folder */
    uint64_t total_bytes;
    size_t n_unchanged;           /* of these were there already, equal */
    size_t n_lfs_present;         /* of the others, contents that the hub had already */
    size_t n_ignored;             /* that the repository's .gitignore keeps out */
    size_t n_others;              /* in the repository and not in the folder: they stay */
    uint64_t sent_bytes;          /* of files, in this run */
    uint64_t resumed_bytes;       /* of parts that an interrupted run had sent */
};

/* The names and the token alone, for before the work. MB_INVALID. */
mb_status upload_check(const struct upload_opts *o, mb_error *err);
/* MB_INVALID (names; no token; the hub refuses it: 401, 403; public and asked for is private), MB_NOT_FOUND (the folder, the revision),
 * MB_BAD_FORMAT (half a model, a file that cannot be named there, an answer that makes no sense), MB_BUSY (somebody committed
 * meanwhile), MB_TOO_LARGE, MB_IO (network, a file that changed), MB_CANCELLED, MB_NO_MEMORY. Blocks; any thread. */
mb_status upload_folder(const struct upload_opts *o, struct upload_result *r, mb_error *err);

#endif
