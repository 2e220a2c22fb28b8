/*
 * The preparing thread: what a POST needs that grows with its body (parsing, chat template, tokenising) and
 * the hand-over to the engine, so that the HTTP thread stays free for the streams.
 */
#include "engine/serve/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- answers ----------------------------------------------------------------------------------------- */

static void answer_failure(struct eng_call *c, const struct eng_api_error *failure)
{
    pthread_mutex_lock(&c->lock);
    c->failure = *failure;
    c->state = ENG_CALL_ANSWERED;
    eng_call_resume_locked(c);
    pthread_mutex_unlock(&c->lock);
}

static void answer_stopping(struct eng_call *c)
{
    struct eng_api_error failure;
    eng_error_stopping(&failure);
    answer_failure(c, &failure);
}

/* Takes the bytes over. */
static void answer_text(struct eng_call *c, struct eng_bytes text)
{
    struct eng_api_error failure = {0};
    if (text.failed) {
        eng_api_fail_as(&failure, 500, "server_error", NULL, "Out of memory.");
        answer_failure(c, &failure);
        return;
    }
    pthread_mutex_lock(&c->lock);
    c->answer = text;
    c->state = ENG_CALL_ANSWERED;
    eng_call_resume_locked(c);
    pthread_mutex_unlock(&c->lock);
}

/* ---- queue ------------------------------------------------------------------------------------------- */

void eng_prepare_push(struct eng_server *s, struct eng_call *c)
{
    eng_call_ref(c);
    pthread_mutex_lock(&s->prepare_lock);
    c->next_to_prepare = NULL;
    if (s->prepare_tail)
        s->prepare_tail->next_to_prepare = c;
    else
        s->prepare_head = c;
    s->prepare_tail = c;
    pthread_cond_signal(&s->prepare_wake);
    pthread_mutex_unlock(&s->prepare_lock);
}

static bool call_is_gone(struct eng_call *c)
{
    pthread_mutex_lock(&c->lock);
    bool gone = c->gone;
    pthread_mutex_unlock(&c->lock);
    return gone;
}

void *eng_prepare_thread(void *server)
{
    struct eng_server *s = server;
    pthread_mutex_lock(&s->prepare_lock);
    while (!s->prepare_stop) {
        struct eng_call *c = s->prepare_head;
        if (!c) {
            pthread_cond_wait(&s->prepare_wake, &s->prepare_lock);
            continue;
        }
        s->prepare_head = c->next_to_prepare;
        if (!s->prepare_head)
            s->prepare_tail = NULL;
        pthread_mutex_unlock(&s->prepare_lock);

        if (atomic_load(&s->draining))
            answer_stopping(c);
        else if (!call_is_gone(c))
            c->route->post(c);
        eng_bytes_free(&c->body);
        atomic_fetch_sub(&s->body_bytes, c->body_reserved);
        c->body_reserved = 0;
        eng_call_unref(c);

        pthread_mutex_lock(&s->prepare_lock);
    }
    pthread_mutex_unlock(&s->prepare_lock);
    return NULL;
}

/* ---- completions ------------------------------------------------------------------------------------- */

static int engine_failure(int code, const char *message, struct eng_api_error *err)
{
    switch (code) {
    case ENG_OK:
        return 0;
    case ENG_EINVAL:
        return eng_api_fail(err, NULL, "%s", message[0] ? message : "The engine refused the request.");
    case ENG_EFULL:
        return eng_api_fail_as(err, 429, "rate_limit_error", "queue_full",
                               "The queue is full; try again in a moment.");
    default:
        return eng_api_fail_as(err, 500, "server_error", NULL, "%s",
                               message[0] ? message : eng_strerror(code));
    }
}

static int render_chat(struct eng_engine *e, const struct eng_call *c, const struct eng_api_request *r,
                       struct eng_prompt *prompt, struct eng_api_error *err)
{
    char message[256] = "";
    if (!eng_engine_template(e))
        return eng_api_fail(err, "messages",
                            "This model's file has no chat template that this server knows, so it cannot "
                            "chat; start the server with --chat-template NAME (%s), or use /v1/completions.",
                            eng_chat_names());
    int code = eng_engine_render(e, &c->tenant, r->messages, r->n_messages, !r->no_thinking, prompt, message,
                                 sizeof message);
    return engine_failure(code, message, err);
}

static int encode_prompt(const struct eng_tokenizer *t, const struct eng_api_request *r,
                         struct eng_prompt *prompt, struct eng_api_error *err)
{
    int code = ENG_OK;
    if (!r->prompt) {
        code = eng_ids_add(&prompt->ids, r->ids, r->n_ids);
    } else {
        uint32_t bos = eng_tokenizer_bos(t);
        if (eng_tokenizer_add_bos(t) && bos != UINT32_MAX)
            code = eng_ids_add(&prompt->ids, &bos, 1);
        if (code == ENG_OK)
            code = eng_tokenizer_encode(t, r->prompt, r->prompt_len, false, &prompt->ids);
    }
    return engine_failure(code, "", err);
}

/* Fewer tokens than this the prompt cannot have: a text of many times the context is refused before it is
 * encoded, which costs memory in proportion to its longest word. */
static size_t least_tokens(const struct eng_tokenizer *t, const struct eng_api_request *r)
{
    size_t longest = r->prompt ? r->prompt_len : 0;
    for (size_t i = 0; i < r->n_messages; i++)
        if (r->messages[i].len > longest)
            longest = r->messages[i].len;
    return longest / eng_tokenizer_longest_piece(t);
}

/* What /tokenize takes: no longer a text than a prompt may be. */
static int check_text_length(struct eng_engine *e, size_t len, struct eng_api_error *err)
{
    size_t least = len / eng_tokenizer_longest_piece(eng_engine_tokenizer(e));
    if (least < eng_engine_context(e))
        return 0;
    eng_api_fail(err, "content", "The text has at least %zu tokens; this model's context is %u tokens.",
                 least, eng_engine_context(e));
    err->code = "context_length_exceeded";
    return -1;
}

static int fail_too_long(struct eng_engine *e, const char *param, const char *at_least, size_t n,
                         struct eng_api_error *err)
{
    eng_api_fail(err, param,
                 "The prompt has %s%zu tokens; this model's context is %u tokens, of which at least one "
                 "is for the reply.",
                 at_least, n, eng_engine_context(e));
    err->code = "context_length_exceeded";
    return -1;
}

/* The prompt of r as ids, or why not. */
static int make_prompt(struct eng_engine *e, const struct eng_call *c, const struct eng_api_request *r,
                       struct eng_prompt *prompt, struct eng_api_error *err)
{
    const char *param = r->kind == ENG_API_CHAT ? "messages" : "prompt";
    if (r->model && !eng_state_is_model(c->server, r->model)) {
        eng_api_fail_as(err, 404, "invalid_request_error", "model_not_found",
                        "The model '%.200s' does not exist here; this server has '%.200s'.", r->model,
                        c->server->model_name);
        snprintf(err->param, sizeof err->param, "model");
        return -1;
    }
    size_t least = least_tokens(eng_engine_tokenizer(e), r);
    if (least >= eng_engine_context(e))
        return fail_too_long(e, param, "at least ", least, err);
    int result = r->kind == ENG_API_CHAT ? render_chat(e, c, r, prompt, err)
                                         : encode_prompt(eng_engine_tokenizer(e), r, prompt, err);
    if (result != 0)
        return -1;
    if (prompt->ids.n == 0)
        return eng_api_fail(err, param, "'%s' is empty: there is nothing to continue.", param);
    if (prompt->ids.n >= eng_engine_context(e))
        return fail_too_long(e, param, "", prompt->ids.n, err);
    return 0;
}

static void running_add(struct eng_server *s, int change)
{
    pthread_mutex_lock(&s->running_lock);
    s->running = (unsigned)((int)s->running + change);
    if (s->running == 0)
        pthread_cond_broadcast(&s->running_none);
    pthread_mutex_unlock(&s->running_lock);
}

/* From here on the engine may call back at any time, before eng_submit returns too. */
static int submit(struct eng_engine *e, struct eng_call *c, struct eng_api_request *r,
                  struct eng_prompt *prompt, struct eng_api_error *err)
{
    char message[256] = "";
    eng_request_id id = 0;
    struct eng_request request = {
        .tenant = &c->tenant,
        .prompt = prompt,
        .sampling = &r->sampling,
        .n_choices = r->n_choices,
        .max_tokens = r->max_tokens,
        .stop = r->stop,
        .n_stop = r->n_stop,
        .ignore_eos = r->ignore_eos,
        .hash_logits = c->server->debug,
        .on_event = eng_call_on_event,
        .on_done = eng_call_on_done,
        .ctx = eng_call_ref(c),
    };
    eng_reply_init(&c->reply, r, c->server->model_name, eng_engine_tokenizer(e),
                   c->server->keys ? &c->tenant : NULL, c->server->debug);
    pthread_mutex_lock(&c->lock);
    c->state = r->stream ? ENG_CALL_STREAMING : ENG_CALL_RUNNING;
    c->last_write_ms = eng_now_ms();
    pthread_mutex_unlock(&c->lock);
    running_add(c->server, 1);

    int code = eng_submit(e, &request, &id, message, sizeof message);
    if (code != ENG_OK) {
        running_add(c->server, -1);
        eng_call_unref(c);
        return engine_failure(code, message, err);
    }
    pthread_mutex_lock(&c->lock);
    c->submitted = true;
    c->request_id = id;
    bool cancel = c->gone && !c->done;
    if (r->stream)
        eng_call_resume_locked(c); /* the headers go out now, whatever the prompt takes */
    pthread_mutex_unlock(&c->lock);
    /* Where the server stops it may have begun after the others were cancelled. */
    if (cancel || (atomic_load(&c->server->draining) && eng_call_take_cancel(c, false, &id)))
        eng_cancel(e, id);
    return 0;
}

void eng_prepare_completion(struct eng_call *c, enum eng_api_kind kind)
{
    struct eng_engine *e = atomic_load(&c->server->engine);
    struct eng_api_request r;
    struct eng_api_error err = {0};
    struct eng_prompt prompt = {0};
    int result = eng_api_parse_completion(kind, c->body.data, c->body.len,
                                          eng_tokenizer_n_vocab(eng_engine_tokenizer(e)), &r, &err);
    if (result == 0) {
        if (!r.seed_given && getrandom(&r.sampling.seed, sizeof r.sampling.seed, 0) < 0)
            r.sampling.seed = (uint64_t)eng_now_ms();
        result = make_prompt(e, c, &r, &prompt, &err);
    }
    if (result == 0 && !call_is_gone(c))
        result = submit(e, c, &r, &prompt, &err);
    eng_prompt_free(&prompt);
    eng_api_request_free(&r);
    if (result != 0)
        answer_failure(c, &err);
}

/* ---- /tokenize and /detokenize ----------------------------------------------------------------------- */

static json_t *piece_json(const struct eng_tokenizer *t, uint32_t id)
{
    size_t len = 0;
    const char *piece = eng_tokenizer_piece(t, id, true, &len);
    if (eng_utf8_valid(piece, len))
        return eng_json_text(piece, len);
    json_t *bytes = json_array();
    for (size_t i = 0; i < len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)piece[i]));
    return bytes;
}

/* Written token by token: a tree of a long text's tokens would take a hundred times the text's bytes. */
static void write_tokens(const struct eng_tokenizer *t, const struct eng_ids *ids, bool with_pieces,
                         struct eng_bytes *out)
{
    eng_bytes_add_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < ids->n && !out->failed; i++) {
        if (i > 0)
            eng_bytes_add_str(out, ",");
        if (with_pieces)
            eng_bytes_add_json(out, json_pack("{s:I, s:o}", "id", (json_int_t)ids->data[i], "piece",
                                              piece_json(t, ids->data[i])));
        else
            eng_bytes_printf(out, "%u", ids->data[i]);
    }
    eng_bytes_add_str(out, "]}");
}

void eng_prepare_tokenize(struct eng_call *c)
{
    struct eng_engine *e = atomic_load(&c->server->engine);
    const struct eng_tokenizer *t = eng_engine_tokenizer(e);
    struct eng_api_tokenize r;
    struct eng_api_error err = {0};
    struct eng_ids ids = {0};
    struct eng_bytes text = {0};
    int code = ENG_OK;
    if (eng_api_parse_tokenize(c->body.data, c->body.len, &r, &err) == 0 &&
        check_text_length(e, r.len, &err) == 0) {
        uint32_t bos = eng_tokenizer_bos(t);
        if (r.add_special && eng_tokenizer_add_bos(t) && bos != UINT32_MAX)
            code = eng_ids_add(&ids, &bos, 1);
        if (code == ENG_OK)
            code = eng_tokenizer_encode(t, r.content, r.len, r.parse_special, &ids);
        engine_failure(code, "", &err);
    }
    if (err.status == 0) {
        write_tokens(t, &ids, r.with_pieces, &text);
        answer_text(c, text);
    } else {
        answer_failure(c, &err);
    }
    json_decref(r.root);
    eng_ids_free(&ids);
}

void eng_prepare_detokenize(struct eng_call *c)
{
    const struct eng_tokenizer *t = eng_engine_tokenizer(atomic_load(&c->server->engine));
    struct eng_api_error err = {0};
    struct eng_bytes text = {0};
    uint32_t *ids = NULL;
    size_t n = 0;
    if (eng_api_parse_detokenize(c->body.data, c->body.len, eng_tokenizer_n_vocab(t), &ids, &n, &err) != 0) {
        answer_failure(c, &err);
    } else {
        for (size_t i = 0; i < n; i++) {
            size_t len = 0;
            const char *piece = eng_tokenizer_piece(t, ids[i], true, &len);
            eng_bytes_add(&text, piece, len);
        }
        struct eng_bytes out = {0};
        json_t *content = text.failed ? NULL : eng_json_text(text.data, text.len);
        eng_bytes_add_json(&out, content ? json_pack("{s:o}", "content", content) : NULL);
        answer_text(c, out);
    }
    eng_bytes_free(&text);
    free(ids);
}
