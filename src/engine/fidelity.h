/* fidelity.h: how far a tier is from exact arithmetic, measured: KL(f32 || tier) per position in nats over given token
 * ids, and how often the most likely token agrees. The reference is our own float32 tier (docs/numerics.md), which the
 * goldens tie to the oracle.
 */
#ifndef ENGINE_FIDELITY_H
#define ENGINE_FIDELITY_H

#include "model/model.h"

struct fidelity_options {
    const char *device;        /* of the measured side; NULL = "cpu". The reference is always computed on the CPU */
    const char *cpu_level;     /* NULL = highest */
    int n_threads;             /* 0 = all */
    const char *reference_dir; /* another model of the same vocabulary under TIER_F32; NULL: the same one */
    enum fidelity_tier tier;   /* measured against TIER_F32 */
    int kv_format;             /* of the measured side: enum kv_format, or KV_OF_... (model.h) */
    void (*progress)(void *ctx, double fraction);
    void *progress_ctx;
};
struct fidelity_report {
    int64_t n_positions;
    double mean_kl, p99_kl, max_kl; /* nats */
    double top1_percent;
    const char *kv_mode;       /* that was used: model_kv_mode; static */
};
/* ids: n_sequences runs of n_tokens each, one after the other. Ids beyond the vocabulary: MB_INVALID. */
mb_status fidelity_measure(const char *model_dir, const int32_t *ids, int32_t n_sequences, int32_t n_tokens,
                           const struct fidelity_options *opt, struct fidelity_report *out, mb_error *err);

#endif
