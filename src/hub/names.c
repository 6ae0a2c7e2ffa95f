/* names.c: see names.h. */
#include "hub/names.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define FILE_PART_MAX 255
#define FILE_PARTS_MAX 32

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

static bool is_repo_part(const char *s, size_t len)
{
    if (len == 0 || s[0] == '.' || s[0] == '-' || s[len - 1] == '-' || s[len - 1] == '.') return false;
    for (size_t i = 0; i < len; i++) {
        if (!is_name_char(s[i])) return false;
        if (i + 1 < len && s[i] == s[i + 1] && (s[i] == '.' || s[i] == '-')) return false;
    }
    return true;
}

bool name_is_repo(const char *s)
{
    const char *slash = strchr(s, '/');
    if (!slash || strlen(s) >= NAME_REPO_MAX) return false;
    return is_repo_part(s, (size_t)(slash - s)) && is_repo_part(slash + 1, strlen(slash + 1));
}

bool name_is_revision(const char *s)
{
    size_t len = strlen(s), part = 0;
    if (len == 0 || len >= NAME_REVISION_MAX) return false;
    for (size_t i = 0; i <= len; i++) {
        if (s[i] == '/' || s[i] == '\0') {
            if (part == 0) return false;
            part = 0;
            continue;
        }
        if (!is_name_char(s[i]) && s[i] != '+') return false;
        if (part++ == 0 && s[i] == '.') return false;
        if (s[i] == '.' && s[i + 1] == '.') return false;
    }
    return true;
}

bool name_is_file(const char *s, size_t len)
{
    size_t part = 0, n_parts = 1;
    if (len == 0 || len >= NAME_FILE_MAX || !utf8_valid(s, len)) return false;
    for (size_t i = 0; i <= len; i++) {
        if (i == len || s[i] == '/') {
            const char *p = s + i - part;
            if (part == 0 || part > FILE_PART_MAX || n_parts++ > FILE_PARTS_MAX) return false;
            if (p[0] == '.' && (part == 1 || (part == 2 && p[1] == '.'))) return false;
            part = 0;
            continue;
        }
        unsigned char c = (unsigned char)s[i];
        if (c < 32 || c == 127 || c == '\\') return false;
        part++;
    }
    return true;
}

bool name_is_hex(const char *s, size_t len)
{
    if (strlen(s) != len) return false;
    for (size_t i = 0; i < len; i++)
        if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'f')) return false;
    return true;
}

bool name_looks_like_repo(const char *arg)
{
    const char *slash = strchr(arg, '/');
    return slash && !strchr(slash + 1, '/') && arg[0] != '.' && arg[0] != '/' && arg[0] != '~' && slash[1] != '\0';
}

mb_status name_parse_model(const char *arg, const char *dflt, char repo[NAME_REPO_MAX], char revision[NAME_REVISION_MAX],
                           mb_error *err)
{
    char shown[84];
    const char *at = strchr(arg, '@');
    size_t len = at ? (size_t)(at - arg) : strlen(arg);
    repo[0] = revision[0] = '\0';
    if (len < NAME_REPO_MAX) {
        memcpy(repo, arg, len);
        repo[len] = '\0';
    }
    if (len >= NAME_REPO_MAX || !name_is_repo(repo)) {
        repo[0] = '\0';
        return mb_fail(err, MB_INVALID, "'%s' is not the name of a model: wanted is owner/name of letters, digits, '.', '_' "
                       "and '-', at most 96 bytes", name_shown(arg, len, shown));
    }
    const char *rev = at ? at + 1 : dflt;
    if (!name_is_revision(rev))
        return mb_fail(err, MB_INVALID, "'%s' is not a revision: wanted is a branch, a tag or a commit",
                       name_shown(rev, strlen(rev), shown));
    strcpy(revision, rev);
    return MB_OK;
}

void name_to_folder(const char *repo, char out[NAME_FOLDER_MAX])
{
    const char *slash = strchr(repo, '/');
    snprintf(out, NAME_FOLDER_MAX, "models--%.*s--%s", (int)(slash - repo), repo, slash + 1);
}

bool name_from_folder(const char *folder, char repo[NAME_REPO_MAX])
{
    static const char prefix[] = "models--";
    if (strncmp(folder, prefix, sizeof prefix - 1) != 0) return false;
    const char *owner = folder + sizeof prefix - 1, *sep = strstr(owner, "--");
    if (!sep || strlen(owner) + 1 > NAME_REPO_MAX) return false;
    snprintf(repo, NAME_REPO_MAX, "%.*s/%s", (int)(sep - owner), owner, sep + 2);
    return name_is_repo(repo);
}

bool name_ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

bool name_is_wanted(const char *file)
{
    static const char *const suffixes[] = { ".safetensors", ".json", ".jsonl", ".jinja", ".tiktoken", ".txt", NULL };
    static const char *const names[] = { "tokenizer.model", "README.md", "LICENSE", "LICENSE.md", "NOTICE", NULL };
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    if (strncmp(file, "onnx/", 5) == 0 || strncmp(file, "original/", 9) == 0) return false; /* the same model again */
    if (strncmp(base, "consolidated", 12) == 0) return false;
    for (int i = 0; suffixes[i]; i++)
        if (name_ends(base, suffixes[i])) return true;
    for (int i = 0; names[i]; i++)
        if (strcmp(base, names[i]) == 0) return true;
    return false;
}

const char *name_shown(const char *s, size_t len, char out[84])
{
    size_t n = len < 80 ? len : 80;
    bool valid = utf8_valid(s, len);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        out[i] = c < 32 || c == 127 || (!valid && c >= 128) ? '?' : s[i];
    }
    while (n > 0 && n < len && ((unsigned char)s[n] & 0xc0) == 0x80) n--; /* not through a character */
    strcpy(out + n, n < len ? "..." : "");
    return out;
}
