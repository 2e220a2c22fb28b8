/* Prefix keys (see key.h), and the chain that callers carry. */
#include "cachestore/key.h"
#include "cachestore/store.h"

#include <string.h>
#include <xxhash.h>

static struct cs_key key_of(const void *bytes, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    return (struct cs_key){.lo = h.low64, .hi = h.high64};
}

struct cs_key key_seed(const uint8_t secret[16], const uint8_t fingerprint[32],
                       const struct cs_tenant *tenant)
{
    uint8_t buf[16 + 32 + 16];
    memcpy(buf, secret, 16);
    memcpy(buf + 16, fingerprint, 32);
    memcpy(buf + 48, tenant->id, 16);
    return key_of(buf, sizeof buf);
}

struct cs_key key_next(struct cs_key previous, const uint32_t *ids, uint32_t n)
{
    struct {
        struct cs_key previous;
        uint32_t ids[KEY_MAX_PAGE_TOKENS];
    } buf;
    buf.previous = previous;
    memcpy(buf.ids, ids, n * sizeof *ids);
    return key_of(&buf, sizeof buf.previous + n * sizeof *ids);
}

void key_pages(struct cs_key previous, const uint32_t *ids, uint32_t n_pages, uint32_t page_tokens,
               struct cs_key *out)
{
    for (uint32_t i = 0; i < n_pages; i++) {
        previous = key_next(previous, ids + (size_t)i * page_tokens, page_tokens);
        out[i] = previous;
    }
}

void cs_chain_init(const struct cs_store *s, const struct cs_tenant *tenant, struct cs_chain *c)
{
    static const struct cs_tenant anonymous;
    memset(c, 0, sizeof *c);
    c->page_tokens = s->page_tokens;
    c->page_key = key_seed(s->secret, s->fingerprint, tenant ? tenant : &anonymous);
}

void cs_chain_add(struct cs_chain *c, const uint32_t *ids, size_t n)
{
    c->n += n;
    while (n > 0) {
        size_t take = c->page_tokens - c->n_pending;
        if (take > n)
            take = n;
        memcpy(c->pending + c->n_pending, ids, take * sizeof *ids);
        c->n_pending += (uint32_t)take;
        ids += take;
        n -= take;
        if (c->n_pending == c->page_tokens) {
            c->page_key = key_next(c->page_key, c->pending, c->page_tokens);
            c->n_pending = 0;
        }
    }
}

struct cs_key cs_chain_key(const struct cs_chain *c)
{
    return c->n_pending ? key_next(c->page_key, c->pending, c->n_pending) : c->page_key;
}
