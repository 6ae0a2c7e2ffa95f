/* cli.h: what the files of src/cli share: the verbs, warnings, reading input, opening a model, progress.
 *
 * A verb is a row of the table in cmd_help.c and a cmd_<name>.c with its run function: it gets parsed flags, prints to
 * stdout, and returns a status; main.c prints "mlx-bun: <text>" and takes the exit status from the error table. A verb
 * that worked but found what it looks for (prove, doctor --fidelity) sets *exit_status itself.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "cli/flags_values.h"
#include "mlxbun_int.h"

struct verb {
    const char *name, *alias;
    unsigned bit;
    int n_positional;          /* at most */
    const char *usage;         /* behind "mlx-bun NAME " */
    const char *summary;       /* one line */
    const char *text;          /* paragraphs for `help NAME` */
    mb_status (*run)(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
};

const struct verb *cli_verbs(size_t *n);
const struct verb *cli_verb_find(const char *name); /* name or alias; NULL: none */
const char *cli_verb_name(unsigned bit);

mb_status cmd_serve(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_generate(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_convert(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_upload(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_fuse(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_get(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_show_prompt(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_doctor(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_prove(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_perplexity(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_embed(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_benchmark(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_pi(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_harness(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_completion(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
mb_status cmd_help(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);
/* What a verb prints for --help. */
void help_print_verb(const struct verb *v);

/* man.c: the manual page of a verb, or of the program (NULL). */
void man_print(const struct verb *v);

/* One line "mlx-bun: warning: ..." to stderr. */
void cli_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Flush stdout; MB_IO when anything could not be written (a full disk). When the reader of a pipe has gone away the process
 * ends by SIGPIPE, which is ignored until then so that engines are closed in order. */
mb_status cli_flush(mb_error *err);

/* --- input.c --- */
/* Whole file into b, "-" is standard input; at most limit_bytes. Pipes and devices are read to their end. */
mb_status input_read(struct buf *b, const char *path, size_t limit_bytes, mb_error *err);
/* A JSON array of ids, or ids between commas and white space. *ids is released with mb_free. `what` names the source. */
mb_status input_parse_ids(const char *text, size_t len, const char *what, int32_t **ids, int32_t *n, mb_error *err);
/* --messages FILE, or --system and --prompt (or standard input), as JSON text of an array, appended to b. */
mb_status input_messages(const struct flags *f, struct buf *b, mb_error *err);
/* --prompt literally, or standard input. */
mb_status input_prompt(const struct flags *f, struct buf *b, mb_error *err);
#define INPUT_MAX_BYTES ((size_t)256 << 20)

/* --- model.c --- */
#define MODEL_PATH_MAX 4096
/* The directory that a model argument names: --model, then the positional, then --query. MB_NOT_FOUND tells what was
 * tried; MB_INVALID when none was given and `required`; else path[0] = 0. */
mb_status model_find(const struct flags *f, const char *positional, bool required, char path[MODEL_PATH_MAX], mb_error *err);
/* Our cache folder: --cache-dir, XDG_CACHE_HOME/mlx-bun, HOME/.cache/mlx-bun. */
mb_status model_cache_dir(const struct flags *f, char *out, size_t cap, mb_error *err);
/* --device with --tensor-parallel: "cuda:0,1". MB_INVALID: they contradict each other. */
mb_status model_device_name(const struct flags *f, char out[64], mb_error *err);
/* Options that the flags say. Strings are borrowed from the flags. */
mb_status model_options(const struct flags *f, mb_options *opt, struct mb_open_extra *x, mb_error *err);
/* model_find and open, with progress. *path may be NULL. */
mb_status model_open_flags(const struct flags *f, const char *positional, mb_engine **out, char path[MODEL_PATH_MAX],
                           mb_error *err);
/* The starter's directory, fetched when it is not there (progress on stderr). */
mb_status model_starter(const struct flags *f, char path[MODEL_PATH_MAX], mb_error *err);
/* "134 MB", "1.2 GB" (decimal). */
const char *model_size_text(uint64_t bytes, char out[32]);

#ifdef MB_FAULTS
/* --- scripted.c: serve --scripted FILE, for tests of everything above the model --- */
mb_status scripted_open(const char *file, const char *model_dir, const struct mb_open_extra *x, mb_engine **out, mb_error *err);
#endif

/* --- progress.c --- */
/* A bar on stderr where a person waits (stderr is a terminal), a plain line now and then otherwise, nothing with quiet.
 * Shows itself only after half a second. */
struct progress {
    const char *what;
    bool quiet, is_tty, shown;
    int last_percent;
    int64_t t_begin_ns, t_last_ns;
};
void progress_begin(struct progress *p, const char *what, bool quiet);
void progress_set(void *progress, double fraction); /* signature of every progress callback */
void progress_end(struct progress *p);              /* clears the bar */

#endif
