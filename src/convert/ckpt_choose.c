/* ckpt_choose.c: see ckpt_choose.h. */
#include "convert/ckpt_choose.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX 4096

struct choosing {
    struct mixed_module *modules;
    size_t n;
    uint64_t room;               /* left */
    double target;
    int n_blocks;
    bool raised[BLOCKS_MAX];     /* its floor is CHOOSE_LOW, so that it ends a run */
};

int choose_block_of(const char *path)
{
    const char *at = strstr(path, "layers.");
    char *end;
    if (!at || (at > path && at[-1] != '.')) return -1;
    long v = strtol(at + 7, &end, 10);
    return end > at + 7 && *end == '.' && v >= 0 && v < BLOCKS_MAX ? (int)v : -1;
}

/* --- steps --- */

static double slope(const struct choice *c)
{
    return (c[0].loss - c[1].loss) / (double)(c[1].bytes - c[0].bytes);
}

static uint64_t step_bytes(const struct mixed_module *m)
{
    return m->choice[m->i_now + 1].bytes - m->choice[m->i_now].bytes;
}

static bool can_step(const struct choosing *k, const struct mixed_module *m)
{
    return m->i_now + 1 < m->n_choices && step_bytes(m) <= k->room;
}

static void take_step(struct choosing *k, struct mixed_module *m)
{
    k->room -= step_bytes(m);
    m->i_now++;
}

/* The step that saves most loss a byte and fits, of one block or of all (-2); the first of equals. NULL: none. */
static struct mixed_module *best_step(struct choosing *k, int block)
{
    struct mixed_module *best = NULL;
    double most = 0;
    for (size_t i = 0; i < k->n; i++) {
        struct mixed_module *m = &k->modules[i];
        if ((block != -2 && m->block != block) || !can_step(k, m)) continue;
        double s = slope(&m->choice[m->i_now]);
        if (best && s <= most) continue;
        best = m;
        most = s;
    }
    return best;
}

/* --- guards --- */

/* Mean bits a weight of a block as it is now; < 0: it has no modules. */
static double block_bits(const struct choosing *k, int block)
{
    uint64_t bytes = 0;
    int64_t weights = 0;
    for (size_t i = 0; i < k->n; i++) {
        const struct mixed_module *m = &k->modules[i];
        if (m->block != block) continue;
        bytes += m->choice[m->i_now].bytes;
        weights += m->n_weights;
    }
    return weights > 0 ? 8 * (double)bytes / (double)weights : -1;
}

static void protect(struct choosing *k)
{
    for (size_t i = 0; i < k->n; i++) {
        struct mixed_module *m = &k->modules[i];
        if (m->block > 0 && m->block < k->n_blocks - 1) continue;
        while (m->choice[m->i_now].spec.bits < CHOOSE_PROTECTED_BITS && can_step(k, m)) take_step(k, m);
    }
}

static void raise_block(struct choosing *k, int block)
{
    double floor = k->target * (k->raised[block] ? CHOOSE_LOW : CHOOSE_FLOOR), now;
    while ((now = block_bits(k, block)) >= 0 && now < floor) {
        struct mixed_module *m = best_step(k, block);
        if (!m) return;
        take_step(k, m);
    }
}

/* The block that ends the first run that is too long; -1: there is none. */
static int run_find(const struct choosing *k)
{
    int n_low = 0;
    for (int b = 0; b < k->n_blocks; b++) {
        double bits = block_bits(k, b);
        bool low = bits >= 0 && bits < k->target * CHOOSE_LOW;
        n_low = low ? n_low + 1 : 0;
        if (n_low > CHOOSE_RUN_MAX && !k->raised[b]) return b;
    }
    return -1;
}

/* --- the whole --- */

static void choose_once(struct choosing *k, uint64_t room)
{
    k->room = room;
    for (size_t i = 0; i < k->n; i++) k->modules[i].i_now = 0;
    protect(k);
    for (int b = 0; b < k->n_blocks; b++) raise_block(k, b);
    for (struct mixed_module *m; (m = best_step(k, -2));) take_step(k, m);
}

uint64_t choose_bits(struct mixed_module *modules, size_t n, uint64_t room, double target_bpw)
{
    struct choosing k = { .modules = modules, .n = n, .target = target_bpw };
    for (size_t i = 0; i < n; i++)
        if (modules[i].block >= k.n_blocks) k.n_blocks = modules[i].block + 1;
    choose_once(&k, room);
    for (int b; (b = run_find(&k)) >= 0;) { /* each time another block: it ends */
        k.raised[b] = true;
        choose_once(&k, room);
    }
    return room - k.room;
}
