/*
 * The map of the simulated catalogue (rows.c), for the calls of catalog.h that work on it (catalog.c).
 */
#ifndef ISOTHERM_TESTS_SIM_ROWS_H
#define ISOTHERM_TESTS_SIM_ROWS_H

#include "cachestore/catalog.h"
#include "tests/sim/sim.h"

enum { ROW_OVERHEAD_BYTES = 24 };
enum { BUDGET_KIND = 254, STORE_KIND = 255 };

struct row {
    uint8_t kind; /* in the order of the keys; STORE_KIND: the row about the store */
    struct record_id id, notes;
    void *value; /* malloc'ed for the machine, not the process */
    size_t len;
    bool spoiled; /* a checksum of its block fails */
};

/* One change, or what undoes it. */
struct change {
    struct row row;
    bool put;
    bool range; /* delete: all notes of the record */
};

extern bool rows_garbled; /* it will not open until it is removed */

/* NULL: it is not there; beyond the end. */
const struct row *rows_find(const struct row *key);
const struct row *rows_at(size_t i);
/* Of the machine's memory. */
void *rows_copy(const void *value, size_t len);
/* What follows belongs to one batch. */
void rows_batch_begin(void);
void rows_apply(const struct change *c, bool undoable);
/* All there is is durable. */
void rows_synced(void);
void rows_clear(void);

/* Of a rebuild: what it commits takes the place of all there is, or goes. */
void rows_beside_clear(void);
void rows_beside_add(const struct change *c);
void rows_beside_take(void);

#endif
