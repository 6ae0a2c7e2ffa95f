/* batch.h: `generate --batch-file IN --output OUT`: many requests, one JSON object a line, answered into a file that can be
 * continued. batch_file.c reads lines and knows which are done; batch.c runs them, several at a time.
 *
 * A line is {"id": text or integer, ...the fields of a request body}: with `messages` as POST /v1/chat/completions takes it, with
 * `prompt` alone the prompt of a user (or, under --raw, as POST /v1/completions takes it). Or it is a line of OpenAI's batch files:
 * {"custom_id", "method", "url", "body"}. An answer is one line, written at once when it is whole, in the order in which they come:
 * {"id" (or "custom_id"), "response": {"status_code", "body"}, "error": null or {"code", "message"}, "text" (first form)}.
 * A line without an id has the id "line N".
 */
#ifndef CLI_BATCH_H
#define CLI_BATCH_H

#include "base/filemap.h"
#include "cli/cli.h"
#include "base/json.h"

#define BATCH_LINE_MAX ((size_t)64 << 20)
#define BATCH_LINES_MAX ((size_t)16 << 20)

/* A set of ids, by hash. */
struct id_set { uint64_t (*slots)[2]; size_t n, cap; };

struct batch_files {
    struct filemap map;          /* IN, unless it is standard input */
    struct buf text;             /* then it is here */
    const char *in;              /* [in_bytes] all lines */
    size_t in_bytes;
    int fd;                      /* OUT, locked; -1 = not open */
    const char *out_path;
    struct id_set done;          /* ids that have their answer in OUT */
    size_t n_lines, n_done;      /* of IN: lines that are not blank; of these, done already */
    bool repaired;               /* a torn last line of OUT was cut off */
};

/* One line of IN. */
struct batch_line {
    size_t number;               /* from 1 */
    const char *text;
    size_t len;
    json_t *value;               /* owned; NULL: not a JSON object, `why` tells */
    char id[300];                /* JSON text */
    bool openai;                 /* custom_id */
    mb_error why;
};

/* Open both, read what OUT holds, check that no id of IN comes twice. MB_BUSY: another process writes OUT. MB_BAD_FORMAT: a line of
 * OUT that is not its last is no answer. */
mb_status batch_files_open(struct batch_files *b, const char *in_path, const char *out_path, mb_error *err);
void batch_files_close(struct batch_files *b);
/* The next line from *off that is not blank; false: there are no more. batch_line_free. MB_NO_MEMORY is in why with value NULL. */
bool batch_line_next(const struct batch_files *b, size_t *off, size_t *number, struct batch_line *out);
void batch_line_free(struct batch_line *l);
bool batch_is_done(const struct batch_files *b, const struct batch_line *l);
/* Append one whole line (with its newline). MB_IO: the disk. */
mb_status batch_write(struct batch_files *b, const struct buf *line, mb_error *err);

/* The verb. */
mb_status batch_generate(const struct flags *f, const char *positional, int *exit_status, mb_error *err);

#endif
