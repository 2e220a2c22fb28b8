/*
 * What a rebuild takes over from the catalogue that is there, as far as that reads: notes, times of use and
 * pins of records whose headers were found, and quotas. Headers have none of them.
 *
 * Threads: one at a time.
 */
#ifndef ISOTHERM_CACHESTORE_CATALOG_CARRY_H
#define ISOTHERM_CACHESTORE_CATALOG_CARRY_H

#include "cachestore/catalog.h"
#include "cachestore/headers.h"

struct carry {
    struct headers *headers; /* claimed */
    struct catalog *old;     /* NULL: there is none */
    struct catalog *made;    /* from carry_row on */
    struct headers damaged;  /* carry_look: records with a row whose headers were not found */
    uint64_t n_rows, bytes;  /* ... rows to be taken over, and notes in others: at most */
};

/* Says which headers have a row (wanted), and what is to be taken over. Each that follows: CS_OK or a CS_E
 * code; where the old one does not read, the rest of it is lost. */
int carry_look(struct carry *c);
/* The row of a header of which these are the first bytes: not if it is not kept. Batches are committed as
 * they grow. */
int carry_row(struct carry *c, const struct fmt_record *r, const void *bytes);
/* All other rows. */
int carry_others(struct carry *c);
void carry_free(struct carry *c);

#endif
