/* utf8.h: UTF-8 checking and stepping. Strict: no surrogates, no overlong forms, at most U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "base/status.h"

/* Decode the character at s[0..len). Returns its length in bytes (1..4) and sets *cp; 0 when the bytes are invalid;
 * -1 when they are a valid beginning that is cut off by the end. */
int utf8_decode(const char *s, size_t len, uint32_t *cp);
/* Write cp (valid scalar value) to out[4]; returns the number of bytes. */
int utf8_encode(uint32_t cp, char out[4]);
/* Length of the longest valid prefix. *cut_off (may be NULL) is true when the rest may become valid with more bytes. */
size_t utf8_valid_prefix(const char *s, size_t len, bool *cut_off);
bool utf8_valid(const char *s, size_t len);
/* Bytes of the maximal ill-formed subsequence at s (>= 1): what one U+FFFD stands for, as Python's and the WHATWG's
 * decoders count it. */
size_t utf8_invalid_length(const char *s, size_t len);

#endif
