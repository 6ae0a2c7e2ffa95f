/* fuzz_adapter.c: adapter_config.json of a PEFT folder with arbitrary bytes: read, checked, its patterns matched against a
 * module. Errors are fine, anything else is a find. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "model/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void remove_dir(void)
{
    static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
    char path[128];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

static bool put(const char *name, const void *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(data, 1, size, f) == size;
    return fclose(f) == 0 && ok;
}

/* One tensor of two floats: A of rank 1. */
static bool make_dir(void)
{
    static const char header[] = "{\"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\":{\"dtype\":\"F32\","
                                 "\"shape\":[1,2],\"data_offsets\":[0,8]}}";
    uint8_t file[8 + sizeof header - 1 + 8] = { (uint8_t)(sizeof header - 1) };
    memcpy(file + 8, header, sizeof header - 1);
    strcpy(dir, "/tmp/mlxbun-fuzz-XXXXXX");
    if (!mkdtemp(dir)) return false;
    atexit(remove_dir);
    return put("adapter_model.safetensors", file, sizeof file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct adapter_info info;
    mb_error err = { 0 };
    if (!dir[0] && !make_dir()) return 0;
    if (put("adapter_config.json", data, size)) adapter_peek(&info, dir, &err);
    return 0;
}
