/* tmpl_value.h: values of the chat template engine: Python's, as far as templates can see them.
 *
 * A value is 16 bytes, passed by value; what it points to lives in the arena of the render (or of the compiled
 * template for constants) and never changes, except namespaces, cyclers, joiners, loops and iterators.
 * Every value carries an origin: who wrote it. A string may carry a list of runs, each with its own origin.
 * JSON trees of the request are unfolded level by level when they are first looked into (`src`).
 */
#ifndef CHAT_TEMPLATE_TMPL_VALUE_H
#define CHAT_TEMPLATE_TMPL_VALUE_H

#include "chat/template.h"

enum tv_type {
    TV_ABSENT,  /* no value at all: an argument not given, a variable not set */
    TV_HIDDEN,  /* a variable of this scope that is not set yet; it hides outer ones (resolve.c) */
    TV_UNDEF,   /* jinja's Undefined; u.hint says why */
    TV_NONE, TV_BOOL, TV_INT, TV_BIG, TV_FLOAT, TV_STR, TV_LIST, TV_TUPLE, TV_DICT, TV_RANGE,
    TV_ITER,    /* a generator: consumed once */
    TV_VIEW,    /* dict.keys(), .values(), .items() */
    TV_NS, TV_FUNC, TV_METHOD, TV_MACRO, TV_LOOP, TV_CYCLER, TV_JOINER, TV_SLICE,
};

struct tv {
    uint8_t type;
    uint32_t org; /* origin id; 0 is the template */
    union {
        bool b;
        int64_t i;
        double f;
        const char *hint;
        const char *big; /* decimal digits of an integer beyond 64 bits */
        struct tstr *s;
        struct tlist *list; /* LIST and TUPLE */
        struct tdict *dict; /* DICT and NS */
        struct trange *range;
        struct titer *iter;
        struct tview *view;
        const struct func_row *func;
        struct tmethod *method;
        struct tmacro *macro;
        struct tloop *loop;
        struct tcycler *cycler;
        struct tjoiner *joiner;
    } u;
};

struct trun { size_t end; uint32_t org; };
struct tstr {
    const char *ptr;
    size_t len;
    size_t n_chars;      /* == len: all ASCII */
    struct trun *runs;   /* NULL: the whole string has the origin of its value */
    size_t n_runs;
    bool safe;           /* Markup */
};
struct tlist {
    struct tv *items;
    size_t n;
    const json_t *src;   /* not unfolded yet */
    bool group;          /* a (grouper, list) pair of groupby */
};
struct tentry { struct tv key, val; };
struct tdict {
    struct tentry *ents;
    size_t n, cap;
    uint32_t *index;     /* open addressing, n_index slots of entry number + 1; NULL for small ones */
    size_t n_index;
    const json_t *src;
    int32_t i_message;   /* >= 0: the dict is messages[i], its fields get origins of their own */
};
struct trange { int64_t start, stop, step; };
struct titer { struct tlist *list; size_t pos; };
enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct tview { struct tv dict; enum view_kind kind; };
struct tmethod { struct tv self; const struct func_row *func; };
struct tscope;
struct node;
struct tmacro { const struct node *node; struct tscope *scope; const char *name; bool is_caller; };
struct tloop {
    struct tlist *items;  /* those that passed the filter so far (all of them when there is none) */
    struct tlist *source; /* with a filter: all; n_seen of them have been asked */
    size_t n_seen;
    size_t index0;
    uint32_t depth0;
    struct tv changed;   /* a tuple, or ABSENT */
    const struct node *node; /* the for tag */
    struct tscope *scope;    /* where it stands */
};
struct tcycler { struct tlist *items; size_t pos; };
struct tjoiner { struct tv sep; bool used; };

#endif
