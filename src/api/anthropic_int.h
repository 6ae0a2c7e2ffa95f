/* anthropic_int.h: what the files of the Anthropic dialect share. */
#ifndef API_ANTHROPIC_INT_H
#define API_ANTHROPIC_INT_H

#include "api/api_int.h"
#include "api/conversation.h"

struct anthropic_extra {  /* api_request.priv */
    bool warm_up;         /* max_tokens 0: fill the prefix cache, answer nothing (B-032) */
};

extern const struct api_renderer anthropic_renderer;

/* anthropic_blocks.c: `system` and `messages` of a body into c. *prefill: the last message is an assistant's text, which
 * the answer continues. */
mb_status anthropic_history(const struct api_request *r, const json_t *body, struct conversation *c, bool *prefill,
                            mb_error *err);

#endif
