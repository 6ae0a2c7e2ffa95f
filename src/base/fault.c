/* fault.c: parses MLX_BUN_TEST_FAULT once into a fixed table; counts hits with atomics. Allocates nothing, because the
 * allocator asks it. Empty unless the build says FAULTS=1. */
#include "base/fault.h"

#ifdef MB_FAULTS

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULT_MAX = 16 };

struct fault {
    char name[32];
    int64_t value;
    uint64_t seed;      /* after ':' */
    bool and_later;     /* value ended in '+' */
    atomic_llong n_asked;
};

static struct fault faults[FAULT_MAX];
static int n_faults;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* One "name=value[+][:seed]". A malformed entry is a mistake of the test: said, and left out. */
static void fault_parse(const char *text, size_t len)
{
    const char *eq = memchr(text, '=', len);
    struct fault *f = &faults[n_faults];
    if (n_faults == FAULT_MAX || !eq || eq == text || (size_t)(eq - text) >= sizeof f->name) {
        fprintf(stderr, "MLX_BUN_TEST_FAULT: cannot read '%.*s'\n", (int)len, text);
        return;
    }
    memcpy(f->name, text, (size_t)(eq - text));
    f->name[eq - text] = 0;
    char *end;
    f->value = strtoll(eq + 1, &end, 10);
    if (*end == '+') {
        f->and_later = true;
        end++;
    }
    if (*end == ':') f->seed = strtoull(end + 1, NULL, 10);
    n_faults++;
}

static void faults_read(void)
{
    const char *list = getenv("MLX_BUN_TEST_FAULT");
    while (list && *list) {
        size_t len = strcspn(list, ";");
        if (len) fault_parse(list, len);
        list += len + (list[len] == ';');
    }
}

static struct fault *fault_find(const char *name)
{
    pthread_once(&once, faults_read);
    for (int i = 0; i < n_faults; i++)
        if (strcmp(faults[i].name, name) == 0) return &faults[i];
    return NULL;
}

int64_t fault_value(const char *name, int64_t dflt)
{
    const struct fault *f = fault_find(name);
    return f ? f->value : dflt;
}

/* splitmix64: one good draw per (seed, count). */
static uint64_t draw(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static bool every_hit(const char *name)
{
    struct fault *f = fault_find(name);
    if (!f || f->value <= 0) return false;
    uint64_t i = (uint64_t)atomic_fetch_add(&f->n_asked, 1);
    return draw(draw(f->seed) + i) % (uint64_t)f->value == 0;
}

bool fault_hit(const char *name)
{
    if (strcmp(name, "alloc") == 0 && every_hit("alloc_every")) return true;
    struct fault *f = fault_find(name);
    if (!f) return false;
    int64_t i = atomic_fetch_add(&f->n_asked, 1) + 1;
    return i == f->value || (f->and_later && i > f->value);
}

#endif

/* ISO C wants at least one declaration in a translation unit. */
typedef int fault_not_empty;
