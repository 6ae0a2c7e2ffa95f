/* schema_int.h: what the schema files share.
 *
 *   schema_keywords.c  the table of keywords; the check of a whole schema against it (and where each subschema lies)
 *   schema_ref.c       $id, $anchor, $ref
 *   schema.c           a value: conjunctions of schemas, their choices, rules remembered by what they must satisfy
 *   schema_object.c, schema_array.c, schema_string.c, schema_number.c, schema_format.c   one kind of value each
 *   schema_negate.c    the opposite of a schema, as a schema
 *   schema_valid.c     is a given value valid? (which members of an enum remain)
 *   schema_disjoint.c  can two branches of a oneOf both hold?
 *
 * Everything lives in the build's arena, except JSON made here (`owned`, released at the end). Keywords of our own, which
 * no client can write because the check refuses them, begin with '%'.
 */
#ifndef GRAMMAR_SCHEMA_INT_H
#define GRAMMAR_SCHEMA_INT_H

#include "grammar/grammar_int.h"

#define KEY_NOT_ENUM "%notEnum"       /* values that the value must differ from */
#define KEY_NOT_PATTERN "%notPattern" /* patterns that a string must not match */

enum { T_NULL = 1, T_BOOL = 2, T_OBJECT = 4, T_ARRAY = 8, T_STRING = 16, T_INT = 32, T_FRACTION = 64, T_ALL = 127 };

struct place { /* where a schema object lies */
    const json_t *schema;
    const char *path;  /* "#/properties/a" */
    const char *base;  /* URI that its references are relative to, "" none */
};
struct named_place {
    const char *uri; /* absolute, with #anchor */
    json_t *schema;
    bool dynamic;
};
struct memo {
    json_t **schemas; /* sorted */
    size_t n;
    int32_t rule;
    struct expr *inline_expr; /* small bodies are put in place */
    bool done;
};
struct sctx {
    struct build *b;
    json_t *root;
    const char *at;              /* path of the schema being worked on, for errors */
    struct place *places;        /* open addressing by pointer */
    size_t n_places, cap_places;
    struct named_place *names;
    size_t n_names, cap_names;
    json_t **owned;
    size_t n_owned, cap_owned;
    struct memo *memos;
    size_t n_memos, cap_memos;
    uint32_t *memo_hash;         /* memo index + 1 */
    size_t n_memo_hash;
    struct { json_t *schema, *negated; } *negations;
    size_t n_negations, cap_negations;
    size_t next_queued;          /* memos below are compiled */
    int depth;
    bool formats_unknown;        /* schema_valid: a format decides nothing (for many readers it is an annotation) */
    bool undecided;              /* schema_valid met a keyword that is not enforced: what it says may be otherwise */
    bool has_unevaluated;        /* then it matters which of several branches hold */
    size_t n_branches;           /* of the value being compiled */
    size_t next_member;          /* schema_valid: of an enum, likely to be asked about next */
    size_t valid_work;           /* schema_valid: comparisons so far */
};

/* One schema of a conjunction. */
struct node {
    json_t *schema;
    int parent;   /* the node that brought it in place, -1 none */
    bool silent;  /* from a negation: its properties do not count as evaluated */
};
struct choice {
    json_t **branches;  /* schemas; json true and false included */
    json_t **extra;     /* a second schema of the branch, NULL entries none */
    size_t n;
    int parent;
    bool silent;        /* all of it */
    int silent_branch;  /* the one from a negation, -1 none */
    bool silent_extra;
};
struct conj {
    struct node *nodes;
    size_t n, cap;
    struct choice *choices;
    size_t n_choices, cap_choices;
    bool impossible;
};

/* schema_keywords.c */
bool schema_check(struct sctx *c, json_t *schema, const char *path, const char *base); /* false: build has failed */
const struct place *schema_place(const struct sctx *c, const json_t *schema); /* NULL unknown */
const char *schema_path(const struct sctx *c, const json_t *schema);
/* schema_ref.c */
const char *uri_resolve(struct build *b, const char *base, const char *ref);
json_t *schema_ref_target(struct sctx *c, json_t *schema); /* target of $ref; NULL none, not enforced (or failure) */
json_t *schema_dynamic_target(struct sctx *c, json_t *schema);
/* schema.c */
json_t *schema_own(struct sctx *c, json_t *made); /* takes the reference; NULL after a failure */
struct expr *schema_value(struct sctx *c, json_t **schemas, size_t n); /* a value that satisfies all */
bool schema_is_false(const json_t *s);
void schema_unenforced(struct sctx *c, const json_t *schema, const char *keyword, const char *why);
int schema_types(const json_t *type); /* of the value of `type` */
/* the parts */
struct expr *schema_object(struct sctx *c, const struct conj *j);
struct expr *schema_array(struct sctx *c, const struct conj *j);
struct expr *schema_string(struct sctx *c, const struct conj *j);
struct dfa *schema_string_dfa(struct sctx *c, const struct conj *j); /* no quotes; NULL: any */
struct expr *schema_number(struct sctx *c, const struct conj *j, int types);
/* The strings (FORM_JSON, no quotes) that satisfy all; NULL: any string, or what they say is listed as unenforced. */
struct dfa *schema_names_dfa(struct sctx *c, json_t **schemas, size_t n);
struct dfa *schema_pattern(struct sctx *c, const json_t *schema, const char *pattern, size_t len);
const char *format_pattern(const char *name);               /* NULL: not one that is enforced */
struct expr *format_expr(struct build *b, const char *name); /* NULL: not one that is enforced */
json_t *schema_negate(struct sctx *c, json_t *schema);      /* borrowed; NULL: cannot (no failure) or failure */
bool schema_valid(struct sctx *c, json_t *schema, const json_t *value, int depth);
bool schema_excludes(struct sctx *c, json_t *schema, const json_t *value); /* not valid, whatever is not enforced would say */
bool schema_disjoint(struct sctx *c, json_t *x, json_t *y, int types, int depth); /* for values of these types */
int schema_possible_types(struct sctx *c, json_t *s, int depth);
bool json_same(const json_t *x, const json_t *y); /* equal as JSON Schema compares: 1 = 1.0 */
json_t *object_get(const json_t *o, const char *key, size_t len);
int64_t count_of(const json_t *v); /* of a checked count keyword */

#endif
