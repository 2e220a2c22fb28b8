/* See chunks.h. Runs are found a word at a time while words are uniform and bit by bit inside mixed ones. */
#include "cachestore/chunks.h"

#include <stdlib.h>
#include <string.h>

static bool bit(const uint64_t *map, uint32_t i)
{
    return map[i / 64] >> (i % 64) & 1;
}

static void set_range(uint64_t *map, uint32_t first, uint32_t n, bool on)
{
    for (uint32_t i = first; i < first + n;) {
        uint32_t in_word = i % 64, take = 64 - in_word;
        if (take > first + n - i)
            take = first + n - i;
        uint64_t mask = (take == 64 ? ~0ull : (1ull << take) - 1) << in_word;
        if (on)
            map[i / 64] |= mask;
        else
            map[i / 64] &= ~mask;
        i += take;
    }
}

/* Bits of word w that are free. Bits behind n are not backed, so they never count. */
static uint64_t free_word(const struct chunks *c, uint32_t w)
{
    return c->backed[w] & ~c->used[w];
}

void chunks_free(struct chunks *c)
{
    free(c->used);
    free(c->backed);
    memset(c, 0, sizeof *c);
}

int chunks_resize(struct chunks *c, uint32_t n)
{
    uint32_t words = (uint32_t)(((uint64_t)n + 63) / 64);
    if (words > c->n_words) {
        uint32_t room = words > 2 * c->n_words ? words : 2 * c->n_words;
        uint64_t *used = realloc(c->used, room * sizeof *used);
        if (used == NULL)
            return -1;
        c->used = used;
        uint64_t *backed = realloc(c->backed, room * sizeof *backed);
        if (backed == NULL)
            return -1;
        c->backed = backed;
        memset(used + c->n_words, 0, (room - c->n_words) * sizeof *used);
        memset(backed + c->n_words, 0, (room - c->n_words) * sizeof *backed);
        c->n_words = room;
    }
    c->n = n;
    return 0;
}

bool chunks_claim(struct chunks *c, uint32_t first, uint32_t n)
{
    if (n == 0 || first >= c->n || n > c->n - first)
        return false;
    uint32_t holes = 0;
    for (uint32_t i = first; i < first + n; i++) {
        if (bit(c->used, i))
            return false;
        holes += !bit(c->backed, i);
    }
    set_range(c->used, first, n, true);
    set_range(c->backed, first, n, true);
    c->n_used += n;
    c->n_backed += holes;
    if (first <= c->low && c->low < first + n)
        c->low = first + n;
    return true;
}

void chunks_release(struct chunks *c, uint32_t first, uint32_t n)
{
    set_range(c->used, first, n, false);
    c->n_used -= n;
    if (first < c->low)
        c->low = first;
}

void chunks_set_backed(struct chunks *c, uint32_t first, uint32_t n, bool backed)
{
    for (uint32_t i = first; i < first + n; i++) {
        if (bit(c->backed, i) != backed)
            c->n_backed += backed ? 1 : -1u;
    }
    set_range(c->backed, first, n, backed);
    if (backed && first < c->low)
        c->low = first;
}

uint32_t chunks_find_free(const struct chunks *c, uint32_t want, uint32_t *first)
{
    uint32_t best = 0, run = 0;
    for (uint32_t i = c->low; i < c->n;) {
        uint64_t word = free_word(c, i / 64);
        if (i % 64 == 0 && word == 0) {
            run = 0;
            i += 64;
            continue;
        }
        if (word >> (i % 64) & 1) {
            run++;
            if (best == 0 || (run > best && *first + best == i)) {
                if (best == 0)
                    *first = i;
                best = run;
            }
            if (run == want) {
                *first = i + 1 - want;
                return want;
            }
        } else {
            run = 0;
        }
        i++;
    }
    return best;
}

uint32_t chunks_find_hole(const struct chunks *c, uint32_t from, uint32_t want, uint32_t *first)
{
    uint32_t run = 0;
    for (uint32_t i = from; i < c->n && run < want; i++) {
        if (run == 0 && i % 64 == 0 && c->backed[i / 64] == ~0ull) {
            i += 63;
            continue;
        }
        if (!bit(c->backed, i)) {
            if (run++ == 0)
                *first = i;
        } else if (run > 0) {
            break;
        }
    }
    return run;
}

uint32_t chunks_find_last_free(const struct chunks *c, uint32_t want, uint32_t *first)
{
    uint32_t run = 0;
    for (uint32_t i = c->n; i > 0 && run < want;) {
        i--;
        uint64_t word = free_word(c, i / 64);
        if (run == 0 && word == 0) {
            i = i / 64 * 64;
            continue;
        }
        if (word >> (i % 64) & 1) {
            run++;
            *first = i;
        } else if (run > 0) {
            break;
        }
    }
    return run;
}

bool chunks_is_used(const struct chunks *c, uint32_t chunk)
{
    return chunk < c->n && bit(c->used, chunk);
}

bool chunks_is_free(const struct chunks *c, uint32_t chunk)
{
    return chunk < c->n && free_word(c, chunk / 64) >> (chunk % 64) & 1;
}

uint32_t chunks_end(const struct chunks *c)
{
    for (uint32_t i = c->n; i > 0; i--) {
        if (bit(c->used, i - 1) || bit(c->backed, i - 1))
            return i;
    }
    return 0;
}
