/* prompt.c: words for models whose template prints no tools: what they may call and how, in the markup of the general
 * family. Used with a warning to the client, for such a model was not trained on calls. */
#include <string.h>

#include "chat/tools/tools_int.h"

void tool_prompt_write(struct buf *out, const struct tool_set *set)
{
    struct json_write_opts opts = { .python_spaces = true };
    buf_append_str(out, "These functions can be called, one JSON description a line:\n<tools>\n");
    for (size_t i = 0; i < json_array_size(set->root); i++) {
        json_write(out, json_array_get(set->root, i), &opts);
        buf_append_char(out, '\n');
    }
    buf_append_str(out, "</tools>\nTo call one, write nothing but its name and its arguments in this form:\n<tool_call>\n"
                        "{\"name\": \"NAME\", \"arguments\": {\"KEY\": \"VALUE\"}}\n</tool_call>");
}

void tool_prompt_call(struct buf *out, const char *name, const json_t *arguments)
{
    struct json_write_opts opts = { .python_spaces = true };
    buf_append_str(out, "<tool_call>\n{\"name\": ");
    json_write_string(out, name, strlen(name));
    buf_append_str(out, ", \"arguments\": ");
    if (json_is_object(arguments)) json_write(out, arguments, &opts);
    else buf_append_str(out, "{}");
    buf_append_str(out, "}\n</tool_call>");
}
