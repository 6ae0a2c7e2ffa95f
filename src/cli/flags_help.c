/* flags_help.c: the table as text: the flags of one verb for a terminal, and docs/flags.md for all. */
#include <string.h>

#include "cli/cli.h"
#include "cli/flags_values.h"

#define COLUMN 30
#define WIDTH 110

/* Text wrapped at WIDTH, further lines indented to `indent`; the cursor stands at `at`. */
static void print_wrapped(const char *text, int at, int indent)
{
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, " ");
        if (at > indent && at + 1 + (int)len > WIDTH) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)len, p);
        at += (int)len;
        p += len;
        p += strspn(p, " ");
    }
    putchar('\n');
}

static int print_names(const struct flag_row *r)
{
    int n = printf("  ");
    if (r->letter) n += printf("-%c, ", r->letter);
    n += printf("--%s", r->name);
    for (const char *p = r->aliases; p && *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        n += printf(", --%.*s", (int)len, p);
        p += len;
    }
    if (r->unit) n += printf(" %s", r->unit);
    return n;
}

static void print_row(const struct flag_row *r)
{
    char text[1024];
    static const char *const states[] = { "", "", " (not in this version)", "", "" };
    int n = print_names(r);
    if (n >= COLUMN - 1) printf("\n%*s", COLUMN, "");
    else printf("%*s", COLUMN - n, "");
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s%s", r->help, states[r->state], r->dflt ? " [default " : "", r->dflt ? r->dflt : "",
             r->dflt ? "]" : "", r->env ? " [env " : "", r->env ? r->env : "", r->env ? "]" : "");
    print_wrapped(text, COLUMN, COLUMN);
}

static bool is_listed(const struct flag_row *r, unsigned command)
{
    return r->name && r->help && (r->commands & command) && r->state != FLAG_REMOVED && r->state != FLAG_REFUSED;
}

void flags_print_help(unsigned command)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    printf("flags:\n");
    for (size_t i = 0; i < n; i++)
        if (is_listed(&rows[i], command) && rows[i].state != FLAG_NO_EFFECT) print_row(&rows[i]);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (!is_listed(&rows[i], command) || rows[i].state != FLAG_NO_EFFECT) continue;
        if (!any) printf("\naccepted without effect (docs/flags.md says why):\n");
        any = true;
        print_row(&rows[i]);
    }
}

/* --- docs/flags.md --- */
static void print_cell(const char *s)
{
    for (; s && *s; s++) {
        if (*s == '|') putchar('\\');
        putchar(*s);
    }
    printf(" | ");
}

static void print_range(const struct flag_row *r)
{
    char text[128] = "";
    switch (r->type) {
    case FLAG_BOOL: snprintf(text, sizeof text, r->name ? "switch" : "0 or 1"); break;
    case FLAG_ONOFF: snprintf(text, sizeof text, "on, off"); break;
    case FLAG_INT: snprintf(text, sizeof text, "integer, %.16g to %.16g", r->min, r->max); break;
    case FLAG_NUMBER: snprintf(text, sizeof text, "number, %.16g to %.16g", r->min, r->max); break;
    case FLAG_BYTES_GB: snprintf(text, sizeof text, "decimal GB, %.16g to %.16g", r->min, r->max); break;
    case FLAG_BYTES_GIB: snprintf(text, sizeof text, "GiB, %.16g to %.16g", r->min, r->max); break;
    case FLAG_BYTES_MB: snprintf(text, sizeof text, "decimal MB, %.16g to %.16g", r->min, r->max); break;
    case FLAG_LIST: snprintf(text, sizeof text, "text, up to %d times", FLAG_LIST_MAX); break;
    case FLAG_STRING: snprintf(text, sizeof text, "text"); break;
    case FLAG_CHOICE:
        for (const char *p = r->choices; *p; p += strspn(p, " ")) {
            size_t len = strcspn(p, " ");
            if (*p != '!') snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.*s", text[0] ? ", " : "", (int)len, p);
            p += len;
        }
        break;
    }
    print_cell(text);
}

static void print_verbs(unsigned commands)
{
    size_t n;
    const struct verb *verbs = cli_verbs(&n);
    bool all = true, any = false;
    for (size_t i = 0; i < n; i++) all = all && (commands & verbs[i].bit);
    if (all) printf("all");
    for (size_t i = 0; i < n && !all; i++) {
        if (!(commands & verbs[i].bit)) continue;
        printf("%s%s", any ? ", " : "", verbs[i].name);
        any = true;
    }
    printf(" | ");
}

/* Values that are known but refused, behind the note. */
static void print_later(const struct flag_row *r)
{
    bool any = false;
    for (const char *p = r->choices; p && *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        if (*p == '!') printf("%s%.*s", any ? ", " : " Not in this version: ", (int)len - 1 - (p[len - 1] == ':'), p + 1);
        any = any || *p == '!';
        p += len;
    }
    if (any) putchar('.');
}

static void print_docs_row(const struct flag_row *r)
{
    static const char *const states[] = { "live", "no effect", "not in this version", "removed", "removed, refused" };
    printf("| ");
    if (r->name) {
        printf("`--%s`", r->name);
        if (r->letter) printf(" `-%c`", r->letter);
        if (r->aliases) printf(" `--%s`", r->aliases);
        printf(" | ");
        print_range(r);
        print_cell(r->dflt);
        print_cell(r->env);
    } else {
        printf("`%s` | ", r->env);
        print_range(r);
        print_cell(r->dflt);
    }
    print_verbs(r->commands);
    print_cell(states[r->state]);
    if (r->help && r->state == FLAG_LIVE) printf("%s.%s", r->help, r->note ? " " : "");
    for (const char *p = r->note; p && *p; p++) {
        if (*p == '|') putchar('\\');
        putchar(*p);
    }
    print_later(r);
    printf(" | %s |\n", r->spec ? r->spec : "");
}

void flags_print_docs(void)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    printf("# Flags and variables\n\nGenerated by `mlx-bun help --docs` from the table in src/cli/flags.c; `make docs` writes it.\n\n"
           "- `--name value` and `--name=value` are the same. A value flag with nothing behind it (the end of the line, or another\n"
           "  flag) takes its default, with a warning.\n"
           "- An unknown flag gets one warning with the nearest known name, takes no value, and the run goes on.\n"
           "- A flag beats its variable, the variable beats the default. Variables are read once, at the start. Boolean variables\n"
           "  understand `0` and `1` only; any other value counts as unset.\n"
           "- An alias loses against the flag's own name when both are given; of two equal names the last counts.\n"
           "- *no effect*: accepted, so that command lines of the original keep working; the note says what happens instead.\n"
           "  *not in this version*: refused with exit status 2 (a variable: a warning).\n\n"
           "## Flags\n\n| flag | value | default | variable | verbs | state | what | spec |\n|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        if (rows[i].name && rows[i].help) print_docs_row(&rows[i]);
    printf("\n## Variables without a flag\n\n| variable | value | default | verbs | state | what | spec |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        if (!rows[i].name) print_docs_row(&rows[i]);
    printf("\nRemoved variables, without any effect (CFG-193): `MLX_BUN_PERF_KERNEL`, `MLX_BUN_FUSED_GELU`, `MLX_BUN_FUSED_DECODE`,\n"
           "`MLX_BUN_FUSED_SWIGLU*`, `MLX_BUN_CPM5_FAITHFUL`.\n");
}
