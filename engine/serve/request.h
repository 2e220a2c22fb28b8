/*
 * Bodies of the POST endpoints, parsed: JSON in, a struct out, or an error that names the field. What the API
 * has and we do not (tools, response_format, ...) is refused here by name; fields nobody knows are ignored.
 *
 * Pure: reads nothing but its arguments. Any thread.
 */
#ifndef ISOTHERM_ENGINE_SERVE_REQUEST_H
#define ISOTHERM_ENGINE_SERVE_REQUEST_H

#include "engine/runtime/runtime.h"
#include "engine/serve/json.h"

enum eng_api_kind { ENG_API_CHAT, ENG_API_COMPLETION };

enum { ENG_API_MAX_STOP = 16 };

/* Zero-initialise; every pointer lives until eng_api_request_free. */
struct eng_api_request {
    enum eng_api_kind kind;
    const char *model; /* NULL: not given */

    struct eng_message *messages; /* chat */
    size_t n_messages;
    const char *prompt; /* completion, as text ... */
    size_t prompt_len;
    uint32_t *ids; /* ... or as ids (then prompt is NULL) */
    size_t n_ids;

    struct eng_sampling sampling; /* bias points into this struct's own memory */
    bool seed_given;
    uint32_t n_choices, max_tokens; /* max_tokens 0: to the end of the context */
    const char *stop[ENG_API_MAX_STOP];
    size_t n_stop;
    bool ignore_eos, stream, include_usage;
    bool no_thinking; /* chat: the reply begins behind an empty think block, where the template has one */

    struct eng_logit_bias *bias;
    char **joined; /* contents that came in parts */
    size_t n_joined;
    json_t *root; /* strings point into it */
};

/* n_vocab bounds token ids. 0, or -1 with a 400 in err; *out is safe to free either way. */
int eng_api_parse_completion(enum eng_api_kind kind, const char *body, size_t len, uint32_t n_vocab,
                             struct eng_api_request *out, struct eng_api_error *err);
void eng_api_request_free(struct eng_api_request *r);

/* /tokenize */
struct eng_api_tokenize {
    const char *content;
    size_t len;
    bool add_special, parse_special, with_pieces;
    json_t *root;
};
int eng_api_parse_tokenize(const char *body, size_t len, struct eng_api_tokenize *out,
                           struct eng_api_error *err);

/* /detokenize: *ids is malloc'ed. */
int eng_api_parse_detokenize(const char *body, size_t len, uint32_t n_vocab, uint32_t **ids, size_t *n,
                             struct eng_api_error *err);

#endif
