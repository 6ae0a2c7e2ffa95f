/* open.c: a tokenizer from a model directory, through the cache when the caller names one.
 *
 * The cache holds one image (image.c) a model directory: <cache_dir>/tokenizer/<hash of the directory>.bin. Its key is made
 * of what the files are (device, inode, size, times of change and of inode change), of the libraries whose tables went
 * into it, and of the directory's real path. Anything wrong with an image, or with the cache folder, means that the files
 * are parsed as if there were none. At most IMAGES_MAX images are kept; the oldest go.
 */
#include <dirent.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>
#include <xxhash.h>

#include "base/log.h"
#include "tokenizer/tokenizer_int.h"

#define PATH_CAP 4096
#define CONFIG_MAX ((size_t)64 << 20)
#define IMAGES_MAX 16

static mb_status open_files(struct tokenizer **out, const char *dir, struct buf *sections, mb_error *err)
{
    char path[PATH_CAP];
    struct filemap map;
    struct buf config;
    MB_TRY(path_join(path, sizeof path, dir, "tokenizer.json", err));
    MB_TRY(filemap_open(&map, path, err));
    mb_status st = path_join(path, sizeof path, dir, "tokenizer_config.json", err);
    buf_init(&config, 0);
    bool has_config = st == MB_OK && path_exists(path);
    if (has_config) st = file_read(&config, path, CONFIG_MAX, err);
    if (st == MB_OK && map.size_bytes > TOKENIZER_MAX_FILE)
        st = mb_fail(err, MB_TOO_LARGE, "%s/tokenizer.json has %zu bytes, at most %zu", dir, map.size_bytes,
                     TOKENIZER_MAX_FILE);
    if (st == MB_OK) {
        const char *text = has_config ? (config.data ? config.data : "") : NULL;
        st = tokenizer_parse_keep(out, (const char *)map.data, map.size_bytes, text, config.len, sections, err);
        if (st != MB_OK && err) mb_error_prefix(err, "%s", dir);
    }
    buf_free(&config);
    filemap_close(&map);
    return st;
}

mb_status tokenizer_open(struct tokenizer **out, const char *dir, mb_error *err)
{
    *out = NULL;
    return open_files(out, dir, NULL, err);
}

/* --- the cache --- */

struct file_identity {
    uint64_t device, inode, size, changed_s, changed_ns, inode_changed_s, inode_changed_ns;
};

static struct file_identity identity_of(const char *dir, const char *name)
{
    struct file_identity f = { 0 };
    struct stat s;
    char path[PATH_CAP];
    if (path_join(path, sizeof path, dir, name, NULL) != MB_OK || stat(path, &s) != 0) return f;
    f.device = (uint64_t)s.st_dev;
    f.inode = (uint64_t)s.st_ino;
    f.size = (uint64_t)s.st_size;
    f.changed_s = (uint64_t)s.st_mtim.tv_sec;
    f.changed_ns = (uint64_t)s.st_mtim.tv_nsec;
    f.inode_changed_s = (uint64_t)s.st_ctim.tv_sec;
    f.inode_changed_ns = (uint64_t)s.st_ctim.tv_nsec;
    return f;
}

static uint64_t key_of(const char *real_dir)
{
    struct file_identity files[2] = { identity_of(real_dir, "tokenizer.json"), identity_of(real_dir, "tokenizer_config.json") };
    uint64_t h = XXH3_64bits_withSeed(files, sizeof files, XXH3_64bits(real_dir, strlen(real_dir)));
    const char *unicode = utf8proc_version();
    return XXH3_64bits_withSeed(unicode, strlen(unicode), h ^ XXH3_64bits(MB_VERSION, strlen(MB_VERSION)));
}

static bool is_image(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".bin") == 0;
}

/* One image is about to be written: make room for it. */
static void drop_oldest(const char *folder)
{
    char path[PATH_CAP], oldest[PATH_CAP] = "";
    struct timespec when = { 0 };
    size_t n = 0;
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat s;
        if (!is_image(e->d_name) || path_join(path, sizeof path, folder, e->d_name, NULL) != MB_OK || stat(path, &s) != 0) continue;
        n++;
        if (!oldest[0] || s.st_mtim.tv_sec < when.tv_sec) {
            when = s.st_mtim;
            memcpy(oldest, path, sizeof oldest);
        }
    }
    closedir(d);
    if (n >= IMAGES_MAX) unlink(oldest);
}

/* *t as an image, and from it: a file's pages are no memory of this process, as the tables are that were made. */
static void store(struct tokenizer **t, const struct buf *sections, const char *folder, const char *path, uint64_t key)
{
    mb_error why;
    struct tokenizer *mapped;
    struct str text = { sections->data, sections->len };
    mb_status st = dir_make(folder, &why);
    if (st == MB_OK && !file_exists(path)) drop_oldest(folder);
    if (st == MB_OK) st = image_write(*t, text, path, key, &why);
    if (st == MB_OK) st = image_open(&mapped, path, key, &why);
    if (st != MB_OK) {
        LOGD("tokenizer", "cache: %s", why.text);
        return;
    }
    tokenizer_close(*t);
    *t = mapped;
}

mb_status tokenizer_open_cached(struct tokenizer **out, const char *dir, const char *cache_dir, mb_error *err)
{
    char folder[PATH_CAP], path[PATH_CAP], name[32];
    mb_error why;
    *out = NULL;
    char *real = cache_dir && cache_dir[0] ? realpath(dir, NULL) : NULL;
    if (!real) return tokenizer_open(out, dir, err);
    uint64_t key = key_of(real);
    snprintf(name, sizeof name, "%016llx.bin", (unsigned long long)XXH3_64bits(real, strlen(real)));
    bool named = path_join(folder, sizeof folder, cache_dir, "tokenizer", NULL) == MB_OK &&
                 path_join(path, sizeof path, folder, name, NULL) == MB_OK;
    mb_status st = named ? image_open(out, path, key, &why) : MB_NOT_FOUND;
    if (st != MB_OK) {
        struct buf sections;
        buf_init(&sections, TOKENIZER_MAX_FILE);
        st = open_files(out, dir, &sections, err);
        if (st == MB_OK && named && key_of(real) == key) store(out, &sections, folder, path, key); /* unchanged meanwhile */
        buf_free(&sections);
        malloc_trim(0); /* a large tokenizer.json has left tens of megabytes behind */
    }
    free(real);
    return st;
}
