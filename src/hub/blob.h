/* blob.h: one file of a repository on its way to disk: <blob>.incomplete grows, is hashed as it grows, is checked, gets its
 * name. Nothing but a checked file ever has a blob's name (REG-031..037).
 * A blob's name is the hash of its content, so a partial of that name can only be the beginning of the same bytes: resuming
 * needs no ETag, and a wrong beginning is found by the hash at the end.
 * Nothing is synced: a machine that loses power may keep a name with fewer bytes, which then is no blob, since a blob is a name
 * and the right size (journalling file systems write the size behind the bytes). */
#ifndef HUB_BLOB_H
#define HUB_BLOB_H

#include "hub/hasher.h"
#include "hub/layout.h"
#include "hub/listing.h"
#include "hub/lock.h"

struct blob {
    const struct hub_file *file; /* borrowed */
    char path[PATH_MAX], part[PATH_MAX];
    struct lock lock;
    struct hasher *hash;
    int fd;
    int64_t have;                /* bytes taken: in the partial and hashed, or on their way there */
    int64_t written;             /* bytes in the partial; of the hasher's thread while there are bytes on their way */
    int64_t told;                /* when the lock was refreshed last */
};

/* Is the whole blob there? By name and size; its content was checked when it got the name. */
bool blob_is_there(const char *repo_dir, const struct hub_file *f);
/* Of a blob that is there: the lock of a download that was killed behind its end goes; one that is held stays. */
void blob_clear_lock(const char *repo_dir, const struct hub_file *f);
/* Bytes of a partial, 0 = none. */
int64_t blob_partial_bytes(const char *repo_dir, const struct hub_file *f);

/* Take the lock, open the partial, hash what it holds. cancelled (may be NULL) is asked now and then. MB_BUSY: somebody else
 * downloads it. After a failure nothing is held. */
mb_status blob_open(struct blob *b, const char *repo_dir, const struct hub_file *f, bool (*cancelled)(void *ctx), void *ctx,
                    mb_error *err);
/* MB_IO (a full disk: the partial stays; maybe about bytes of an earlier call), MB_BAD_FORMAT (more bytes than listed). */
mb_status blob_append(struct blob *b, const void *data, size_t len, mb_error *err);
/* Begin again at byte 0. */
mb_status blob_restart(struct blob *b, mb_error *err);
/* All bytes are there: compare the hash, then name the file. On a mismatch the partial is removed and the error says which
 * hash was found and wanted (MB_BAD_FORMAT). The lock is still held. */
mb_status blob_finish(struct blob *b, mb_error *err);
/* Give lock and descriptor back; a partial stays, with all that was appended. */
void blob_close(struct blob *b);

/* Hash a file that is there and compare: MB_BAD_FORMAT. For get --verify. */
mb_status blob_verify(const char *path, const struct hub_file *f, bool (*cancelled)(void *ctx), void *ctx, mb_error *err);

#endif
