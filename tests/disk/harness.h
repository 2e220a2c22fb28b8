/*
 * Tiny geometry for tests of the disk tier: 4 tokens and 4096 bytes a page, chunks of 64 KiB, extents of 1
 * MiB. A record is named by one number, from which its key, ids and bytes follow, so that whoever reads it
 * can tell whether it is the right one. Numbers with CHECKPOINT in them name checkpoints; their position and
 * kind of boundary follow from the number, too.
 */
#ifndef ISOTHERM_TESTS_DISK_HARNESS_H
#define ISOTHERM_TESTS_DISK_HARNESS_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cachestore/tier_disk_impl.h"

enum { PT = 4, PAGE = 4096, CHUNK = 64 << 10, EXTENT = 1 << 20, SPAN_PAGES_MAX = 40 };
#define CHECKPOINT (1u << 31)

struct seen_span {
    struct record_id id;
    uint32_t number, n_pages;
    uint64_t disk_bytes;
    int64_t used_unix;
    bool has_notes;            /* in its own row */
    struct span_record record; /* as reported; ids are not kept */
};

/* An open tier and what it reported when it opened. */
struct rig {
    char dir[64];
    int catalog_fd; /* of the directory, between rig_catalog_open and _close */
    bool in_memory;
    struct cs_config config;
    struct tier_disk *tier;
    tier_engine_open *engine_open; /* io_engine_open, unless a test puts another here */
    uint8_t secret[16];
    struct seen_span *seen;
    size_t n_seen;
    size_t n_notes_seen;
    struct record_id note_owner, note_row; /* of the last note seen */
    char note_text[64];
    uint32_t refuse_number; /* on_span does not want this one */
    int refuse_with;        /* ... and returns this: 1 unless a test sets it */
    bool takes_any_row;     /* on_span checks nothing */
    char last_log[256];
    unsigned n_warnings;
    const char *watch; /* lines of the log that contain it are counted */
    unsigned n_watched;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_done; /* completions so far */
};

/* A fresh directory below the working directory, or in /dev/shm where there is one; removed by rig_destroy.
 */
void rig_init(struct rig *r);
void rig_init_in_memory(struct rig *r, bool in_memory);
void rig_destroy(struct rig *r);
int rig_try_open(struct rig *r, char *err, size_t err_len);
void rig_open(struct rig *r);
void rig_close(struct rig *r);
void rig_reopen(struct rig *r);
/* Of a file or folder of the store; valid until the next call. */
const char *rig_path(const struct rig *r, const char *name);

struct span_io {
    struct rig *rig;
    struct tier_write w;
    struct tier_read r;
    uint32_t *ids;
    void **pages;
    uint8_t *memory;
    bool done;
    enum tier_result result;
};
/* Record `number` of n_pages (blocks) in fresh, filled memory. */
struct span_io *span_make(struct rig *r, uint32_t number, uint32_t n_pages);
void span_free(struct span_io *s);
void span_write(struct span_io *s);
/* Clears the memory and queues a read of [first, first + n). */
void span_read_begin(struct span_io *s, struct record_id id, uint32_t first, uint32_t n);
/* The same for n whole spans that were written with these structs, in one call. */
void spans_read_begin(struct span_io *const *s, size_t n);
/* Waits for the completion, with a deadline. */
enum tier_result span_wait(struct span_io *s);
/* The pages read hold what belongs there. */
bool span_bytes_right(const struct span_io *s);

/* Writes record `number`, makes it durable, returns its id. */
struct record_id put(struct rig *r, uint32_t number, uint32_t n_pages);
struct record_id put_with_notes(struct rig *r, uint32_t number, uint32_t n_pages, const struct cs_note *notes,
                                size_t n_notes);
/* Reads all of it; asserts on the bytes when the result is TIER_OK. */
enum tier_result get(struct rig *r, struct record_id id, uint32_t number, uint32_t n_pages);
const struct seen_span *find_seen(const struct rig *r, uint32_t number);
struct cs_stats rig_stats(struct rig *r);
/* The catalogue of a store that is closed; asserts that it opens. */
struct catalog *rig_catalog_open(struct rig *r, bool read_only);
void rig_catalog_close(struct rig *r, struct catalog *c);
/* Writes spans of n_pages, numbered from `number` on, until one more would be beyond the budget. How many. */
uint32_t rig_fill(struct rig *r, uint32_t number, uint32_t n_pages);
/* XORs one byte of a file. */
void flip(const char *path, uint64_t offset, uint8_t mask);
/* The system refuses this process what lies behind the first `bytes` of any file; then allows it again. */
void files_limit(uint64_t bytes);
void files_unlimit(void);
/* With a limit that the catalogue's log has passed, thanks to a note of this record: its next batch fails,
 * other files can be made. */
void log_beyond_limit(struct rig *r, struct record_id owner);
/* For wait_until: the tier has logged a warning; no delete is under way or to be tried again. */
bool has_warned(void *rig);
bool deletes_done(void *rig);
/* Rows of one kind in a store that is closed. */
unsigned rig_rows(struct rig *r, enum catalog_kind kind);
/* Polls cond until it holds; false after 20 s. */
bool wait_until(bool (*cond)(void *ctx), void *ctx);
bool nothing_pending(void *rig);

uint64_t random_next(uint64_t *state);
/* Bytes all files under dir take in the file system. */
uint64_t dir_bytes(const char *dir);
void remove_tree(const char *dir);

#endif
