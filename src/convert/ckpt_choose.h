/* ckpt_choose.h: which way to store each module, out of those that are worth it, under a bound on the bytes: a greedy knapsack (loss
 * saved a byte) with guards (REG-204, REG-205), since the figures come from few texts:
 *
 *   embedding, head, first and last block   no module below 4 bits
 *   every block                             on average at least 0.65 of the target's bits a weight
 *   a run of blocks                         at most 4 in a row below 0.75 of it
 *
 * A guard that the target has no room for yields: the bound on the bytes is never passed. Plain data in, plain data out. */
#ifndef CONVERT_CKPT_CHOOSE_H
#define CONVERT_CKPT_CHOOSE_H

#include "convert/convert.h"

#define CHOOSE_PROTECTED_BITS 4
#define CHOOSE_FLOOR 0.65
#define CHOOSE_LOW 0.75
#define CHOOSE_RUN_MAX 4

struct conv_item;

/* One way to store a module. */
struct choice {
    struct quant_spec spec;
    uint64_t bytes;
    double error, loss;
};

struct mixed_module {
    const struct conv_item *it;  /* not looked at here */
    struct choice choice[MIXED_MAX_CANDIDATES]; /* rising bytes, falling loss, each step saving less a byte than the one before */
    int n_choices, i_now;        /* i_now: what was chosen */
    int64_t n_weights;
    int block;                   /* "layers.N." of its path; -1: outside of the blocks */
    double probe_error;
};

/* N of "layers.N." in a module's path, -1: none. */
int choose_block_of(const char *path);
/* Sets i_now of each; returns the bytes taken beyond everybody's first choice, at most room. The same inputs give the same choice. */
uint64_t choose_bits(struct mixed_module *modules, size_t n, uint64_t room, double target_bpw);

#endif
