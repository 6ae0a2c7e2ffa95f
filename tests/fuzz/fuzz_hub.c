/* The hub's answers: a listing, a manifest, a header line, names. Whatever is accepted is safe to use as a path. */
#include <stdlib.h>
#include <string.h>

#include "hub/listing.h"
#include "hub/net.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct hub_listing *l)
{
    for (size_t i = 0; i < l->n_files; i++) {
        const char *p = l->files[i].path;
        if (p[0] == '/' || p[0] == '\0' || strstr(p, "/../") || strncmp(p, "../", 3) == 0 || strchr(p, '\\')) abort();
        if (!name_is_digest(l->files[i].digest) || l->files[i].size < 0) abort();
    }
}

static void read_both(const json_t *v)
{
    struct hub_listing l;
    if (listing_read(&l, v, NULL) == MB_OK) {
        check(&l);
        json_t *m = listing_manifest(&l, "a/b");
        struct hub_listing again;
        if (m && listing_read_manifest(&again, m, NULL) == MB_OK && again.n_files != l.n_files) abort();
        if (m) listing_free(&again);
        json_decref(m);
    }
    listing_free(&l);
    if (listing_read_manifest(&l, v, NULL) == MB_OK) check(&l);
    listing_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX], shown[84], out[NET_URL_MAX];
    struct net_answer a = { 0 };
    json_t *v = NULL;
    mb_error err;
    if (size > 1 << 16) return 0;
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (json_read(&v, text, size, JSON_READ_DEFAULT, &err) == MB_OK) read_both(v);
    json_decref(v);
    if (name_parse_model(text, "main", repo, revision, &err) == MB_OK && (strstr(repo, "..") || strstr(revision, ".."))) abort();
    name_shown(text, size, shown);
    net_take_header(&a, text, size);
    net_redirect("https://hub.example/a/b", text, out, &err);
    free(text);
    return 0;
}
