/*
 * Prefix keys: key(i) = XXH3_128(key(i-1) || token ids of page i), key(-1) = XXH3_128(secret || fingerprint
 * || tenant). Pure functions.
 */
#ifndef ISOTHERM_CACHESTORE_KEY_H
#define ISOTHERM_CACHESTORE_KEY_H

#include "cachestore/cachestore.h"

#define KEY_MAX_PAGE_TOKENS 32 /* the size of cs_chain.pending */

static inline bool key_equal(struct cs_key a, struct cs_key b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

struct cs_key key_seed(const uint8_t secret[16], const uint8_t fingerprint[32],
                       const struct cs_tenant *tenant);
/* The key behind `previous` and n (1 to KEY_MAX_PAGE_TOKENS) more ids. */
struct cs_key key_next(struct cs_key previous, const uint32_t *ids, uint32_t n);
/* out[i] = key of page i of ids, the first of them following `previous`. */
void key_pages(struct cs_key previous, const uint32_t *ids, uint32_t n_pages, uint32_t page_tokens,
               struct cs_key *out);
/* The key of the checkpoint behind the page with this key. Not a hash: keys are computed where the store's
 * lock is held, and a difference that no chain has is all that is needed. */
static inline struct cs_key key_checkpoint(struct cs_key page)
{
    return (struct cs_key){.lo = page.lo ^ 0x6368656b706f696eull, .hi = page.hi ^ 0xa5a5a5a5a5a5a5a5ull};
}

#endif
