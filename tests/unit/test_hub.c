/* The hub's names, paths, listings, hashes and locks, without a network. alloc-fail: yes */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/filemap.h"
#include "hub/blob.h"
#include "hub/downloads.h"
#include "hub/get.h"
#include "hub/inspect.h"
#include "hub/listing.h"
#include "hub/net.h"
#include "hub/registry.h"

static char *folder_make(void)
{
    static char dir[64];
    strcpy(dir, "/tmp/test_hub.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void folder_remove(const char *dir)
{
    assert_int_equal(layout_remove_tree(dir, NULL), MB_OK);
}

/* --- names --- */

/* B-155 */
static void test_b155_names(void **state)
{
    static const char *const repos[] = { "a/b", "Org_1/na.me-x", "0/0" };
    static const char *const not_repos[] = { "", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/.b", ".a/b", "a/b.", "-a/b", "a/b-",
                                             "a/b--c", "a..b/c", "a b/c", "a/b\\c", "C:\\x/y", "a/\xc3\xa4", "a/b\n", "..%2fx/y" };
    static const char *const revisions[] = { "main", "v1.0", "refs/pr/1", "feature/x-y_z", "1.0+cu" };
    static const char *const not_revisions[] = { "", "/a", "a/", "a//b", "..", "a/../b", ".a", "a/.b", "a b", "a\\b", "a\n", "a..b" };
    static const char *const not_files[] = { "", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/.", "./a", "a\\b", "a\nb", "\xff" };
    (void)state;
    for (size_t i = 0; i < sizeof repos / sizeof *repos; i++) assert_true(name_is_repo(repos[i]));
    for (size_t i = 0; i < sizeof not_repos / sizeof *not_repos; i++) assert_false(name_is_repo(not_repos[i]));
    for (size_t i = 0; i < sizeof revisions / sizeof *revisions; i++) assert_true(name_is_revision(revisions[i]));
    for (size_t i = 0; i < sizeof not_revisions / sizeof *not_revisions; i++) assert_false(name_is_revision(not_revisions[i]));
    for (size_t i = 0; i < sizeof not_files / sizeof *not_files; i++) assert_false(name_is_file(not_files[i], strlen(not_files[i])));
    assert_false(name_is_file("a\0b", 3));
    assert_true(name_is_file("a/b-c/d.e", 9) && name_is_file(".gitattributes", 14) && name_is_file("\xc3\xa4", 2));
    assert_true(name_is_digest("da39a3ee5e6b4b0d3255bfef95601890afd80709"));
    assert_false(name_is_digest("sha256:../x") || name_is_digest("DA39A3EE5E6B4B0D3255BFEF95601890AFD80709"));
}

static void test_parse_model(void **state)
{
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX];
    (void)state;
    assert_int_equal(name_parse_model("a/b", "main", repo, revision, NULL), MB_OK);
    assert_string_equal(repo, "a/b");
    assert_string_equal(revision, "main");
    assert_int_equal(name_parse_model("a/b@refs/pr/1", "main", repo, revision, NULL), MB_OK);
    assert_string_equal(revision, "refs/pr/1");
    assert_int_equal(name_parse_model("a/b@", "main", repo, revision, NULL), MB_INVALID);
    assert_int_equal(name_parse_model("a", "main", repo, revision, NULL), MB_INVALID);
    assert_true(name_looks_like_repo("a/b") && !name_looks_like_repo("./a") && !name_looks_like_repo("/a/b"));
}

/* REG-006: folders and names are the same thing written twice. */
static void test_folders(void **state)
{
    char folder[NAME_FOLDER_MAX], repo[NAME_REPO_MAX];
    (void)state;
    name_to_folder("org/na.me-x", folder);
    assert_string_equal(folder, "models--org--na.me-x");
    assert_true(name_from_folder(folder, repo));
    assert_string_equal(repo, "org/na.me-x");
    assert_false(name_from_folder("datasets--a--b", repo) || name_from_folder("models--a", repo));
    assert_false(name_from_folder("models--a--..", repo) || name_from_folder("models--a--b--c", repo));
}

/* What get fetches by itself. */
static void test_wanted(void **state)
{
    static const char *const yes[] = { "model.safetensors", "config.json", "tokenizer.model", "chat_template.jinja", "merges.txt",
                                       "README.md", "LICENSE", "sub/optiq_vision.safetensors" };
    static const char *const no[] = { "pytorch_model.bin", "x.gguf", "modeling.py", "onnx/model.json", "original/params.json",
                                      "consolidated.safetensors", ".gitattributes", "img.png" };
    (void)state;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) assert_true(name_is_wanted(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) assert_false(name_is_wanted(no[i]));
}

/* --- layout --- */

/* REG-002 REG-003 REG-004 REG-005, B-119, CFG-046 */
static void test_roots(void **state)
{
    char out[PATH_MAX], cwd[PATH_MAX], want[PATH_MAX + 8];
    (void)state;
    assert_int_equal(layout_root(NULL, NULL, NULL, "/h", out, NULL), MB_OK);
    assert_string_equal(out, "/h/.cache/huggingface/hub");
    assert_int_equal(layout_root("", "/x/", NULL, "/h", out, NULL), MB_OK);
    assert_string_equal(out, "/x/hub");
    assert_int_equal(layout_root("/c//", "/x", NULL, "/h", out, NULL), MB_OK);
    assert_string_equal(out, "/c");
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(want, sizeof want, "%s/c/hub", cwd);
    assert_int_equal(layout_root(NULL, "./c", NULL, NULL, out, NULL), MB_OK);
    assert_string_equal(out, want);
    assert_int_equal(layout_root(NULL, NULL, "relative", NULL, out, NULL), MB_INVALID);
}

/* REG-052 CFG-040 */
static void test_split(void **state)
{
    char root[PATH_MAX], repo[NAME_REPO_MAX], commit[NAME_COMMIT_LEN + 1];
    static const char c[] = "0123456789abcdef0123456789abcdef01234567";
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "/h/hub/models--a--b/snapshots/%s/sub/x", c);
    assert_true(layout_split(path, root, repo, commit));
    assert_string_equal(root, "/h/hub");
    assert_string_equal(repo, "a/b");
    assert_string_equal(commit, c);
    assert_true(layout_split("models--a--b", root, repo, commit));
    assert_string_equal(root, ".");
    assert_string_equal(commit, "");
    assert_false(layout_split("/h/xmodels--a--b", root, repo, commit) || layout_split("/h/a/b", root, repo, commit));
    assert_true(layout_split("/models--x/y/models--a--b/snapshots/short", root, repo, commit) == false);
}

/* REG-008 REG-009 REG-010: links and refs; a folder that is a link is refused. */
static void test_links_and_refs(void **state)
{
    static const char c[] = "0123456789abcdef0123456789abcdef01234567", d[] = "da39a3ee5e6b4b0d3255bfef95601890afd80709";
    char *dir = folder_make(), path[PATH_MAX], target[PATH_MAX], commit[NAME_COMMIT_LEN + 1];
    mb_error err;
    (void)state;
    assert_int_equal(layout_link(dir, c, "config.json", d, &err), MB_OK);
    assert_int_equal(layout_link(dir, c, "x/y/config.json", d, &err), MB_OK);
    assert_int_equal(layout_link(dir, c, "x/y/config.json", d, &err), MB_OK);
    snprintf(path, sizeof path, "%s/snapshots/%s/x/y/config.json", dir, c);
    ssize_t n = readlink(path, target, sizeof target - 1);
    assert_true(n > 0);
    target[n] = '\0';
    assert_string_equal(target, "../../../../blobs/da39a3ee5e6b4b0d3255bfef95601890afd80709");
    snprintf(path, sizeof path, "%s/snapshots/%s/out", dir, c);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(layout_link(dir, c, "out/evil", d, &err), MB_BAD_FORMAT); /* B-155 */
    assert_int_equal(layout_ref_write(dir, "a/b", "refs/pr/1", c, &err), MB_OK);
    assert_int_equal(layout_ref_read(dir, "a/b", "refs/pr/1", commit, &err), MB_OK);
    assert_string_equal(commit, c);
    assert_int_equal(layout_ref_read(dir, "a/b", "main", commit, &err), MB_NOT_FOUND);
    snprintf(path, sizeof path, "%s/models--a--b/refs/main", dir);
    assert_int_equal(file_write_atomic(path, "../../x", 7, &err), MB_OK);
    assert_int_equal(layout_ref_read(dir, "a/b", "main", commit, &err), MB_BAD_FORMAT);
    folder_remove(dir);
}

/* --- listings --- */

static mb_status read_text(const char *text, struct hub_listing *l, mb_error *err)
{
    json_t *v = NULL;
    memset(l, 0, sizeof *l);
    MB_TRY(json_read(&v, text, strlen(text), JSON_READ_DEFAULT, err));
    mb_status st = listing_read(l, v, err);
    json_decref(v);
    return st;
}

#define SHA1 "da39a3ee5e6b4b0d3255bfef95601890afd80709"
#define SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* REG-022: both spellings of an LFS identity; REG-033 REG-034 */
static void test_listing(void **state)
{
    struct hub_listing l, again;
    mb_error err;
    (void)state;
    assert_int_equal(read_text("{\"sha\": \"" SHA1 "\", \"siblings\": [{\"rfilename\": \"b\", \"size\": 3, \"blobId\": \"" SHA1 "\"},"
                               "{\"rfilename\": \"a\", \"size\": 134, \"blobId\": \"" SHA1 "\", \"lfs\": {\"oid\": \"sha256:" SHA256
                               "\", \"size\": 7}}]}", &l, &err), MB_OK);
    assert_int_equal(l.n_files, 2);
    assert_string_equal(l.files[0].path, "a");
    assert_true(l.files[0].is_lfs && l.files[0].size == 7 && !l.files[1].is_lfs);
    assert_string_equal(l.files[0].digest, SHA256);
    assert_int_equal(l.total_bytes, 10);
    json_t *m = listing_manifest(&l, "a/b");
    assert_non_null(m);
    assert_int_equal(listing_read_manifest(&again, m, &err), MB_OK);
    assert_int_equal(again.n_files, 2);
    assert_string_equal(again.files[0].digest, SHA256);
    listing_free(&again);
    json_decref(m);
    listing_free(&l);
    assert_int_equal(read_text("{}", &l, &err), MB_BAD_FORMAT);
    listing_free(&l);
    assert_int_equal(read_text("{\"sha\": \"" SHA1 "\", \"siblings\": [{\"rfilename\": \"a-b\", \"size\": 1, \"blobId\": \"" SHA1
                               "\"}, {\"rfilename\": \"a\", \"size\": 1, \"blobId\": \"" SHA1 "\"}, {\"rfilename\": \"a/b\", \"size\": 1,"
                               " \"blobId\": \"" SHA1 "\"}]}", &l, &err), MB_BAD_FORMAT);
    listing_free(&l);
}

/* --- the network's rules --- */

/* REG-023: scheme, host and port decide. */
static void test_token_goes_to_the_endpoint_alone(void **state)
{
    const struct net_opts o = { .endpoint = "https://hub.example/base", .token = "t" };
    static const char *const others[] = { "http://hub.example/x", "https://hub.example:444/x", "https://cdn.hub.example/x",
                                          "https://hub.example.evil/x", "https://evil/hub.example", "https://hub.example@evil/x" };
    (void)state;
    assert_non_null(net_token_for(&o, "https://HUB.example:443/y?z"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_null(net_token_for(&o, others[i]));
}

static void test_redirects(void **state)
{
    char out[NET_URL_MAX];
    (void)state;
    assert_int_equal(net_redirect("https://a/b/c", "/d?e=%2F", out, NULL), MB_OK);
    assert_string_equal(out, "https://a/d?e=%2F");
    assert_int_equal(net_redirect("http://a/b", "https://c/d", out, NULL), MB_OK);
    assert_int_equal(net_redirect("https://a/b", "http://c/d", out, NULL), MB_BAD_FORMAT);
    assert_int_equal(net_redirect("https://a/b", "file:///etc/passwd", out, NULL), MB_BAD_FORMAT);
    assert_int_equal(net_redirect("https://a/b", "", out, NULL), MB_BAD_FORMAT);
}

static void test_urls(void **state)
{
    const struct net_opts o = { .endpoint = "http://h:1/" };
    char out[NET_URL_MAX];
    (void)state;
    assert_int_equal(net_url_listing(&o, "a/b", "refs/pr/1", out, NULL), MB_OK);
    assert_string_equal(out, "http://h:1/api/models/a/b/revision/refs%2Fpr%2F1?blobs=true");
    assert_int_equal(net_url_file(&o, "a/b", "c0", "x y/\xc3\xa4#?.json", out, NULL), MB_OK);
    assert_string_equal(out, "http://h:1/a/b/resolve/c0/x%20y/%C3%A4%23%3F.json");
    assert_int_equal(net_url_api(&o, "dataset", "a/b", "commit", "refs/pr/1", "", out, NULL), MB_OK);
    assert_string_equal(out, "http://h:1/api/datasets/a/b/commit/refs%2Fpr%2F1");
    assert_int_equal(net_url_lfs(&o, "model", "a/b", out, NULL), MB_OK);
    assert_string_equal(out, "http://h:1/a/b.git/info/lfs/objects/batch");
    assert_int_equal(net_url_lfs(&o, "dataset", "a/b", out, NULL), MB_OK);
    assert_string_equal(out, "http://h:1/datasets/a/b.git/info/lfs/objects/batch");
    assert_int_equal(net_url_create(&o, out, NULL), MB_OK);
    assert_string_equal(out, "http://h:1/api/repos/create");
}

/* --- hashes --- */

static void test_hasher(void **state)
{
    struct hasher *h;
    char hex[65];
    mb_error err;
    (void)state;
    assert_int_equal(hasher_open(&h, true, 0, &err), MB_OK);
    assert_int_equal(hasher_end(h, hex, &err), MB_OK);
    assert_string_equal(hex, SHA256);
    hasher_close(h);
    assert_int_equal(hasher_open(&h, false, 6, &err), MB_OK); /* REG-034: git hash-object of "hello\n" */
    assert_int_equal(hasher_add(h, "hello\n", 6, &err), MB_OK);
    assert_int_equal(hasher_end(h, hex, &err), MB_OK);
    assert_string_equal(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
    hasher_close(h);
}

/* The thread gives the same hash as none, for pieces of every size, also after a restart. */
static void test_hasher_with_a_thread(void **state)
{
    enum { N = 9 << 20 };
    static unsigned char data[N];
    char a[65], b[65], c[65];
    struct hasher *h;
    mb_error err;
    (void)state;
    for (size_t i = 0; i < N; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    assert_int_equal(hasher_open(&h, true, 1, &err), MB_OK); /* a small size: no thread */
    assert_int_equal(hasher_add(h, data, N, &err), MB_OK);
    assert_int_equal(hasher_end(h, a, &err), MB_OK);
    hasher_close(h);
    assert_int_equal(hasher_open(&h, true, N, &err), MB_OK);
    assert_int_equal(hasher_add(h, data, 1000, &err), MB_OK);
    assert_int_equal(hasher_restart(h, &err), MB_OK);
    for (size_t at = 0, n = 1; at < N; at += n, n = n * 3 + 1) {
        if (n > N - at) n = N - at;
        assert_int_equal(hasher_add(h, data + at, n, &err), MB_OK);
    }
    assert_int_equal(hasher_end(h, b, &err), MB_OK);
    assert_int_equal(hasher_restart(h, &err), MB_OK);
    assert_int_equal(hasher_add(h, data, N, &err), MB_OK);
    assert_int_equal(hasher_end(h, c, &err), MB_OK);
    hasher_close(h);
    assert_string_equal(a, b);
    assert_string_equal(a, c);
    assert_int_equal(hasher_open(&h, true, N, &err), MB_OK); /* closed in the middle */
    assert_int_equal(hasher_add(h, data, N / 2, &err), MB_OK);
    hasher_close(h);
}

struct sink {
    unsigned char *got;
    size_t n, fails_from;
};

static mb_status sink_take(void *ctx, const void *data, size_t len, mb_error *err)
{
    struct sink *s = ctx;
    if (s->n + len > s->fails_from) return mb_fail(err, MB_IO, "the sink is full");
    memcpy(s->got + s->n, data, len);
    s->n += len;
    return MB_OK;
}

/* Every byte goes through the sink, in order, with a thread and without; bytes from before it was set do not; what the sink says
 * comes back, and nothing goes there afterwards. */
static void test_hasher_sink(void **state)
{
    enum { N = 9 << 20, BEFORE = 100000 };
    static unsigned char data[N], got[N];
    char sum[2][65], none[65];
    struct hasher *h;
    mb_error err;
    (void)state;
    for (size_t i = 0; i < N; i++) data[i] = (unsigned char)(i * 2654435761u >> 11);
    for (int threaded = 0; threaded < 2; threaded++) {
        struct sink s = { .got = got, .fails_from = N };
        memset(got, 0, N);
        assert_int_equal(hasher_open(&h, true, threaded ? N : 1, &err), MB_OK);
        assert_int_equal(hasher_add(h, data, BEFORE, &err), MB_OK);
        hasher_set_sink(h, sink_take, &s);
        for (size_t at = BEFORE; at < N; at += 50001)
            assert_int_equal(hasher_add(h, data + at, N - at < 50001 ? N - at : 50001, &err), MB_OK);
        assert_int_equal(hasher_flush(h, &err), MB_OK);
        assert_int_equal(s.n, N - BEFORE);
        assert_memory_equal(got, data + BEFORE, N - BEFORE);
        assert_int_equal(hasher_end(h, sum[threaded], &err), MB_OK);
        hasher_close(h);
        s = (struct sink){ .got = got, .fails_from = 1 << 20 };
        assert_int_equal(hasher_open(&h, true, threaded ? N : 1, &err), MB_OK);
        hasher_set_sink(h, sink_take, &s);
        mb_status st = MB_OK;
        for (size_t at = 0; st == MB_OK && at < N; at += 4096) st = hasher_add(h, data + at, 4096, &err);
        assert_int_equal(hasher_flush(h, &err), MB_IO);
        assert_string_equal(err.text, "the sink is full");
        assert_int_equal(hasher_restart(h, &err), MB_IO);
        assert_int_equal(hasher_end(h, none, NULL), MB_IO);
        assert_true(s.n <= 1 << 20 && memcmp(got, data, s.n) == 0);
        hasher_close(h);
    }
    assert_string_equal(sum[0], sum[1]);
}

/* --- locks --- */

/* REG-038 REG-039 REG-040 REG-041 REG-042 REG-044 */
static void test_locks(void **state)
{
    char *dir = folder_make(), path[PATH_MAX];
    struct lock a, b;
    mb_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/x.lock", dir);
    assert_false(lock_is_held(path));
    assert_int_equal(lock_take(&a, path, "x", &err), MB_OK);
    assert_true(lock_is_held(path));
    assert_int_equal(lock_take(&b, path, "x", &err), MB_BUSY);
    assert_non_null(strstr(err.text, "another download"));
    assert_non_null(strstr(err.text, "is in progress"));
    lock_refresh(&a);
    lock_release(&a);
    assert_false(file_exists(path));
    assert_int_equal(lock_take(&b, path, "x", &err), MB_OK);
    lock_release(&b);
    folder_remove(dir);
}

/* REG-040: a killed holder is succeeded; of many who want to, one does. */
static void test_takeover_is_exclusive(void **state)
{
    enum { N = 8 };
    char *dir = folder_make(), path[PATH_MAX];
    int n_taken = 0, ready[2], hold[2];
    pid_t kids[N];
    (void)state;
    snprintf(path, sizeof path, "%s/x.lock", dir);
    assert_int_equal(file_write_atomic(path, "999999999 1 1\n", 14, NULL), MB_OK);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(hold), 0);
    for (int i = 0; i < N; i++) {
        kids[i] = fork();
        if (kids[i] == 0) {
            struct lock l;
            char c = lock_take(&l, path, "x", NULL) == MB_OK ? 'y' : 'n';
            close(hold[1]);
            if (write(ready[1], &c, 1) != 1 || read(hold[0], &c, 1) < 0) _exit(2);
            _exit(0); /* without release: the file stays behind */
        }
    }
    close(hold[0]);
    for (int i = 0; i < N; i++) {
        char c;
        assert_int_equal(read(ready[0], &c, 1), 1);
        n_taken += c == 'y';
    }
    close(hold[1]);
    for (int i = 0; i < N; i++) waitpid(kids[i], NULL, 0);
    assert_int_equal(n_taken, 1);
    assert_false(lock_is_held(path));
    folder_remove(dir);
}

static void test_markers(void **state)
{
    char *dir = folder_make(), path[PATH_MAX];
    struct lock a, b, c;
    (void)state;
    snprintf(path, sizeof path, "%s/l/use.mlx-bun", dir);
    assert_int_equal(marker_take(&a, path, true, NULL), MB_OK);
    assert_int_equal(marker_take(&b, path, true, NULL), MB_OK);
    assert_int_equal(marker_take(&c, path, false, NULL), MB_BUSY);
    assert_true(marker_is_held(path));
    lock_release(&a);
    lock_release(&b);
    assert_false(marker_is_held(path));
    assert_int_equal(marker_take(&c, path, false, NULL), MB_OK);
    lock_release(&c);
    folder_remove(dir);
}

/* --- the registry's downloads --- */

/* REG-142 API-289: the last five; one whose process has gone is no longer active. */
static void test_downloads(void **state)
{
    char *dir = folder_make(), path[PATH_MAX];
    struct registry *r;
    struct download_row rows[DOWNLOADS_MAX];
    size_t n;
    int64_t id = 0;
    mb_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/deep/registry.sqlite", dir);
    pid_t kid = fork();
    if (kid == 0) {
        for (int i = 0; i < 7; i++)
            if (!registry_open(&r, path, &err)) {
                registry_download_begin(r, "a/gone", &id, &err);
                registry_close(r);
            }
        _exit(0);
    }
    waitpid(kid, NULL, 0);
    assert_int_equal(registry_open(&r, path, &err), MB_OK);
    assert_int_equal(registry_download_begin(r, "a/b", &id, &err), MB_OK);
    assert_int_equal(registry_downloads(r, rows, &n, &err), MB_OK);
    assert_int_equal(n, DOWNLOADS_MAX);
    assert_string_equal(rows[0].repo, "a/b");
    assert_string_equal(rows[0].state, "active");
    assert_string_equal(rows[1].state, "error");
    assert_non_null(strstr(rows[1].error, "interrupted"));
    registry_close(r);
    folder_remove(dir);
}

/* REG-145, API-292: bytes a second over about the last five seconds, however often it is asked. */
static void test_rate_over_five_seconds(void **state)
{
    static const int64_t steps_ms[] = { 100, 7, 1000, 2500 };
    (void)state;
    for (size_t k = 0; k < sizeof steps_ms / sizeof steps_ms[0]; k++) {
        struct download_log l = { .registry = NULL };
        int64_t t = 5, rate = download_rate_add(&l, t, 0), step = steps_ms[k] * 1000000;
        uint64_t bytes = 0;
        assert_int_equal(rate, 0); /* nothing is known yet */
        for (int64_t s = 0; s < 20000000000; s += step) { /* a megabyte a second */
            bytes += (uint64_t)step / 1000;
            rate = download_rate_add(&l, t += step, bytes);
        }
        assert_in_range(rate, 990000, 1010000);
        int64_t before = t;
        while (t - before < 2000000000) rate = download_rate_add(&l, t += step, bytes); /* nothing comes: not forgotten at once */
        assert_in_range(rate, 200000, 800000);
        while (t - before < 8000000000) rate = download_rate_add(&l, t += step, bytes);
        assert_int_equal(rate, 0);
        before = t;
        while (t - before < 8000000000) { /* ten times as fast: what was before is no longer in it */
            bytes += (uint64_t)step / 100;
            rate = download_rate_add(&l, t += step, bytes);
        }
        assert_in_range(rate, 9800000, 10200000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b155_names), cmocka_unit_test(test_parse_model), cmocka_unit_test(test_folders),
        cmocka_unit_test(test_wanted), cmocka_unit_test(test_roots), cmocka_unit_test(test_split),
        cmocka_unit_test(test_links_and_refs), cmocka_unit_test(test_listing),
        cmocka_unit_test(test_token_goes_to_the_endpoint_alone), cmocka_unit_test(test_redirects), cmocka_unit_test(test_urls),
        cmocka_unit_test(test_hasher), cmocka_unit_test(test_hasher_with_a_thread), cmocka_unit_test(test_hasher_sink), cmocka_unit_test(test_locks),
        cmocka_unit_test(test_takeover_is_exclusive), cmocka_unit_test(test_markers), cmocka_unit_test(test_downloads),
        cmocka_unit_test(test_rate_over_five_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
