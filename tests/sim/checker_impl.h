/* Inside of the checker: its records (checker.c), and how it hears of them (hears.c). */
#ifndef ISOTHERM_TESTS_SIM_CHECKER_IMPL_H
#define ISOTHERM_TESTS_SIM_CHECKER_IMPL_H

#include "cachestore/store.h"
#include "cachestore/tier_disk_impl.h"
#include "tests/sim/checker.h"

enum { N_RECORDS = 4096, RECORD_PAGES = 16, RECORD_RUNS = 24, N_BUCKETS = 1024, N_PAGES = 16384 };
enum state { RECORD_WRITING, RECORD_DURABLE, RECORD_DELETED };

struct record {
    struct record_id id;
    enum state state;
    bool checkpoint, foreign, purging, purged; /* purging: deleted for good, once that call has returned */
    bool doubtful;  /* nothing is expected of it: it came back, or its row was damaged */
    bool pinned;    /* by who looks after the store */
    uint64_t epoch; /* at least, of its header */
    bool lied;      /* acknowledged on the word of a disk that lied */
    bool loaded;    /* reported by this open, or written since */
    bool failed;    /* to be read, in this process: quarantined */
    uint64_t since; /* when it became durable, in acknowledgements */
    uint32_t fingerprint, n_keys, n_pages;
    void (*durable)(void *ctx, struct tier_write *w, enum tier_result result); /* the store's */
    struct cs_tenant tenant;
    uint64_t bytes; /* whole chunks */
    struct cs_key key, parent, keys[RECORD_PAGES];
    uint32_t n_runs, chunk_sectors, n_sectors;
    struct fmt_record_run runs[RECORD_RUNS];
    struct record *next; /* of its bucket */
};
struct page {
    struct cs_key key;
    struct record *record;
    struct page *next;
};

extern struct record records[N_RECORDS];
extern uint32_t n_records;
extern uint64_t records_acknowledged;
extern struct page *pages_by_key[N_BUCKETS];
extern const struct cs_config *checker_config; /* of the process */
extern bool checker_opening, checker_is_offline, checker_is_purging, checker_rebuilt,
    checker_rebuilding; /* rebuilding: in this process */

struct record *record_find(struct record_id id);
struct record *record_add(const struct span_record *s, uint32_t page_tokens);
/* Every sector holds what this record wrote there. */
bool record_is_intact(const struct record *r);
/* ... and would after a power cut. */
bool record_is_durable(const struct record *r);
/* It may not leave for anybody's sake from now on, nor what leads to it. */
void checker_pin(struct record *r, bool on);
/* A look-up must find it. */
bool record_can_be_expected(const struct record *r);

#endif
