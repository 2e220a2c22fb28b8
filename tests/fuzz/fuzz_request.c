/*
 * The HTTP request parsers on any body. The first byte chooses the endpoint: c chat, t tokenize, d
 * detokenize, anything else completions. A promise of engine/serve/request.h that does not hold traps.
 */
#include "engine/serve/request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCAB = 1000 };

static volatile unsigned sink;

static void require(int promise)
{
    if (!promise)
        __builtin_trap();
}

static void read_text(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        sink += (unsigned char)text[i];
}

static void check_error(const struct eng_api_error *err)
{
    require(err->status == 400 && err->type != NULL && err->message[0] != '\0');
    require(strlen(err->message) < sizeof err->message && strlen(err->param) < sizeof err->param);
}

static void check_completion(const struct eng_api_request *r)
{
    const struct eng_sampling *s = &r->sampling;
    require(r->n_choices >= 1 && r->n_choices <= ENG_CHOICES_MAX && r->n_stop <= ENG_API_MAX_STOP);
    require(s->temperature >= 0 && s->temperature <= 2 && s->top_p >= 0 && s->top_p <= 1);
    require(s->min_p >= 0 && s->min_p <= 1 && s->repeat_penalty > 0 && s->repeat_penalty <= 10);
    require(s->presence_penalty >= -2 && s->presence_penalty <= 2);
    require(s->frequency_penalty >= -2 && s->frequency_penalty <= 2);
    require(s->top_logprobs <= ENG_TOP_LOGPROBS_MAX && (s->logprobs || s->top_logprobs == 0));
    for (size_t i = 0; i < s->n_bias; i++)
        require(s->bias[i].id < N_VOCAB && s->bias[i].bias >= -100 && s->bias[i].bias <= 100);
    for (size_t i = 0; i < r->n_stop; i++)
        require(r->stop[i][0] != '\0');
    if (r->model)
        read_text(r->model, strlen(r->model));
    require((r->n_messages > 0) == (r->kind == ENG_API_CHAT));
    for (size_t i = 0; i < r->n_messages; i++) {
        require(r->messages[i].content != NULL && r->messages[i].role <= ENG_ROLE_ASSISTANT);
        read_text(r->messages[i].content, r->messages[i].len);
    }
    if (r->kind == ENG_API_COMPLETION)
        require((r->prompt != NULL) != (r->n_ids > 0));
    if (r->prompt)
        read_text(r->prompt, r->prompt_len);
    for (size_t i = 0; i < r->n_ids; i++)
        require(r->ids[i] < N_VOCAB);
}

static void try_tokenize(const char *body, size_t len)
{
    struct eng_api_tokenize t;
    struct eng_api_error err;
    if (eng_api_parse_tokenize(body, len, &t, &err) == 0)
        read_text(t.content, t.len);
    else
        check_error(&err);
    json_decref(t.root);
}

static void try_detokenize(const char *body, size_t len)
{
    struct eng_api_error err;
    uint32_t *ids;
    size_t n;
    if (eng_api_parse_detokenize(body, len, N_VOCAB, &ids, &n, &err) == 0)
        for (size_t i = 0; i < n; i++)
            require(ids[i] < N_VOCAB);
    else
        check_error(&err);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct eng_api_request r;
    struct eng_api_error err;
    if (size == 0)
        return 0;
    const char *body = (const char *)data + 1;
    size_t len = size - 1;
    if (data[0] == 't') {
        try_tokenize(body, len);
    } else if (data[0] == 'd') {
        try_detokenize(body, len);
    } else {
        enum eng_api_kind kind = data[0] == 'c' ? ENG_API_CHAT : ENG_API_COMPLETION;
        if (eng_api_parse_completion(kind, body, len, N_VOCAB, &r, &err) == 0)
            check_completion(&r);
        else
            check_error(&err);
        eng_api_request_free(&r);
    }
    return 0;
}
