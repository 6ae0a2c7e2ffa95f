/* backends.c: the table of backends. */
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

static const struct ops *const backends[] = { &ops_cpu, &ops_cuda };

static const struct ops *find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strlen(backends[i]->name) == len && memcmp(backends[i]->name, name, len) == 0) return backends[i];
    return NULL;
}

const struct ops *ops_find(const char *name)
{
    return find(name, strlen(name));
}

mb_status ops_parse(const char *text, const struct ops **out, int *ordinal, mb_error *err)
{
    size_t len = text ? strcspn(text, ":") : 0;
    *ordinal = 0;
    *out = text ? find(text, len) : backends[0];
    if (!*out) return mb_fail_at(err, MB_UNSUPPORTED, "device", "device %.32s is not in this build; use cpu, cuda or cuda:N", text);
    if (!text || text[len] == '\0') return MB_OK;
    char *end;
    long n = strtol(text + len + 1, &end, 10);
    bool number = text[len + 1] >= '0' && text[len + 1] <= '9' && *end == '\0' && n < 1024;
    if (*out == &ops_cpu || !number) {
        *out = NULL;
        return mb_fail_at(err, MB_INVALID, "device", "device %.32s is not a device; use cpu, cuda or cuda:N (cuda:0 is the first card)", text);
    }
    *ordinal = (int)n;
    return MB_OK;
}
