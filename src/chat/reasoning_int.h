/* reasoning_int.h: what reasoning.c and channels.c share. */
#ifndef CHAT_REASONING_INT_H
#define CHAT_REASONING_INT_H

#include "chat/reasoning.h"

enum channel_sign { SIGN_START, SIGN_CHANNEL, SIGN_CONSTRAIN, SIGN_MESSAGE, SIGN_END, SIGN_CALL, SIGN_RETURN, N_CHANNEL_SIGNS };

/* Emit what is in r->out as what r->inside says. */
void reasoning_flush(struct reasoning *r);

const char *channels_sign(size_t i); /* NULL: no more */
enum reasoning_start channels_start(const char *text, size_t len);
void channels_init(struct reasoning *r, enum reasoning_start start);
void channels_marker(struct reasoning *r, size_t i);
void channels_put(struct reasoning *r, const char *text, size_t len);
void channels_feed(struct reasoning *r, char c);

#endif
