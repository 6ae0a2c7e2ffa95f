/* markdown.h: are we inside a Markdown code span or fence? Fed byte by byte; counters only. */
#ifndef CHAT_MARKDOWN_H
#define CHAT_MARKDOWN_H

#include <stdbool.h>

struct markdown {
    bool fence, line_start, run_at_start;
    int run, fence_len, span;
};

void markdown_init(struct markdown *m);
void markdown_feed(struct markdown *m, char c);
bool markdown_in_code(struct markdown *m);

#endif
