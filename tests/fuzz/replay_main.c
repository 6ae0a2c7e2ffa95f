/* replay_main.c: turns a libFuzzer target into a plain program that replays files and folders, for `make test` on
 * machines without clang. Usage: replay_NAME FILE|DIR ... */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static long n_replayed;

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) { perror(path); return 1; }
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    /* An exact-size heap block, so that a sanitizer sees a read one byte past the end. */
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size) { fclose(f); free(data); return 1; }
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    n_replayed++;
    return 0;
}

static int replay_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) { perror(path); return 1; }
    if (!S_ISDIR(st.st_mode)) return replay_file(path);
    DIR *d = opendir(path);
    if (!d) { perror(path); return 1; }
    int failed = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char child[4096];
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        failed |= replay_path(child);
    }
    closedir(d);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++) failed |= replay_path(argv[i]);
    printf("%s: %ld inputs replayed\n", argv[0], n_replayed);
    return failed;
}
