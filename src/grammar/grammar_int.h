/* grammar_int.h: what the files of this folder share.
 *
 * The way of a source:
 *   ebnf.c, schema*.c, regex.c   text -> expressions (expr.c) in numbered rules of a `struct build`
 *   nfa.c, dfa.c                 each rule -> a deterministic automaton over bytes, rule calls and named tokens
 *   link.c                       all rules -> one `struct program`; what cannot be finished is cut away
 *   machine.c                    a program run over bytes: sets of (state, stack), shared and remembered
 *   mask.c, local.c              a machine walked along the vocabulary's trie (vocab.c)
 *   grammar.c, state.c           the public functions, the cache of compiled grammars
 *
 * A build lives in one arena and remembers its first error (`status`): makers return NULL or an empty thing after a
 * failure, and the one who began asks once at the end. Nothing here recurses deeper than BUILD_MAX_DEPTH.
 */
#ifndef GRAMMAR_GRAMMAR_INT_H
#define GRAMMAR_GRAMMAR_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/json.h"
#include "base/mem.h"
#include "grammar/grammar.h"

#define GRAMMAR_MAX_TEXT ((size_t)4 << 20)      /* bytes of a source */
#define BUILD_MAX_BYTES ((size_t)256 << 20)     /* arena of one compile */
#define BUILD_MAX_DEPTH 200                     /* nesting of groups and expressions */
#define BUILD_MAX_RULES 20000
#define BUILD_MAX_NFA 400000                    /* states of one rule before it is made deterministic */
#define BUILD_MAX_DFA 60000                     /* and after */
#define BUILD_MAX_SUBSETS ((size_t)6 << 20)     /* members of all state sets of one rule */
#define BUILD_MAX_TOTAL_WORK ((size_t)1 << 30)  /* the same, of all rules together */
#define BUILD_MAX_WORK ((size_t)300 << 20)      /* edges looked at while making one rule deterministic */
#define REPEAT_MAX 1000000                      /* the largest count in x{m,n}, maxLength, maxItems */
#define REPEAT_INF UINT32_MAX

/* --- charset.c: sets of characters as sorted ranges --- */
struct crange {
    uint32_t lo, hi;
};
struct cset {
    struct crange *r; /* in the build's arena */
    size_t n, cap;
};
struct build;
void cset_add(struct build *b, struct cset *s, uint32_t lo, uint32_t hi);
void cset_add_set(struct build *b, struct cset *s, const struct cset *other);
void cset_normalize(struct cset *s);                  /* sorted, merged, surrogates removed */
void cset_negate(struct build *b, struct cset *s);    /* of a normalized set */
/* d w s (ECMA-262: d and w are ASCII, s is white space and line ends), D W S. */
bool cset_add_escape(struct build *b, struct cset *s, char letter);
/* A general category "L", "Lu", ... ; false: unknown. */
bool cset_add_category(struct build *b, struct cset *s, const char *name, size_t len);
/* Add the other case of every letter. */
void cset_fold_case(struct build *b, struct cset *s);
/* [lo, hi] as sequences of byte ranges: fn gets each. */
struct utf8_seq {
    uint8_t lo[4], hi[4];
    int n;
};
void utf8_sequences(uint32_t lo, uint32_t hi, void (*fn)(void *ctx, const struct utf8_seq *seq), void *ctx);

/* --- dfa.c: a deterministic automaton; state 0 is the start --- */
struct dfa_edge {
    uint8_t lo, hi;
    uint32_t to;
};
struct dfa_sym { /* a rule call or a named token */
    bool is_token;
    int32_t id;
    uint32_t to;
};
struct dfa_state {
    uint32_t edge0, n_edges, sym0, n_syms;
    bool accept;
};
struct dfa {
    struct dfa_state *states;
    struct dfa_edge *edges; /* of one state: sorted, disjoint */
    struct dfa_sym *syms;
    uint32_t n_states, n_edges, n_syms;
};
enum dfa_op { DFA_AND, DFA_MINUS };
/* Pure automata only (no syms). NULL after a failure. */
struct dfa *dfa_product(struct build *b, const struct dfa *x, const struct dfa *y, enum dfa_op op);
bool dfa_matches(const struct dfa *d, const char *s, size_t len);
bool dfa_is_empty(const struct dfa *d); /* of a trimmed one */
/* Without states that cannot accept (sym_ok: which rules can be finished, NULL = all) and with equal states merged. */
struct dfa *dfa_trim(struct build *b, const struct dfa *d, const bool *rule_ok);
/* Does the automaton accept infinitely many / what is its longest word in characters (-1: no limit)? */
int64_t dfa_max_bytes(struct build *b, const struct dfa *d);
uint32_t dfa_next(const struct dfa *d, uint32_t state, uint8_t byte); /* UINT32_MAX: none */

/* --- expr.c: what a rule matches --- */
enum expr_kind { EX_NOTHING, EX_EMPTY, EX_BYTES, EX_CLASS, EX_SEQ, EX_ALT, EX_REPEAT, EX_RULE, EX_TOKEN, EX_DFA, EX_GRAPH, EX_BOL, EX_EOL };
enum text_form {
    FORM_RAW,  /* characters as UTF-8 */
    FORM_JSON  /* as they stand in a JSON string, each in one form: literal, or the short escape, or \u00XX */
};
struct graph_edge {
    uint32_t from, to;
    struct expr *label;
};
struct graph { /* node 0 is the beginning, node 1 the end; loops are welcome */
    struct graph_edge *edges;
    size_t n_edges, cap_edges;
    uint32_t n_nodes;
    uint32_t size;
};
struct expr {
    enum expr_kind kind;
    uint32_t lo, hi;      /* EX_REPEAT */
    int32_t id;           /* EX_RULE, EX_TOKEN */
    uint32_t size;        /* rough number of states it will take */
    enum text_form form;  /* EX_CLASS */
    const char *bytes;    /* EX_BYTES */
    size_t len;           /* EX_BYTES; number of items of EX_SEQ, EX_ALT */
    struct cset set;      /* EX_CLASS, normalized */
    struct expr **items;  /* EX_SEQ, EX_ALT; EX_REPEAT: items[0] */
    const struct dfa *dfa;
    const struct graph *graph;
};
struct expr *expr_nothing(struct build *b);
struct expr *expr_empty(struct build *b);
struct expr *expr_bytes(struct build *b, const char *s, size_t len); /* copied */
struct expr *expr_lit(struct build *b, const char *s);
struct expr *expr_class(struct build *b, const struct cset *set, enum text_form form);
struct expr *expr_seq2(struct build *b, struct expr *x, struct expr *y);
struct expr *expr_seq(struct build *b, int n, ...);
struct expr *expr_alt2(struct build *b, struct expr *x, struct expr *y);
/* Large counts become a counting rule when b->counters, else they are written out. */
struct expr *expr_repeat(struct build *b, struct expr *x, uint32_t lo, uint32_t hi);
/* Always counted at run time (small counts excepted). */
struct expr *expr_counted(struct build *b, struct expr *x, uint32_t lo, uint32_t hi);
struct expr *expr_opt(struct build *b, struct expr *x);
struct expr *expr_rule(struct build *b, int32_t rule);
struct expr *expr_token(struct build *b, int32_t id);
struct expr *expr_dfa(struct build *b, const struct dfa *d);
void graph_edge_add(struct build *b, struct graph *g, uint32_t from, uint32_t to, struct expr *label);
struct expr *expr_graph(struct build *b, const struct graph *g); /* copied */
struct expr *expr_mark(struct build *b, enum expr_kind bol_or_eol);

/* A growing list of expressions. */
struct expr_list {
    struct expr **items;
    size_t n, cap;
};
void expr_list_add(struct build *b, struct expr_list *l, struct expr *x);
struct expr *expr_seq_list(struct build *b, const struct expr_list *l);
struct expr *expr_alt_list(struct build *b, const struct expr_list *l);

/* --- the build --- */
struct build_rule {
    const char *name;     /* for errors; may be NULL */
    struct expr *body;    /* NULL: not yet given */
    bool is_repeat;       /* body_rule{lo,hi}, counted at run time */
    int32_t body_rule;
    uint32_t lo, hi;
    struct dfa *dfa;
};
struct unenforced_list {
    struct grammar_unenforced *items; /* strings in the build's arena */
    size_t n, cap;
};
struct build {
    struct arena a;
    mb_error *err;        /* receives the first error; never NULL */
    mb_status status;
    struct grammar_vocab *vocab;
    bool strict;
    bool counters;        /* expr_repeat may make rules */
    struct build_rule *rules;
    size_t n_rules, cap_rules;
    struct unenforced_list unenforced;
    size_t work;          /* of all rules so far */
    size_t work_asked;    /* when `stopped` was asked last */
    bool (*stopped)(void *ctx);
    void *ctx;
    struct category { char name[4]; struct cset set; } categories[40]; /* general categories already made */
    size_t n_categories;
    int32_t rule_json_string, rule_json_char, rule_json_number, rule_json_integer, rule_json_value, rule_json_object,
        rule_json_indent, rule_key_rest;  /* -1: not made */
};
mb_status build_init(struct build *b, struct grammar_vocab *v, bool strict, mb_error *err);
void build_free(struct build *b);
/* So much work has been done: too much of it fails, and so does a compile that nobody waits for any more. */
void build_spend(struct build *b, size_t work, const char *what);
/* Remember the first error; returns its code. */
mb_status build_fail(struct build *b, mb_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *build_alloc(struct build *b, size_t n, size_t size); /* zeroed; NULL after recording MB_NO_MEMORY or MB_TOO_LARGE */
/* Room for one more in an arena vector; the new address, NULL on failure. */
void *build_grow(struct build *b, void *items, size_t n, size_t *cap, size_t size);
int32_t build_rule_new(struct build *b, const char *name);     /* -1 on failure */
int32_t build_rule_of(struct build *b, const char *name, struct expr *body);
void build_unenforced(struct build *b, const char *keyword, const char *path, const char *why);

/* nfa.c. search: the expression may match anywhere (JSON Schema's pattern); else the whole text. */
struct expr *expr_searched(struct build *b, struct expr *x, enum text_form form); /* any* x any* */
struct dfa *dfa_of_expr(struct build *b, const struct expr *x, bool search, enum text_form form, const char *what);

/* regex.c: an expression of an ECMA-262 style pattern. what: for errors ("#/properties/a: pattern"). */
struct expr *regex_parse(struct build *b, const char *text, size_t len, enum text_form form, bool counted, const char *what);
struct expr *regex_rule(struct build *b, const char *text, size_t len, bool search, enum text_form form, const char *what);
struct dfa *regex_dfa(struct build *b, const char *text, size_t len, bool search, enum text_form form, const char *what);

/* ebnf.c, choice.c, schema.c: the source's start rule; -1 after a failure. */
int32_t ebnf_compile(struct build *b, const char *text, size_t len);
int32_t choice_compile(struct build *b, const char *text, size_t len, const char *what);
int32_t schema_compile(struct build *b, json_t *schema); /* the root; borrowed for the build */
struct expr *until_expr(struct build *b, const char *text, size_t len);

/* json_rules.c: free JSON. */
struct expr *json_ws(struct build *b);          /* "", " " or a line end with an indent */
struct expr *json_string_rule(struct build *b); /* with its quotes, every legal escape */
struct expr *json_number_rule(struct build *b);
struct expr *json_integer_rule(struct build *b);
struct expr *json_value_rule(struct build *b);
struct expr *json_object_rule(struct build *b);
struct expr *json_string_chars(struct build *b, uint32_t lo, uint32_t hi); /* quoted, lo..hi characters */
struct expr *json_literal(struct build *b, const json_t *v); /* the value written out, white space free */
struct dfa *json_any_string_dfa(struct build *b);            /* inside of the quotes, FORM_JSON */
struct dfa *json_text_dfa(struct build *b, const char *s, size_t len); /* exactly this text, FORM_JSON */
void json_text_form(struct buf *out, const char *s, size_t len); /* s as FORM_JSON spells it, without quotes */

/* --- link.c: the program --- */
struct pstate {
    uint32_t edge0, sym0;
    uint16_t n_edges; /* at most 256 */
    bool accept, only_accept, wide, has_tokens;
    uint32_t n_syms;
    uint32_t rule;    /* whose it is */
};
struct prule {
    uint32_t start, n_states;
    bool is_repeat;
    bool pure;        /* bytes alone: what is learnt about it holds in every grammar */
    uint32_t body_rule, lo, hi;
    uint64_t hash[2]; /* of a pure rule's automaton */
};
struct program {
    struct pstate *states;
    struct dfa_edge *edges;
    struct dfa_sym *syms;
    struct prule *rules;
    uint32_t n_states, n_edges, n_syms, n_rules, root;
    void *block;      /* owns the arrays */
    size_t bytes;
};
mb_status program_link(struct program *p, struct build *b, int32_t root, mb_error *err);
void program_free(struct program *p);

/* --- vocab.c --- */
struct trie_node { /* preorder; node 0 is the root */
    uint32_t size;   /* nodes of the subtree, itself included */
    int32_t token;   /* first id with these bytes, TRIE_MORE added when there are others; -1 none: token_first, token_next */
    uint16_t depth;
    uint8_t byte;
    uint8_t below;   /* classes (byte_class) of all bytes of the subtree, itself excluded */
};
#define TRIE_MORE (1 << 30)
/* Bytes in eight classes, as bits: a-z, A-Z, 0-9, space, the rest of ASCII that a JSON string takes as it is, quote and
 * backslash, control characters, and what is beyond ASCII. */
uint8_t byte_class(uint8_t byte);
struct local;
struct counted;
struct grammar_vocab {
    int n_refs;            /* under lock */
    pthread_mutex_t lock;  /* refs, compiled grammars, locals */
    int32_t n_vocab, n_end;
    int32_t *end_ids;
    struct trie_node *nodes;
    uint32_t n_nodes;
    int32_t *same;         /* [n_vocab] next id with the same bytes, -1 */
    uint8_t *bytes;        /* all tokens' bytes, one after the other */
    uint32_t *offs;        /* [n_vocab + 1] */
    uint8_t *added;        /* [n_vocab] 1: only by name; 2: cannot be drawn (no bytes) */
    uint32_t max_len;      /* of a text token, bytes */
    struct grammar **cached; /* compiled, newest first; one reference each */
    size_t n_cached;
    struct local **locals; /* shared knowledge about pure rules, newest first */
    size_t n_locals, locals_bytes;
    struct counted *counted[8]; /* shared, kept for good */
    size_t n_counted;
};
/* All ids of a node: for (id = token_first(n); id >= 0; id = token_next(v, n, id)); most have one, without a look at `same`. */
static inline int32_t token_first(const struct trie_node *n)
{
    return n->token < 0 ? -1 : n->token & ~TRIE_MORE;
}
static inline int32_t token_next(const struct grammar_vocab *v, const struct trie_node *n, int32_t id)
{
    return n->token & TRIE_MORE ? v->same[id] : -1;
}
int32_t vocab_find_added(const struct grammar_vocab *v, const char *text, size_t len); /* -1 */
struct grammar_vocab *vocab_ref(struct grammar_vocab *v);

/* --- machine.c --- */
enum { CELL_EMPTY = 0, CELL_LOCAL = 1 };
#define CELL_COUNT 0x80000000u /* in cell.ret: a counting rule, not a state */
struct cell {
    uint32_t ret;     /* state to go on with, or rule | CELL_COUNT */
    uint32_t parent;
    uint32_t count;   /* counting rule: iterations begun */
    uint32_t abs;     /* the same stack with counts that cannot matter within one token made equal */
    uint32_t next;    /* hash chain */
};
struct item {
    uint32_t state, stack;
};
enum { CONFIG_DEAD = 0, CONFIG_UNKNOWN = UINT32_MAX };
enum { CF_COMPLETE = 1, CF_EXITS = 2, CF_TOKENS = 4 };
struct mask;
struct frontier { /* trie nodes */
    uint32_t *nodes;
    uint32_t n, cap;
};
struct config {
    struct item *items;   /* sorted; in the machine's pool */
    uint32_t n_items, flags, hash, hash_next;
    uint32_t abs;         /* CONFIG_UNKNOWN until asked */
    uint8_t self;         /* classes all of whose bytes lead back here */
    bool self_known;
    int only;             /* the one possible byte, -1 none or several, -2 unknown */
    uint32_t only_next;
    uint32_t *next;       /* [256] or NULL */
    struct mask *mask;    /* of this (abs) configuration */
};
struct machine {
    const struct program *p;
    struct grammar_vocab *v;
    struct grammar_limits limits;
    struct cell *cells;
    uint32_t n_cells, cap_cells, *cell_hash, cell_buckets;
    struct config *configs;
    uint32_t n_configs, cap_configs, *config_hash, config_buckets;
    struct arena items;     /* item arrays of configs */
    size_t bytes;           /* of cells and configurations */
    size_t steps;           /* left in the current job */
    mb_status status;       /* first failure of the current job */
    struct item *work;      /* closure scratch [limits.max_items] */
    uint32_t n_work;
    bool work_full;         /* more than max_items */
    bool overflowed;        /* it has happened: what was refused since may have been for that */
    uint32_t *work_hash, work_hash_size, work_stamp; /* open addressing over work; entries are stamp-tagged */
    uint32_t *work_tag;
    struct mask **masks;    /* all, for eviction */
    uint32_t n_masks, cap_masks;
    size_t mask_bytes;
    struct local **locals;  /* [n_states], NULL until the first */
    size_t local_bytes;     /* of those that only this machine holds */
    struct counted **counted; /* [n_rules], NULL until the first */
    struct counted **own_counted; /* those that are not shared */
    uint32_t n_own_counted;
    uint32_t *bits, *out;   /* scratch [n_words]: of learning a state, of a mask */
    uint32_t *depth_config; /* scratch [2 * (max_len + 2)] */
    bool learning;          /* a state is being learnt as the base of another */
    struct frontier frontier;
    uint64_t hits, misses, collections;
};
mb_status machine_init(struct machine *m, const struct program *p, struct grammar_vocab *v,
                       const struct grammar_limits *limits);
void machine_free(struct machine *m);
void machine_begin(struct machine *m);                  /* a new job: steps and status */
bool machine_spend(struct machine *m, size_t steps);    /* false: none left, m->status says so */
uint32_t machine_start(struct machine *m);              /* configuration at the beginning; DEAD after a failure */
uint32_t machine_item(struct machine *m, struct item x); /* that item alone, as it stands in a closed configuration */
uint32_t machine_pop(struct machine *m, uint32_t stack);   /* behind the rule that this stack returns to */
uint32_t machine_subset(struct machine *m, uint32_t config, bool wide); /* only its wide / narrow items */
uint32_t machine_next(struct machine *m, uint32_t config, uint8_t byte);
uint8_t machine_self(struct machine *m, uint32_t config); /* config.self, asked once */
uint32_t machine_token(struct machine *m, uint32_t config, int32_t id); /* named tokens */
uint32_t machine_abs(struct machine *m, uint32_t config);
int machine_only(struct machine *m, uint32_t config);   /* the one byte that can follow, or -1 */
/* Keep only what these configurations need; *roots[i] are renumbered. */
mb_status machine_collect(struct machine *m, uint32_t **roots, size_t n_roots);

/* --- mask.c --- */
struct mask { /* sparse: ids; dense: words */
    uint32_t config;
    uint32_t n_ids;
    bool dense;
    uint32_t data[];
};
/* Bits of the configuration into bits [n_words]; m->status tells a failure. */
void mask_get(struct machine *m, uint32_t config, uint32_t *bits, size_t n_words);
void mask_drop_all(struct machine *m);
/* Tokens below `node` of the trie that `config`, standing there, lets through; with a frontier, also the nodes where
 * the local configuration may leave its rule and tokens go on. */
void frontier_add(struct machine *m, struct frontier *f, uint32_t node);
void trie_walk(struct machine *m, uint32_t node, uint32_t config, uint32_t *bits, struct frontier *f);

/* local.c: what a state lets through without looking at the stack, and where it needs the stack. */
struct local {
    int n_refs;            /* under the vocabulary's lock */
    uint64_t hash[2];      /* of the rule, when shared */
    uint32_t state;        /* inside the rule */
    uint32_t *bits;        /* [n_words] tokens that end inside (or exactly at the end of) the rule */
    uint32_t *frontier;    /* trie nodes where the rule may end and the token goes on */
    uint32_t n_frontier;
    size_t bytes;
};
const struct local *local_get(struct machine *m, uint32_t state); /* NULL: walk without (m->status: or a failure) */
void local_drop_all(struct machine *m);
void local_free(struct local *l);

/* counted.c: tokens over repetitions of one rule whose texts never begin one another (a character, a class). */
struct counted {
    uint64_t hash[2];      /* of the rule */
    bool usable;           /* false: the rule is not of that kind */
    uint32_t max;          /* most iterations that a token begins */
    uint32_t n_words;
    uint32_t *bits;        /* tokens that never leave the repetition */
    uint32_t *ids, *from;  /* those, by iterations begun: ids[from[k] .. from[k + 1]) begin k; k = 0 .. max */
    struct counted_exit {  /* trie nodes at the end of an iteration whose tokens may go on otherwise */
        uint32_t node, at; /* at: iterations begun */
        uint64_t leave;    /* bit byte & 63 of each byte that follows there and begins no iteration */
    } *exits;
    uint32_t n_exits;
    uint8_t first[32];     /* bytes that begin the rule */
};
const struct counted *counted_get(struct machine *m, uint32_t body_rule); /* NULL: unusable, or a failure */
void counted_free(struct counted *t);
void counted_drop_all(struct machine *m);
/* Tokens of an item that stands at the beginning of an iteration, into bits; false: not of that kind, nothing done. */
bool counted_mask(struct machine *m, struct item x, uint32_t *bits, size_t n_words);

/* --- grammar.c --- */
/* Learn what every grammar of JSON asks (the inside of strings), so that no first mask waits for it. */
mb_status grammar_vocab_warm(struct grammar_vocab *v, mb_error *err);

struct grammar {
    int n_refs;                /* under the vocabulary's lock */
    struct grammar_vocab *vocab;
    enum grammar_kind kind;
    bool strict;
    char *text;
    size_t len;
    struct program program;
    struct arena strings;      /* of the unenforced list */
    struct grammar_unenforced *unenforced;
    size_t n_unenforced;
    pthread_mutex_t lock;      /* machine and states */
    struct machine machine;
    struct grammar_state *states; /* all that run, for collection */
    uint64_t compile_ns;
    atomic_bool from_cache;
    atomic_size_t held;        /* bytes of the machine after its last job */
};
struct grammar_state {
    struct grammar *g;
    uint32_t config;
    bool finished;             /* an end id was accepted */
    bool complete;             /* of config */
    struct grammar_state *prev, *next;
};

#endif
