/*
 * What the files of bench/policy_sim share: a trace as requests over a tree of pieces, a replay of it through
 * the store, and the choosers of victims that stand beside the store's own.
 *
 *   policy_sim.c          command line, runs, tables
 *   policy_sim_read.c     the three formats of traces
 *   policy_sim_trace.c    chains of requests, order of arrival, what could be matched, who uses a piece next
 *   policy_sim_replay.c   requests through a store without payload, on a clock of its own
 *   policy_sim_victims.c  least recently used, GDSF, exact worth, the future known
 *   policy_sim_disk.c     a disk tier that keeps no bytes
 *
 * A piece is a block or a message. Each piece with all that lies before it is a node, numbered from 1; all
 * tokens of a piece have its node's number as their id, so that whoever sees a token id knows the whole
 * prefix. One thread; what cannot go on ends the program.
 */
#ifndef ISOTHERM_BENCH_POLICY_SIM_H
#define ISOTHERM_BENCH_POLICY_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_NEVER    UINT32_MAX
#define SIM_LOOSE_ID UINT32_MAX /* of a token behind all pieces: nobody has it in common */

struct sim_node {
    uint32_t tokens;
    char role; /* s, u, a, t; 0: not known */
};

/* The prompt: the first n_kept pieces of the chain's request before, and new ones; then those of its reply.
 */
struct sim_request {
    uint64_t at_us;
    uint32_t order; /* in the file */
    uint32_t group; /* of different groups have nothing in common */
    uint32_t chain, n_kept;
    size_t first_new;        /* of trace.list */
    uint32_t n_new, n_reply; /* pieces; the reply's are the last of the new ones */
    uint32_t n_prompt;       /* tokens: the last piece of a prompt may be cut, or a loose token follow it */
    uint32_t system_tokens;  /* 0: not known */
    bool measured, last_of_chain;
};

struct sim_trace {
    struct sim_request *requests; /* by time of arrival, once sim_trace_finish is done */
    size_t n_requests, requests_capacity;
    uint32_t *list;
    size_t n_list, list_capacity;
    struct sim_node *nodes; /* node 0 is none */
    size_t n_nodes, nodes_capacity;
    uint32_t n_chains, n_groups;
    uint64_t n_distinct_tokens; /* of prompts and replies */
    uint32_t *matchable;        /* tokens of each request's prompt that an earlier one has had, whole pages */
};

/* How sessions are laid beside each other, where a trace does not say. */
struct sim_arrival {
    uint32_t users, sessions, seed, gap_cap_s; /* sessions 0: all */
};

/* A chain of requests as far as it has come. */
struct sim_chain {
    uint32_t *node, *end; /* of each piece; end in tokens */
    size_t n, capacity;
    uint32_t *ids;
    size_t ids_capacity;
};
struct sim_cursor {
    const struct sim_trace *trace;
    struct sim_chain *chains;
    bool with_ids;
};

/* When each node is used: requests in order. */
struct sim_uses {
    size_t *first; /* n_nodes + 1 */
    uint32_t *request;
};

enum sim_policy { SIM_STORE, SIM_EXACT, SIM_LRU, SIM_GDSF, SIM_FUTURE, SIM_POLICIES };

struct sim_setup {
    enum sim_policy policy;
    uint32_t page_tokens, grid_tokens, checkpoints_a_path;
    uint64_t kv_bytes, state_bytes; /* of a token; of a checkpoint, 0: dense */
    uint64_t budget_bytes;          /* SIM_NO_BUDGET: all there is */
    uint64_t disk_bytes;            /* 0: no disk */
    const struct sim_uses *uses;    /* for SIM_FUTURE and SIM_GDSF */
    uint32_t *resumed;              /* if set: the node that each request resumed behind, 0: none */
};
#define SIM_NO_BUDGET UINT64_MAX

struct sim_result {
    uint64_t requests, prompt_tokens, matchable_tokens, reused_tokens, disk_tokens;
    uint64_t refused;   /* prompts with no room even when all else is gone */
    uint64_t published; /* checkpoints */
    uint64_t victims;
    double prompt_s, matchable_s, saved_s;
    double path_checkpoints; /* sum over measured requests */
    uint32_t most_checkpoints;
    double cpu_s;
};

/* policy_sim.c */
void sim_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Seconds to prefill n tokens: n / 8000 (1 + n / 200000), so that later tokens cost more. */
double sim_prefill_s(double n);

/* policy_sim_trace.c */
/* Room for one more item of `size` bytes. */
void *sim_reserve(void *items, size_t *capacity, size_t n, size_t size);
uint32_t sim_trace_add_node(struct sim_trace *t, uint32_t tokens, char role);
void sim_trace_list(struct sim_trace *t, uint32_t node);
struct sim_request *sim_trace_add_request(struct sim_trace *t);
/* Orders the requests and finds what each has in common with those before it. */
void sim_trace_finish(struct sim_trace *t, uint32_t page_tokens);
void sim_trace_free(struct sim_trace *t);
/* Call for each request in order. */
struct sim_cursor sim_cursor_new(const struct sim_trace *t, bool with_ids);
const struct sim_chain *sim_cursor_step(struct sim_cursor *c, const struct sim_request *r);
/* What was given is no longer needed. */
void sim_cursor_done(struct sim_cursor *c, const struct sim_request *r);
void sim_cursor_free(struct sim_cursor *c);
/* Each prompt uses all of its nodes. */
struct sim_uses sim_uses_of_prompts(const struct sim_trace *t);
/* Request i uses node used[i] only, 0: none. */
struct sim_uses sim_uses_of(const struct sim_trace *t, const uint32_t *used);
void sim_uses_free(struct sim_uses *u);
/* The first request behind `now` that uses the node; SIM_NEVER. */
uint32_t sim_uses_next(const struct sim_uses *u, uint32_t node, uint32_t now);

/* policy_sim_read.c */
void sim_read(const char *path, const struct sim_arrival *arrival, struct sim_trace *t);

/* policy_sim_replay.c */
uint64_t sim_page_bytes(const struct sim_setup *setup);
void sim_replay(const struct sim_trace *t, const struct sim_setup *setup, struct sim_result *out);

/* policy_sim_victims.c */
struct index;
void sim_victims_begin(const struct sim_trace *t, const struct sim_setup *setup);
/* The store that is replayed through from now on; NULL: none. */
void sim_victims_store(struct index *ix);
/* Request `now` has been looked up: it reuses the first `reused` tokens of the chain. */
struct cs_sequence;
void sim_victims_hit(const struct cs_sequence *q, uint32_t now, const struct sim_chain *chain,
                     uint32_t reused);
/* ... and was published. */
void sim_victims_published(const struct cs_sequence *q, const struct sim_chain *chain, uint32_t reused);
/* Returns how many victims there were. */
uint64_t sim_victims_end(void);

/* policy_sim_disk.c */
struct tier_vtable;
struct sim_disk;
extern const struct tier_vtable sim_disk_vtable;
/* Of the store that is opened next with sim_disk_vtable: its budget, and the bytes that a page stands for. */
void sim_disk_next(uint64_t budget_bytes, uint64_t page_bytes);
/* Completes what is queued in the disk of the store that was opened last. */
void sim_disk_work(void);

#endif
