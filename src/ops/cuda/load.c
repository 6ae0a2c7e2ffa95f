/* load.c: finds libmlxbun-cuda.so and keeps it for the life of the process. Looked for beside the program (or beside
 * libmlxbun.so), in ../lib of that folder, then where the system's loader looks. Nothing is loaded until a device is asked for.
 * Threads: any.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ops/cuda/cuda_int.h"

#define FILE_NAME "libmlxbun-cuda.so"
#define PATH_CAP 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct cuda_library *loaded;

/* The folder of the file at `path`, cut in place; false: it has none. */
static bool cut_to_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    *slash = '\0';
    return true;
}

static bool program_folder(char out[PATH_CAP])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_CAP - 1);
    if (n <= 0) return false;
    out[n] = '\0';
    return cut_to_folder(out);
}

/* Of the file that this code is in: the program, or libmlxbun.so in somebody else's. */
static bool own_folder(char out[PATH_CAP])
{
    Dl_info info;
    if (!dladdr(&lock, &info) || !info.dli_fname || strlen(info.dli_fname) >= PATH_CAP) return false;
    snprintf(out, PATH_CAP, "%s", info.dli_fname);
    return cut_to_folder(out);
}

static void *open_in(const char *folder, const char *below, const char *name, char why[256])
{
    char path[PATH_CAP + 64];
    snprintf(path, sizeof path, "%s/%s%s", folder, below, name);
    if (access(path, F_OK) != 0) return NULL;
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!h) snprintf(why, 256, "%s", dlerror());
    return h;
}

void *cuda_open_beside(const char *name, char why[256])
{
    char folder[PATH_CAP];
    void *h = NULL;
    why[0] = '\0';
    if (program_folder(folder)) {
        h = open_in(folder, "", name, why);
        if (!h) h = open_in(folder, "../lib/", name, why);
    }
    if (!h && own_folder(folder)) h = open_in(folder, "", name, why);
    return h ? h : dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static mb_status find_library(const struct cuda_library **out, mb_error *err)
{
    char why[256];
    void *h = cuda_open_beside(FILE_NAME, why);
    if (!h)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "device cuda: " FILE_NAME " %s%s%s; build it with `make CUDA=1` and keep it "
                          "beside the program, or use --device cpu", why[0] ? "cannot be loaded (" : "was not found beside the program",
                          why, why[0] ? ")" : "");
    cuda_library_fn get;
    void *symbol = dlsym(h, CUDA_LIBRARY_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    const struct cuda_library *t = symbol ? get() : NULL;
    if (!t || t->abi != CUDA_LIBRARY_ABI || t->struct_bytes != sizeof *t) {
        dlclose(h);
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "device cuda: " FILE_NAME " is of another version than this program; build both "
                          "together with `make CUDA=1`, or use --device cpu");
    }
    *out = t; /* never closed: kernels may be in use until the process ends */
    return MB_OK;
}

mb_status cuda_library_get(const struct cuda_library **out, mb_error *err)
{
    mb_status st = MB_OK;
    pthread_mutex_lock(&lock);
    if (!loaded) st = find_library(&loaded, err);
    *out = loaded;
    pthread_mutex_unlock(&lock);
    return st;
}
