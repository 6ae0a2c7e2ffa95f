/* filemap.h: files. Read-only maps, whole-file reads, and the one way to write a file so that a crash leaves either
 * the old or the new bytes: temporary name in the same folder, fsync, rename, fsync of the folder. */
#ifndef BASE_FILEMAP_H
#define BASE_FILEMAP_H

#include <sys/stat.h>

#include "base/buf.h"

struct filemap {
    const uint8_t *data; /* NULL for an empty file */
    size_t size_bytes;
    int fd;
};

/* Open a regular file for reading, close-on-exec; *st is its state. Never waits: MB_IO names a directory, a pipe or a device as such
 * (and what the system says, as "no permission"), MB_NOT_FOUND. *fd is -1 then. */
mb_status file_open_read(int *fd, struct stat *st, const char *path, mb_error *err);
/* Map a whole regular file read-only. Errors as file_open_read. */
mb_status filemap_open(struct filemap *m, const char *path, mb_error *err);
void filemap_close(struct filemap *m);
/* Tell the kernel that [off, off+len) will not be read again: its whole pages are dropped. */
void filemap_drop(const struct filemap *m, size_t off, size_t len);

/* Read a regular file of at most limit_bytes into b (appended). MB_TOO_LARGE names both sizes; else as file_open_read. */
mb_status file_read(struct buf *b, const char *path, size_t limit_bytes, mb_error *err);
/* The same of what a user names on the command line: a pipe ("<(...)") or a device is read to its end, and waited for. */
mb_status file_read_any(struct buf *b, const char *path, size_t limit_bytes, mb_error *err);
/* Write atomically (see above), mode 0644. */
mb_status file_write_atomic(const char *path, const void *data, size_t len, mb_error *err);
/* The same without waiting for the disk: for caches whose readers check what they find. */
mb_status file_write_replace(const char *path, const void *data, size_t len, mb_error *err);
/* Large files are written as "PATH.tmp.PID.K" and renamed when whole. Their writer holds a lock on them until then (an empty file,
 * open for both ways, its name in temp; -1: errno), so that one without is what an end by force has left, as large as the file:
 * the next writer sweeps those first. */
int file_temp_open(const char *path, char *temp, size_t cap);
void file_temps_sweep(const char *path);
bool file_exists(const char *path); /* regular file or link to one */
/* Anything of that name. To be asked of a file that may be missing but, where it is there, must be a file: who opens it says so. */
bool path_exists(const char *path);
bool dir_exists(const char *path);
/* mkdir -p. */
mb_status dir_make(const char *path, mb_error *err);
/* "a/b" into out; MB_TOO_LARGE when it does not fit. */
mb_status path_join(char *out, size_t cap, const char *a, const char *b, mb_error *err);

#endif
