/* mini_tokenizer.h: small tokenizers made in memory, for the unit tests and the fuzzer.
 *
 * mini_byte_level: the 256 characters of the byte-level alphabet as ids 0..255 (id = byte), then the result of each
 * merge. mini_spm: <unk> <s> </s>, the 256 byte tokens, U+2581 and ASCII letters, byte fallback.
 * The other sections of the file are given as JSON text.
 */
#ifndef MINI_TOKENIZER_H
#define MINI_TOKENIZER_H

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

struct mini_parts {
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder, *added_tokens, *model_extra; /* JSON or NULL */
    const char *const *merges; /* "a b" texts, NULL-terminated; may be NULL */
};

static inline void mini_char(char out[5], int byte)
{
    uint32_t cp = (uint32_t)byte;
    if (byte <= 32) cp = 256u + (uint32_t)byte;
    else if (byte >= 127 && byte <= 160) cp = 256u + 33u + (uint32_t)(byte - 127);
    else if (byte == 173) cp = 256u + 67u;
    out[utf8_encode(cp, out)] = '\0';
}

static inline void mini_merges(struct buf *vocab, struct buf *list, const char *const *merges, int next_id)
{
    for (size_t i = 0; merges && merges[i]; i++) {
        char joined[64];
        size_t n = 0;
        for (const char *p = merges[i]; *p && n + 1 < sizeof joined; p++)
            if (*p != ' ') joined[n++] = *p;
        buf_append_str(vocab, ",");
        json_write_string(vocab, joined, n);
        buf_printf(vocab, ":%d", next_id + (int)i);
        if (i) buf_append_str(list, ",");
        json_write_string(list, merges[i], strlen(merges[i]));
    }
}

static inline const char *mini_or_null(const char *s)
{
    return s ? s : "null";
}

static inline void mini_finish(struct buf *b, const struct mini_parts *p, const struct buf *vocab, const struct buf *list)
{
    buf_printf(b, "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,"
                  "\"decoder\":%s,\"model\":{\"type\":\"BPE\"%s%s,\"vocab\":{",
               p->added_tokens ? p->added_tokens : "[]", mini_or_null(p->normalizer), mini_or_null(p->pre_tokenizer),
               mini_or_null(p->post_processor), mini_or_null(p->decoder), p->model_extra ? "," : "",
               p->model_extra ? p->model_extra : "");
    buf_append(b, vocab->data, vocab->len);
    buf_append_str(b, "},\"merges\":[");
    buf_append(b, list->data, list->len);
    buf_append_str(b, "]}}");
    if (vocab->failed != MB_OK) b->failed = vocab->failed; /* the text lacks a part: the caller must not use it */
    if (list->failed != MB_OK) b->failed = list->failed;
}

static inline void mini_byte_level(struct buf *b, const struct mini_parts *p)
{
    struct buf vocab, list;
    buf_init(&vocab, 0);
    buf_init(&list, 0);
    for (int i = 0; i < 256; i++) {
        char c[5];
        mini_char(c, i);
        if (i) buf_append_str(&vocab, ",");
        json_write_string(&vocab, c, strlen(c));
        buf_printf(&vocab, ":%d", i);
    }
    mini_merges(&vocab, &list, p->merges, 256);
    mini_finish(b, p, &vocab, &list);
    buf_free(&vocab);
    buf_free(&list);
}

static inline void mini_spm(struct buf *b, const struct mini_parts *p)
{
    struct buf vocab, list;
    int id = 3;
    buf_init(&vocab, 0);
    buf_init(&list, 0);
    buf_append_str(&vocab, "\"<unk>\":0,\"<s>\":1,\"</s>\":2");
    for (int i = 0; i < 256; i++) buf_printf(&vocab, ",\"<0x%02X>\":%d", (unsigned)i, id++);
    buf_printf(&vocab, ",\"\xE2\x96\x81\":%d", id++);
    for (char c = 'a'; c <= 'z'; c++) buf_printf(&vocab, ",\"%c\":%d,\"%c\":%d", c, id, c - 32, id + 1), id += 2;
    mini_merges(&vocab, &list, p->merges, id);
    mini_finish(b, p, &vocab, &list);
    buf_free(&vocab);
    buf_free(&list);
}

#endif
