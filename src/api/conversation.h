/* conversation.h: history of the dialects whose turns are lists of blocks or items (Anthropic, Responses), written as the
 * messages array of the waist while the body is walked: no second tree.
 *
 *   - Entries of one role that follow each other are one message, as those protocols define it (and templates that insist
 *     on alternating roles get what they want); the texts of entries are paragraphs.
 *   - Parts of a user or system entry are paragraphs, parts of an assistant entry are put together as they stand.
 *   - Calls belong to the assistant message that they follow, thoughts to the one that follows them.
 *   - A result carries the name of its call, which some templates want.
 * Failures (memory) are asked once, at conversation_finish.
 */
#ifndef API_CONVERSATION_H
#define API_CONVERSATION_H

#include "base/json.h"

struct conversation {
    struct buf list;                        /* finished messages, JSON */
    struct buf system;                      /* text of the system message at the head */
    const char *role;                       /* "user", "assistant": the open message; NULL: none */
    struct buf content, reasoning, calls;   /* of the open message: text, text, JSON */
    const char *sep;                        /* before the next text of it */
    json_t *names;                          /* owned: call id -> name */
    bool begun, answered;                   /* there is an entry; one of the assistant */
    bool failed;
};

void conversation_init(struct conversation *c);
void conversation_free(struct conversation *c);
bool conversation_is_empty(const struct conversation *c); /* nothing but the head */
/* A paragraph of the system message at the head, wherever it is said (API-238). */
void conversation_system(struct conversation *c, struct str text);
/* An entry of "user" or "assistant" (static string) begins. */
void conversation_begin(struct conversation *c, const char *role);
void conversation_text(struct conversation *c, struct str text);      /* a part of the entry */
void conversation_reasoning(struct conversation *c, struct str text); /* an assistant's */
/* A call by the assistant; arguments: an object, or a string that holds one. */
void conversation_call(struct conversation *c, const json_t *id, const char *name, const json_t *arguments);
void conversation_result(struct conversation *c, const json_t *id, struct str text);
/* The JSON array into out, *text points at it. MB_NO_MEMORY. */
mb_status conversation_finish(struct conversation *c, struct buf *out, const char **text, mb_error *err);

#endif
