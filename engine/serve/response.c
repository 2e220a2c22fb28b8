/* Chunks, whole replies, usage and errors; see response.h. Log-probabilities are in response_logprobs.c. */
#include "engine/serve/response.h"
#include "engine/serve/response_logprobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ---- errors ------------------------------------------------------------------------------------------ */

static json_t *error_object(const struct eng_api_error *err)
{
    json_t *object = json_object(), *inner = json_object();
    json_object_set_new(inner, "message", eng_json_text(err->message, strlen(err->message)));
    json_object_set_new(inner, "type", json_string(err->type ? err->type : "server_error"));
    json_object_set_new(inner, "param", err->param[0] ? json_string(err->param) : json_null());
    json_object_set_new(inner, "code", err->code ? json_string(err->code) : json_null());
    json_object_set_new(object, "error", inner);
    return object;
}

char *eng_error_json(const struct eng_api_error *err)
{
    json_t *object = error_object(err);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

int eng_error_stopping(struct eng_api_error *err)
{
    return eng_api_fail_as(err, 503, "server_error", "shutting_down",
                           "The server is shutting down; try again in a moment.");
}

int eng_reply_error(const struct eng_reply *reply, int result, const char *message, struct eng_api_error *err)
{
    if (result == ENG_OK && reply->broken == ENG_FINISH_NONE)
        return 0;
    if (result == ENG_OK && reply->broken == ENG_FINISH_CANCELLED)
        return eng_error_stopping(err);
    if (result == ENG_EINVAL)
        return eng_api_fail(err, NULL, "%s", *message ? message : "The engine refused the request.");
    if (result == ENG_EFULL)
        return eng_api_fail_as(err, 503, "server_error", "out_of_memory", "%s",
                               *message ? message : "The request does not fit into the KV cache.");
    return eng_api_fail_as(err, 500, "server_error", NULL, "The request failed: %s.",
                           *message ? message : eng_strerror(result == ENG_OK ? ENG_EIO : result));
}

/* ---- packed events ----------------------------------------------------------------------------------- */

struct packed_event {
    uint32_t choice, finish, text_len, n_tokens;
};
/* then text_len bytes of text, then n_tokens times: */
struct packed_token {
    uint32_t id;
    float logprob;
    uint32_t n_top; /* then n_top pairs of (uint32_t id, float logprob) */
};

void eng_reply_pack(struct eng_bytes *queue, const struct eng_event *event, bool with_tokens)
{
    size_t n_tokens = with_tokens ? event->n_tokens : 0;
    if (event->text_len == 0 && n_tokens == 0 && event->finish == ENG_FINISH_NONE)
        return;
    struct packed_event head = {event->choice, (uint32_t)event->finish, (uint32_t)event->text_len,
                                (uint32_t)n_tokens};
    eng_bytes_add(queue, &head, sizeof head);
    eng_bytes_add(queue, event->text, event->text_len);
    for (size_t i = 0; i < n_tokens; i++) {
        const struct eng_token_info *info = &event->tokens[i];
        struct packed_token token = {info->id, info->logprob, info->n_top};
        eng_bytes_add(queue, &token, sizeof token);
        eng_bytes_add(queue, info->top, info->n_top * sizeof info->top[0]);
    }
}

/* Reads the tokens of one event into an array the caller frees. */
static struct eng_token_info *unpack_tokens(const char **at, uint32_t n)
{
    struct eng_token_info *tokens = n ? calloc(n, sizeof *tokens) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct packed_token token;
        memcpy(&token, *at, sizeof token);
        *at += sizeof token;
        if (tokens) {
            tokens[i].id = token.id;
            tokens[i].logprob = token.logprob;
            tokens[i].n_top = token.n_top;
            memcpy(tokens[i].top, *at, token.n_top * sizeof tokens[i].top[0]);
        }
        *at += token.n_top * sizeof tokens[0].top[0];
    }
    return tokens;
}

/* ---- pieces ------------------------------------------------------------------------------------------ */

void eng_reply_init(struct eng_reply *reply, const struct eng_api_request *request, const char *model,
                    const struct eng_tokenizer *tokenizer, const struct cs_tenant *tenant, bool debug)
{
    uint64_t random[2] = {0};
    *reply = (struct eng_reply){
        .kind = request->kind,
        .stream = request->stream,
        .include_usage = request->include_usage,
        .logprobs = request->sampling.logprobs,
        .debug = debug,
        .has_tenant = tenant != NULL,
        .created = (int64_t)time(NULL),
        .model = model,
        .tokenizer = tokenizer,
        .n_choices = request->n_choices,
    };
    if (tenant)
        reply->tenant = *tenant;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        random[0] = (uint64_t)reply->created;
    snprintf(reply->id, sizeof reply->id, "%s-%016llx%08x", reply->kind == ENG_API_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)random[0], (unsigned)random[1]);
}

void eng_reply_free(struct eng_reply *reply)
{
    for (uint32_t i = 0; i < ENG_CHOICES_MAX; i++) {
        struct eng_reply_choice *choice = &reply->choices[i];
        eng_bytes_free(&choice->text);
        json_decref(choice->tokens);
        json_decref(choice->token_logprobs);
        json_decref(choice->top_logprobs);
        json_decref(choice->text_offset);
        *choice = (struct eng_reply_choice){0};
    }
}

static json_t *finish_json(enum eng_finish finish)
{
    switch (finish) {
    case ENG_FINISH_NONE:
        return json_null();
    case ENG_FINISH_LENGTH:
        return json_string("length");
    default:
        return json_string("stop");
    }
}

static json_t *envelope(const struct eng_reply *reply)
{
    json_t *object = json_object();
    const char *kind = reply->kind != ENG_API_CHAT ? "text_completion"
                       : reply->stream             ? "chat.completion.chunk"
                                                   : "chat.completion";
    json_object_set_new(object, "id", json_string(reply->id));
    json_object_set_new(object, "object", json_string(kind));
    json_object_set_new(object, "created", json_integer(reply->created));
    json_object_set_new(object, "model", eng_json_text(reply->model, strlen(reply->model)));
    json_object_set_new(object, "system_fingerprint", json_string("isotherm-" ISOTHERM_VERSION));
    return object;
}

static json_t *usage_json(const struct eng_usage *usage)
{
    json_t *object = json_object(), *details = json_object();
    json_object_set_new(object, "prompt_tokens", json_integer(usage->prompt_tokens));
    json_object_set_new(object, "completion_tokens", json_integer(usage->completion_tokens));
    json_object_set_new(object, "total_tokens",
                        json_integer((json_int_t)usage->prompt_tokens + usage->completion_tokens));
    json_object_set_new(details, "cached_tokens", json_integer(cs_reuse_tokens(&usage->reuse)));
    json_object_set_new(object, "prompt_tokens_details", details);
    return object;
}

static json_t *isotherm_json(const struct eng_reply *reply, const struct eng_usage *usage)
{
    const struct cs_reuse *reuse = &usage->reuse;
    uint32_t reused = cs_reuse_tokens(reuse);
    json_t *object = json_object(), *timings = json_object();
    json_object_set_new(object, "tokens_device", json_integer(reuse->tokens_device));
    json_object_set_new(object, "tokens_host", json_integer(reuse->tokens_host));
    json_object_set_new(object, "tokens_disk", json_integer(reuse->tokens_disk));
    json_object_set_new(object, "tokens_matched", json_integer(reuse->tokens_matched));
    json_object_set_new(object, "tokens_prefilled",
                        json_integer(usage->prompt_tokens > reused ? usage->prompt_tokens - reused : 0));
    json_object_set_new(object, "miss", json_string(cs_miss_name(reuse->miss)));
    json_object_set_new(object, "preemptions", json_integer(usage->preemptions));
    json_object_set_new(timings, "queue_ms", json_real(usage->queue_ms));
    json_object_set_new(timings, "restore_ms", json_real(usage->restore_ms));
    json_object_set_new(timings, "prefill_ms", json_real(usage->prefill_ms));
    json_object_set_new(timings, "decode_ms", json_real(usage->decode_ms));
    json_object_set_new(object, "timings", timings);
    if (reply->has_tenant)
        json_object_set_new(object, "tenant", eng_json_hex(reply->tenant.id, sizeof reply->tenant.id));
    if (reply->debug) {
        char hash[17];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)usage->logits_hash);
        json_object_set_new(object, "logits_hash", json_string(hash));
    }
    return object;
}

static void add_event(struct eng_bytes *out, json_t *object)
{
    eng_bytes_add_str(out, "data: ");
    eng_bytes_add_json(out, object);
    eng_bytes_add_str(out, "\n\n");
}

/* ---- streaming --------------------------------------------------------------------------------------- */

/* One chunk with one choice; takes over delta_or_text and logprobs. */
static void add_chunk(const struct eng_reply *reply, uint32_t index, json_t *delta_or_text, json_t *logprobs,
                      enum eng_finish finish, struct eng_bytes *out)
{
    json_t *object = envelope(reply), *choices = json_array(), *choice = json_object();
    json_object_set_new(choice, "index", json_integer(index));
    json_object_set_new(choice, reply->kind == ENG_API_CHAT ? "delta" : "text", delta_or_text);
    json_object_set_new(choice, "logprobs", logprobs ? logprobs : json_null());
    json_object_set_new(choice, "finish_reason", finish_json(finish));
    json_array_append_new(choices, choice);
    json_object_set_new(object, "choices", choices);
    if (reply->include_usage)
        json_object_set_new(object, "usage", json_null());
    add_event(out, object);
}

static void stream_event(struct eng_reply *reply, const struct packed_event *head, const char *text,
                         json_t *logprobs, struct eng_bytes *out)
{
    struct eng_reply_choice *choice = &reply->choices[head->choice];
    bool chat = reply->kind == ENG_API_CHAT;
    enum eng_finish finish = head->finish;
    if (chat && !choice->role_sent) {
        choice->role_sent = true;
        add_chunk(reply, head->choice, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL,
                  ENG_FINISH_NONE, out);
    }
    /* An error or a cancellation is told at the end, for the whole stream. */
    if (finish == ENG_FINISH_ERROR || finish == ENG_FINISH_CANCELLED)
        finish = ENG_FINISH_NONE;
    if (head->text_len || head->n_tokens) {
        json_t *piece = eng_json_text(text, head->text_len);
        /* The legacy endpoint has no empty delta: there the reason travels with the last text. */
        if (chat)
            add_chunk(reply, head->choice, json_pack("{s:o}", "content", piece), logprobs, ENG_FINISH_NONE,
                      out);
        else
            add_chunk(reply, head->choice, piece, logprobs, finish, out);
    } else {
        json_decref(logprobs);
    }
    if (finish != ENG_FINISH_NONE && (chat || !(head->text_len || head->n_tokens)))
        add_chunk(reply, head->choice, chat ? json_object() : json_string(""), NULL, finish, out);
}

static void whole_event(struct eng_reply *reply, const struct packed_event *head, const char *text)
{
    struct eng_reply_choice *choice = &reply->choices[head->choice];
    eng_bytes_add(&choice->text, text, head->text_len);
    if (head->finish != ENG_FINISH_NONE)
        choice->finish = head->finish;
}

void eng_reply_take(struct eng_reply *reply, const char *queue, size_t len, struct eng_bytes *out)
{
    const char *at = queue, *end = queue + len;
    while (at < end) {
        struct packed_event head;
        memcpy(&head, at, sizeof head);
        const char *text = at + sizeof head;
        at = text + head.text_len;
        struct eng_token_info *tokens = unpack_tokens(&at, head.n_tokens);
        if (head.choice < reply->n_choices) {
            json_t *logprobs = NULL;
            if (head.finish == ENG_FINISH_CANCELLED || head.finish == ENG_FINISH_ERROR)
                reply->broken = head.finish;
            if (reply->logprobs && tokens)
                logprobs = eng_logprobs_add(reply, &reply->choices[head.choice], tokens, head.n_tokens);
            if (reply->stream)
                stream_event(reply, &head, text, logprobs, out);
            else
                whole_event(reply, &head, text);
        }
        free(tokens);
    }
}

void eng_reply_end_stream(struct eng_reply *reply, int result, const char *message,
                          const struct eng_usage *usage, struct eng_bytes *out)
{
    struct eng_api_error err = {0};
    if (eng_reply_error(reply, result, message, &err) != 0) {
        add_event(out, error_object(&err));
        return;
    }
    if (reply->include_usage) {
        json_t *object = envelope(reply);
        json_object_set_new(object, "choices", json_array());
        json_object_set_new(object, "usage", usage_json(usage));
        json_object_set_new(object, "x_isotherm", isotherm_json(reply, usage));
        add_event(out, object);
    }
    eng_bytes_add_str(out, "data: [DONE]\n\n");
}

/* ---- whole replies ----------------------------------------------------------------------------------- */

void eng_reply_whole(struct eng_reply *reply, const struct eng_usage *usage, struct eng_bytes *out)
{
    json_t *object = envelope(reply), *choices = json_array();
    for (uint32_t i = 0; i < reply->n_choices; i++) {
        struct eng_reply_choice *done = &reply->choices[i];
        json_t *choice = json_object(), *text = eng_json_text(done->text.data, done->text.len);
        if (done->text.failed)
            out->failed = true;
        json_object_set_new(choice, "index", json_integer(i));
        if (reply->kind == ENG_API_CHAT) {
            json_t *message = json_object();
            json_object_set_new(message, "role", json_string("assistant"));
            json_object_set_new(message, "content", text);
            json_object_set_new(message, "refusal", json_null());
            json_object_set_new(choice, "message", message);
        } else {
            json_object_set_new(choice, "text", text);
        }
        json_object_set_new(choice, "logprobs",
                            reply->logprobs ? eng_logprobs_whole(reply, done) : json_null());
        json_object_set_new(choice, "finish_reason", finish_json(done->finish));
        json_array_append_new(choices, choice);
    }
    json_object_set_new(object, "choices", choices);
    json_object_set_new(object, "usage", usage_json(usage));
    json_object_set_new(object, "x_isotherm", isotherm_json(reply, usage));
    eng_bytes_add_json(out, object);
}
