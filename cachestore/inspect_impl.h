/*
 * What the files of inspection share: an open store, its records as entries.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#ifndef ISOTHERM_CACHESTORE_INSPECT_IMPL_H
#define ISOTHERM_CACHESTORE_INSPECT_IMPL_H

#include "cachestore/catalog.h"
#include "cachestore/inspect.h"
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
    bool foreign; /* of a store in use: of another model, so that what is known of it is in its header */
    uint32_t header_bytes; /* of what was read from a header */
};

/* The process that has the store open. */
struct live;

struct cs_inspect {
    int dir_fd;
    struct live *live; /* NULL: nobody has */
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

/* Links children to parents, a span's checkpoints before the spans that follow it. */
void inspect_link_tree(struct cs_inspect *in);
/* What is in the files beside the records: sizes. */
void inspect_measure(struct cs_inspect *in);

/* inspect_live.c */
/* The spans of a store in use become entries, if that has not been done. CS_OK at once for another. */
int inspect_live_list(struct cs_inspect *in);
/* ... anew, by other record ids where there are no records, and the volumes as they are now. */
int inspect_live_look_again(struct cs_inspect *in);
/* Token ids of one of them, *ids is the caller's to free, and (notes not NULL) its notes into *record. CS_OK,
 * CS_ENOTFOUND (it is gone), CS_EIO, CS_ENOMEM. */
int inspect_live_record(struct cs_inspect *in, const struct entry *e, uint32_t **ids, size_t *n_ids,
                        struct cs_record *notes);
/* Whether the record that the entry is of is still the one that is served, or (foreign) kept. */
bool inspect_live_is_there(struct cs_inspect *in, const struct entry *e);
/* Asks for a change. What the process says, or CS_EIO. */
int inspect_live_evict(struct cs_inspect *in, const struct cs_key *keys, uint32_t n, uint8_t *result);
int inspect_live_erase(struct cs_inspect *in, const struct entry *e, uint32_t header_bytes);
int inspect_live_raise_epoch(struct cs_inspect *in);
int inspect_live_pin(struct cs_inspect *in, const struct entry *e, bool pinned);
/* Waits until all that was asked for is on disk. CS_OK; CS_EIO: some of it is not. */
int inspect_live_settle(struct cs_inspect *in);
int inspect_live_set_quota(struct cs_inspect *in, const struct cs_tenant *tenant,
                           const struct cs_quota *quota);
int inspect_live_tenants(struct cs_inspect *in, int (*fn)(void *ctx, const struct cs_tenant_use *use),
                         void *ctx);
uint64_t inspect_live_disk_budget(const struct cs_inspect *in);
bool inspect_live_is_stateful(const struct cs_inspect *in);
void inspect_live_close(struct live *live);

/* Calls fn for each record of another model, some twice. A non-zero return of fn stops and is returned. */
struct control_other;
int inspect_live_others(struct cs_inspect *in, int (*fn)(void *ctx, const struct control_other *o),
                        void *ctx);

/* inspect_live_others.c */
/* They become entries; once those are sorted, they find their parents. */
int inspect_others_list(struct cs_inspect *in);
int inspect_others_link(struct cs_inspect *in);

/* inspect_change.c */
/* Headers that no row names become entries too, and find their parents and children. */
int inspect_leftovers_load(struct cs_inspect *in);
/* What is wanted goes, whatever has the same key with it, and with `below` all that hangs below either.
 * by_place: room for an index an entry; afterwards parents lie before their children there. */
void inspect_mark(const struct cs_inspect *in, uint32_t *by_place, bool below, bool *goes);

/* inspect_live_change.c */
int inspect_live_delete(struct cs_inspect *in, int (*wanted)(void *ctx, const struct cs_span_info *span),
                        void *ctx, bool below, struct cs_evicted *out, char *err, size_t err_len);
int inspect_live_set_pin(struct cs_inspect *in, const struct cs_span_info *span, bool pinned, char *err,
                         size_t err_len);

/* inspect_read.c */
/* The header of an entry, decoded and compared with its row; *header is the caller's to free. CS_OK,
 * CS_ECORRUPT, CS_EIO (why has one line), CS_ENOMEM. */
int inspect_header_read(const struct cs_inspect *in, const struct entry *e, uint8_t **header,
                        struct fmt_record *r, char *why, size_t why_len);

/* Token ids of a record, the caller's to free. As above; CS_ENOTFOUND: of a store in use, it is gone. */
int inspect_ids(struct cs_inspect *in, const struct entry *e, uint32_t **ids, char *why, size_t why_len);

#endif
