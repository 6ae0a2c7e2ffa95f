/* model_dir.h: a folder with the tiny tokenizer, more added tokens and a chat template of the test's own. Header-only. */
#ifndef TESTS_UNIT_MODEL_DIR_H
#define TESTS_UNIT_MODEL_DIR_H

#include "gen_rig.h"

#include "base/json.h"

static inline void model_dir_path(char path[160], const char *dir, int i)
{
    snprintf(path, 160, "%s/%s", dir, i ? "tokenizer_config.json" : "tokenizer.json");
}

/* tokens: NULL-terminated; ids from 306 on. */
static inline void model_dir_make(char dir[64], const char *const *tokens, const char *chat_template)
{
    json_t *file[2];
    char path[160];
    strcpy(dir, "/tmp/mb-model-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        model_dir_path(path, RIG_DIR, i);
        assert_int_equal(json_read_file(&file[i], path, 1 << 20, NULL), MB_OK);
    }
    for (int i = 0; tokens[i]; i++)
        json_array_append_new(json_object_get(file[0], "added_tokens"),
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", 306 + i, "content", tokens[i], "single_word", 0,
                                        "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    json_object_set_new(file[1], "chat_template", json_string(chat_template));
    for (int i = 0; i < 2; i++) {
        model_dir_path(path, dir, i);
        assert_int_equal(json_dump_file(file[i], path, 0), 0);
        json_decref(file[i]);
    }
}

static inline void model_dir_remove(const char *dir)
{
    char path[160];
    for (int i = 0; i < 2; i++) {
        model_dir_path(path, dir, i);
        remove(path);
    }
    remove(dir);
}

/* Ids of a text, and how many ids the vocabulary has; -1: a tokenizer that is refused. */
static inline int32_t model_dir_encode(const char *dir, const char *text, int32_t *ids, int32_t cap, int32_t *n_vocab)
{
    struct tokenizer *t;
    struct arena a;
    struct token_list list = { 0 };
    struct encode_opts opts = { 0 };
    mb_error err;
    int32_t n = -1;
    if (tokenizer_open(&t, dir, &err) != MB_OK) return -1;
    arena_init(&a, 0);
    if (tokenizer_encode(t, &a, text, strlen(text), &opts, &list, &err) == MB_OK && list.n < (size_t)cap) {
        memcpy(ids, list.ids, list.n * sizeof *ids);
        n = (int32_t)list.n;
    }
    *n_vocab = tokenizer_n_vocab(t);
    arena_free(&a);
    tokenizer_close(t);
    return n;
}

#endif
