/* responses_int.h: what the files of the Responses dialect share. */
#ifndef API_RESPONSES_INT_H
#define API_RESPONSES_INT_H

#include "api/api_int.h"
#include "api/conversation.h"
#include "host/response_store.h"

/* Reasoning travels back in this form when the client asks for reasoning.encrypted_content and stores nothing here: the
 * mark, then the text. It is not encrypted; the client has seen the same text in the stream. */
#define RESPONSES_SEALED "mlx-bun.reasoning.v1:"

struct responses_extra {      /* api_request.priv */
    bool store;               /* keep the response under its id */
    bool want_sealed;         /* include: reasoning.encrypted_content */
    bool want_summary;        /* reasoning.summary: the thought goes there */
    struct buf echo;          /* members of the response object that repeat the request: ", \"name\": value" each */
    struct buf input;         /* JSON array of all input items, earlier responses included; only when stored */
    struct buf instructions;  /* text; carried forward (API-246) */
    json_t *names;            /* owned: name that the model sees -> [namespace, name]; NULL: no namespace tools */
};

extern const struct api_renderer responses_renderer;

/* responses_input.c: input, instructions and what previous_response_id names, into r->messages and priv. */
mb_status responses_input(struct api_request *r, json_t *body, mb_error *err);
/* responses_tools.c: tools, tool_choice, parallel_tool_calls. */
mb_status responses_tools(struct api_request *r, const json_t *body, mb_error *err);
/* The name that the model sees: namespace and name joined by "__"; space NULL: name. Arena memory, NULL: none left. */
const char *responses_tool_name(struct arena *a, const char *space, const char *name);

#endif
