/* json_weigh.c: how much memory a JSON text takes when json_read makes a tree of it, known before the tree is made.
 *
 * A tree can be fifty times its text ("[[],[],...]"), so whoever takes texts from strangers asks first. The figures are
 * jansson's structures on a 64-bit machine with malloc's rounding, each a little above the truth; a text that is not JSON
 * gets some figure too, json_read refuses it then. */
#include "base/json.h"

enum {
    OBJECT_BYTES = 240,  /* head and the first eight buckets */
    MEMBER_BYTES = 128,  /* pair, and its share of buckets while they are copied to twice as many */
    ARRAY_BYTES = 128,   /* head and the first eight places */
    ELEMENT_BYTES = 24,  /* a place, while places are copied to twice as many */
    STRING_BYTES = 96,   /* head and the rounding of its text */
    NUMBER_BYTES = 32
};

/* Bytes between the quotes of the string that begins at text[i]. */
static size_t string_len(const char *text, size_t len, size_t i)
{
    size_t from = i + 1, k = from;
    while (k < len && text[k] != '"') k += text[k] == '\\' ? 2 : 1;
    return (k < len ? k : len) - from;
}

static bool in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

struct json_weight json_weigh(const char *text, size_t len)
{
    struct json_weight w = { 0 };
    size_t longest = 0;
    bool rewritten = false; /* json_read works on a second text when a number may need more than 64 bits */
    for (size_t i = 0; i < len; i++) {
        size_t n = 1;
        switch (text[i]) {
        case ' ': case '\t': case '\n': case '\r': continue;
        case '{': w.tree_bytes += OBJECT_BYTES; break;
        case '[': w.tree_bytes += ARRAY_BYTES + ELEMENT_BYTES; break;
        case ':': w.tree_bytes += MEMBER_BYTES; break;
        case ',': w.tree_bytes += ELEMENT_BYTES; break;
        case '"':
            n = string_len(text, len, i);
            if (n > longest) longest = n;
            w.tree_bytes += STRING_BYTES + n;
            n += 2;
            break;
        default:
            if (!in_number(text[i])) break;
            while (i + n < len && in_number(text[i + n])) n++;
            if (n >= 19) rewritten = true;
            w.tree_bytes += n >= 19 ? STRING_BYTES + 2 * n : NUMBER_BYTES;
            break;
        }
        w.text_bytes += n;
        i += n - 1;
    }
    w.tree_bytes += 2 * longest; /* while a string is read it stands in a buffer that grows by doubling */
    if (rewritten) w.tree_bytes += 2 * len;
    return w;
}
