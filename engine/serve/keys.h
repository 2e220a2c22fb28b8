/*
 * API keys: one a line in a file, each a tenant of its own. A line "operator KEY" makes its key an
 * operator's: only those see /cache and /metrics, whose counters speak of all tenants. Neither a key nor a
 * part of one is ever logged or put into a message.
 *
 * eng_keys_find may be called from any thread; the first time a key comes it takes some milliseconds.
 */
#ifndef ISOTHERM_ENGINE_SERVE_KEYS_H
#define ISOTHERM_ENGINE_SERVE_KEYS_H

#include "cachestore/cachestore.h"

struct eng_keys;

/* Blank lines and lines that begin with # are skipped. 0 or -1 with one line in err. */
int eng_keys_load(const char *path, struct eng_keys **out, char *err, size_t err_len);
void eng_keys_free(struct eng_keys *keys);
/* The tenant of the key in an Authorization header's value ("Bearer KEY"; NULL: no header). False: no such
 * key. The time taken does not depend on how much of a key is right. */
bool eng_keys_find(struct eng_keys *keys, const char *authorization, struct cs_tenant *tenant,
                   bool *is_operator);

#endif
