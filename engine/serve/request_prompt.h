/* The prompt of a request in the two forms of the API; called by request.c only, with out->root set. */
#ifndef ISOTHERM_ENGINE_SERVE_REQUEST_PROMPT_H
#define ISOTHERM_ENGINE_SERVE_REQUEST_PROMPT_H

#include "engine/serve/request.h"

int eng_api_parse_messages(struct eng_api_request *out, struct eng_api_error *err);
int eng_api_parse_prompt(struct eng_api_request *out, uint32_t n_vocab, struct eng_api_error *err);

#endif
