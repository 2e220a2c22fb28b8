/*
 * Replies: what the engine reports, turned into the API's JSON, whole or as server-sent events.
 *
 * The engine thread only packs its events into a queue of bytes (eng_reply_pack); everything else happens
 * later on the HTTP thread, event by event.
 *
 * Pure: no sockets, no locks. A struct eng_reply belongs to one thread at a time.
 */
#ifndef ISOTHERM_ENGINE_SERVE_RESPONSE_H
#define ISOTHERM_ENGINE_SERVE_RESPONSE_H

#include "engine/serve/request.h"

/* {"error": {...}} as OpenAI shapes it, malloc'ed. NULL: no memory. */
char *eng_error_json(const struct eng_api_error *err);

/* The 503 of a server that stops; -1. */
int eng_error_stopping(struct eng_api_error *err);

/* Appends the event to queue: choice, finish, text and, where wanted, tokens. The bytes are meant for
 * eng_reply_take only. A failed allocation shows as queue->failed. */
void eng_reply_pack(struct eng_bytes *queue, const struct eng_event *event, bool with_tokens);

/* One choice of a reply, as far as it has come. */
struct eng_reply_choice {
    struct eng_bytes text;                                        /* whole replies only */
    json_t *tokens, *token_logprobs, *top_logprobs, *text_offset; /* whole; chat uses `tokens` alone */
    struct eng_detok detok;                                       /* counts characters for text_offset */
    uint32_t n_chars;
    bool role_sent;
    enum eng_finish finish;
};

struct eng_reply {
    enum eng_api_kind kind;
    bool stream, include_usage, logprobs, debug;
    bool has_tenant; /* there are keys */
    struct cs_tenant tenant;
    char id[40];
    int64_t created;
    const char *model; /* outlives the reply */
    const struct eng_tokenizer *tokenizer;
    uint32_t n_choices;
    enum eng_finish broken; /* a choice ended with CANCELLED or ERROR */
    struct eng_reply_choice choices[ENG_CHOICES_MAX];
};

/* Takes what it needs of the request; makes a fresh id. tenant: that of the request's key; NULL: there are no
 * keys. */
void eng_reply_init(struct eng_reply *reply, const struct eng_api_request *request, const char *model,
                    const struct eng_tokenizer *tokenizer, const struct cs_tenant *tenant, bool debug);
void eng_reply_free(struct eng_reply *reply);

/* Consumes packed events. Streaming: appends SSE chunks to out. Whole: gathers them, out is untouched. */
void eng_reply_take(struct eng_reply *reply, const char *queue, size_t len, struct eng_bytes *out);
/* The end of a stream: the usage chunk where it was asked for and [DONE], or the error. */
void eng_reply_end_stream(struct eng_reply *reply, int result, const char *message,
                          const struct eng_usage *usage, struct eng_bytes *out);
/* A whole reply. */
void eng_reply_whole(struct eng_reply *reply, const struct eng_usage *usage, struct eng_bytes *out);

/* What a client is told about a request that the engine gave up, with its message ("": none): -1 with err
 * filled, 0 when it did not. */
int eng_reply_error(const struct eng_reply *reply, int result, const char *message,
                    struct eng_api_error *err);

#endif
