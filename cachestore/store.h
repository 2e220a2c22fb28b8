/*
 * What the files of the store share: the handle, and the few operations that cross them.
 *
 *   store.c      open, close, counters, the keeper thread
 *   load.c       rows of the disk tier become spans when the store opens
 *   sequence.c   grow, notify, close, page tables
 *   restore.c    look-up, settling, poll
 *   loads.c      what is on its way to the device, and who waits for it
 *   tradeoff.c   what is loaded, and what is computed again because that is faster
 *   step.c       window pages and captures of a step
 *   publish.c    new pages and notes become part of the tree
 *   checkpoint.c checkpoints of a path: found, placed, added, thinned
 *   writeback.c  spans on their way to lower tiers
 *   host.c       the host tier, between a device that is not host memory and the disk
 *   room.c       making room: device pages, blocks of the host, disk bytes; room_index.c: index bytes
 *   enough.c     whether enough can leave, before anything does
 *   events.c     what is said of troubles, by the keeper
 *   quota.c      limits of tenants: set, told, enforced in the background
 *   control.c    the socket for who looks after it; control_serve.c: what is asked there
 *   index.c index_tiers.c ranks.c accounts.c notes.c arena.c key.c policy/   no knowledge of the store
 *
 * Threads and locks. Callers' threads, the tier's and the device's (completions), the keeper (deadlines,
 * notifications, populating the arena, lowered quotas, lines about troubles) and the control thread meet
 * under one mutex, cs_store.lock. It is held for short, bounded work in memory only: no I/O, no copy of a
 * page, no hashing but of one span's ids where it is split. Functions named _locked need it held. Lock order:
 * cs_store.lock, then the tier's or the device's own; both call back with none of their locks held.
 * Notifications are called with no lock.
 */
#ifndef ISOTHERM_CACHESTORE_STORE_H
#define ISOTHERM_CACHESTORE_STORE_H

#include "cachestore/arena.h"
#include "cachestore/cachestore.h"
#include "cachestore/episode.h"
#include "cachestore/histogram.h"
#include "cachestore/index.h"
#include "cachestore/notes.h"
#include "cachestore/policy/admission.h"
#include "cachestore/policy/rate.h"
#include "cachestore/tier.h"

#include <pthread.h>

/* Spans that wait to be copied or written, oldest first. */
struct waiting {
    struct span *first, *last;
    uint64_t bytes;
};

/* What is said of the store while it runs (events.c). */
enum store_event {
    EVENT_LATE,         /* a restore, at its deadline: tokens found, milliseconds */
    EVENT_QUOTA,        /* a record has no room within its tenant's quota */
    EVENT_NO_ROOM,      /* a record has none within the disk's budget: bytes */
    EVENT_ENDURANCE,    /* the day's bytes are spent: bytes a day */
    EVENT_HOST_DAMAGED, /* what lay on the host is not what was put there: tokens before it */
    EVENT_COPY_FAILED,  /* between device and host */
    STORE_EVENTS
};
struct event {
    struct episode episode;
    bool begins; /* is still to be said */
    struct cs_tenant tenant;
    uint64_t a, b; /* of the first one: as above */
};

struct cs_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for cs_flush: something became durable, or never will */

    /* Fixed after open. */
    uint32_t page_tokens, span_pages;
    uint64_t stride;
    bool stateful; /* sequences resume at checkpoints only */
    uint32_t window_groups, window_tokens, state_blocks, grid_tokens, checkpoints_a_path;
    uint64_t checkpoint_grace_ns;
    uint8_t fingerprint[32], secret[16];
    uint32_t restore_deadline_ms;
    uint64_t disk_budget, pinned_budget;
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void *log_ctx;
    const struct tier_vtable *tier;
    struct tier_disk *disk; /* NULL: off */

    struct arena arena;
    /* Where the device is not host memory. */
    const struct cs_device *device; /* NULL: it is */
    struct arena host;              /* blocks of the host tier; none: there is none */
    uint64_t *host_sum;             /* a sum a block that has landed */
    struct {
        uint64_t seed;
        uint8_t secret[192]; /* as many bytes as XXH3's own */
    } host_random;
    struct waiting queued;                  /* spans to copy there */
    uint64_t copying_bytes, copying_budget; /* being copied there: their pages on the device stay */
    uint64_t n_copies;                      /* batches with the device, both ways */

    struct index index;
    struct notes notes;
    struct cs_stats totals; /* the counters; states are filled in by cs_stats_get */
    uint64_t n_sequences;
    struct histogram publish_us, restore_us;

    /* Write-behind: spans waiting, oldest first, and what is being written. */
    struct waiting backlog, grace;
    bool under_pressure;    /* the grace shall end now */
    uint32_t passes;        /* over backlog or queue, so far */
    uint64_t writing_bytes; /* with the tier: their pages, or blocks on the host, are pinned */
    struct admission admission;

    uint64_t n_loads;        /* in flight */
    uint64_t n_husks;        /* damaged records that stay for what hangs on them */
    bool draining;           /* nothing new goes to lower tiers (cs_drain) */
    struct control *control; /* NULL: there is none */

    /* Sequences that the keeper watches for their deadline or a notification due, and how fast loads are. */
    struct cs_sequence *restoring;
    uint64_t loading_bytes; /* with the tier, to be read */
    struct rate load_rate;  /* of restores, in bytes with the tier when they began */
    uint64_t load_measured_ns;
    double prefill_linear_us, prefill_quadratic_us; /* what the caller told; both 0: nothing */

    /* Keeper thread. */
    pthread_t keeper;
    pthread_cond_t keeper_wake;
    bool keeper_started, closing;
    struct event events[STORE_EVENTS];
    bool trimming; /* limits have changed: the keeper evicts what is over them, a few records at a time */
};

/* Pages of a span, or a whole checkpoint, on their way to the device; shared by all who wait. */
struct load {
    struct tier_read read;   /* says which; from the host it is not submitted */
    struct cs_copies copies; /* where the device is not host memory */
    bool from_host;
    bool damaged; /* by the device's thread: what lay on the host was wrong */
    uint64_t sum; /* the device's thread's, of the block at hand */
    struct cs_store *s;
    struct span *span;
    struct load *span_next; /* of span->loads */
    struct load_wait *waits;
    uint32_t refs; /* waits, and one while in flight */
    bool done;
    enum tier_result result;
    uint64_t done_ns;
    void *pages[]; /* n destinations of the read; behind them the copies */
};

/* Loads to be submitted together. */
struct load_batch {
    struct tier_read **reads;
    struct cs_copies **copies;
    size_t n_reads, n_copies;
};

/* A sequence waiting for a load. */
struct load_wait {
    struct load *load; /* NULL: for none */
    struct cs_sequence *q;
    struct load_wait *next, *previous; /* of load->waits */
    uint32_t first_page, n_pages;      /* of the sequence; of a checkpoint's load: its blocks */
};

/* A checkpoint that a sequence could resume from: its blocks, referenced. */
struct held_checkpoint {
    uint32_t position, n_blocks; /* position 0: none */
    uint32_t *block;
};

/* A checkpoint that a sequence took, or is about to take in its step, and has not published yet. */
struct capture {
    struct capture *next;
    uint32_t position, n_blocks;
    enum cs_boundary_kind kind;
    bool filled;      /* what it says is there: window pages are referenced, state was written */
    void **address;   /* of the state blocks */
    uint32_t block[]; /* n_blocks, referenced: state first, then window pages group by group, once filled */
};

struct wanted {
    uint32_t position;
    enum cs_boundary_kind kind;
};

struct cs_sequence {
    struct cs_store *s;
    struct cs_tenant tenant;
    struct account *account;
    /* The place in the tree: the path's last page is (place, place_ordinal); NULL: at the root. Pinned. */
    struct span *place;
    uint32_t place_ordinal;
    struct cs_sequence *placed_next, *placed_previous; /* of place->placed */
    bool continues;                                    /* what it publishes, a path from its end on */
    uint32_t n_known;                                  /* pages of the path that are in the tree */
    struct cs_key key;                                 /* behind them */
    /* Page table. n_pages is 0 while a restore is under way. */
    uint32_t *page;
    void **address;
    size_t n_pages, capacity;
    /* Restore. */
    bool settled;
    bool counted; /* something was looked up */
    bool listed;  /* in cs_store.restoring, until it is closed */
    uint32_t n_looked_up, n_restoring;
    struct cs_key *keys; /* of the pages being restored */
    bool *on_host;       /* while they are looked up: of what is not resident, that the host has it */
    struct load_wait *waits;
    uint32_t n_waits;
    struct held_checkpoint resume, fallback; /* the one wanted; a resident one in case it does not land */
    struct load_wait resume_wait;
    uint64_t opened_ns, deadline_ns; /* 0: none */
    bool reads;                      /* waits for the disk */
    uint64_t load_bytes;             /* with the tier when its own reads had joined them */
    double predicted_us;             /* for those; 0: nothing was learned yet */
    struct cs_sequence *restoring_next, *restoring_previous;
    struct cs_reuse reuse;
    void (*notify)(void *ctx);
    void *notify_ctx;
    /* Of a stateful store's. */
    uint32_t n_computed;      /* tokens before the next step */
    uint32_t step_to;         /* ... and behind the last one begun: what the window tables cover */
    struct cs_key *path_keys; /* of the n_known pages, room for capacity */
    uint32_t *window_page;    /* window_groups rows of capacity pages; ARENA_NO_PAGE: not held */
    void **window_address;
    uint32_t window_first, window_end; /* pages held, of each group */
    uint32_t branch;                   /* tokens before the point where stored paths part from the prompt */
    struct wanted *wanted;             /* ascending */
    size_t n_wanted;
    struct capture *captures;
    struct cs_capture *step_captures; /* what the caller was given */
    size_t step_captures_capacity;
    uint32_t *state_block; /* of the checkpoint it resumed from, until they are let go */
    void **state_address;
};

/* Opens with a tier of the caller's choice; NULL: none. cs_open is this with the disk tier. */
int store_open(const struct cs_config *config, const struct tier_vtable *tier, struct cs_store **out,
               char *err, size_t err_len);
/* The last step of closing: no thread of the store's is left. */
void store_free(struct cs_store *s);
uint64_t store_now_ns(void);
/* Between two holds of the lock, of a thread that has many to come: it only wakes who waits for the lock, and
 * would have taken it again by the time the other is there. */
void store_give_way(void);
void store_log(const struct cs_store *s, enum cs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* load.c */
struct loader;
struct loader *loader_new(struct cs_store *s);
int loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes);
void loader_on_restart(void *ctx);
int loader_on_notes(void *ctx, const struct note_record *n);
int loader_on_quota(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota);
/* Links what was read into the tree, deletes rows that nothing leads to. CS_OK, or CS_ENOMEM: the store
 * cannot be used. */
int loader_finish_locked(struct loader *l);
/* Pins that would have held more than half of a budget. */
uint32_t loader_pins_let_go(const struct loader *l);
/* Tenants whose limits are not in force, because the index has no room for them. */
uint32_t loader_limits_let_go(const struct loader *l);
void loader_free(struct loader *l);

/* room.c */
/* Makes n arena pages free for a sequence of the account's tenant, evicting as needed: what is its own first,
 * where it would have more than its quota. CS_OK or CS_EFULL. */
int room_for_pages_locked(struct cs_store *s, uint64_t n, struct account *account);
/* Deletes the least worthy leaves from disk until `bytes` are free, or that many more than before; first of
 * who has more than its quota. False: so much cannot be deleted, and nothing is. */
bool room_for_disk_locked(struct cs_store *s, uint64_t bytes);
bool room_evict_disk_locked(struct cs_store *s, uint64_t bytes);
/* Makes n blocks of the host free, evicting as needed, whose turn is not after `last`. False: there are not
 * so many, and nothing leaves. */
bool room_for_host_locked(struct cs_store *s, uint64_t n, enum host_turn last, struct account *account);
/* Who leaves the host next, of the account or (NULL) of all, its turn not after `last`. NULL: nobody. */
struct span *room_host_victim_locked(struct cs_store *s, const struct account *of, enum host_turn last);
/* Makes room for the span's record on disk, or for its blocks on the host: within its tenant's quota first,
 * then in the budget. Where it cannot, nothing leaves but what is over a quota or budget already; or
 * (cs_store.trimming) it cannot yet. */
enum room { ROOM_MADE, ROOM_NONE, ROOM_NONE_OF_ITS_OWN };
enum room room_for_record_locked(struct cs_store *s, const struct span *sp, uint64_t bytes);
enum room room_to_copy_locked(struct cs_store *s, const struct span *sp, enum host_turn last);
/* The span leaves every tier and is forgotten. It has no children, pins or loads, is not being written, and
 * nobody uses its pages (blocks of a checkpoint stay with who uses them). */
void room_forget_locked(struct cs_store *s, struct span *sp);
void room_count_quota_eviction_locked(struct cs_store *s, struct account *account);
void room_count_quota_drop_locked(struct cs_store *s, struct account *account);
/* Call where something of the account's tenant is no longer in use, or has become durable: what is over its
 * quota goes, but for what waits for the disk, and while the keeper is at it only a few records. The account
 * is freed if nothing needs it. */
void room_trim_locked(struct cs_store *s, struct account *account);
/* room_settle_span_locked, then that. */
void room_settle_and_trim_locked(struct cs_store *s, struct span *sp);
/* The same of all tenants, a few records at a time. False: there is nothing more to do. */
bool room_trim_some_locked(struct cs_store *s);
/* The span's record, which is durable, is gone or useless: out of the disk tier. */
void room_drop_record_locked(struct cs_store *s, struct span *sp, enum cs_gone why);
/* The span's record is damaged. Where something hangs on it on disk its row stays, or a restart would find
 * what hangs on it out of reach: it is deleted once the span is durable again, or nothing hangs on it. */
void room_quarantine_locked(struct cs_store *s, struct span *sp, enum cs_gone why);
/* The tail was split off a span whose record is damaged: the row stands for what hangs on both, and is the
 * tail's now; it comes back to the span if the tail needs it no more and the span does. */
void room_split_husk_locked(struct span *sp, struct span *tail);
/* Deletes such a row if its time has come, or gives it to a span above that needs it. sp may be NULL. */
void room_settle_husk_locked(struct cs_store *s, struct span *sp);
/* Deletes it for good. Looks through n buckets of the index, from *bucket on, which is moved. False: none of
 * their spans has one with this id. */
bool room_purge_husk_locked(struct cs_store *s, struct record_id id, uint64_t *bucket, uint64_t n);
/* Call behind a loss of pages, record, child or pin: a span that holds nothing loses its notes, and goes
 * once nothing hangs on it; then its parents. */
void room_settle_span_locked(struct cs_store *s, struct span *sp);
/* Nobody wants this checkpoint any more: out of every tier, at once or when its read or write ends. */
void room_doom_locked(struct cs_store *s, struct span *checkpoint, enum cs_miss why);
/* Deletes the span for good, from every tier; pages that sequences use stay theirs, and a sequence whose path
 * it is on brings it back when it publishes. False: it is being read, copied or written, and nothing happens.
 */
bool room_purge_locked(struct cs_store *s, struct span *sp);
/* Drops references of arena pages and queues their owners. */
void room_unref_pages_locked(struct cs_store *s, const uint32_t *pages, size_t n);

/* room_index.c */
/* Makes room for bytes in the index, forgetting leaves: of the account first, where it would have more than
 * its share, then of others who do, then the oldest of all. account NULL: they are nobody's. False: it
 * cannot, because everything is in use, or all of its own is. */
bool room_for_index_locked(struct cs_store *s, uint64_t bytes, const struct account *account);
/* The same for a span of this account, which may be its first. */
bool room_for_span_locked(struct cs_store *s, uint64_t bytes, const struct account *account);
/* Who is forgotten next, of the account or (NULL) of all, and what the index gets back by it. */
struct span *room_index_victim_locked(const struct cs_store *s, const struct account *of);
uint64_t room_forget_frees_locked(const struct cs_store *s, const struct span *sp);

/* enough.c: nothing has changed when they return. */
/* Records that could leave the disk, of the account or (NULL) of all, have `bytes` together. */
bool enough_on_disk_locked(struct cs_store *s, const struct account *of, uint64_t bytes);
/* Blocks that could leave the host, whose turn is not after `last`, as far as n are found. */
uint64_t enough_on_host_locked(struct cs_store *s, const struct account *of, uint64_t n, enum host_turn last);
/* Spans that could be forgotten give `bytes` back. */
bool enough_in_index_locked(struct cs_store *s, const struct account *of, uint64_t bytes);

/* events.c */
enum { EVENTS_TENANT_TEXT = 33 };
void events_note_locked(struct cs_store *s, enum store_event kind, const struct cs_tenant *tenant, uint64_t a,
                        uint64_t b);
/* Says what is due; last: all there is to say. True: the lock was given up for that. */
bool events_say_locked(struct cs_store *s, bool last);
/* When there will be something to say, if nothing comes; 0: nothing is in sight. */
uint64_t events_due_ns_locked(const struct cs_store *s);
const char *events_tenant_text(const struct cs_tenant *tenant, char out[EVENTS_TENANT_TEXT]);

/* quota.c */
/* The account of a sequence's tenant, which has one sequence more. NULL: no memory. Takes the lock. */
struct account *quota_enter(struct cs_store *s, const struct cs_tenant *tenant);
void quota_leave(struct cs_store *s, struct account *account);
/* What each tenant's limits are of the index. Call while the store opens, when a tier is there. */
void quota_shares_set_locked(struct cs_store *s);

/* writeback.c */
/* The span waits for its next way down, if there is one and it is whole. */
void writeback_enqueue_locked(struct cs_store *s, struct span *sp);
/* The same of what was on its way already, or must be while the store drains. */
void writeback_go_on_locked(struct cs_store *s, struct span *sp);
/* The same for the span and those above it, as far as they are on no disk, and before what waits already: by
 * way of the host what hangs on them cannot bring them along. Above what is on disk that is the replacement
 * of a damaged record, whose write has failed. */
void writeback_lead_locked(struct cs_store *s, struct span *sp);
void writeback_cancel_locked(struct cs_store *s, struct span *sp);
/* Of a pass over a list: the next one behind those that are passed over, because their tenant waits for room
 * of its own. *passed: the last one of them; NULL: none yet. NULL: that was all, or it has seen enough. */
struct span *writeback_next_locked(const struct waiting *list, uint32_t pass, struct span **passed,
                                   unsigned *n_passed);
/* Out of its list; its state is the caller's to change. */
void writeback_unlist_locked(struct cs_store *s, struct span *sp);
/* Checkpoints whose grace has ended by now_ns join the backlog. When the next one's ends; 0: none waits. */
uint64_t writeback_end_grace_locked(struct cs_store *s, uint64_t now_ns);
/* Call before the lock is released where room was made for pages: what waits is written without delay if
 * bytes that are on no disk had to go. Not earlier, for it may take spans off the disk that the caller looks
 * at. */
void writeback_relieve_locked(struct cs_store *s);
/* Hands spans to the device and the tier while budgets allow. */
void writeback_pump_locked(struct cs_store *s);

/* host.c */
/* Copies what is queued to the host while there is room. */
void host_pump_locked(struct cs_store *s);
/* A free block, there is one, becomes what page i of the span is read or copied into. */
void *host_take_locked(struct cs_store *s, struct span *sp, uint32_t i);
void host_submit_locked(struct cs_store *s, struct cs_copies *const *batches, size_t n);
/* Call in each batch's done. */
void host_copy_ended_locked(struct cs_store *s, const struct cs_copies *c, bool ok);
/* Blocks of these pages were not what they should be. Other tiers have their own. */
void host_drop_damaged_locked(struct cs_store *s, struct span *sp, uint32_t first, uint32_t n);
/* The same of blocks whose sums may not have been taken: the copy that was to take them has failed. */
void host_drop_unproven_locked(struct cs_store *s, struct span *sp, uint32_t first, uint32_t n);
/* The block that page i of the span has on the host holds what belongs there; fresh: what is there now does.
 * Without the lock: the span has a load, or is being copied. */
bool host_check(const struct cs_store *s, const struct span *sp, uint32_t page, bool fresh);
/* The same for a block that is looked at piece by piece: *sum is the caller's from the first piece to the
 * last. True before the last. */
bool host_check_piece(const struct cs_store *s, const struct span *sp, uint32_t page, uint64_t offset,
                      uint64_t bytes, uint64_t *sum, bool fresh);

/* restore.c */
bool restore_ready_locked(const struct cs_sequence *q, uint64_t now_ns);
void restore_abandon_locked(struct cs_sequence *q);

/* tradeoff.c */
/* How the wait of a restore for the disk ended. */
enum restore_end { RESTORE_LANDED, RESTORE_LATE, RESTORE_FAILED, RESTORE_ABANDONED };
/* The loads of q are submitted: predicts how long they take. */
void tradeoff_begin_locked(struct cs_sequence *q);
/* What q read has come, or is waited for no longer, after so long: counts, and learns from it. */
void tradeoff_end_locked(struct cs_sequence *q, enum restore_end end, uint64_t us, uint64_t now_ns);
/* Of the first n pages of the path, those to resume behind; what is resident is held by q already. */
uint32_t tradeoff_pages_locked(const struct cs_sequence *q, uint32_t n);
/* The checkpoint at or before `matched` tokens to resume at, in any tier. NULL: none. */
struct span *tradeoff_checkpoint_locked(const struct cs_sequence *q, uint32_t matched);

/* loads.c */
/* The page comes from the host. Of a checkpoint: all of it does. */
static inline bool load_is_from_host(const struct span *sp, uint32_t page)
{
    return sp->host && sp->host[page] != ARENA_NO_PAGE;
}
/* Prepares the load of pages [first, first + *n) of the span, all from one tier, into fresh pages of the
 * arena; where there is no room *n becomes less (all: whole or nothing). The caller submits it. NULL: nothing
 * can be loaded. */
struct load *load_prepare_locked(struct cs_store *s, struct span *sp, uint32_t first, uint32_t *n, bool all);
/* The arrays have room. */
void load_batch_add(struct load_batch *b, struct load *l);
void load_batch_submit_locked(struct cs_store *s, const struct load_batch *b);
struct load *load_covering_locked(const struct span *sp, uint32_t page);
void load_join_locked(struct load_wait *w, struct cs_sequence *q, struct load *l, uint32_t first_page,
                      uint32_t n_pages);
/* Of a wait that joined nothing: nothing. */
void load_leave_locked(struct load_wait *w);
enum cs_miss load_miss(enum tier_result result);
enum cs_gone load_gone(enum tier_result result);

/* step.c */
/* Room for `capacity` pages in the tables of the window groups, and for their keys. CS_OK, CS_ENOMEM. */
int step_reserve(struct cs_sequence *q, size_t capacity);
/* The sequence resumes where `from` says; takes its references over. */
void step_resume_locked(struct cs_sequence *q, struct held_checkpoint *from);
void step_close_locked(struct cs_sequence *q);
void step_free(struct cs_sequence *q);
/* Lets go of a capture of q. */
void capture_drop_locked(struct cs_sequence *q, struct capture *c);

/* checkpoint.c */
/* Blocks of a checkpoint, and the first page of each window group in it. */
uint32_t checkpoint_blocks(const struct cs_store *s, uint32_t position);
uint32_t checkpoint_window_first(const struct cs_store *s, uint32_t position);
/* The deepest checkpoint of the path at or before `limit` tokens that is resident, or (not resident_only) can
 * be read; the path ends behind page `ordinal` of `at`. NULL: none. */
struct span *checkpoint_deepest_locked(struct span *at, uint32_t ordinal, uint32_t limit, bool resident_only);
/* The checkpoint at exactly this position of the path; NULL: none. */
struct span *checkpoint_at_locked(struct cs_store *s, struct span *at, uint32_t ordinal, uint32_t position);
/* References the blocks of a checkpoint that has them. CS_OK, CS_ENOMEM. */
int checkpoint_hold_locked(struct cs_store *s, const struct span *c, struct held_checkpoint *held);
void checkpoint_let_go_locked(struct cs_store *s, struct held_checkpoint *held);
/* A stored path goes on behind page `ordinal` of `at` in another way than the one that is about to leave. */
bool checkpoint_path_forks_locked(const struct span *at, uint32_t ordinal);
/* Stored paths part at this position of the path: a checkpoint of its grid position is a branch point. */
void checkpoint_note_branch_locked(struct cs_store *s, struct span *at, uint32_t ordinal, uint32_t position);
/* What the checkpoints of the path are worth changed with what sequences use of them. */
void checkpoint_rank_path_locked(struct cs_store *s, struct span *at, uint32_t ordinal);
/* Adds the captures of q whose pages are in the tree, and thins the path. */
void checkpoint_publish_locked(struct cs_sequence *q, uint64_t tick);

/* sequence.c */
/* Puts q where the keeper sees it. */
void sequence_list_locked(struct cs_sequence *q);
/* The path of q ends behind its first n pages. */
void sequence_set_place_locked(struct cs_sequence *q, struct span *place, uint32_t ordinal);

#endif
