/* huge.c: anonymous memory on huge pages, for what a step streams through: weights and key pages. With pages of 4 KB a step
 * of a small model looks up tens of thousands of translations, which in a virtual machine cost two walks each: measured
 * 15 to 20 % of decode. The system may refuse; then the pages are small and all else is the same.
 */
#include <sys/mman.h>

#include "ops/cpu/cpu_int.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define SMALL_BYTES ((size_t)4096)

void *huge_map(size_t size_bytes, bool reserve_only)
{
    size_t whole = (size_bytes + SMALL_BYTES - 1) / SMALL_BYTES * SMALL_BYTES, extra = whole >= HUGE_BYTES ? HUGE_BYTES : 0;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (reserve_only ? MAP_NORESERVE : 0);
    uint8_t *p = mmap(NULL, whole + extra, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (extra == 0) return p;
    size_t head = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    if (head > 0) munmap(p, head);
    if (extra > head) munmap(p + head + whole, extra - head);
    madvise(p + head, whole, MADV_HUGEPAGE);
    return p + head;
}

void huge_unmap(void *p, size_t size_bytes)
{
    if (p) munmap(p, (size_bytes + SMALL_BYTES - 1) / SMALL_BYTES * SMALL_BYTES);
}
