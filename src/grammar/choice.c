/* choice.c: a list of texts, one of which is the answer. */
#include "grammar/grammar_int.h"

static int32_t choice_rule(struct build *b, const json_t *list, const char *what)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || !n) {
        build_fail(b, MB_INVALID, "%s must be a list of at least one string", what);
        return -1;
    }
    struct expr_list l = { 0 };
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(list, i);
        if (!json_is_text(s)) {
            build_fail(b, MB_INVALID, "%s must be a list of strings: item %zu is none", what, i);
            return -1;
        }
        expr_list_add(b, &l, expr_bytes(b, json_string_value(s), json_string_length(s)));
    }
    return b->status == MB_OK ? build_rule_of(b, "choice", expr_alt_list(b, &l)) : -1;
}

int32_t choice_compile(struct build *b, const char *text, size_t len, const char *what)
{
    json_t *list;
    mb_error why;
    if (json_read(&list, text, len, JSON_READ_ANY, &why) != MB_OK) {
        build_fail(b, why.code == MB_NO_MEMORY ? MB_NO_MEMORY : MB_INVALID, "%s must be a JSON list of strings: %s", what, why.text);
        return -1;
    }
    int32_t rule = choice_rule(b, list, what);
    json_decref(list);
    return rule;
}
