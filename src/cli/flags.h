/* flags.h: the flags table. One row is the parser, --help, the environment name and the line in docs/flags.md. Every flag
 * of T1 and every variable of T2 has a row from the start: live, accepted with its effect stated, refused as "not in this
 * version", or removed. The environment is read here, once, and nowhere else.
 * Rules (CFG-001..018): `--name value` and `--name=value`; a value flag with nothing behind it (the end, or another known
 * flag) takes its default; an unknown flag gets one warning with the nearest known name and takes no value; the flag's own
 * name beats an alias, among equals the last counts; precedence flag > environment > default; every value carries a given
 * bit; boolean variables know "0" and "1" only, any other value counts as unset.
 */
#ifndef CLI_FLAGS_H
#define CLI_FLAGS_H

#include "base/status.h"

enum flag_type { FLAG_BOOL = 0, FLAG_ONOFF, FLAG_INT, FLAG_NUMBER, FLAG_STRING, FLAG_CHOICE, FLAG_BYTES_GB, FLAG_BYTES_GIB,
                 FLAG_BYTES_MB, FLAG_LIST };

enum flag_state {
    FLAG_LIVE = 0,
    FLAG_NO_EFFECT,   /* accepted; changes nothing here, help and docs say why */
    FLAG_NOT_YET,     /* refused: "not in this version", exit status 2; a variable: one warning, ignored */
    FLAG_REMOVED,     /* one warning with `note`, ignored; its value is consumed */
    FLAG_REFUSED      /* ends the program with `note`: the remedy (T1.42) */
};

enum flag_isolate { ISOLATE_BOTH = 0, ISOLATE_PARENT, ISOLATE_CHILD };

/* Bit set of verbs. */
enum command_bit {
    CMD_SERVE = 1, CMD_GENERATE = 2, CMD_CONVERT = 4, CMD_GET = 8, CMD_SHOW_PROMPT = 16, CMD_DOCTOR = 32, CMD_PROVE = 64,
    CMD_PERPLEXITY = 128, CMD_HELP = 256, CMD_BENCHMARK = 512, CMD_SCAN = 1024, CMD_LS = 2048, CMD_RM = 4096, CMD_GC = 8192,
    CMD_EMBED = 16384, CMD_PI = 32768 /* takes the flags of serve too: its verb has both bits */, CMD_HARNESS = 65536, CMD_FIT = 131072, CMD_COMPLETION = 262144,
    CMD_FUSE = 524288, CMD_UPLOAD = 1048576,
    CMD_STORE = CMD_GET | CMD_SCAN | CMD_LS | CMD_RM | CMD_GC | CMD_UPLOAD,
    CMD_MODEL = CMD_SERVE | CMD_GENERATE | CMD_SHOW_PROMPT | CMD_DOCTOR | CMD_PROVE | CMD_PERPLEXITY | CMD_BENCHMARK |
    CMD_EMBED | CMD_FIT
};

struct flag_row {
    const char *name;            /* without dashes; NULL: a variable without a flag */
    char letter;                 /* 0 = none */
    const char *aliases;         /* "decode-concurrency" or NULL; several separated by spaces */
    enum flag_type type;
    size_t off;                  /* of a struct flag_value in struct flags */
    const char *dflt;            /* as text, NULL = unset */
    double min, max;             /* numbers */
    const char *choices;         /* FLAG_CHOICE: "off f16 !config !turbo:"; '!' = known, but not in this version; a
                                    trailing ':' matches every value that begins so */
    const char *env;             /* "MLX_BUN_PAGED_KV" or NULL; several separated by spaces */
    bool env_inverted;
    unsigned commands;           /* command_bit set */
    enum flag_state state;
    enum flag_isolate isolate;
    const char *needs;           /* name of the flag without which this one is ignored with a warning, or NULL */
    const char *unit;            /* "N", "GB", "DIR" for --help */
    const char *help;            /* one line */
    const char *note;            /* for docs/flags.md: mechanism restated, effect of ignored flags */
    const char *spec;            /* "T1.05 CFG-053" */
};

#define FLAG_LIST_MAX 16
#define FLAG_ROWS_MAX 224

struct flag_value {
    bool given;                  /* by flag or environment */
    bool from_env;
    bool b;                      /* FLAG_BOOL, FLAG_ONOFF; FLAG_CHOICE: the value is true, on or 1 */
    int64_t i;                   /* FLAG_INT, FLAG_BYTES_*: in bytes */
    double d;                    /* every number */
    const char *s;               /* as written; points into argv, the environment or the table */
    const char *list[FLAG_LIST_MAX]; /* FLAG_LIST: one a time the flag was given */
    int32_t n_list;
};

struct flags;                    /* flags_values.h: one struct flag_value a row, named like the flag */

const struct flag_row *flag_rows(size_t *n);
/* By name or alias, among the rows of these commands. NULL: none. */
const struct flag_row *flag_row_find(const char *name, unsigned commands);
struct flag_value *flag_value_at(struct flags *f, const struct flag_row *row);

/* Parse argv[first..argc) of a verb over the environment. Positionals go to positional[] (at most cap).
 * MB_INVALID names the flag, the value and the range; MB_UNSUPPORTED for FLAG_NOT_YET rows. Warnings go to stderr. */
mb_status flags_parse(struct flags *out, unsigned command, int argc, char **argv, int first, const char **positional,
                      int cap, int *n_positional, mb_error *err);
/* Print the flags of one verb / the markdown of docs/flags.md to stdout. */
void flags_print_help(unsigned command);
void flags_print_docs(void);

#endif
