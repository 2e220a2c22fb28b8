/*
 * A make-believe model with windows and state over the tiny geometry, and what a runtime does with it: look
 * up, place, step by step, capture, publish. Pages of window groups and state are functions of all ids before
 * their end, so that every step checks whether what it would read is the right thing.
 */
#ifndef ISOTHERM_TESTS_CACHESTORE_STATEFUL_H
#define ISOTHERM_TESTS_CACHESTORE_STATEFUL_H

#include "tests/cachestore/fake_tier.h"

enum { GROUPS = 2, WINDOW = 10, STATE_BLOCKS = 3, GRID = 8 };

/* Windows of 10 tokens in 2 groups, state of 3 blocks, a grid of 8 tokens: full checkpoints have 9 blocks. */
struct cs_config stateful_config(uint32_t arena_pages);

struct run {
    struct cs_store *s;
    struct cs_sequence *q;
    const uint32_t *ids;
    uint32_t n_computed, salt;
    uint32_t groups, window, state_blocks, grid;
    struct cs_reuse reuse;
};

/* Opens without waiting; run_settle returns false while it loads, and then checks all that it resumes from.
 */
void run_open(struct run *r, struct cs_store *s, const struct cs_config *c, uint32_t tenant,
              const uint32_t *ids, uint32_t n);
bool run_settle(struct run *r);
/* Both, waiting (for this fake tier, if it is set, by completing its reads); returns where it resumes. */
extern struct fake_tier *run_fake;
uint32_t run_start(struct run *r, struct cs_store *s, const struct cs_config *c, uint32_t tenant,
                   const uint32_t *ids, uint32_t n);
/* Computes up to `to` in steps of at most `chunk` tokens. CS_OK, or what grow or step_begin refused with. */
int run_compute(struct run *r, uint32_t to, uint32_t chunk);
/* A checkpoint at the end of a turn. */
int run_capture(struct run *r);
void run_publish(struct run *r);
void run_close(struct run *r);

/* A whole turn: prompt of n_prompt tokens, boundaries, reply up to n tokens; returns where it resumed. */
uint32_t run_turn(struct cs_store *s, const struct cs_config *c, uint32_t tenant, const uint32_t *ids,
                  uint32_t n_prompt, uint32_t n, const struct cs_boundary *boundaries, size_t n_boundaries);

/* Closes a store whose sequences are closed: all that was published is unused, no reference was lost on the
 * way. */
void check_all_let_go(struct cs_store *s);

/* Checkpoints on the path of n ids that somebody could resume from. */
uint32_t checkpoints_on_path(struct cs_store *s, const struct cs_config *c, const uint32_t *ids, uint32_t n);

#endif
