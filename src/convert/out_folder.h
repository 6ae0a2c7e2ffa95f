/* out_folder.h: the folder that a conversion writes: whole or absent.
 *
 * Everything goes into OUT.part beside the target, which gets the target's name at the end. A process that dies leaves
 * OUT.part with a mark in it; config.json is written last, so that nothing takes what is not whole for a model. The next
 * conversion to the same target takes it over and begins anew. Two at once: the second is refused (a lock on the folder).
 */
#ifndef CONVERT_OUT_FOLDER_H
#define CONVERT_OUT_FOLDER_H

#include <jansson.h>
#include <limits.h>

#include "base/status.h"

struct out_folder {
    char target[PATH_MAX], part[PATH_MAX];
    int fd; /* of part, holds the lock; -1: none */
};

/* The same check alone, for before the work. */
mb_status out_folder_check_target(const char *target, mb_error *err);
/* Check that the target is free, take or make OUT.part. MB_INVALID (target exists, somebody writes there, OUT.part is not
 * ours), MB_TOO_LARGE, MB_IO. On failure there is nothing to close. */
mb_status out_folder_open(struct out_folder *o, const char *target, mb_error *err);
/* MB_IO with both numbers when fewer than need_bytes (and a reserve) are free. */
mb_status out_folder_check_space(const struct out_folder *o, uint64_t need_bytes, mb_error *err);
#define OUT_FOLDER_MTP "mtp" /* a folder inside, for a head for several tokens at once */
mb_status out_folder_make_side(const struct out_folder *o, mb_error *err);
/* A JSON text of the folder; indent 0: one line. */
mb_status out_folder_put_json(const struct out_folder *o, const char *name, const json_t *v, int indent, mb_error *err);
/* Copy the files that are no weights: tokenizer, templates, generation settings, licence. Sum of their sizes alone with
 * o NULL. *bytes may be NULL. */
mb_status out_folder_copy_texts(const struct out_folder *o, const char *src_dir, uint64_t *bytes, mb_error *err);
/* Give it the target's name. The folder is closed in every case; on failure OUT.part is removed. */
mb_status out_folder_publish(struct out_folder *o, mb_error *err);
/* Remove everything. */
void out_folder_abort(struct out_folder *o);

#endif
