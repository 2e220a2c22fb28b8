/*
 * The shapes:
 *   chat         {"content": [{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}], "refusal"}
 *   completions  {"tokens": [], "token_logprobs": [], "top_logprobs": [{token: logprob}], "text_offset": []}
 *
 * A token that is not valid UTF-8 by itself shows as U+FFFD in a chat (its bytes are beside it). In the
 * legacy shape, where the text is a key, it shows as "bytes:\xf0\x9f", so that no two of them collide.
 * text_offset counts characters of the reply's text before the token.
 */
#include "engine/serve/response_logprobs.h"

#include <stdio.h>
#include <string.h>

/* ---- chat -------------------------------------------------------------------------------------------- */

static json_t *chat_token(const struct eng_reply *reply, uint32_t id, float logprob)
{
    size_t len = 0;
    const char *piece = eng_tokenizer_piece(reply->tokenizer, id, true, &len);
    json_t *object = json_object(), *bytes = json_array();
    for (size_t i = 0; i < len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)piece[i]));
    json_object_set_new(object, "token", eng_json_text(piece, len));
    json_object_set_new(object, "logprob", eng_json_logprob(logprob));
    json_object_set_new(object, "bytes", bytes);
    return object;
}

static void chat_add(const struct eng_reply *reply, json_t *content, const struct eng_token_info *info)
{
    json_t *object = chat_token(reply, info->id, info->logprob), *top = json_array();
    for (uint32_t i = 0; i < info->n_top; i++)
        json_array_append_new(top, chat_token(reply, info->top[i].id, info->top[i].logprob));
    json_object_set_new(object, "top_logprobs", top);
    json_array_append_new(content, object);
}

static json_t *chat_shape(json_t *content)
{
    json_t *object = json_object();
    json_object_set_new(object, "content", content);
    json_object_set_new(object, "refusal", json_null());
    return object;
}

/* ---- completions ------------------------------------------------------------------------------------- */

/* A token as the legacy shape names it. */
static json_t *legacy_name(const struct eng_reply *reply, uint32_t id)
{
    size_t len = 0;
    const char *piece = eng_tokenizer_piece(reply->tokenizer, id, true, &len);
    /* jansson takes no key with a NUL in it. */
    if (len == 0 || (eng_utf8_valid(piece, len) && !memchr(piece, 0, len)))
        return eng_json_text(piece, len);
    struct eng_bytes name = {0};
    eng_bytes_add_str(&name, "bytes:");
    for (size_t i = 0; i < len; i++)
        eng_bytes_printf(&name, "\\x%02x", (unsigned char)piece[i]);
    json_t *text = name.failed ? NULL : eng_json_text(name.data, name.len);
    eng_bytes_free(&name);
    return text;
}

static void legacy_add_top(const struct eng_reply *reply, json_t *top, uint32_t id, float logprob)
{
    json_t *name = legacy_name(reply, id);
    const char *key = json_string_value(name);
    /* Two tokens may have one text; the likelier comes first and stays. */
    if (key && !json_object_get(top, key))
        json_object_set_new(top, key, eng_json_logprob(logprob));
    json_decref(name);
}

/* Characters that are complete once this token's bytes are there. */
static uint32_t count_chars(struct eng_reply_choice *choice, const char *piece, size_t len)
{
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char out[16];
        size_t got = eng_detok_push(&choice->detok, piece + i, 1, out);
        for (size_t k = 0; k < got; k++)
            n += ((unsigned char)out[k] & 0xC0) != 0x80;
    }
    return n;
}

static void legacy_add(const struct eng_reply *reply, struct eng_reply_choice *choice,
                       const struct eng_token_info *info, json_t *const lists[4])
{
    size_t len = 0;
    const char *visible = eng_tokenizer_piece(reply->tokenizer, info->id, false, &len);
    json_t *top = json_object();
    for (uint32_t i = 0; i < info->n_top; i++)
        legacy_add_top(reply, top, info->top[i].id, info->top[i].logprob);
    legacy_add_top(reply, top, info->id, info->logprob);
    json_array_append_new(lists[0], legacy_name(reply, info->id));
    json_array_append_new(lists[1], eng_json_logprob(info->logprob));
    json_array_append_new(lists[2], top);
    json_array_append_new(lists[3], json_integer(choice->n_chars));
    if (!eng_tokenizer_is_control(reply->tokenizer, info->id))
        choice->n_chars += count_chars(choice, visible, len);
}

static json_t *legacy_shape(json_t *const lists[4])
{
    json_t *object = json_object();
    json_object_set_new(object, "tokens", lists[0]);
    json_object_set_new(object, "token_logprobs", lists[1]);
    json_object_set_new(object, "top_logprobs", lists[2]);
    json_object_set_new(object, "text_offset", lists[3]);
    return object;
}

/* ---- both -------------------------------------------------------------------------------------------- */

static json_t *list_of(json_t **list)
{
    if (!*list)
        *list = json_array();
    return *list;
}

json_t *eng_logprobs_add(const struct eng_reply *reply, struct eng_reply_choice *choice,
                         const struct eng_token_info *tokens, size_t n)
{
    if (reply->kind == ENG_API_CHAT) {
        json_t *content = reply->stream ? json_array() : list_of(&choice->tokens);
        for (size_t i = 0; i < n; i++)
            chat_add(reply, content, &tokens[i]);
        return reply->stream ? chat_shape(content) : NULL;
    }
    json_t *lists[4];
    if (reply->stream) {
        for (int i = 0; i < 4; i++)
            lists[i] = json_array();
    } else {
        lists[0] = list_of(&choice->tokens);
        lists[1] = list_of(&choice->token_logprobs);
        lists[2] = list_of(&choice->top_logprobs);
        lists[3] = list_of(&choice->text_offset);
    }
    for (size_t i = 0; i < n; i++)
        legacy_add(reply, choice, &tokens[i], lists);
    return reply->stream ? legacy_shape(lists) : NULL;
}

json_t *eng_logprobs_whole(const struct eng_reply *reply, struct eng_reply_choice *choice)
{
    json_t *lists[4] = {list_of(&choice->tokens), list_of(&choice->token_logprobs),
                        list_of(&choice->top_logprobs), list_of(&choice->text_offset)};
    choice->tokens = choice->token_logprobs = choice->top_logprobs = choice->text_offset = NULL;
    if (reply->kind == ENG_API_CHAT) {
        for (int i = 1; i < 4; i++)
            json_decref(lists[i]);
        return chat_shape(lists[0]);
    }
    return legacy_shape(lists);
}
