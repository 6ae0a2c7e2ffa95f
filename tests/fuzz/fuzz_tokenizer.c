/* fuzz_tokenizer.c: two targets in one. Input that begins with '{' is a tokenizer.json: parse it, and when it is
 * accepted encode and decode a fixed text. Any other input is text (its first byte picks options) for six fixed
 * tokenizers (four of BPE, a Unigram, a WordPiece); there decoding must give the text back where the family is lossless, and the streaming detokeniser must
 * agree with the decoder. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mini_tokenizer.h"

#define META "\xE2\x96\x81"
#define N_BPE 4
#define N_FIXED 6

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char fixed_text[] = "Hello <|a|> w\xC3\xB6rld\n\n  123 e\xCC\x81 \xF0\x9F\x99\x82 </s> x";

static void check(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "fuzz_tokenizer: %s\n", what);
    abort();
}

static void round_trip(const struct tokenizer *t, const char *s, size_t len, const struct encode_opts *o, bool lossless)
{
    struct arena a;
    struct token_list l;
    struct buf all, streamed;
    struct detok d;
    arena_init(&a, 64 << 20);
    buf_init(&all, 64 << 20);
    buf_init(&streamed, 64 << 20);
    if (tokenizer_encode(t, &a, s, len, o, &l, NULL) == MB_OK) {
        for (size_t i = 0; i < l.n && l.ends; i++)
            check(l.ends[i] <= len && (!i || l.ends[i] >= l.ends[i - 1]), "ends are out of order");
        mb_status decoded = tokenizer_decode(t, l.ids, l.n, false, &all, NULL);
        detok_init(&d, t, false);
        for (size_t i = 0; i < l.n; i++) {
            detok_push(&d, l.ids[i], &streamed);
            check(utf8_valid(streamed.data ? streamed.data : "", streamed.len), "half a character came out");
        }
        detok_finish(&d, &streamed);
        bool short_of_memory = decoded != MB_OK || all.failed != MB_OK || streamed.failed != MB_OK || d.pending.failed != MB_OK;
        detok_free(&d);
        if (short_of_memory) goto done;
        check(all.len == streamed.len && (!all.len || memcmp(all.data, streamed.data, all.len) == 0), "stream differs");
        if (lossless) check(all.len == len && (!len || memcmp(all.data, s, len) == 0), "text was lost");
    }
done:
    buf_free(&all);
    buf_free(&streamed);
    arena_free(&a);
}

static void fuzz_file(const char *json, size_t len)
{
    struct tokenizer *t;
    struct encode_opts o = { .add_special_tokens = true, .want_ends = true };
    mb_error err;
    if (tokenizer_parse(&t, json, len, NULL, 0, &err) != MB_OK) {
        check(t == NULL && err.code != MB_OK && err.text[0], "failed without saying why");
        return;
    }
    round_trip(t, fixed_text, sizeof fixed_text - 1, &o, false);
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int32_t id = -1; id < tokenizer_n_vocab(t) && id < 600; id++) {
        size_t n;
        const char *piece = tokenizer_piece(t, id, &n);
        if (piece) tokenizer_id(t, piece, n);
        tokenizer_token_bytes(t, id, id & 1, &b);
    }
    buf_free(&b);
    tokenizer_close(t);
}

static struct tokenizer *fixed_make(int i)
{
    static const char *const byte_merges[] = { "h e", "l l", "he ll", "hell o", "a a", "aa aa", "\xC4\xA0 t", "\xC4\xA0t he",
                                               "\xC3\xA3 \xC4\xA3", "1 2", NULL };
    static const char *const spm_merges[] = { "a b", "ab ab", META " a", META "a b", "t h", "th e", NULL };
    static const char added[] = "[{\"id\":400,\"content\":\"<|a|>\",\"special\":true},{\"id\":401,\"content\":\"</s>\",\"lstrip\":true,"
        "\"rstrip\":true},{\"id\":402,\"content\":\"word\",\"single_word\":true,\"normalized\":true}]";
    static const char added_plain[] = "[{\"id\":400,\"content\":\"<|a|>\",\"special\":true},{\"id\":401,\"content\":\"</s>\"}]";
    static const struct mini_parts parts[N_BPE] = {
        { .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
                           "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]}",
          .decoder = "{\"type\":\"ByteLevel\"}", .added_tokens = added_plain, .merges = byte_merges },
        { .normalizer = "{\"type\":\"NFC\"}",
          .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re)|[^\\\\r\\\\n"
                           "\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                           "\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                           "\"use_regex\":false}]}",
          .decoder = "{\"type\":\"ByteLevel\"}", .added_tokens = added, .merges = byte_merges },
        { .normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" META "\"}",
          .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" META "\"},\"content\":\" \"},"
                     "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}]}",
          .model_extra = "\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"fuse_unk\":true", .added_tokens = added, .merges = spm_merges },
        { .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":\"BertNormalizer\"},{\"type\":\"Strip\"}]}",
          .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\",\"behavior\":\"MergedWithPrevious\"},"
                           "{\"type\":\"Metaspace\",\"replacement\":\"" META "\",\"prepend_scheme\":\"first\",\"split\":true}]}",
          .decoder = "{\"type\":\"BPEDecoder\",\"suffix\":\"b\"}",
          .model_extra = "\"unk_token\":\"<unk>\"", .added_tokens = added, .merges = spm_merges },
    };
    /* The map makes a space of U+00A0. */
    static const char *const others[N_FIXED - N_BPE] = {
        "{\"added_tokens\":[{\"id\":2,\"content\":\"</s>\",\"special\":true}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
        "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"EAAAAAAMAwDCjAIAoAUAAAAAAIAgAA==\"},{\"type\":\"Strip\"}]},\"pre_tokenizer\":{\"type\":\"Metaspace\"},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Metaspace\"}]},\"model\":{\"type\":\"Unigram\","
        "\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],[\"" META "\",-3],[\"</s>\",0],[\"a\",-2.5],[\"b\",-2.5],[\"ab\",-4.75],[\"" META
        "a\",-5.5],[\"aaa\",-7.25],[\"<0xC3>\",-9],[\"<0xA9>\",-9],[\"\xC3\xA9\xCC\x81\",-3],[\"the\",-4]]}}",
        "{\"added_tokens\":[{\"id\":2,\"content\":\"[SEP]\",\"special\":true}],\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":"
        "{\"type\":\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\",\"cleanup\":true},\"model\":{\"type\":\"WordPiece\",\"unk_token\":"
        "\"[UNK]\",\"max_input_chars_per_word\":50,\"vocab\":{\"[UNK]\":0,\"a\":1,\"[SEP]\":2,\"##a\":3,\"##b\":4,\"ab\":5,\"##ab\":6,\"the\":7,"
        "\".\":8,\"'\":9,\"##aaa\":10,\"\xE4\xB8\xAD\":11}}}",
    };
    struct buf b;
    struct tokenizer *t = NULL;
    mb_error err = { 0 };
    buf_init(&b, 0);
    if (i >= N_BPE) buf_append_str(&b, others[i - N_BPE]);
    else if (i < 2) mini_byte_level(&b, &parts[i]);
    else mini_spm(&b, &parts[i]);
    /* NULL only where an allocation failed (make alloc-fail): then the next input tries again. */
    mb_status st = b.failed != MB_OK ? MB_NO_MEMORY : tokenizer_parse(&t, b.data, b.len, NULL, 0, &err);
    check(st == MB_OK || st == MB_NO_MEMORY, err.text);
    buf_free(&b);
    return t;
}

static void fuzz_text(const uint8_t *data, size_t size)
{
    static struct tokenizer *fixed[N_FIXED];
    struct text_span span = { 0, 0 };
    uint8_t options = size ? data[0] : 0;
    const char *text = size ? (const char *)data + 1 : "";
    size_t len = size ? size - 1 : 0;
    struct encode_opts o = { .add_special_tokens = options & 1, .want_ends = options & 2 };
    if (options & 4) {
        span = (struct text_span){ len / 3, len - len / 4 };
        o.content = &span;
        o.n_content = 1;
    }
    for (int i = 0; i < N_FIXED; i++) {
        if (!fixed[i]) fixed[i] = fixed_make(i);
        if (fixed[i]) round_trip(fixed[i], text, len, &o, i == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size && data[0] == '{') fuzz_file((const char *)data, size);
    else fuzz_text(data, size);
    return 0;
}
