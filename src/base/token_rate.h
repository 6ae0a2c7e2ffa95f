/* token_rate.h: tokens per second of requests that generate together, from the times at which their tokens came. */
#ifndef BASE_TOKEN_RATE_H
#define BASE_TOKEN_RATE_H

#include <stdint.h>

/* One request: t_ns[n] rise. */
struct token_times {
    const int64_t *t_ns;
    int32_t n;
};
struct token_rates {
    double first_s;       /* from t0_ns until all have their first token */
    double decode_tok_s;  /* of all together; 0: nobody got two tokens at two times */
};

/* Of n requests that were started at t0_ns. */
void token_rates_of(const struct token_times *requests, int32_t n, int64_t t0_ns, struct token_rates *out);

#endif
