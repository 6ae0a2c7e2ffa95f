/* adapter_pattern.c: regular expressions of PEFT configurations, by PCRE2 with limits: they come from a downloaded file, so
 * a pattern that would search for ever is refused like one that cannot be read. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "model/adapter_int.h"

enum { PATTERN_MAX_BYTES = 4096, MATCH_LIMIT = 100000 };

static mb_status bad_pattern(const char *pattern, int code, mb_error *err)
{
    PCRE2_UCHAR why[120];
    if (pcre2_get_error_message(code, why, sizeof why) < 0) why[0] = '\0';
    return mb_fail_at(err, MB_BAD_FORMAT, "adapter_config.json", "adapter_config.json: the pattern \"%.100s\" cannot be used: %s",
                      pattern, (const char *)why);
}

static mb_status run(pcre2_code *code, const char *pattern, const char *module, bool *matches, mb_error *err)
{
    pcre2_match_context *ctx = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    mb_status st = ctx && data ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory");
    if (st == MB_OK) {
        pcre2_set_match_limit(ctx, MATCH_LIMIT);
        pcre2_set_depth_limit(ctx, MATCH_LIMIT);
        int n = pcre2_match(code, (PCRE2_SPTR)module, strlen(module), 0, 0, data, ctx);
        *matches = n >= 0;
        if (n < 0 && n != PCRE2_ERROR_NOMATCH) st = bad_pattern(pattern, n, err);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(ctx);
    return st;
}

/* lead: what may stand before, as an expression. */
static mb_status matches_whole(const char *lead, const char *pattern, const char *module, bool *matches, mb_error *err)
{
    int code_error;
    size_t at;
    struct buf b;
    *matches = false;
    if (strlen(pattern) > PATTERN_MAX_BYTES)
        return mb_fail_at(err, MB_BAD_FORMAT, "adapter_config.json", "adapter_config.json: a pattern is longer than %d bytes",
                          PATTERN_MAX_BYTES);
    buf_init(&b, 0);
    buf_printf(&b, "^%s(?:%s)$", lead, pattern);
    mb_status st = buf_status(&b, "adapter_config.json", err);
    pcre2_code *code = st == MB_OK ? pcre2_compile((PCRE2_SPTR)b.data, b.len, PCRE2_DOLLAR_ENDONLY, &code_error, &at, NULL) : NULL;
    if (st == MB_OK && !code) st = bad_pattern(pattern, code_error, err);
    if (st == MB_OK) st = run(code, pattern, module, matches, err);
    pcre2_code_free(code);
    buf_free(&b);
    return st;
}

mb_status adapter_pattern_matches(const char *pattern, const char *module, bool *matches, mb_error *err)
{
    return matches_whole("", pattern, module, matches, err);
}

mb_status adapter_pattern_find(const json_t *patterns, const char *module, const json_t **value, mb_error *err)
{
    const char *key;
    json_t *v;
    *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)patterns, key, v) {
        bool matches = false;
        MB_TRY(matches_whole(key[0] == '^' ? "" : "(?:.*\\.)?", key[0] == '^' ? key + 1 : key, module, &matches, err));
        if (!matches) continue;
        *value = v;
        return MB_OK;
    }
    return MB_OK;
}
