/* flags_parse.c: environment and argument vector into a struct flags, by the table.
 *
 * Order: defaults, then the environment (CFG-013: read here, once), then the flags over it (CFG-014), then what needs
 * another flag. Problems with a flag end the parse; problems with a variable are warned about and leave it unset, so that
 * one exported for another program cannot keep this one from starting. Threads: before any other thread exists.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/flags_values.h"

#define SHOWN 64 /* characters of a user's value that an error repeats */

/* A value as error texts show it: control characters replaced, long ones cut. */
static const char *shown(const char *s, char out[SHOWN + 4])
{
    size_t n = 0;
    for (; s[n] && n < SHOWN; n++) out[n] = (unsigned char)s[n] < 0x20 || s[n] == 0x7f ? '?' : s[n];
    strcpy(out + n, s[n] ? "..." : "");
    return out;
}

/* --- one value --- */
static mb_status fail_value(const char *name, const char *wanted, const char *found, mb_error *err)
{
    char text[SHOWN + 4];
    return mb_fail(err, MB_INVALID, "%s must be %s, found '%s'", name, wanted, shown(found, text));
}

static mb_status parse_number(const struct flag_row *row, const char *name, const char *text, struct flag_value *v,
                              mb_error *err)
{
    char wanted[128], *end;
    bool is_int = row->type == FLAG_INT;
    double d = strtod(text, &end);
    bool ok = end != text && *end == '\0' && isfinite(d) && d >= row->min && d <= row->max && (!is_int || d == floor(d));
    if (text[0] == ' ' || strpbrk(text, "xXpP")) ok = false; /* strtod knows hexadecimal; flags do not */
    snprintf(wanted, sizeof wanted, "%s from %.16g to %.16g", is_int ? "an integer" : "a number", row->min, row->max);
    if (!ok) return fail_value(name, wanted, text, err);
    double unit = row->type == FLAG_BYTES_GB ? 1e9 : row->type == FLAG_BYTES_GIB ? 1073741824.0
                  : row->type == FLAG_BYTES_MB ? 1e6 : 1;
    v->d = d;
    v->i = (int64_t)(d * unit);
    return MB_OK;
}

static bool word_is(const char *word, size_t len, const char *text)
{
    bool prefix = len > 0 && word[len - 1] == ':';
    if (prefix) return strncmp(text, word, len - 1) == 0 && (text[len - 1] == '\0' || text[len - 1] == ':');
    return strlen(text) == len && memcmp(word, text, len) == 0;
}

static mb_status parse_choice(const struct flag_row *row, const char *name, const char *text, struct flag_value *v,
                              mb_error *err)
{
    char wanted[256] = "one of", later[SHOWN + 4];
    size_t n = strlen(wanted);
    for (const char *p = row->choices; *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        bool is_later = *p == '!';
        if (word_is(p + is_later, len - is_later, text)) {
            if (is_later)
                return mb_fail(err, MB_UNSUPPORTED, "%s %s is not in this version", name, shown(text, later));
            v->b = strcmp(text, "on") == 0 || strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
            return MB_OK;
        }
        if (!is_later && n + len + 2 < sizeof wanted) n += (size_t)snprintf(wanted + n, sizeof wanted - n, " %.*s", (int)len, p);
        p += len;
    }
    return fail_value(name, wanted, text, err);
}

static mb_status parse_bool(const struct flag_row *row, const char *name, const char *text, struct flag_value *v, mb_error *err)
{
    static const char *const yes[] = { "on", "1", "true" }, *const no[] = { "off", "0", "false" };
    for (int i = 0; i < (row->type == FLAG_ONOFF ? 1 : 3); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            v->b = strcmp(text, yes[i]) == 0;
            return MB_OK;
        }
    }
    return fail_value(name, "on or off", text, err);
}

/* Set *v from text; `name` is what the user calls it. On failure *v is as before. */
static mb_status value_parse(const struct flag_row *row, const char *name, const char *text, struct flag_value *v,
                             mb_error *err)
{
    struct flag_value got = *v;
    switch (row->type) {
    case FLAG_BOOL:
    case FLAG_ONOFF: MB_TRY(parse_bool(row, name, text, &got, err)); break;
    case FLAG_CHOICE: MB_TRY(parse_choice(row, name, text, &got, err)); break;
    case FLAG_STRING: break;
    case FLAG_LIST:
        if (got.n_list == FLAG_LIST_MAX)
            return mb_fail(err, MB_TOO_LARGE, "%s may be given at most %d times", name, FLAG_LIST_MAX);
        got.list[got.n_list++] = text;
        break;
    default: MB_TRY(parse_number(row, name, text, &got, err)); break;
    }
    got.s = text;
    *v = got;
    return MB_OK;
}

/* --- defaults and environment --- */
static void set_default(struct flags *f, const struct flag_row *row)
{
    struct flag_value *v = flag_value_at(f, row);
    mb_error err;
    *v = (struct flag_value){ 0 };
    if (row->dflt) value_parse(row, "", row->dflt, v, &err); /* the table's own text: test_cli checks every row */
}

static void set_from_env(struct flags *f, const struct flag_row *row, const char *name)
{
    const char *text = getenv(name);
    struct flag_value *v = flag_value_at(f, row);
    mb_error err;
    if (!text || !*text) return;
    if (row->state == FLAG_REMOVED) return; /* CFG-193: exporting it does nothing */
    bool is_bool = row->type == FLAG_BOOL || row->type == FLAG_ONOFF;
    if (is_bool) { /* CFG-015: only these two */
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) return;
        v->b = (text[0] == '1') != row->env_inverted;
        v->s = v->b ? "on" : "off";
    } else if (value_parse(row, name, text, v, &err) != MB_OK) {
        cli_warn("%s; the variable is ignored", err.text);
        return;
    }
    if (row->state == FLAG_NOT_YET && (!is_bool || v->b)) {
        cli_warn("%s is not in this version; the variable is ignored", name);
        set_default(f, row);
        return;
    }
    v->given = v->from_env = true;
}

static void read_env(struct flags *f, const struct flag_row *row)
{
    char name[64];
    for (const char *p = row->env; p && *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        snprintf(name, sizeof name, "%.*s", (int)len, p);
        set_from_env(f, row, name);
        p += len;
    }
}

/* --- unknown names --- */
/* Levenshtein distance, at most 31 characters each. */
static int distance(const char *a, const char *b)
{
    int row[33];
    int n = (int)strlen(b);
    if (n > 31 || strlen(a) > 31) return 99;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < best ? change : best;
        }
    }
    return row[n];
}

static const char *nearest_name(const char *name, unsigned command)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    const char *best = NULL;
    int best_distance = 1 + (int)strlen(name) / 2;
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].name || !rows[i].help || !(rows[i].commands & command)) continue;
        int d = distance(name, rows[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = rows[i].name;
        }
    }
    return best;
}

static void warn_unknown(const char *name, unsigned command)
{
    char text[SHOWN + 4];
    const char *near = nearest_name(name, command);
    cli_warn("unknown flag --%s, ignored%s%s%s", shown(name, text), near ? "; did you mean --" : "", near ? near : "",
             near ? "?" : "");
}

/* --- the argument vector --- */
struct parse {
    struct flags *out;
    unsigned command;
    int argc, i;
    char **argv;
    bool after_unknown;     /* the argument before was an unknown flag: this one may be its value */
    bool by_alias[FLAG_ROWS_MAX]; /* rows whose value came from an alias: the flag's own name still beats it */
};

/* The row of "-p", "--name" or "--name=value"; *value is what stands behind '='. NULL: not a known flag. *foreign: it
 * belongs to other verbs only. */
static const struct flag_row *row_of(unsigned command, const char *arg, const char **value, char name[SHOWN], bool *foreign)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    *value = NULL;
    *foreign = false;
    name[0] = '\0';
    if (arg[0] == '-' && arg[1] != '-' && arg[1] && !arg[2]) {
        for (size_t i = 0; i < n; i++)
            if (rows[i].letter == arg[1] && (rows[i].commands & command)) return &rows[i];
        return NULL;
    }
    if (arg[0] != '-' || arg[1] != '-') return NULL;
    const char *eq = strchr(arg, '=');
    size_t len = eq ? (size_t)(eq - arg - 2) : strlen(arg + 2);
    if (len >= SHOWN) return NULL;
    memcpy(name, arg + 2, len);
    name[len] = '\0';
    if (eq) *value = eq + 1;
    const struct flag_row *r = flag_row_find(name, command);
    if (r) return r;
    r = flag_row_find(name, ~0u);
    *foreign = r != NULL && r->help != NULL;
    return *foreign ? r : NULL;
}

static bool is_flag(const char *arg)
{
    return arg[0] == '-' && arg[1] != '\0' && !(arg[1] >= '0' && arg[1] <= '9') && arg[1] != '.';
}

static bool is_known_flag(unsigned command, const char *arg)
{
    const char *value;
    char name[SHOWN];
    bool foreign;
    return row_of(command, arg, &value, name, &foreign) != NULL;
}

/* The value token behind flag i, or NULL: none (CFG-002). */
static const char *take_value(struct parse *p)
{
    if (p->i + 1 >= p->argc || is_known_flag(p->command, p->argv[p->i + 1])) return NULL;
    return p->argv[++p->i];
}

/* FLAG_NOT_YET and the like. *use is false when the value must not be taken. */
static mb_status check_state(const struct flag_row *row, const struct flag_value *v, bool *use, mb_error *err)
{
    bool off = (row->type == FLAG_BOOL || row->type == FLAG_ONOFF) && !v->b;
    *use = true;
    if (row->state == FLAG_REFUSED && !off) return mb_fail(err, MB_INVALID, "%s", row->note);
    if (row->state == FLAG_NOT_YET && !off)
        return mb_fail(err, MB_UNSUPPORTED, "--%s is not in this version", row->name);
    if (row->state == FLAG_REMOVED) {
        cli_warn("--%s %s", row->name, row->note);
        *use = false;
    }
    return MB_OK;
}

static mb_status take_flag(struct parse *p, const struct flag_row *row, const char *name, const char *value, mb_error *err)
{
    char shown_name[SHOWN + 8];
    size_t n;
    size_t i_row = (size_t)(row - flag_rows(&n));
    struct flag_value *v = flag_value_at(p->out, row);
    bool is_alias = name[0] && strcmp(name, row->name) != 0, use;
    snprintf(shown_name, sizeof shown_name, "--%s", name[0] ? name : row->name);
    if (!value) value = row->type == FLAG_BOOL ? "on" : take_value(p);
    if (!value && (row->state == FLAG_LIVE || row->state == FLAG_NO_EFFECT)) { /* CFG-002 */
        cli_warn("%s has no value; it keeps its default", shown_name);
        return MB_OK;
    }
    struct flag_value got = v->from_env ? (struct flag_value){ 0 } : *v;
    if (value && row->state != FLAG_REMOVED) MB_TRY(value_parse(row, shown_name, value, &got, err));
    MB_TRY(check_state(row, &got, &use, err));
    if (!use) return MB_OK;
    if (is_alias && v->given && !v->from_env && !p->by_alias[i_row]) return MB_OK; /* CFG-006, CFG-007 */
    got.given = true;
    got.from_env = false;
    p->by_alias[i_row] = is_alias;
    *v = got;
    return MB_OK;
}

static mb_status take_arg(struct parse *p, mb_error *err)
{
    const char *arg = p->argv[p->i], *value;
    char name[SHOWN];
    bool foreign;
    const struct flag_row *row = row_of(p->command, arg, &value, name, &foreign);
    if (row && foreign) {
        cli_warn("--%s does not concern %s, ignored", row->name, cli_verb_name(p->command));
        if (!value && row->type != FLAG_BOOL) take_value(p);
        return MB_OK;
    }
    if (row) return take_flag(p, row, name, value, err);
    warn_unknown(name[0] ? name : arg + strspn(arg, "-"), p->command);
    p->after_unknown = true;
    return MB_OK;
}

static void check_needs(struct flags *f, unsigned command)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].needs || !(rows[i].commands & command) || !flag_value_at(f, &rows[i])->given) continue;
        const struct flag_row *other = flag_row_find(rows[i].needs, command);
        if (other && flag_value_at(f, other)->given) continue;
        cli_warn("--%s does nothing without --%s, ignored", rows[i].name, rows[i].needs);
        set_default(f, &rows[i]);
    }
}

mb_status flags_parse(struct flags *out, unsigned command, int argc, char **argv, int first, const char **positional,
                      int cap, int *n_positional, mb_error *err)
{
    struct parse p = { .out = out, .command = command, .argc = argc, .argv = argv };
    char text[SHOWN + 4];
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    bool only_positional = false;
    *n_positional = 0;
    out->command = command;
    for (size_t i = 0; i < n; i++) set_default(out, &rows[i]);
    for (size_t i = 0; i < n; i++)
        if (rows[i].commands & command) read_env(out, &rows[i]);
    for (p.i = first; p.i < argc; p.i++) {
        bool after_unknown = p.after_unknown;
        p.after_unknown = false;
        if (!only_positional && strcmp(argv[p.i], "--") == 0) {
            only_positional = true;
        } else if (!only_positional && is_flag(argv[p.i])) {
            MB_TRY(take_arg(&p, err));
        } else if (*n_positional < cap) {
            positional[(*n_positional)++] = argv[p.i];
        } else if (after_unknown) { /* CFG-003: an unknown flag never ends the run, nor does what stands behind it */
            cli_warn("argument '%s' behind it ignored", shown(argv[p.i], text));
        } else {
            return mb_fail(err, MB_INVALID, "unexpected argument '%s'; see mlx-bun help %s", shown(argv[p.i], text),
                           cli_verb_name(command));
        }
    }
    check_needs(out, command);
    return MB_OK;
}
