/* progress.c: see cli.h. A bar redrawn in place on a terminal; elsewhere whole lines, at most one in five seconds. What is
 * over within half a second never shows. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

#define QUIET_NS 500000000
#define REDRAW_NS 50000000
#define LINE_NS 5000000000
#define BAR_CELLS 30

void progress_begin(struct progress *p, const char *what, bool quiet)
{
    *p = (struct progress){ .what = what, .quiet = quiet, .is_tty = isatty(STDERR_FILENO) == 1, .last_percent = -1,
                            .t_begin_ns = clock_now_ns() };
    p->t_last_ns = p->t_begin_ns;
}

static void draw(struct progress *p, double fraction)
{
    char bar[BAR_CELLS + 1];
    int full = (int)(fraction * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++) bar[i] = i < full ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\r%s [%s] %3d %%", p->what, bar, (int)(fraction * 100));
    fflush(stderr);
}

void progress_set(void *progress, double fraction)
{
    struct progress *p = progress;
    int64_t now = clock_now_ns();
    if (p->quiet || !(fraction >= 0)) return;
    if (fraction > 1) fraction = 1;
    int percent = (int)(fraction * 100);
    if (now - p->t_begin_ns < QUIET_NS || percent == p->last_percent) return;
    if (now - p->t_last_ns < (p->is_tty ? REDRAW_NS : LINE_NS)) return;
    p->t_last_ns = now;
    p->last_percent = percent;
    p->shown = true;
    if (p->is_tty) draw(p, fraction);
    else fprintf(stderr, "%s: %d %%\n", p->what, percent);
}

void progress_end(struct progress *p)
{
    if (!p->shown || !p->is_tty) return;
    fprintf(stderr, "\r%*s\r", (int)strlen(p->what) + BAR_CELLS + 10, "");
    fflush(stderr);
}
