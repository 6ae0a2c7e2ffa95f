/* backends.c: the table of backends. */
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

#define REMEDY "use cpu, cuda, cuda:N (cuda:0 is the first card) or cuda:N,M (a rank on each of these cards)"

static const struct ops *const backends[] = { &ops_cpu, &ops_cuda };

static const struct ops *find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strlen(backends[i]->name) == len && memcmp(backends[i]->name, name, len) == 0) return backends[i];
    return NULL;
}

/* What may follow the cards, each word once: /nccl (of several), /steps. */
static bool parse_words(const char *text, struct device_options *opt)
{
    while (*text == '/') {
        size_t len = strcspn(++text, "/");
        bool *to = len == 4 && memcmp(text, "nccl", 4) == 0 && opt->n_ranks > 1 ? &opt->nccl : len == 5 && memcmp(text, "steps", 5) == 0 ? &opt->no_graphs : NULL;
        if (!to || *to) return false;
        *to = true;
        text += len;
    }
    return *text == '\0';
}

/* "0", "0,1", "0,1/nccl": the cards to opt; false: it is no such list. */
static bool parse_cards(const char *text, struct device_options *opt)
{
    for (opt->n_ranks = 0;; text++) {
        char *end;
        long n = strtol(text, &end, 10);
        if (*text < '0' || *text > '9' || n >= 1024 || opt->n_ranks == OPS_RANKS_MAX) return false;
        opt->cards[opt->n_ranks++] = (int)n;
        text = end;
        if (*text != ',') break;
    }
    opt->ordinal = opt->cards[0];
    return parse_words(text, opt);
}

/* Every card once, or one card alone: a rank for each. */
static bool cards_agree(const struct device_options *opt)
{
    bool once = true, one = true;
    for (int i = 0; i < opt->n_ranks; i++)
        for (int j = 0; j < i; j++) {
            once = once && opt->cards[i] != opt->cards[j];
            one = one && opt->cards[i] == opt->cards[j];
        }
    return once || one;
}

mb_status ops_parse(const char *text, const struct ops **out, struct device_options *opt, mb_error *err)
{
    size_t len = text ? strcspn(text, ":") : 0;
    opt->ordinal = opt->cards[0] = 0;
    opt->n_ranks = 1;
    opt->nccl = opt->no_graphs = false;
    *out = text ? find(text, len) : backends[0];
    if (!*out) return mb_fail_at(err, MB_UNSUPPORTED, "device", "device %.32s is not in this build; " REMEDY, text);
    if (!text || text[len] == '\0') return MB_OK;
    bool list = *out == &ops_cuda && parse_cards(text + len + 1, opt);
    *out = !list ? NULL : opt->n_ranks > 1 ? &ops_cuda_ranks : &ops_cuda;
    if (!list) return mb_fail_at(err, MB_INVALID, "device", "device %.32s is not a device, or names more than %d; " REMEDY, text, OPS_RANKS_MAX);
    if (!cards_agree(opt)) {
        *out = NULL;
        return mb_fail_at(err, MB_INVALID, "device", "device %.32s names a card twice beside others; name each card once (cuda:0,1), or one "
                          "card alone for ranks that share it (cuda:0,0)", text);
    }
    return MB_OK;
}
