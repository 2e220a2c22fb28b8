/* Sampling, limits, stop strings and everything else that both completion endpoints share; see request.h. The
 * prompt itself is parsed in request_prompt.c. */
#include "engine/serve/request.h"
#include "engine/serve/request_prompt.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is not offered ----------------------------------------------------------------------------- */

/* A value that asks for nothing: clients send these for options that they do not use. */
static bool value_asks_nothing(const json_t *value)
{
    return !value || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static int not_offered(struct eng_api_error *err, const char *name, const char *what)
{
    eng_api_fail(err, name, "'%s' is not offered by this server: %s.", name, what);
    err->code = "unsupported_parameter";
    return -1;
}

static bool value_is_string(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static int check_response_format(const json_t *root, struct eng_api_error *err)
{
    const json_t *value = eng_json_member(root, "response_format");
    if (!value)
        return 0;
    if (!json_is_object(value))
        return eng_api_fail(err, "response_format", "'response_format' must be an object.");
    const json_t *type = json_object_get(value, "type");
    if (!json_is_string(type))
        return eng_api_fail(err, "response_format", "'response_format.type' must be a string.");
    if (!value_is_string(type, "text"))
        return not_offered(err, "response_format", "only {\"type\": \"text\"} is");
    return 0;
}

static int check_offered(const json_t *root, struct eng_api_error *err)
{
    static const struct {
        const char *name, *what;
    } refused[] = {
        {"tools", "it has no tool calling"},
        {"functions", "it has no tool calling"},
        {"echo", "the prompt is not part of a reply"},
        {"suffix", "text is only continued, not filled in"},
        {"audio", "it has text only"},
        {"web_search_options", "it has no web search"},
        {"grammar", "replies cannot be constrained"},
        {"json_schema", "replies cannot be constrained"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (!value_asks_nothing(eng_json_member(root, refused[i].name)))
            return not_offered(err, refused[i].name, refused[i].what);

    static const char *const choices[] = {"tool_choice", "function_call"};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        const json_t *value = eng_json_member(root, choices[i]);
        if (!value_asks_nothing(value) && !value_is_string(value, "none") && !value_is_string(value, "auto"))
            return not_offered(err, choices[i], "it has no tool calling");
    }

    const json_t *modalities = eng_json_member(root, "modalities");
    for (size_t i = 0; i < json_array_size(modalities); i++)
        if (!value_is_string(json_array_get(modalities, i), "text"))
            return not_offered(err, "modalities", "it has text only");

    int64_t best_of = 1, n = 1;
    if (eng_json_integer(root, "best_of", 1, ENG_CHOICES_MAX, &best_of, err) < 0 ||
        eng_json_integer(root, "n", 1, ENG_CHOICES_MAX, &n, err) < 0)
        return -1;
    if (best_of > n)
        return not_offered(err, "best_of", "every choice that is made is returned");
    return check_response_format(root, err);
}

/* ---- sampling ---------------------------------------------------------------------------------------- */

static int parse_logit_bias(json_t *root, uint32_t n_vocab, struct eng_api_request *out,
                            struct eng_api_error *err)
{
    json_t *object = eng_json_member(root, "logit_bias");
    if (!object)
        return 0;
    if (!json_is_object(object))
        return eng_api_fail(err, "logit_bias", "'logit_bias' must be an object of token ids and biases.");
    size_t n = json_object_size(object);
    if (n == 0)
        return 0;
    out->bias = calloc(n, sizeof *out->bias);
    if (!out->bias)
        return eng_api_fail_as(err, 500, "server_error", NULL, "Out of memory.");
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        uint64_t id = 0;
        size_t digits = strspn(key, "0123456789");
        if (digits == 0 || digits > 10 || key[digits] != '\0' || (id = strtoull(key, NULL, 10)) >= n_vocab)
            return eng_api_fail(err, "logit_bias", "'logit_bias' keys must be token ids from 0 to %u.",
                                n_vocab ? n_vocab - 1 : 0);
        double bias = json_number_value(value);
        if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            return eng_api_fail(err, "logit_bias", "'logit_bias' values must be numbers from -100 to 100.");
        out->bias[out->sampling.n_bias++] = (struct eng_logit_bias){(uint32_t)id, (float)bias};
    }
    out->sampling.bias = out->bias;
    return 0;
}

static int parse_logprobs(const json_t *root, struct eng_api_request *out, struct eng_api_error *err)
{
    struct eng_sampling *s = &out->sampling;
    int64_t top = 0;
    if (out->kind == ENG_API_COMPLETION) {
        /* Here `logprobs` is the number of alternatives; 0 still asks for the chosen tokens' own. */
        if (json_is_false(eng_json_member(root, "logprobs")))
            return 0;
        int got = eng_json_integer(root, "logprobs", 0, ENG_TOP_LOGPROBS_MAX, &top, err);
        if (got < 0)
            return -1;
        s->logprobs = got > 0;
        s->top_logprobs = (uint32_t)top;
        return 0;
    }
    if (eng_json_bool(root, "logprobs", &s->logprobs, err) < 0)
        return -1;
    int got = eng_json_integer(root, "top_logprobs", 0, ENG_TOP_LOGPROBS_MAX, &top, err);
    if (got < 0)
        return -1;
    if (top > 0 && !s->logprobs)
        return eng_api_fail(err, "top_logprobs", "'top_logprobs' needs 'logprobs' to be true.");
    s->top_logprobs = (uint32_t)top;
    return 0;
}

static int parse_sampling(json_t *root, uint32_t n_vocab, struct eng_api_request *out,
                          struct eng_api_error *err)
{
    struct eng_sampling *s = &out->sampling;
    *s = (struct eng_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1}; /* everything off */
    int64_t top_k = 0, seed = 0;
    if (eng_json_number(root, "temperature", 0, 2, &s->temperature, err) < 0 ||
        eng_json_number(root, "top_p", 0, 1, &s->top_p, err) < 0 ||
        eng_json_number(root, "min_p", 0, 1, &s->min_p, err) < 0 ||
        eng_json_number(root, "repeat_penalty", 0.01, 10, &s->repeat_penalty, err) < 0 ||
        eng_json_number(root, "presence_penalty", -2, 2, &s->presence_penalty, err) < 0 ||
        eng_json_number(root, "frequency_penalty", -2, 2, &s->frequency_penalty, err) < 0 ||
        eng_json_integer(root, "top_k", -1, UINT32_MAX, &top_k, err) < 0)
        return -1;
    s->top_k = top_k < 0 ? 0 : (uint32_t)top_k; /* -1 is how other servers spell "off" */
    int got = eng_json_integer(root, "seed", INT64_MIN, INT64_MAX, &seed, err);
    if (got < 0)
        return -1;
    out->seed_given = got > 0;
    s->seed = (uint64_t)seed;
    if (parse_logprobs(root, out, err) < 0)
        return -1;
    return parse_logit_bias(root, n_vocab, out, err);
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

static int parse_stop(const json_t *root, struct eng_api_request *out, struct eng_api_error *err)
{
    const json_t *value = eng_json_member(root, "stop");
    if (!value)
        return 0;
    if (!json_is_string(value) && !json_is_array(value))
        return eng_api_fail(err, "stop", "'stop' must be a string or an array of strings.");
    size_t n = json_is_string(value) ? 1 : json_array_size(value);
    if (n > ENG_API_MAX_STOP)
        return eng_api_fail(err, "stop", "'stop' takes at most %d strings, not %zu.", ENG_API_MAX_STOP, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_string(value) ? value : json_array_get(value, i);
        if (!json_is_string(item) || json_string_length(item) == 0)
            return eng_api_fail(err, "stop", "'stop' must hold strings that are not empty.");
        if (strlen(json_string_value(item)) != json_string_length(item))
            return eng_api_fail(err, "stop", "'stop' strings cannot hold U+0000.");
        out->stop[out->n_stop++] = json_string_value(item);
    }
    return 0;
}

static int parse_max_tokens(const json_t *root, struct eng_api_request *out, struct eng_api_error *err)
{
    /* The legacy endpoint's documented default is 16; a chat runs to its end. */
    int64_t max_tokens = out->kind == ENG_API_COMPLETION ? 16 : 0;
    if (eng_json_integer(root, "max_tokens", 1, INT64_MAX, &max_tokens, err) < 0 ||
        eng_json_integer(root, "max_completion_tokens", 1, INT64_MAX, &max_tokens, err) < 0)
        return -1;
    out->max_tokens = max_tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)max_tokens;
    return 0;
}

static int parse_common(json_t *root, uint32_t n_vocab, struct eng_api_request *out,
                        struct eng_api_error *err)
{
    const json_t *model = eng_json_member(root, "model");
    if (model && !json_is_string(model))
        return eng_api_fail(err, "model", "'model' must be a string.");
    out->model = model ? json_string_value(model) : NULL;

    int64_t n = 1;
    if (eng_json_integer(root, "n", 1, ENG_CHOICES_MAX, &n, err) < 0 ||
        eng_json_bool(root, "stream", &out->stream, err) < 0 ||
        eng_json_bool(root, "ignore_eos", &out->ignore_eos, err) < 0)
        return -1;
    out->n_choices = (uint32_t)n;

    const json_t *options = eng_json_member(root, "stream_options");
    if (options) {
        if (!json_is_object(options))
            return eng_api_fail(err, "stream_options", "'stream_options' must be an object.");
        if (eng_json_bool(options, "include_usage", &out->include_usage, err) < 0) {
            (void)eng_api_fail(err, "stream_options",
                               "'stream_options.include_usage' must be true or false.");
            return -1;
        }
    }
    if (check_offered(root, err) < 0 || parse_max_tokens(root, out, err) < 0 ||
        parse_stop(root, out, err) < 0)
        return -1;
    return parse_sampling(root, n_vocab, out, err);
}

int eng_api_parse_completion(enum eng_api_kind kind, const char *body, size_t len, uint32_t n_vocab,
                             struct eng_api_request *out, struct eng_api_error *err)
{
    *out = (struct eng_api_request){.kind = kind};
    *err = (struct eng_api_error){0};
    out->root = eng_json_parse_object(body, len, err);
    if (!out->root || parse_common(out->root, n_vocab, out, err) < 0)
        return -1;
    return kind == ENG_API_CHAT ? eng_api_parse_messages(out, err) : eng_api_parse_prompt(out, n_vocab, err);
}

void eng_api_request_free(struct eng_api_request *r)
{
    for (size_t i = 0; i < r->n_joined; i++)
        free(r->joined[i]);
    free(r->joined);
    free(r->messages);
    free(r->ids);
    free(r->bias);
    json_decref(r->root);
    *r = (struct eng_api_request){0};
}
