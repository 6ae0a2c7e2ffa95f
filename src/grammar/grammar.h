/* grammar.h: what a model may say next. A source (JSON Schema, regex, EBNF, a list of choices) is compiled against a
 * vocabulary; a state then answers, token by token, which ids keep the text inside the language.
 *
 *   grammar_vocab   one per model: the bytes of every token as a trie, the end ids, a cache of compiled grammars
 *   grammar         compiled, immutable to its users, counted, shared by any number of threads and requests
 *   grammar_state   one per choice: mask -> draw -> accept -> mask ...; cheap to clone (drafts, forks)
 *
 * The language is over bytes, so a token may end in the middle of a character or of a rule. Tokens of the tokenizer's
 * added list (control tokens, "<tool_call>", "<think>") never match text: only a grammar that names one (%token) lets
 * it through. Added tokens that are nothing but white space are ordinary text.
 * Every grammar is trimmed so that each allowed prefix can be finished: a mask is never empty before the end as long
 * as the vocabulary can spell the next byte.
 *
 * Lifetimes: vocab, grammar and state are counted; a state holds its grammar, a grammar its vocab: close in any order.
 * Threads: vocab and grammar may be used by all threads at once (a lock inside, held for one mask at most); a state
 * belongs to one thread at a time. Nothing here calls back. Memory is bounded (struct grammar_limits); a mask is
 * bounded in steps: MB_TOO_LARGE says so and the request should end.
 *
 * EBNF (GRAMMAR_EBNF): rules `name ::= expression`, the start is `root`, `#` comments to the end of the line; a new
 * rule begins at a name followed by `::=`, so line breaks are free.
 *   "text" 'text'      literal; \n \r \t \\ \" \' \/ \[ \] \- \xHH \uHHHH \UHHHHHHHH \u{H..}
 *   [a-z_] [^"\n]      one character of a class; the same escapes, and \d \w \s \D \W \S
 *   .                  any character
 *   a b    a | b       sequence, alternatives;  ( )  group;  ""  nothing
 *   x? x* x+ x{3} x{2,} x{2,5}
 *   name               another rule (recursion allowed; direct left recursion is rewritten, indirect is refused by name)
 *   %json { ... }      a JSON text that satisfies the JSON Schema written there (true, {} = any value)
 *   %regex /.../       a regular expression matched whole (\/ for a slash)
 *   %token "<x>"       the added token of that text; its bytes where the vocabulary has no such token
 *   %until "x"         any text up to and with the first "x"
 *   %choice ["a","b"]  one of these strings, raw (no quotes in the output)
 *
 * Details, white space in JSON, the table of keywords: docs/structured-output.md.
 */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include "base/json.h"
#include "base/status.h"
#include "tokenizer/tokenizer.h"

struct grammar_vocab;
struct grammar;
struct grammar_state;

/* --- vocabulary --- */

/* Build from a tokenizer. end_ids [n_end_ids] are allowed exactly where the text may end; copied.
 * Milliseconds for a large vocabulary; once per model. MB_NO_MEMORY, MB_TOO_LARGE. */
mb_status grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, const int32_t *end_ids,
                             int32_t n_end_ids, mb_error *err);

/* The same from plain data (tests, benches): token i has these bytes. `added`: matches only by %token. */
struct grammar_token {
    const char *bytes;
    size_t len;
    bool added;
};
mb_status grammar_vocab_from_tokens(struct grammar_vocab **out, const struct grammar_token *tokens, int32_t n_tokens,
                                    const int32_t *end_ids, int32_t n_end_ids, mb_error *err);
void grammar_vocab_close(struct grammar_vocab *v); /* NULL is fine */
int32_t grammar_vocab_n(const struct grammar_vocab *v); /* last id + 1 */

/* --- compiling --- */

enum grammar_kind {
    GRAMMAR_JSON_OBJECT = 0, /* any JSON object; text is not read */
    GRAMMAR_JSON_SCHEMA,     /* text: a JSON Schema (draft 2020-12; what differs in old drafts is refused by name) */
    GRAMMAR_REGEX,           /* text: a regular expression that the whole answer matches */
    GRAMMAR_EBNF,            /* text: rules, see above */
    GRAMMAR_CHOICE           /* text: JSON array of strings, one of which is the answer */
};

struct grammar_source {
    enum grammar_kind kind;
    const char *text; /* UTF-8, len bytes, copied */
    size_t len;
    bool strict; /* a keyword that cannot be enforced: true MB_UNSUPPORTED; false left out and listed */
    bool (*stopped)(void *ctx); /* asked all the time while a compile lasts; true: MB_CANCELLED. NULL: never asked */
    void *ctx;
};

/* Compile, or take the grammar out of the vocabulary's cache (keyed by kind, text and strictness; bounded).
 *   *out  a new reference; release with grammar_unref.
 * MB_INVALID      the source is wrong: keyword and JSON path, or line and column
 * MB_UNSUPPORTED  right, but not enforceable: keyword and JSON path, or the construct (look-around ...)
 * MB_TOO_LARGE    a ceiling (states, branches) was passed: which one, where
 * MB_CANCELLED    src->stopped said so
 * MB_NO_MEMORY.   Blocks for the time of a compile (milliseconds; bounded); any thread. */
mb_status grammar_compile(struct grammar **out, struct grammar_vocab *v, const struct grammar_source *src, mb_error *err);
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */

/* What a non-strict compile left out. Owned by the grammar. */
struct grammar_unenforced {
    const char *keyword; /* "uniqueItems" */
    const char *path;    /* JSON pointer of the schema that holds it: "#/properties/tags"; in an EBNF of that %json */
    const char *why;     /* "is enforced only for ..." */
};
size_t grammar_n_unenforced(const struct grammar *g);
const struct grammar_unenforced *grammar_unenforced_get(const struct grammar *g, size_t i);

/* For logs, tests and benches. */
struct grammar_stats {
    bool from_cache;        /* this compile found it ready (of the last grammar_compile that returned it) */
    uint64_t compile_ns;    /* of the first compile */
    size_t n_rules, n_states, n_edges;
    size_t n_configs, n_masks; /* parser configurations and masks held now */
    size_t bytes_held;      /* of the automaton and its caches */
    uint64_t mask_hits, mask_misses, n_collections;
};
void grammar_stats_get(const struct grammar *g, struct grammar_stats *out);

/* The table behind docs/structured-output.md: one row a JSON Schema keyword. */
struct grammar_keyword {
    const char *name, *status, *note; /* status: enforced | partly | annotation | refused */
};
const struct grammar_keyword *grammar_keywords(size_t *n_rows);
/* Does this keyword with this value limit what is valid? Annotations, names of places ($id, $defs), unknown keywords do not. */
bool grammar_keyword_limits(const char *name, const json_t *value);
/* Names accepted as the value of `format`, NULL-terminated; others are annotations. */
const char *const *grammar_formats(void);

/* Ceilings; zero fields mean the default. Process-wide defaults are in grammar.c. For tests. */
struct grammar_limits {
    size_t max_machine_bytes; /* configurations, stacks and masks of one grammar, 0 = 48 MiB */
    size_t max_mask_steps;    /* work units of one mask, 0 = 20 million */
    size_t max_items;         /* parallel parses at one place, 0 = 2048 */
};
mb_status grammar_compile_limited(struct grammar **out, struct grammar_vocab *v, const struct grammar_source *src,
                                  const struct grammar_limits *limits, mb_error *err); /* never cached */

/* --- running --- */

/* At the beginning of the text. Holds the grammar. MB_NO_MEMORY. */
mb_status grammar_state_open(struct grammar_state **out, struct grammar *g, mb_error *err);
/* A second state at the same place, independent from now on. */
mb_status grammar_state_clone(struct grammar_state **out, const struct grammar_state *s, mb_error *err);
/* dst (of the same grammar) moves to where src is; no allocation, cannot fail: resetting a draft's copy. */
void grammar_state_assign(struct grammar_state *dst, const struct grammar_state *src);
void grammar_state_close(struct grammar_state *s); /* NULL is fine */

/* Allowed ids: bit id & 31 of bits[id >> 5]; n_bits bits are written (words = (n_bits + 31) / 32), those at and beyond
 * grammar_vocab_n are 0. End ids are set exactly where the text may end; after an end id was accepted only they are.
 * MB_TOO_LARGE (steps, memory), MB_NO_MEMORY; MB_UNSUPPORTED when no token of the vocabulary can spell what must come. */
mb_status grammar_state_mask(struct grammar_state *s, uint32_t *bits, int32_t n_bits, mb_error *err);

/* The id was drawn. MB_INVALID when it is not allowed here: the state is unchanged. MB_NO_MEMORY, MB_TOO_LARGE: unchanged. */
mb_status grammar_state_accept(struct grammar_state *s, int32_t id, mb_error *err);
/* Bytes that are put in the text without being drawn (jump-forward, a prefilled beginning). All or nothing. */
mb_status grammar_state_accept_bytes(struct grammar_state *s, const char *bytes, size_t len, mb_error *err);

bool grammar_state_is_complete(const struct grammar_state *s); /* the text may end here */
bool grammar_state_must_end(struct grammar_state *s);    /* and nothing else may follow (an end id was accepted, too) */

/* Jump-forward: the bytes that must come next whatever is drawn, written to out (at most cap; the count is returned).
 * 0 when there is a choice, when the text may end here, when a %token comes next, or on a lack of memory. The state does
 * not move: tokenise the bytes, then accept the ids (or accept_bytes). May end inside a character. */
size_t grammar_state_forced(struct grammar_state *s, char *out, size_t cap);

#endif
