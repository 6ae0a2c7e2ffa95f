/* markdown.c: see markdown.h. A run of three or more backticks at the start of a line opens a fence, one at least as long
 * closes it; elsewhere a run opens a span and an equal run closes it; a span ends with its line. */
#include "chat/markdown.h"

void markdown_init(struct markdown *m)
{
    *m = (struct markdown){ .line_start = true };
}

static void end_run(struct markdown *m)
{
    int run = m->run;
    m->run = 0;
    if (run == 0) return;
    if (run >= 3 && m->run_at_start) {
        if (!m->fence) m->fence = true, m->fence_len = run;
        else if (run >= m->fence_len) m->fence = false;
    } else if (!m->fence) {
        if (m->span == 0) m->span = run;
        else if (m->span == run) m->span = 0;
    }
}

void markdown_feed(struct markdown *m, char c)
{
    if (c == '`') {
        if (m->run++ == 0) m->run_at_start = m->line_start;
        m->line_start = false;
        return;
    }
    end_run(m);
    if (c == '\n') m->line_start = true, m->span = 0;
    else if (c != ' ') m->line_start = false;
}

bool markdown_in_code(struct markdown *m)
{
    end_run(m);
    return m->fence || m->span != 0;
}
