/* cmd_show_prompt.c: what messages become: the rendered prompt, its ids, and with --origin which message and field wrote
 * each part (the runs that keep content from forging control tokens, design.md section 6). Opens the model's
 * tokenizer and templates alone, no weights: the same code that renders a request. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"

struct run_text { char text[64]; };

/* "template", "messages[0].content", "tools", "variable". Negative indices: see chat/template.h. */
static struct run_text origin_text(const struct prompt_part *p)
{
    struct run_text t;
    if (p->i_message >= 0)
        snprintf(t.text, sizeof t.text, "messages[%d]%s%.40s", (int)p->i_message, p->field ? "." : "", p->field ? p->field : "");
    else snprintf(t.text, sizeof t.text, "%s", p->i_message == -1 ? "template" : p->i_message == -2 ? "tools" : "variable");
    return t;
}

static void print_origin(const struct prompt_view *p)
{
    for (size_t i = 0; i < p->n_parts; i++) {
        struct buf b;
        buf_init(&b, 0);
        json_write_string(&b, p->text + p->parts[i].first, p->parts[i].end - p->parts[i].first);
        printf("%-28s %s\n", origin_text(&p->parts[i]).text, b.data ? b.data : "");
        buf_free(&b);
    }
}

static void print_text(const struct flags *f, const struct prompt_view *p)
{
    if (f->origin.b) print_origin(p);
    else fwrite(p->text, 1, p->len, stdout);
    if (!f->origin.b && (p->len == 0 || p->text[p->len - 1] != '\n')) putchar('\n');
    printf("\n%d ids:", (int)p->n_ids);
    for (int32_t i = 0; i < p->n_ids; i++) printf(" %d", (int)p->ids[i]);
    putchar('\n');
}

static mb_status print_json(const struct flags *f, const struct prompt_view *p, mb_error *err)
{
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, "{\"prompt\":");
    json_write_string(&b, p->text, p->len);
    buf_append_str(&b, ",\"ids\":[");
    for (int32_t i = 0; i < p->n_ids; i++) buf_printf(&b, "%s%d", i ? "," : "", (int)p->ids[i]);
    buf_append_char(&b, ']');
    for (size_t i = 0; f->origin.b && i < p->n_parts; i++) {
        const struct prompt_part *part = &p->parts[i];
        buf_append_str(&b, i ? ",{\"origin\":" : ",\"origin\":[{\"origin\":");
        struct run_text t = origin_text(part);
        json_write_string(&b, t.text, strlen(t.text));
        buf_printf(&b, ",\"first\":%zu,\"end\":%zu,\"text\":", part->first, part->end);
        json_write_string(&b, p->text + part->first, part->end - part->first);
        buf_append_char(&b, '}');
    }
    if (f->origin.b && p->n_parts) buf_append_char(&b, ']');
    buf_append_str(&b, "}\n");
    mb_status st = buf_status(&b, "the prompt", err);
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    return st;
}

static mb_status show(const struct flags *f, const char *model_dir, const char *messages, const char *tools, mb_error *err)
{
    struct gen_request r = { .input = GEN_MESSAGES, .messages_json = messages, .tools_json = tools, .max_tokens = -1,
                             .n_choices = 1 };
    struct prompt_view view;
    struct arena a;
    r.thinking = !f->thinking.given ? GIVEN_NONE : f->thinking.b ? GIVEN_TRUE : GIVEN_FALSE;
    arena_init(&a, 0);
    char cache[MODEL_PATH_MAX];
    if (model_cache_dir(f, cache, sizeof cache, NULL) != MB_OK) cache[0] = '\0';
    mb_status st = mb_prompt_view(model_dir, cache, &r, &a, &view, err);
    if (st == MB_OK && f->json.b) st = print_json(f, &view, err);
    else if (st == MB_OK) print_text(f, &view);
    arena_free(&a);
    return st;
}

mb_status cmd_show_prompt(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    struct buf messages, tools;
    char path[MODEL_PATH_MAX];
    (void)exit_status;
    buf_init(&messages, 0);
    buf_init(&tools, 0);
    mb_status st = input_messages(f, &messages, err);
    if (st == MB_OK && f->tools.given) st = input_read(&tools, f->tools.s, INPUT_MAX_BYTES, err);
    if (st == MB_OK) st = model_find(f, n_pos > 0 ? pos[0] : NULL, true, path, err);
    if (st == MB_OK) st = show(f, path, messages.data, f->tools.given ? tools.data : NULL, err);
    buf_free(&messages);
    buf_free(&tools);
    return st;
}
