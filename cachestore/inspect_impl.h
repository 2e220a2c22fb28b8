/*
 * What the files of inspection share: an open store, its records as entries.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#ifndef ISOTHERM_CACHESTORE_INSPECT_IMPL_H
#define ISOTHERM_CACHESTORE_INSPECT_IMPL_H

#include "cachestore/catalog.h"
#include "cachestore/store_file.h"
#include "cachestore/tier_disk_impl.h"

enum { NONE = UINT32_MAX };

struct entry {
    struct cs_span_info info;
    uint64_t row_hash;
    struct fmt_record_run first_run;
    uint32_t parent;               /* entry index or NONE */
    uint32_t first_child, sibling; /* set by link_tree */
    bool leftover;                 /* a header that no row names: of a record that was evicted */
};

struct cs_inspect {
    int dir_fd;
    struct store_file store;
    struct volumes volumes;
    struct catalog *catalog; /* NULL: not readable */
    struct cs_store_info info;
    struct entry *entries;
    uint32_t n;
    size_t room;
    uint32_t *by_id;     /* entry indices sorted by record id */
    uint32_t *by_parent; /* entry indices sorted by the parent key they want */
    uint32_t first_root;
    int (*progress)(void *ctx, uint64_t done_bytes, uint64_t all_bytes);
    void *progress_ctx;
};

/* inspect.c */
int inspect_entry_add(struct cs_inspect *in, const struct fmt_record *r, const void *row);
/* NULL: there is none. Entries move when one is added. */
struct entry *inspect_entry(const struct cs_inspect *in, uint64_t nonce, uint64_t sequence);
int inspect_compare_key(struct cs_key a, struct cs_key b);
/* Index in by_parent of the first entry that wants this parent, if there is one. */
uint32_t inspect_first_child(const struct cs_inspect *in, struct cs_key parent);
/* Makes by_id and by_parent. */
int inspect_sort(struct cs_inspect *in);
/* volumes_scan_headers of this store. */
int inspect_scan_headers(const struct cs_inspect *in,
                         int (*fn)(void *ctx, const struct fmt_record *r, const void *header), void *ctx);
/* Finds the children of a record: a callback of that. */
int inspect_header_adopts(void *ctx, const struct fmt_record *r, const void *header);

/* inspect_read.c */
/* The header of an entry, decoded and compared with its row; *header is the caller's to free. CS_OK,
 * CS_ECORRUPT, CS_EIO (why has one line), CS_ENOMEM. */
int inspect_header_read(const struct cs_inspect *in, const struct entry *e, uint8_t **header,
                        struct fmt_record *r, char *why, size_t why_len);

#endif
