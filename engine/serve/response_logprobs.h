/* Log-probabilities in the two shapes of the API; called by response.c only. Every token has its entry, also
 * one that is a part of a character and one (such as the end token) that has no visible text. */
#ifndef ISOTHERM_ENGINE_SERVE_RESPONSE_LOGPROBS_H
#define ISOTHERM_ENGINE_SERVE_RESPONSE_LOGPROBS_H

#include "engine/serve/response.h"

/* Streaming: the "logprobs" value for these tokens alone. Whole: adds them to the choice and returns NULL. */
json_t *eng_logprobs_add(const struct eng_reply *reply, struct eng_reply_choice *choice,
                         const struct eng_token_info *tokens, size_t n);
/* Whole: the "logprobs" value of the finished choice; takes over what was gathered. */
json_t *eng_logprobs_whole(const struct eng_reply *reply, struct eng_reply_choice *choice);

#endif
