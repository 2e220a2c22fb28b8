/*
 * What the files of bench/states share: a real engine, conversations as token ids with boundaries, one
 * request at a time with the counters it moved, and a thread that watches the budgets.
 *
 *   states.c           command line; the same ids in 4 to 240 messages, cold and warm; restart from disk
 *   states_load.c      who comes back after others; an arena that turns from pages to checkpoints and back
 *   states_engine.c    the rest of this header
 */
#ifndef ISOTHERM_BENCH_STATES_H
#define ISOTHERM_BENCH_STATES_H

#include "engine/runtime/runtime.h"

#define MAX_ROUNDS         64
#define CHECKPOINTS_A_PATH 8 /* the store's default */

struct settings {
    const char *model, *disk_dir;
    unsigned threads;
    uint32_t chunk, tokens, rounds, warm_rounds, user_tokens, other_tokens, short_tokens, n_short, room;
    enum kn_kv_dtype dtype;
    bool messages, restart, retention, turnover;
};

/* What one block of the arena and one checkpoint cost with this model. */
struct geometry {
    struct eng_model_desc desc;
    struct eng_state_desc state;
    uint64_t stride;            /* bytes of a block */
    uint64_t checkpoint_blocks; /* of a checkpoint whose window lies behind it whole */
    uint64_t weight_bytes;
    bool stateful;
};

/* A conversation: ids, and where its messages begin. */
struct talk {
    uint32_t *ids;
    size_t n;
    uint32_t *edges;
    size_t n_edges;
};

/* Everything that counts work, for differences. */
struct counters {
    struct cs_stats store;
    struct eng_engine_stats engine;
};

struct answer {
    double first_token_s; /* submit to first token */
    struct eng_usage usage;
    struct counters work;           /* what this request added */
    struct cs_stats at_first_token; /* while it still holds all its blocks */
};

/* Lowest values and highest of what a budget bounds, read every few milliseconds. */
struct watch;

void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* A claim about counts: prints what is wrong and makes the program fail at its end. */
void claim(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
int claims_failed(void);

void geometry_read(const struct settings *s, struct geometry *g);
/* Blocks that n_tokens in one conversation take at most, with its checkpoints. */
uint64_t talk_blocks(const struct geometry *g, size_t n_tokens);

/* An engine with that many blocks for conversations, one at a time. disk_dir NULL: none. */
struct eng_engine *engine_open(const struct settings *s, const struct geometry *g, uint64_t blocks,
                               const char *disk_dir);
void engine_close(struct eng_engine *e);
void counters_read(struct eng_engine *e, struct counters *out);

/* n_tokens random ids, the same for the same seed, cut into n_messages messages of equal size. */
void talk_make(struct talk *t, const struct geometry *g, uint64_t seed, size_t n_tokens, size_t n_messages);
void talk_cut(struct talk *t, size_t n_messages);
/* Appends a message of n ids. */
void talk_add(struct talk *t, const struct geometry *g, uint64_t seed, size_t n_tokens);
void talk_free(struct talk *t);

/* Asks for two tokens (so that the first comes before the end) and waits. tenant: a number of its own is
 * nobody else's cache. */
void ask(struct eng_engine *e, uint32_t tenant, const struct talk *t, struct answer *out);
uint32_t reused(const struct answer *a);
/* Tokens that the grid allows to reuse of a prompt of n tokens. */
uint32_t grid_floor(const struct geometry *g, size_t n);

struct watch *watch_start(struct eng_engine *e);
/* Ends it; claims that no budget was exceeded, and prints the line. */
void watch_stop(struct watch *w);

/* Geometric mean of the paired ratios a[i] / b[i] and its 95 % interval (Student's t over their logarithms);
 * low and high are NAN with one pair. */
void paired_ratio(const double *a, const double *b, size_t n, double *mean, double *low, double *high);

void bench_messages(const struct settings *s, const struct geometry *g);
void bench_restart(const struct settings *s, const struct geometry *g);
void bench_retention(const struct settings *s, const struct geometry *g);
void bench_turnover(const struct settings *s, const struct geometry *g);

#endif
