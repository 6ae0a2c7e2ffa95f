/* generate.c: the smallest useful program over libmlxbun: load a model, ask it one thing, print the answer as it comes.
 *
 *   cc examples/generate.c -o generate $(pkg-config --cflags --libs mlxbun)     after `make install`
 *   make examples && build/examples/generate                                    in the source tree
 *   ./generate DIR "Why is the sky blue?"
 *
 * Only mlxbun.h is included: what is used here is the whole life of a request.
 */
#include <mlxbun.h>
#include <stdio.h>
#include <string.h>

/* A JSON string of a UTF-8 text: what a message's content is. Returns 0 when it does not fit. */
static int append_json_string(char *out, size_t cap, const char *s)
{
    size_t n = strlen(out);
    if (n + 3 > cap) return 0;
    out[n++] = '"';
    for (; *s; s++) {
        char piece[8];
        if (*s == '"' || *s == '\\') snprintf(piece, sizeof piece, "\\%c", *s);
        else if ((unsigned char)*s < 0x20) snprintf(piece, sizeof piece, "\\u%04x", (unsigned)*s);
        else snprintf(piece, sizeof piece, "%c", *s);
        size_t len = strlen(piece);
        if (n + len + 2 > cap) return 0;
        memcpy(out + n, piece, len);
        n += len;
    }
    out[n++] = '"';
    out[n] = '\0';
    return 1;
}

/* Print events until the generation is over. */
static mb_status print_answer(mb_gen *g, mb_error *err)
{
    mb_event ev;
    mb_status st;
    do {
        st = mb_next(g, &ev, err); /* waits for the model; ev.text is valid until the next call */
        if (st != MB_OK) return st;
        if (ev.type == MB_EV_TEXT) {
            fwrite(ev.text, 1, ev.text_len, stdout);
            fflush(stdout);
        } else if (ev.type == MB_EV_END) {
            printf("\n(%d tokens, %.*s)\n", (int)ev.n_completion, (int)ev.text_len, ev.text);
        }
    } while (ev.type != MB_EV_DONE);
    return MB_OK;
}

int main(int argc, char **argv)
{
    mb_error err;
    mb_engine *engine = NULL;
    mb_gen *g = NULL;
    char messages[16384] = "[{\"role\":\"user\",\"content\":";
    if (argc != 3) {
        fprintf(stderr, "usage: generate MODEL_DIRECTORY PROMPT\n");
        return 2;
    }
    if (!append_json_string(messages, sizeof messages - 3, argv[2])) {
        fprintf(stderr, "the prompt is too long\n");
        return 2;
    }
    strcat(messages, "}]");

    /* Options: everything that is zero keeps its default. The result does not depend on threads, batch or chunk size. */
    mb_options options = { .size = sizeof options };
    mb_status st = mb_engine_open(&engine, argv[1], &options, &err);

    /* A request. A fixed seed makes a sampled answer repeatable, bit for bit. */
    mb_request request = { .size = sizeof request, .messages_json = messages, .max_tokens = 200,
                           .has_temperature = true, .temperature = 0.7, .has_seed = true, .seed = 1 };
    if (st == MB_OK) st = mb_generate(engine, &request, &g, &err);
    if (st == MB_OK) st = print_answer(g, &err);

    /* Everything that was opened is closed; NULL is allowed. */
    mb_gen_close(g);
    mb_engine_close(engine);
    if (st != MB_OK) fprintf(stderr, "%s: %s\n", mb_status_name(st), err.text);
    return st == MB_OK ? 0 : 1;
}
