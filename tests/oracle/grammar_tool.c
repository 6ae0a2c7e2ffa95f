/* grammar_tool.c: the grammar engine for scripts (grammar_suite.py, grammar_walks.py) and its bench.
 *
 *   grammar_tool check          a JSON line in: {"kind", "text", "strict", "inputs": [text ...]}
 *                               a JSON line out: {"error": {"code", "text"}} or
 *                               {"unenforced": [[keyword, path] ...], "results": [true|false ...], "ms": 1.2}
 *                               each input is tried byte by byte; before each, the mask must agree with what is accepted
 *   grammar_tool walk [DIR]     {"kind", "text", "seed", "n", "max_tokens"}: random walks over the allowed tokens of the
 *                               tokenizer in DIR (else of a small vocabulary made here); out: {"texts": [...], "cut": n}
 *   grammar_tool keywords       the tables of docs/structured-output.md
 *   grammar_tool bench [DIR [N]] what masks cost over fixed schemas (CPU time): mean, p99, first; N: the first N ids only
 * Built by grammar_suite.py: cc ... grammar_tool.c BUILD/libmlxbun.a
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "grammar/grammar.h"

static mb_error err;

static void die(const char *what)
{
    fprintf(stderr, "grammar_tool: %s: %s\n", what, err.text);
    exit(1);
}

/* --- vocabularies --- */

static const char *const pieces[] = { "\"", "\":", "\": \"", "\",", "\", \"", "{\"", "{", "}", "[", "]", "[{\"", "}]", ", ", ",\n  ",
    "true", "false", "null", "10", "123", "0.5", "-1", "e5", "name", "ab", "abc", "the ", "foo", "bar", "\\n", "\\u00", "\xC3\xA9",
    "\xE6\x97\xA5", "2024-", "-01", "T12:", "00Z", "@", ".com", "https://", "k-", "::", "  ", "\n", "\n    ", "}}", "\"}", "\"]", "a\"" };
enum { N_PIECES = sizeof pieces / sizeof *pieces, SMALL_VOCAB = 257 + N_PIECES };

static struct grammar_vocab *small_vocab(void)
{
    static char bytes[256];
    struct grammar_token t[SMALL_VOCAB];
    int32_t end = 256;
    struct grammar_vocab *v;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct grammar_token){ &bytes[i], 1, false };
    }
    t[256] = (struct grammar_token){ "</s>", 4, true };
    for (int i = 0; i < N_PIECES; i++) t[257 + i] = (struct grammar_token){ pieces[i], strlen(pieces[i]), false };
    if (grammar_vocab_from_tokens(&v, t, SMALL_VOCAB, &end, 1, &err) != MB_OK) die("vocabulary");
    return v;
}

static struct tokenizer *tok;
static int32_t end_id = 256;

/* The first n ids of the tokenizer as a vocabulary of their own. */
static struct grammar_vocab *first_ids(int32_t n)
{
    struct grammar_token *t = calloc((size_t)n, sizeof *t);
    struct grammar_vocab *v;
    if (!t) die("memory");
    for (int32_t i = 0; i < n; i++) {
        struct buf b;
        buf_init(&b, 0);
        tokenizer_token_bytes(tok, i, false, &b);
        t[i].added = tokenizer_is_added(tok, i);
        t[i].bytes = buf_take(&b, &t[i].len);
        if (!t[i].bytes) t[i] = (struct grammar_token){ "", 0, false };
    }
    if (grammar_vocab_from_tokens(&v, t, n, &end_id, 1, &err) != MB_OK) die("vocabulary");
    return v;
}

static struct grammar_vocab *vocab_of(const char *dir, int32_t limit)
{
    struct grammar_vocab *v;
    if (!dir) return small_vocab();
    if (tokenizer_open(&tok, dir, &err) != MB_OK) die(dir);
    end_id = tokenizer_eos_id(tok);
    int64_t t0 = clock_now_ns();
    if (limit > 0 && limit < tokenizer_n_vocab(tok)) v = first_ids(limit);
    else if (grammar_vocab_open(&v, tok, &end_id, 1, &err) != MB_OK) die("vocabulary");
    fprintf(stderr, "vocabulary of %d tokens: %.1f ms\n", grammar_vocab_n(v), (double)(clock_now_ns() - t0) / 1e6);
    return v;
}

static void token_text(int32_t id, struct buf *out)
{
    if (tok) tokenizer_token_bytes(tok, id, false, out);
    else if (id < 256) buf_append_char(out, (char)id);
    else if (id > 256) buf_append_str(out, pieces[id - 257]);
}

/* --- requests --- */

static json_t *read_line(void)
{
    static char *line;
    static size_t cap;
    json_t *v;
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) return NULL;
    if (json_read(&v, line, (size_t)n, 0, &err) != MB_OK) die("request");
    return v;
}

static void answer(json_t *v)
{
    char *s = json_dumps(v, JSON_COMPACT | JSON_ENSURE_ASCII);
    puts(s);
    fflush(stdout);
    free(s);
    json_decref(v);
}

static struct grammar *compile(struct grammar_vocab *v, const json_t *q)
{
    static const char *const kinds[] = { "object", "schema", "regex", "ebnf", "choice" };
    const char *kind = json_string_value(json_object_get(q, "kind"));
    const json_t *text = json_object_get(q, "text");
    struct grammar_source src = { GRAMMAR_JSON_SCHEMA, json_string_value(text), json_string_length(text),
                                  json_is_true(json_object_get(q, "strict")), NULL, NULL };
    struct grammar *g;
    for (int i = 0; i < 5; i++)
        if (kind && !strcmp(kind, kinds[i])) src.kind = (enum grammar_kind)i;
    if (grammar_compile(&g, v, &src, &err) == MB_OK) return g;
    answer(json_pack("{s:{s:i,s:s}}", "error", "code", err.code, "text", err.text));
    return NULL;
}

static json_t *unenforced(const struct grammar *g)
{
    json_t *list = json_array();
    for (size_t i = 0; i < grammar_n_unenforced(g); i++)
        json_array_append_new(list, json_pack("[s,s]", grammar_unenforced_get(g, i)->keyword, grammar_unenforced_get(g, i)->path));
    return list;
}

/* --- check --- */

static bool reachable(struct grammar *g, const char *text, size_t len, uint32_t *bits, int32_t n_vocab)
{
    struct grammar_state *s;
    bool ok = true;
    if (grammar_state_open(&s, g, &err) != MB_OK) die("state");
    for (size_t i = 0; i < len && ok; i++) {
        unsigned char c = (unsigned char)text[i];
        if (grammar_state_mask(s, bits, n_vocab, &err) != MB_OK) die("mask");
        ok = grammar_state_accept(s, c, &err) == MB_OK;
        if (ok != (bits[c >> 5] >> (c & 31) & 1)) die("the mask and accept disagree");
    }
    ok = ok && grammar_state_is_complete(s);
    grammar_state_close(s);
    return ok;
}

static void check(void)
{
    struct grammar_vocab *v = small_vocab();
    uint32_t bits[SMALL_VOCAB / 32 + 1];
    json_t *q;
    while ((q = read_line())) {
        struct grammar *g = compile(v, q);
        if (g) {
            json_t *results = json_array(), *inputs = json_object_get(q, "inputs");
            struct grammar_stats st;
            for (size_t i = 0; i < json_array_size(inputs); i++) {
                const json_t *in = json_array_get(inputs, i);
                json_array_append_new(results, json_boolean(reachable(g, json_string_value(in), json_string_length(in), bits, SMALL_VOCAB)));
            }
            grammar_stats_get(g, &st);
            answer(json_pack("{s:o,s:o,s:f}", "unenforced", unenforced(g), "results", results, "ms", (double)st.compile_ns / 1e6));
            grammar_unref(g);
        }
        json_decref(q);
    }
    grammar_vocab_close(v);
}

/* --- walk --- */

static uint64_t rng;
static uint32_t draw(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

/* An allowed token, the better one of a few: late in a walk those that close things. -1: the end. */
static int32_t pick(const uint32_t *bits, int32_t n, bool late)
{
    static uint32_t ids[1 << 18];
    uint32_t n_ids = 0;
    for (int32_t i = 0; i < n && n_ids < 1 << 18; i++)
        if (bits[i >> 5] >> (i & 31) & 1) ids[n_ids++] = (uint32_t)i;
    if (!n_ids) die("an empty mask");
    if ((bits[end_id >> 5] >> (end_id & 31) & 1) && (late || draw(3) == 0)) return -1;
    int32_t best = (int32_t)ids[draw(n_ids)];
    for (int k = 0; k < (late ? 64 : 6); k++) {
        int32_t id = k < (late ? 40 : 2) ? (int32_t)ids[draw(n_ids)] : -1;
        struct buf t;
        static const char closers[] = "\"}]";
        if (id < 0) id = closers[k % 3];
        if (!tok ? !(bits[id >> 5] >> (id & 31) & 1) : id < 0x80) continue;
        buf_init(&t, 0);
        token_text(id, &t);
        if (id != end_id && t.len && strchr(closers, t.data[0]) && (late || draw(4) == 0)) best = id;
        buf_free(&t);
    }
    return best == end_id ? -1 : best;
}

static bool walk_one(struct grammar *g, int32_t n, uint32_t *bits, int max_tokens, struct buf *text)
{
    struct grammar_state *s;
    bool ended = false;
    if (grammar_state_open(&s, g, &err) != MB_OK) die("state");
    for (int i = 0; i < max_tokens && !ended; i++) {
        if (grammar_state_mask(s, bits, n, &err) != MB_OK) die("mask");
        int32_t id = pick(bits, n, i > max_tokens / 3);
        if (id < 0) ended = true;
        else if (grammar_state_accept(s, id, &err) != MB_OK) die("an allowed token was refused");
        else token_text(id, text);
    }
    grammar_state_close(s);
    return ended;
}

static void walk(const char *dir)
{
    struct grammar_vocab *v = vocab_of(dir, 0);
    int32_t n = grammar_vocab_n(v);
    uint32_t *bits = malloc(((size_t)n / 32 + 1) * sizeof *bits);
    json_t *q;
    while ((q = read_line())) {
        struct grammar *g = compile(v, q);
        rng = (uint64_t)json_integer_value(json_object_get(q, "seed")) * 0x9E3779B97F4A7C15u + 1;
        json_t *texts = json_array();
        int cut = 0;
        for (json_int_t i = 0; g && i < json_integer_value(json_object_get(q, "n")); i++) {
            struct buf text;
            buf_init(&text, 0);
            bool ended = walk_one(g, n, bits, (int)json_integer_value(json_object_get(q, "max_tokens")), &text);
            if (ended && json_array_append_new(texts, json_stringn(text.data ? text.data : "", text.len)) != 0) die("not UTF-8");
            cut += !ended;
            buf_free(&text);
        }
        if (g) answer(json_pack("{s:o,s:i,s:o}", "texts", texts, "cut", cut, "unenforced", unenforced(g)));
        else json_decref(texts);
        grammar_unref(g);
        json_decref(q);
    }
    free(bits);
    grammar_vocab_close(v);
    tokenizer_close(tok);
}

/* --- bench --- */

/* Schemas with a text that a model would write under them. */
static const struct { const char *name; enum grammar_kind kind; const char *text, *answer; } benches[] = {
    { "object", GRAMMAR_JSON_OBJECT, "", "{\"title\": \"A walk in the park\", \"stars\": 4.5, \"tags\": [\"calm\", \"green\"], "
      "\"where\": {\"city\": \"Zurich\", \"zip\": 8001}, \"open\": true, \"note\": \"Bring water, and do not forget the map.\"}" },
    { "person", GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
      "\"minimum\":0,\"maximum\":130},\"email\":{\"type\":\"string\",\"format\":\"email\"},\"role\":{\"enum\":[\"admin\",\"user\",\"guest\"]},"
      "\"about\":{\"type\":\"string\",\"maxLength\":200}},\"required\":[\"name\",\"age\",\"role\"],\"additionalProperties\":false}",
      "{\"name\": \"Ada Lovelace\", \"age\": 36, \"email\": \"ada@example.org\", \"role\": \"admin\", \"about\": \"Wrote the first "
      "program for a machine that was never finished, and saw what it could do.\"}" },
    { "open", GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"location\":{\"type\":\"string\",\"description\":\"city\"},"
      "\"unit\":{\"type\":\"string\",\"enum\":[\"celsius\",\"fahrenheit\"]},\"days\":{\"type\":\"integer\"}},\"required\":[\"location\"]}",
      "{\"location\": \"San Francisco, California\", \"unit\": \"celsius\", \"days\": 12, \"comment\": \"any\"}" },
    { "tree", GRAMMAR_JSON_SCHEMA, "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"string\"},\"kids\":{\"type\":"
      "\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"v\",\"kids\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
      "{\"v\": \"root of it\", \"kids\": [{\"v\": \"left\", \"kids\": []}, {\"v\": \"right\", \"kids\": [{\"v\": \"deep\", \"kids\": []}]}]}" },
    { "regex", GRAMMAR_REGEX, "([A-Z][a-z]+ )+[0-9]{3}-[0-9]{4}", "The Quick Brown Fox Jumps 555-1234" },
    { "pattern", GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"pattern\":\"^[a-z0-9_-]{1,64}$\"},"
      "\"when\":{\"type\":\"string\",\"format\":\"date-time\"}},\"required\":[\"id\",\"when\"],\"additionalProperties\":false}",
      "{\"id\": \"some_long_identifier-of-a-thing\", \"when\": \"2024-02-29T12:30:00Z\"}" },
};

/* Time of this thread, so that a busy machine changes little. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int by_ns(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return a < b ? -1 : a > b;
}

/* The token of the vocabulary that is the longest beginning of the text. */
static int32_t longest(struct grammar_vocab *v, const uint32_t *bits, const char *text)
{
    int32_t best = -1;
    size_t best_len = 0, len = strlen(text);
    for (int32_t i = 0; i < grammar_vocab_n(v); i++) {
        if (!(bits[i >> 5] >> (i & 31) & 1)) continue;
        struct buf t;
        buf_init(&t, 0);
        token_text(i, &t);
        if (t.len > best_len && t.len <= len && !memcmp(t.data, text, t.len)) best = i, best_len = t.len;
        buf_free(&t);
    }
    return best;
}

static int64_t all_ns[2][65536];
static size_t n_all[2];

static void bench_one(struct grammar_vocab *v, size_t i, uint32_t *bits, int round)
{
    const char *how = round ? "again" : "cold";
    static int64_t ns[4096];
    size_t n = 0;
    struct grammar *g;
    struct grammar_state *s;
    struct grammar_stats st;
    struct grammar_source src = { benches[i].kind, benches[i].text, strlen(benches[i].text), true, NULL, NULL };
    if (grammar_compile(&g, v, &src, &err) != MB_OK || grammar_state_open(&s, g, &err) != MB_OK) die(benches[i].name);
    for (const char *p = benches[i].answer; *p && n < 4096;) {
        int64_t t0 = cpu_ns();
        if (grammar_state_mask(s, bits, grammar_vocab_n(v), &err) != MB_OK) die("mask");
        ns[n++] = cpu_ns() - t0;
        int32_t id = longest(v, bits, p);
        if (id < 0 || grammar_state_accept(s, id, &err) != MB_OK) die(p);
        struct buf t;
        buf_init(&t, 0);
        token_text(id, &t);
        p += t.len;
        buf_free(&t);
    }
    double sum = 0, first = (double)ns[0];
    for (size_t k = 0; k < n; k++) {
        sum += (double)ns[k];
        if (n_all[round] < 65536) all_ns[round][n_all[round]++] = ns[k];
    }
    qsort(ns, n, sizeof *ns, by_ns);
    grammar_stats_get(g, &st);
    printf("%-8s %-6s %4zu masks  mean %7.1f us  median %6.1f  p99 %7.1f  max %7.1f  first %7.1f us  compile %6.2f ms  %zu KiB\n",
           benches[i].name, how, n, sum / (double)n / 1e3, (double)ns[n / 2] / 1e3, (double)ns[n - 1 - n / 100] / 1e3,
           (double)ns[n - 1] / 1e3, first / 1e3, (double)st.compile_ns / 1e6, st.bytes_held >> 10);
    grammar_state_close(s);
    grammar_unref(g);
}

static void bench(const char *dir, int32_t limit)
{
    struct grammar_vocab *v = vocab_of(dir, limit);
    uint32_t *bits = malloc(((size_t)grammar_vocab_n(v) / 32 + 1) * sizeof *bits);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) bench_one(v, i, bits, round);
    for (int round = 0; round < 2; round++) {
        double sum = 0;
        for (size_t k = 0; k < n_all[round]; k++) sum += (double)all_ns[round][k];
        qsort(all_ns[round], n_all[round], sizeof(int64_t), by_ns);
        printf("all %s: %zu masks  mean %.1f us  p99 %.1f us  max %.1f us\n", round ? "again" : "cold", n_all[round],
               sum / (double)n_all[round] / 1e3, (double)all_ns[round][n_all[round] - 1 - n_all[round] / 100] / 1e3,
               (double)all_ns[round][n_all[round] - 1] / 1e3);
    }
    free(bits);
    grammar_vocab_close(v);
    tokenizer_close(tok);
}

static void keyword_tables(void)
{
    size_t n;
    const struct grammar_keyword *k = grammar_keywords(&n);
    puts("| keyword | | |\n|---|---|---|");
    for (size_t i = 0; i < n; i++) printf("| `%s` | %s | %s |\n", k[i].name, k[i].status, k[i].note);
    puts("");
    for (const char *const *f = grammar_formats(); *f; f++) printf("%s`%s`", f == grammar_formats() ? "" : ", ", *f);
    puts("");
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *dir = argc > 2 ? argv[2] : NULL;
    if (!strcmp(mode, "check")) check();
    else if (!strcmp(mode, "walk")) walk(dir);
    else if (!strcmp(mode, "bench")) bench(dir, argc > 3 ? atoi(argv[3]) : 0);
    else if (!strcmp(mode, "keywords")) keyword_tables();
    else return fprintf(stderr, "usage: grammar_tool check | walk [DIR] | bench [DIR [N]] | keywords\n"), 2;
    return 0;
}
