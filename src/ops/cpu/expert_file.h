/* expert_file.h: the experts of a model in a file, one expert after the other (--expert-offload): its gate, up and down matrices,
 * packed as they would lie in memory, are one record at a multiple of 4096 bytes, so that one read brings an expert.
 *
 * The file is made once: records, then a table of groups (a layer's experts each) and of the records' checksums, then the head;
 * under another name until all of it is on the disk. A file of another key, another version, another length or with a damaged
 * table is made anew. A record is checked by its checksum each time it is read.
 * Threads: expert_file_read is for any number at once; all else by one.
 */
#ifndef OPS_CPU_EXPERT_FILE_H
#define OPS_CPU_EXPERT_FILE_H

#include "base/status.h"

#define EXPERT_ALIGN ((size_t)4096) /* of records, and of the memory that they are read into */

struct expert_file; /* opaque */

/* key: what the records come from. MB_NO_MEMORY; MB_IO: no file can be made there. */
mb_status expert_file_open(struct expert_file **out, const char *path, uint64_t key, mb_error *err);
void expert_file_close(struct expert_file *f); /* one that was not finished goes; NULL is allowed */
/* False: records are asked for by expert_file_write. */
bool expert_file_is_made(const struct expert_file *f);
/* The next layer's experts: n records of record_bytes (a multiple of EXPERT_ALIGN); form: what they look like. name is kept for
 * errors and must live as long as f. *i_first: number of the first of its records in the whole file. MB_BAD_FORMAT: the file was
 * made of something else; it is removed, the next start makes it anew. */
mb_status expert_file_group(struct expert_file *f, const char *name, uint64_t form, int32_t n, size_t record_bytes,
                            int32_t *i_group, int32_t *i_first, mb_error *err);
/* While it is made: the next record, in order. MB_IO (a full disk names the size so far). */
mb_status expert_file_write(struct expert_file *f, const void *record, mb_error *err);
/* All records are there. Then expert_file_is_made. */
mb_status expert_file_finish(struct expert_file *f, mb_error *err);
/* Record i of a group to dst (aligned). MB_IO: the disk, a file cut short, another checksum. */
mb_status expert_file_read(struct expert_file *f, int32_t i_group, int32_t i, void *dst, mb_error *err);
uint64_t expert_file_size_bytes(const struct expert_file *f);
int32_t expert_file_n_records(const struct expert_file *f);
int32_t expert_file_n_groups(const struct expert_file *f);
size_t expert_file_record_bytes(const struct expert_file *f, int32_t i_group);
size_t expert_file_largest_bytes(const struct expert_file *f);
int32_t expert_file_first(const struct expert_file *f, int32_t i_group);
bool expert_file_is_direct(const struct expert_file *f); /* reads go past the page cache */

#endif
