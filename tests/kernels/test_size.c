/* test_size.c: what a directory would take, from its headers alone, is what it takes: an engine refuses on it before it reads the weights
 * (engine/open.c). Every tiny checkpoint, on the CPU and, where there is one, on a GPU.
 */
#include <dirent.h>
#include <unistd.h>

#include "kernels/cuda_rig.h"
#include "model/model.h"

static void check_dir(const struct ops *ops, struct device *d, const char *dir)
{
    struct model_options opt = { .ops = ops, .device = d, .tier = TIER_L1, .kv_format = -1, .n_rows_max = 4 };
    struct model_size size;
    struct model *m;
    mb_error err = { 0 };
    mb_status st = model_open(&m, dir, &opt, &err);
    if (st == MB_UNSUPPORTED) return; /* not on this device */
    if (st != MB_OK) fail_msg("%s: %s", dir, err.text);
    if (model_size_estimate(&size, dir, &opt, &err) != MB_OK) fail_msg("%s: %s", dir, err.text);
    if (size.weight_bytes != model_weight_bytes(m) || size.scratch_bytes != model_scratch_bytes(m))
        fail_msg("%s on %s: estimated %zu and %zu bytes, took %zu and %zu", dir, ops->name, size.weight_bytes, size.scratch_bytes, model_weight_bytes(m),
                 model_scratch_bytes(m));
    model_close(m);
}

static int check_all(const struct ops *ops, struct device *d)
{
    int n = 0;
    char path[512];
    DIR *list = opendir("tests/golden/tiny");
    assert_non_null(list);
    for (struct dirent *e; (e = readdir(list));) {
        snprintf(path, sizeof path, "tests/golden/tiny/%.200s/config.json", e->d_name);
        if (e->d_name[0] == '.' || access(path, R_OK) != 0) continue;
        *strrchr(path, '/') = '\0';
        check_dir(ops, d, path);
        n++;
    }
    closedir(list);
    return n;
}

static void test_on_the_cpu(void **state)
{
    struct device *d;
    struct device_options opt = { .n_threads = 1, .n_ranks = 1 };
    mb_error err = { 0 };
    (void)state;
    assert_int_equal(ops_cpu.device_open(&d, &opt, &err), MB_OK);
    assert_true(check_all(&ops_cpu, d) > 20);
    ops_cpu.device_close(d);
}

static void test_on_a_gpu(void **state)
{
    struct device *d;
    mb_error err = { 0 };
    NEEDS_GPU();
    assert_int_equal(open_gpu(&d, &err), MB_OK);
    check_all(&ops_cuda, d);
    ops_cuda.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_on_the_cpu), cmocka_unit_test(test_on_a_gpu) };
    return cmocka_run_group_tests(tests, look_for_gpu, NULL);
}
