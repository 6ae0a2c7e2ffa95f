/* tmpl_text.h: characters as Python's str sees them (over utf8proc), for valid UTF-8. */
#ifndef CHAT_TEMPLATE_TMPL_TEXT_H
#define CHAT_TEMPLATE_TMPL_TEXT_H

#include "base/status.h"

/* Bytes of the white space character at s, 0 if it is none (str.isspace). */
size_t text_space_at(const char *s, size_t len);
bool text_is_space(uint32_t cp);
/* Length without trailing white space; bytes of leading white space. */
size_t text_rstrip_len(const char *s, size_t len);
size_t text_lstrip_len(const char *s, size_t len);
bool text_is_word(uint32_t cp);       /* \w */
bool text_is_name_start(uint32_t cp); /* first character of an identifier */
bool text_is_alpha(uint32_t cp);
bool text_is_decimal(uint32_t cp);
bool text_is_digit(uint32_t cp);
bool text_is_numeric(uint32_t cp);
bool text_is_printable(uint32_t cp);
bool text_is_upper(uint32_t cp);
bool text_is_lower(uint32_t cp);
bool text_is_title(uint32_t cp);
bool text_is_cased(uint32_t cp);
bool text_is_case_ignorable(uint32_t cp);
/* Full case mapping: up to 3 characters into out; returns how many. */
int text_upper(uint32_t cp, uint32_t out[3]);
int text_lower(uint32_t cp, uint32_t out[3]);
int text_title(uint32_t cp, uint32_t out[3]);
/* Line break as str.splitlines sees it at s: its bytes (2 for \r\n), 0 if none. */
size_t text_newline_at(const char *s, size_t len);
size_t text_count_chars(const char *s, size_t len);
/* Step over the character at s (valid UTF-8): its bytes. */
static inline size_t text_step(const char *s)
{
    unsigned char c = (unsigned char)*s;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

#endif
