/* cmd_completion.c: `mlx-bun completion bash|zsh|fish`: a script that completes verbs, flags, their values and the names of models in
 * the cache, written out of the tables of verbs and flags.
 *
 * bash and zsh get one function with a case a verb; fish one line a flag. What a value may be follows from the row: its choices, or
 * by its unit a file, a folder or a model. Names of models are asked for when they are needed (`mlx-bun ls`). */
#include <string.h>

#include "cli/cli.h"

/* Names in the cache, one a line; "starter" is always there. */
#define MODELS "{ echo starter; mlx-bun ls 2>/dev/null | cut -d ' ' -f 1; }"

enum value_kind { VALUE_NONE = 0, VALUE_CHOICE, VALUE_FILE, VALUE_DIR, VALUE_MODEL, VALUE_OTHER };

static bool is_listed(const struct flag_row *r, unsigned command)
{
    return r->name && r->help && (r->commands & command) && r->state != FLAG_REMOVED && r->state != FLAG_REFUSED;
}

static enum value_kind value_of(const struct flag_row *r)
{
    if (r->type == FLAG_BOOL) return VALUE_NONE;
    if (r->choices || r->type == FLAG_ONOFF) return VALUE_CHOICE;
    if (!r->unit) return VALUE_OTHER;
    if (strcmp(r->unit, "MODEL") == 0) return VALUE_MODEL;
    if (strcmp(r->unit, "FILE") == 0 || strcmp(r->unit, "PATH") == 0 || strcmp(r->unit, "PROGRAM") == 0) return VALUE_FILE;
    return strstr(r->unit, "DIR") ? VALUE_DIR : VALUE_OTHER;
}

/* The values of a choice that this version takes, between blanks. */
static void put_choices(const struct flag_row *r)
{
    bool any = false;
    if (r->type == FLAG_ONOFF) printf("on off");
    for (const char *p = r->type == FLAG_ONOFF ? "" : r->choices; *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        if (*p != '!') printf("%s%.*s", any ? " " : "", (int)len - (p[len - 1] == ':'), p);
        any = any || *p != '!';
        p += len;
    }
}

/* Does the verb take a model as an argument? */
static bool takes_model(const struct verb *v)
{
    return v->n_positional > 0 && (strstr(v->usage, "MODEL") || strstr(v->usage, "OWNER/NAME") || strstr(v->usage, "QUERY"));
}

static void put_verb_names(const char *between)
{
    size_t n;
    const struct verb *verbs = cli_verbs(&n);
    for (size_t i = 0; i < n; i++) printf("%s%s", i ? between : "", verbs[i].name);
}

/* Inside single quotes of a shell. */
static void put_quoted(const char *s)
{
    for (; *s; s++) {
        if (*s == '\'') printf("'\\''");
        else putchar(*s);
    }
}

/* --- bash --- */

static void bash_flags(const struct verb *v)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    printf("    %s", v->name);
    if (v->alias) printf("|%s", v->alias);
    printf(")\n        flags='");
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (!is_listed(&rows[i], v->bit)) continue;
        printf("%s--%s", any ? " " : "", rows[i].name);
        any = true;
    }
    printf("'\n        case $prev in\n");
    for (size_t i = 0; i < n; i++) {
        enum value_kind kind = is_listed(&rows[i], v->bit) ? value_of(&rows[i]) : VALUE_NONE;
        if (kind == VALUE_NONE) continue;
        printf("        --%s", rows[i].name);
        if (rows[i].letter) printf("|-%c", rows[i].letter);
        printf(") ");
        if (kind == VALUE_CHOICE) {
            printf("COMPREPLY=($(compgen -W '");
            put_choices(&rows[i]);
            printf("' -- \"$cur\")); return;;\n");
        } else if (kind == VALUE_MODEL) printf("COMPREPLY=($(compgen -d -W \"$(" MODELS ")\" -- \"$cur\")); return;;\n");
        else printf("%s return;;\n", kind == VALUE_FILE ? "COMPREPLY=($(compgen -f -- \"$cur\"));"
                                                       : kind == VALUE_DIR ? "COMPREPLY=($(compgen -d -- \"$cur\"));" : "COMPREPLY=();");
    }
    printf("        esac\n        words=%s;;\n", takes_model(v) ? "models" : v->bit == CMD_HELP ? "verbs" : v->bit == CMD_COMPLETION ? "shells" : "files");
}

static void print_bash(void)
{
    size_t n;
    const struct verb *verbs = cli_verbs(&n);
    printf("# bash completion of mlx-bun, written by `mlx-bun completion bash`.\n"
           "_mlx_bun() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} flags= words= IFS=$' \\t\\n'\n"
           "    if [ \"$COMP_CWORD\" -le 1 ]; then\n        COMPREPLY=($(compgen -W '");
    put_verb_names(" ");
    printf(" --help --version' -- \"$cur\"))\n        return\n    fi\n    case $verb in\n");
    for (size_t i = 0; i < n; i++) bash_flags(&verbs[i]);
    printf("    esac\n    case $cur in\n    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")); return;;\n    esac\n    case $words in\n"
           "    models) COMPREPLY=($(compgen -d -W \"$(" MODELS ")\" -- \"$cur\"));;\n    verbs) COMPREPLY=($(compgen -W '");
    put_verb_names(" ");
    printf("' -- \"$cur\"));;\n    shells) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$cur\"));;\n"
           "    *) COMPREPLY=($(compgen -f -- \"$cur\"));;\n    esac\n}\ncomplete -o filenames -F _mlx_bun mlx-bun\n");
}

/* --- zsh --- */

/* Text inside brackets of an _arguments specification that stands in single quotes. */
static void zsh_text(const char *s)
{
    for (; *s; s++) {
        if (*s == '\'') printf("'\\''");
        else if (strchr("[]:\\", *s)) printf("\\%c", *s);
        else putchar(*s);
    }
}

static void zsh_flag(const struct flag_row *r)
{
    static const char *const actions[] = { [VALUE_FILE] = "_files", [VALUE_DIR] = "_files -/", [VALUE_MODEL] = "_mlx_bun_models", [VALUE_OTHER] = " " };
    enum value_kind kind = value_of(r);
    printf(" \\\n            '%s--%s", r->type == FLAG_LIST ? "*" : "", r->name);
    printf("%s[", kind == VALUE_NONE ? "" : "=");
    zsh_text(r->help);
    printf("]");
    if (kind != VALUE_NONE) {
        printf(":");
        zsh_text(r->unit ? r->unit : r->name);
        printf(":");
        if (kind == VALUE_CHOICE) {
            printf("(");
            put_choices(r);
            printf(")");
        } else printf("%s", actions[kind]);
    }
    printf("'");
}

static void print_zsh(void)
{
    size_t n, n_rows;
    const struct verb *verbs = cli_verbs(&n);
    const struct flag_row *rows = flag_rows(&n_rows);
    printf("#compdef mlx-bun\n# zsh completion of mlx-bun, written by `mlx-bun completion zsh`.\n"
           "_mlx_bun_models() {\n    local -a names\n    names=(${(f)\"$(" MODELS ")\"})\n"
           "    compadd -a names\n    _files -/\n}\n"
           "_mlx_bun() {\n    local -a verbs\n    verbs=(\n");
    for (size_t i = 0; i < n; i++) {
        printf("        '%s:", verbs[i].name);
        put_quoted(verbs[i].summary);
        printf("'\n");
    }
    printf("    )\n    if (( CURRENT == 2 )); then\n        _describe 'verb' verbs\n        return\n    fi\n    local verb=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
           "    case $verb in\n");
    for (size_t i = 0; i < n; i++) {
        printf("    %s%s%s)\n        _arguments", verbs[i].name, verbs[i].alias ? "|" : "", verbs[i].alias ? verbs[i].alias : "");
        for (size_t r = 0; r < n_rows; r++)
            if (is_listed(&rows[r], verbs[i].bit)) zsh_flag(&rows[r]);
        printf(" \\\n            '*:argument:%s';;\n", takes_model(&verbs[i]) ? "_mlx_bun_models" : verbs[i].bit == CMD_COMPLETION ? "(bash zsh fish)" : "_files");
    }
    printf("    esac\n}\n_mlx_bun \"$@\"\n");
}

/* --- fish --- */

/* Inside single quotes of fish. */
static void fish_text(const char *s)
{
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\') putchar('\\');
        putchar(*s);
    }
}

static void fish_flag(const struct verb *v, const struct flag_row *r)
{
    enum value_kind kind = value_of(r);
    printf("complete -c mlx-bun -n '__fish_seen_subcommand_from %s%s%s' -l %s", v->name, v->alias ? " " : "", v->alias ? v->alias : "", r->name);
    if (r->letter) printf(" -s %c", r->letter);
    printf(" -d '");
    fish_text(r->help);
    printf("'");
    if (kind == VALUE_CHOICE) {
        printf(" -x -a '");
        put_choices(r);
        printf("'");
    } else if (kind == VALUE_MODEL) printf(" -x -a '(__mlx_bun_models)'");
    else if (kind == VALUE_FILE) printf(" -r -F");
    else if (kind == VALUE_DIR) printf(" -x -a '(__fish_complete_directories)'");
    else if (kind == VALUE_OTHER) printf(" -x");
    printf("\n");
}

static void print_fish(void)
{
    size_t n, n_rows;
    const struct verb *verbs = cli_verbs(&n);
    const struct flag_row *rows = flag_rows(&n_rows);
    printf("# fish completion of mlx-bun, written by `mlx-bun completion fish`.\n"
           "function __mlx_bun_models\n    echo starter\n    mlx-bun ls 2>/dev/null | string replace -r ' .*' ''\nend\n");
    for (size_t i = 0; i < n; i++) {
        printf("complete -c mlx-bun -f -n __fish_use_subcommand -a %s -d '", verbs[i].name);
        fish_text(verbs[i].summary);
        printf("'\n");
        if (takes_model(&verbs[i])) printf("complete -c mlx-bun -n '__fish_seen_subcommand_from %s' -a '(__mlx_bun_models)'\n", verbs[i].name);
        for (size_t r = 0; r < n_rows; r++)
            if (is_listed(&rows[r], verbs[i].bit)) fish_flag(&verbs[i], &rows[r]);
    }
    printf("complete -c mlx-bun -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n");
}

mb_status cmd_completion(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    static const struct { const char *name; void (*print)(void); } shells[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "fish", print_fish } };
    (void)f, (void)exit_status;
    for (size_t i = 0; n_pos > 0 && i < sizeof shells / sizeof shells[0]; i++) {
        if (strcmp(pos[0], shells[i].name) != 0) continue;
        shells[i].print();
        return MB_OK;
    }
    return mb_fail(err, MB_INVALID, "which shell? mlx-bun completion bash, zsh or fish");
}
