/* The sampler: one draw from one row of logits. Internal to the runtime. */
#ifndef ISOTHERM_ENGINE_RUNTIME_SAMPLER_H
#define ISOTHERM_ENGINE_RUNTIME_SAMPLER_H

#include "engine/runtime/runtime.h"

/* Scratch for rows of n_vocab; holds nothing between draws. */
struct sampler;
int sampler_new(uint32_t n_vocab, struct sampler **out);
void sampler_free(struct sampler *s);

/* Checks the ranges of p: ENG_OK or ENG_EINVAL with a line in err that names the field. */
int sampler_check(const struct eng_sampling *p, uint32_t n_vocab, char *err, size_t err_len);

/* The id drawn at position n - n_prompt of the reply. logits (n_vocab); ids: prompt (n_prompt), then what the
 * reply has so far, n in all. info gets the id and, when p asks, log-probabilities of the raw logits. */
uint32_t sampler_draw(struct sampler *s, struct kn_backend *b, const struct eng_sampling *p, uint32_t choice,
                      const float *logits, const uint32_t *ids, size_t n_prompt, size_t n,
                      struct eng_token_info *info);

/* The random number of a draw: a function of the three and nothing else, uniform in [0, 1). */
double sampler_uniform(uint64_t seed, uint32_t choice, uint64_t position);

#endif
