/* grammar_missing.c: until src/grammar/grammar.c is there, every constraint is refused by name. Weak: gone with that file. */
#include "grammar/grammar.h"

#define WEAK __attribute__((weak))

WEAK mb_status grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, const int32_t *end_ids,
                                  int32_t n_end_ids, mb_error *err)
{
    (void)t, (void)end_ids, (void)n_end_ids;
    *out = NULL;
    return mb_fail(err, MB_UNSUPPORTED, "this build has no grammar engine");
}
WEAK void grammar_vocab_close(struct grammar_vocab *v) { (void)v; }
WEAK mb_status grammar_compile(struct grammar **out, struct grammar_vocab *v, const struct grammar_source *src, mb_error *err)
{
    (void)v, (void)src;
    *out = NULL;
    return mb_fail(err, MB_UNSUPPORTED, "this build has no grammar engine");
}
WEAK void grammar_unref(struct grammar *g) { (void)g; }
WEAK size_t grammar_n_unenforced(const struct grammar *g) { (void)g; return 0; }
WEAK const struct grammar_unenforced *grammar_unenforced_get(const struct grammar *g, size_t i) { (void)g, (void)i; return NULL; }
WEAK mb_status grammar_state_open(struct grammar_state **out, struct grammar *g, mb_error *err)
{
    (void)g;
    *out = NULL;
    return mb_fail(err, MB_UNSUPPORTED, "this build has no grammar engine");
}
WEAK void grammar_state_close(struct grammar_state *s) { (void)s; }
WEAK mb_status grammar_state_mask(struct grammar_state *s, uint32_t *bits, int32_t n_bits, mb_error *err)
{
    (void)s, (void)bits, (void)n_bits;
    return mb_fail(err, MB_UNSUPPORTED, "this build has no grammar engine");
}
WEAK mb_status grammar_state_accept(struct grammar_state *s, int32_t id, mb_error *err)
{
    (void)s, (void)id;
    return mb_fail(err, MB_UNSUPPORTED, "this build has no grammar engine");
}
WEAK mb_status grammar_state_accept_bytes(struct grammar_state *s, const char *bytes, size_t len, mb_error *err)
{
    (void)s, (void)bytes, (void)len;
    return mb_fail(err, MB_UNSUPPORTED, "this build has no grammar engine");
}
WEAK bool grammar_state_must_end(struct grammar_state *s) { (void)s; return false; }
