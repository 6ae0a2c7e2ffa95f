/* upload_int.h: what the files of the upload share: upload.c is the order of things, upload_files.c the folder, upload_lfs.c the LFS
 * protocol, upload_commit.c the requests about repository and commit. */
#ifndef HUB_UPLOAD_INT_H
#define HUB_UPLOAD_INT_H

#include <limits.h>
#include <sys/stat.h>

#include "hub/listing.h"
#include "hub/upload.h"

#define UPLOAD_REGULAR_MAX ((int64_t)10 << 20) /* from here on a file goes by LFS (REG-228) */
#define UPLOAD_SAMPLE_BYTES 512
#define UPLOAD_ANSWER_MAX ((size_t)16 << 20)
#define UPLOAD_STALL_S 600 /* the hub may think about a commit, or put parts together, for a while */

struct upload_file {
    const char *path;             /* in the repository, checked */
    int64_t size;
    struct stat seen;             /* when the folder was looked at */
    bool is_asked, is_lfs, is_ignored, is_unchanged;
    bool is_sent;                 /* LFS: the hub has the content */
    char digest[NAME_DIGEST_MAX]; /* sha256 (LFS) or git's sha1 */
};

struct upload {
    const struct upload_opts *o;
    struct upload_result *r;
    struct upload_progress p;
    int64_t t_progress_ns;
    uint64_t base_bytes;          /* done before the request that is under way */
    struct arena arena;
    struct upload_file *files;    /* sorted by path */
    size_t n_files, cap_files;
    struct hub_listing there;     /* the revision as it was found */
    char what[NAME_REPO_MAX + NAME_REVISION_MAX + 8];
    mb_error *err;
};

/* --- upload.c --- */
bool upload_going(void *upload, int64_t sent_bytes);   /* net_request's `going` while bytes of files are sent */
bool upload_waiting(void *upload, int64_t sent_bytes); /* the same for questions, whose bytes are no progress */
void upload_phase(struct upload *u, enum upload_phase phase, uint64_t total_bytes, size_t n_files);

/* --- upload_files.c --- */
/* The files of the folder, and that they are a whole model (adapter, dataset). */
mb_status upload_files_read(struct upload *u);
mb_status upload_files_hash(struct upload *u);
/* Open one, as long as it is what was seen. */
mb_status upload_file_open(struct upload *u, const struct upload_file *f, int *fd);
mb_status upload_file_check(struct upload *u, const struct upload_file *f, int fd);
/* The beginning of a file, at most cap bytes; *n how many. */
mb_status upload_file_sample(struct upload *u, const struct upload_file *f, unsigned char *out, size_t cap, size_t *n);
/* The whole of a small file, checked against its digest. Appended. */
mb_status upload_file_content(struct upload *u, const struct upload_file *f, struct buf *out);
/* Append base64. */
void upload_base64(struct buf *out, const void *data, size_t len);

/* --- upload_lfs.c --- */
mb_status upload_lfs(struct upload *u);

/* --- upload_note.c --- */
struct upload_note {
    int fd;                       /* -1: nothing is kept of it */
    char path[PATH_MAX];
    json_t *actions;              /* what the hub said of the upload in parts that is under way; NULL: none is */
    json_t *parts;                /* [{"partNumber", "etag"}] that have arrived, from the first on */
    size_t n_before;              /* of these in earlier runs */
};
/* What earlier runs have left of this content; url: of the batch protocol. MB_NO_MEMORY. Close it in any case. */
mb_status upload_note_open(struct upload_note *n, struct upload *u, const char *url, const struct upload_file *f);
/* The hub's answer, new. The parts stay when it goes on with the same upload (the address that completes it has the same path and
 * uploadId), else they are forgotten. */
mb_status upload_note_begin(struct upload_note *n, struct upload *u, const char *url, const struct upload_file *f, const json_t *actions);
mb_status upload_note_part(struct upload_note *n, struct upload *u, const char *etag);
/* It is complete, or cannot be gone on with. */
void upload_note_forget(struct upload_note *n);
/* Removes the file when nothing is under way. */
void upload_note_close(struct upload_note *n);
/* Removes what is older than a week; dir may be NULL. */
void upload_notes_sweep(const char *dir);

/* --- upload_commit.c --- */
/* What the revision has; makes the repository when there is none. */
mb_status upload_look(struct upload *u);
mb_status upload_modes(struct upload *u);
mb_status upload_commit(struct upload *u);
mb_status upload_commit_fits(const struct upload *u);
/* A request to the hub with a JSON (or NDJSON) body; *out may be NULL when the answer does not matter. */
mb_status upload_post(struct upload *u, const char *url, const char *type, const struct buf *body, struct net_answer *a,
                      struct buf *said, bool only_once);
/* The text of a refusal, with what the hub said. `doing`: "making the repository". */
mb_status upload_refused(struct upload *u, const struct net_answer *a, const struct buf *said, const char *doing);

#endif
