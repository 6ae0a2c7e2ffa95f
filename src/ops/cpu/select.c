/* select.c: which kernels this machine runs. Detects the levels once, fills a table from the lowest level upward, so
 * that a level needs to bring only what it has.
 *
 * avx2 means AVX2, FMA and F16C; avx512 means F, BW, DQ, VL and VNNI; amx means AMX-TILE and AMX-INT8 with the permission
 * of the system. AVX-VNNI is not a level but a choice of kernels inside avx2. Threads: any; the first caller detects.
 */
#include "ops/cpu/kernels.h"

#include <string.h>

#include "ops/cpu/fault_order.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HAVE_X86 1
#else
#define HAVE_X86 0
#endif

/* The portable folder compiled with hardware fma (see portable_int.h); same bits, used where the CPU has it. */
void cpu_fill_portable_fma(struct cpu_kernels *t);

static const char *const level_names[CPU_LEVEL_COUNT] = { "portable", "avx2", "avx512", "amx" };

const char *cpu_level_name(enum cpu_level l)
{
    return (unsigned)l < CPU_LEVEL_COUNT ? level_names[l] : "unknown";
}

bool cpu_level_parse(const char *name, enum cpu_level *out)
{
    for (int i = 0; i < CPU_LEVEL_COUNT; i++)
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum cpu_level)i;
            return true;
        }
    return false;
}

enum { HAS_FMA = 1, HAS_AVX2 = 2, HAS_AVX_VNNI = 4, HAS_AVX512 = 8, HAS_AMX = 16 };

#if HAVE_X86
static uint64_t xcr0_get(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Tile data is switched off per process until it is asked for (ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). */
static bool amx_permission_ask(void)
{
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

static int features_read(void)
{
    uint32_t a, b, c, d, b7, c7, d7, a71, x;
    int bits = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    uint32_t c1 = c;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 0;
    if (a < 1 || !__get_cpuid_count(7, 1, &a71, &x, &x, &x)) a71 = 0;
    uint64_t xcr0 = xcr0_get();
    bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6, tile = (xcr0 & 0x60000) == 0x60000;
    if (ymm && (c1 & bit_FMA)) bits |= HAS_FMA;
    if (bits & HAS_FMA && (b7 & bit_AVX2) && (c1 & bit_F16C)) bits |= HAS_AVX2;
    if (bits & HAS_AVX2 && (a71 & (1u << 4))) bits |= HAS_AVX_VNNI;
    if (bits & HAS_AVX2 && zmm && (b7 & bit_AVX512F) && (b7 & bit_AVX512BW) && (b7 & bit_AVX512DQ) &&
        (b7 & bit_AVX512VL) && (c7 & bit_AVX512VNNI))
        bits |= HAS_AVX512;
    if (bits & HAS_AVX512 && tile && (d7 & (1u << 24)) && (d7 & (1u << 25))) bits |= HAS_AMX;
    return bits;
}
#endif

/* cpuid leaves a virtual machine each time: asked once, kept as bits. */
static int features_get(void)
{
#if HAVE_X86
    static int cached = -1; /* racing writers store the same value */
    int bits = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (bits >= 0) return bits;
    bits = features_read();
    if (bits & HAS_AMX && !amx_permission_ask()) bits &= ~HAS_AMX;
    __atomic_store_n(&cached, bits, __ATOMIC_RELAXED);
    return bits;
#else
    return 0;
#endif
}

enum cpu_level cpu_level_detect(void)
{
    int bits = features_get();
    if (bits & HAS_AMX) return CPU_AMX;
    if (bits & HAS_AVX512) return CPU_AVX512;
    return bits & HAS_AVX2 ? CPU_AVX2 : CPU_PORTABLE;
}

void cpu_kernels_fill(struct cpu_kernels *t, enum cpu_level level)
{
    memset(t, 0, sizeof *t);
    int bits = features_get();
    if (bits & HAS_FMA)
        cpu_fill_portable_fma(t);
    else
        cpu_fill_portable(t);
#if HAVE_X86
    if (level >= CPU_AVX2) cpu_fill_avx2(t);
    if (level >= CPU_AVX2 && bits & HAS_AVX_VNNI) cpu_fill_avx_vnni(t);
    if (level >= CPU_AVX512) cpu_fill_avx512(t);
    if (level >= CPU_AMX) cpu_fill_amx(t);
#endif
    fault_order_install(t);
}
