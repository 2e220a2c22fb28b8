/*
 * A make-believe model and its conversations. A conversation is a number; its ids follow from it, and the
 * first of them are shared with others of its family. What a page, a window page or a block of state holds is
 * a function of all ids before its end, of the tenant and of the geometry, so whoever reads one knows whether
 * it is the right one.
 */
#ifndef ISOTHERM_TESTS_TORTURE_MODEL_H
#define ISOTHERM_TESTS_TORTURE_MODEL_H

#include "cachestore/cachestore.h"
#include "tests/torture/witness.h"

enum { N_PATHS = 96, PATH_TOKENS_MAX = 64 };

/* What is the same for all sequences of one store. */
struct geometry {
    uint32_t page_tokens;
    uint64_t page_bytes, salt;
    uint32_t groups, window, state_blocks, grid; /* all 0: every page edge can be resumed at */
};

/* n is at most PATH_TOKENS_MAX; ids has room for one more, which belongs to nobody's path. Of a path and the
 * one N_PATHS behind it they are the same: two tenants say the same. */
uint32_t path_ids(uint32_t path, uint32_t ids[PATH_TOKENS_MAX + 1]);
struct cs_tenant path_tenant(uint32_t path);

/* One conversation being served. Every function ends the process (witness_fail) where a byte is wrong. */
struct turn {
    struct cs_store *s;
    const struct geometry *g;
    struct cs_sequence *q; /* NULL: none */
    uint32_t path, n, n_prompt, n_computed;
    bool settled;
    struct cs_reuse reuse;
    uint32_t ids[PATH_TOKENS_MAX + 1];
};

/* Opens for a prompt of n_prompt tokens. */
void turn_open(struct turn *t, struct cs_store *s, const struct geometry *g, uint32_t path,
               uint32_t n_prompt);
/* Checks what it resumes from once it has settled. False: it still loads. */
bool turn_poll(struct turn *t);
/* Polls until then; ends the process after 60 s. */
void turn_wait(struct turn *t);
/* Computes up to `to` tokens, `chunk` in a step. False: the arena is full, and nothing more can be done. */
bool turn_compute(struct turn *t, uint32_t to, uint32_t chunk);
void turn_capture(struct turn *t);
/* The keys of the path's first pages. */
void turn_say_keys(const struct turn *t, enum witness_kind kind, uint32_t n_pages);
/* With a note, whose text follows from its key. */
void turn_publish(struct turn *t, bool with_note);
void turn_close(struct turn *t);
/* The latest note of this path, if it is there. */
void note_check(struct cs_store *s, uint32_t path);

#endif
