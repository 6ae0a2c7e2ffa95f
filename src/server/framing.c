/* framing.c: is it beyond doubt where a request ends and to whom it goes? What a proxy in front of us may read in another way than
 * we do is refused (request smuggling).
 *
 * The library hands headers out as C strings that lie where they were read, so a NUL hides what is behind it in its line, and a
 * line that begins with one, or with a colon, ends the headers for it. Between a value and the next name (or the end of all
 * headers), and in front of the first name, there must be line ends alone, zeroed by the library, and blanks. A line that was folded lies elsewhere and fails too.
 */
#include <string.h>
#include <strings.h>

#include "server/server_int.h"

/* RFC 9110's token: what a name is made of. */
static bool is_name(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && (!c || !strchr("!#$%&'*+-.^_`|~", c))) return false;
    }
    return len > 0;
}

/* At most n_most bytes of line ends, and blanks. */
static bool only_line_ends(const char *from, const char *to, int n_most)
{
    if ((uintptr_t)to < (uintptr_t)from || (uintptr_t)to - (uintptr_t)from > CONN_POOL_BYTES) return false;
    for (; from < to; from++) {
        if (*from != '\0' && !strchr(" \t\r\n", *from)) return false;
        if (*from != ' ' && *from != '\t' && n_most-- == 0) return false;
    }
    return true;
}

void census_add(struct header_census *c, const char *key, size_t key_len, const char *value, size_t value_len)
{
    if (!is_name(key, key_len) || !value || !only_line_ends(c->end, key, 2)) c->malformed = true;
    if (value) c->end = value + value_len;
    if (strcasecmp(key, "Host") == 0) c->n_hosts++;
    if (strcasecmp(key, "Content-Length") == 0) c->n_lengths++;
    if (strcasecmp(key, "Transfer-Encoding") == 0) c->n_encodings++;
}

const char *census_fault(const struct header_census *c, const char *end, const char *version)
{
    bool whole = end && only_line_ends(c->end, end, 4);
    if (strncmp(version, "HTTP/1.", 7) != 0) return "the request line is not METHOD PATH HTTP/1.1";
    if (c->malformed || !whole) return "a header is not of the form NAME: VALUE";
    if (c->n_lengths > 1) return "more than one Content-Length header";
    if (c->n_encodings > 1) return "more than one Transfer-Encoding header";
    if (c->n_encodings && c->n_lengths) return "Content-Length and Transfer-Encoding in one request";
    if (c->n_encodings && strcmp(version, "HTTP/1.1") != 0) return "Transfer-Encoding needs HTTP/1.1";
    return NULL;
}
