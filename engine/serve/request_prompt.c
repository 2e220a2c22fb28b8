/* Messages, prompts and lists of token ids; see request.h. */
#include "engine/serve/request_prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail_memory(struct eng_api_error *err)
{
    return eng_api_fail_as(err, 500, "server_error", NULL, "Out of memory.");
}

/* ---- messages ---------------------------------------------------------------------------------------- */

static int parse_role(const json_t *message, size_t index, enum eng_role *role, struct eng_api_error *err)
{
    static const struct {
        const char *name;
        enum eng_role role;
    } roles[] = {
        {"system", ENG_ROLE_SYSTEM},
        {"developer", ENG_ROLE_SYSTEM}, /* OpenAI's newer word for the same thing */
        {"user", ENG_ROLE_USER},
        {"assistant", ENG_ROLE_ASSISTANT},
    };
    const json_t *value = json_object_get(message, "role");
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].role", index);
    if (!json_is_string(value))
        return eng_api_fail(err, param, "'%s' must be a string.", param);
    const char *name = json_string_value(value);
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(name, roles[i].name) == 0) {
            *role = roles[i].role;
            return 0;
        }
    if (strcmp(name, "tool") == 0 || strcmp(name, "function") == 0)
        return eng_api_fail(err, param, "'%s': tool calling is not offered by this server.", param);
    return eng_api_fail(err, param, "'%s' must be system, developer, user or assistant.", param);
}

/* Parts are joined as they stand: nothing is put between them. */
static int join_parts(struct eng_api_request *out, const json_t *parts, size_t index,
                      struct eng_message *message, struct eng_api_error *err)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].content", index);
    size_t total = 0, n = json_array_size(parts);
    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (!json_is_object(part) || !json_is_string(type))
            return eng_api_fail(err, param, "'%s' parts must be objects with a type.", param);
        if (strcmp(json_string_value(type), "text") != 0)
            return eng_api_fail(err, param, "'%s' has a part that is not text: only text is offered.", param);
        if (!json_is_string(text))
            return eng_api_fail(err, param, "'%s' has a text part without a text.", param);
        total += json_string_length(text); /* cannot overflow: all of it lies in memory already */
    }
    char *joined = malloc(total + 1);
    char **list = realloc(out->joined, (out->n_joined + 1) * sizeof *list);
    if (list)
        out->joined = list;
    if (!joined || !list) {
        free(joined);
        return fail_memory(err);
    }
    out->joined[out->n_joined++] = joined;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        memcpy(joined + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    joined[at] = '\0';
    message->content = joined;
    message->len = at;
    return 0;
}

static int parse_message(struct eng_api_request *out, const json_t *value, size_t index,
                         struct eng_api_error *err)
{
    struct eng_message *message = &out->messages[index];
    char param[64];
    snprintf(param, sizeof param, "messages[%zu]", index);
    if (!json_is_object(value))
        return eng_api_fail(err, param, "'%s' must be an object.", param);
    if (parse_role(value, index, &message->role, err) < 0)
        return -1;
    if (json_array_size(json_object_get(value, "tool_calls")) > 0 ||
        json_object_size(json_object_get(value, "function_call")) > 0)
        return eng_api_fail(err, param, "'%s': tool calling is not offered by this server.", param);

    const json_t *content = json_object_get(value, "content");
    if (json_is_string(content)) {
        message->content = json_string_value(content);
        message->len = json_string_length(content);
        return 0;
    }
    if (json_is_array(content))
        return join_parts(out, content, index, message, err);
    /* An assistant's content may be null in the API. */
    if (message->role == ENG_ROLE_ASSISTANT && (!content || json_is_null(content))) {
        message->content = "";
        return 0;
    }
    snprintf(param, sizeof param, "messages[%zu].content", index);
    return eng_api_fail(err, param, "'%s' must be a string or an array of text parts.", param);
}

/* llama-server and vLLM hand these on to the template. Ours know one; as there, others say nothing. */
static int parse_template_arguments(struct eng_api_request *out, struct eng_api_error *err)
{
    static const char name[] = "chat_template_kwargs";
    const json_t *arguments = eng_json_member(out->root, name);
    bool thinking = true;
    if (!arguments)
        return 0;
    if (!json_is_object(arguments))
        return eng_api_fail(err, name, "'%s' must be an object.", name);
    if (eng_json_bool(arguments, "enable_thinking", &thinking, err) < 0)
        return eng_api_fail(err, name, "'%s.enable_thinking' must be true or false.", name);
    out->no_thinking = !thinking;
    return 0;
}

int eng_api_parse_messages(struct eng_api_request *out, struct eng_api_error *err)
{
    if (parse_template_arguments(out, err) < 0)
        return -1;
    const json_t *list = eng_json_member(out->root, "messages");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return eng_api_fail(err, "messages", "'messages' must be an array with at least one message.");
    size_t n = json_array_size(list);
    out->messages = calloc(n, sizeof *out->messages);
    if (!out->messages)
        return fail_memory(err);
    out->n_messages = n;
    for (size_t i = 0; i < n; i++)
        if (parse_message(out, json_array_get(list, i), i, err) < 0)
            return -1;
    return 0;
}

/* ---- ids and prompts --------------------------------------------------------------------------------- */

static int parse_ids(const json_t *list, const char *param, uint32_t n_vocab, uint32_t **out, size_t *n_out,
                     struct eng_api_error *err)
{
    size_t n = json_array_size(list);
    *out = calloc(n ? n : 1, sizeof **out);
    if (!*out)
        return fail_memory(err);
    *n_out = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= (json_int_t)n_vocab)
            return eng_api_fail(err, param, "'%s[%zu]' must be a token id from 0 to %u.", param, i,
                                n_vocab ? n_vocab - 1 : 0);
        (*out)[i] = (uint32_t)id;
    }
    return 0;
}

int eng_api_parse_prompt(struct eng_api_request *out, uint32_t n_vocab, struct eng_api_error *err)
{
    const json_t *value = eng_json_member(out->root, "prompt");
    if (json_is_string(value)) {
        out->prompt = json_string_value(value);
        out->prompt_len = json_string_length(value);
        return 0;
    }
    if (!json_is_array(value))
        return eng_api_fail(err, "prompt", "'prompt' must be a string or an array of token ids.");
    const json_t *first = json_array_get(value, 0);
    if (json_is_string(first) || json_is_array(first))
        return eng_api_fail(
            err, "prompt",
            "'prompt' with several prompts is not offered by this server: send one string or one array of "
            "token ids a request.");
    if (!first)
        return eng_api_fail(err, "prompt", "'prompt' is empty.");
    return parse_ids(value, "prompt", n_vocab, &out->ids, &out->n_ids, err);
}

/* ---- /tokenize and /detokenize ----------------------------------------------------------------------- */

int eng_api_parse_tokenize(const char *body, size_t len, struct eng_api_tokenize *out,
                           struct eng_api_error *err)
{
    *out = (struct eng_api_tokenize){0};
    *err = (struct eng_api_error){0};
    out->root = eng_json_parse_object(body, len, err);
    if (!out->root)
        return -1;
    const json_t *content = json_object_get(out->root, "content");
    if (!json_is_string(content))
        return eng_api_fail(err, "content", "'content' must be a string.");
    out->content = json_string_value(content);
    out->len = json_string_length(content);
    if (eng_json_bool(out->root, "add_special", &out->add_special, err) < 0 ||
        eng_json_bool(out->root, "parse_special", &out->parse_special, err) < 0 ||
        eng_json_bool(out->root, "with_pieces", &out->with_pieces, err) < 0)
        return -1;
    return 0;
}

int eng_api_parse_detokenize(const char *body, size_t len, uint32_t n_vocab, uint32_t **ids, size_t *n,
                             struct eng_api_error *err)
{
    *ids = NULL;
    *n = 0;
    *err = (struct eng_api_error){0};
    json_t *root = eng_json_parse_object(body, len, err);
    if (!root)
        return -1;
    const json_t *tokens = json_object_get(root, "tokens");
    int result = json_is_array(tokens)
                     ? parse_ids(tokens, "tokens", n_vocab, ids, n, err)
                     : eng_api_fail(err, "tokens", "'tokens' must be an array of token ids.");
    json_decref(root);
    return result;
}
