/*
 * Tiny geometry for tests of the store: 4 tokens and 4096 bytes a page, spans of 3 pages. A page's bytes are
 * a function of all ids up to its end, so that whoever reads a page can tell whether it is the right one.
 */
#ifndef ISOTHERM_TESTS_CACHESTORE_HARNESS_H
#define ISOTHERM_TESTS_CACHESTORE_HARNESS_H

#include "cachestore/cachestore.h"
#include "cachestore/tier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { PT = 4, PAGE = 4096, SPAN_PAGES = 3 };

/* Room for SPAN_PAGES pages and a header. */
#define SPAN_BYTES ((SPAN_PAGES + 1) * PAGE)

/* What an address of the store stands for: itself, or memory of the fake device. */
void *memory_of(const void *address);

struct cs_config tiny_config(uint32_t arena_pages);
struct cs_store *tiny_open(const struct cs_config *c);
struct cs_stats stats_of(const struct cs_store *s);
void check_balance(const struct cs_store *s);

/* ids 'text' style: n ids derived from a seed, the first `same` of them from the seed 0. */
void make_ids(uint32_t *ids, size_t n, size_t same, uint32_t seed);
void fill_pages(struct cs_sequence *q, const uint32_t *ids, size_t first_page, size_t n_pages, uint32_t salt);
/* The first n_pages pages of the sequence hold what belongs to these ids. */
void check_pages(struct cs_sequence *q, const uint32_t *ids, size_t n_pages, uint32_t salt);

struct cs_sequence *open_settled(struct cs_store *s, const struct cs_tenant *t, const uint32_t *ids, size_t n,
                                 struct cs_reuse *reuse);
/* Polls until settled, with a deadline of 20 s. */
struct cs_reuse wait_settled(struct cs_sequence *q);
/* Opens, fills what is not reused, publishes all full pages of n ids, closes; returns tokens reused. */
uint32_t round_trip(struct cs_store *s, const struct cs_tenant *t, const uint32_t *ids, size_t n);
/* Tokens that a look-up of these ids (and one more) reuses now, bytes checked; the sequence is closed. */
struct cs_reuse look_up(struct cs_store *s, const struct cs_tenant *t, const uint32_t *ids, size_t n);

/* xorshift */
uint64_t random_next(uint64_t *state);

#endif
