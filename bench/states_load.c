/*
 * bench/states under load: does somebody who comes back find everything that placement keeps, whatever
 * others did meanwhile; and does one arena serve a load of pages and a load of checkpoints equally well.
 *
 * What placement keeps is measured, not assumed: an identical user who is asked before anybody else came.
 */
#include "bench/states.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USER_MESSAGES  41
#define NEXT_TOKENS    40
#define SHORT_MESSAGES 3

enum { SAME, NEXT, EDITED, N_QUESTIONS };
static const char *const questions[N_QUESTIONS] = {"the same prompt", "the next turn",
                                                   "an edit in the middle"};

/* Asks again as a user does; gives the reused tokens of each question and what the grid would allow. */
static void come_back(struct eng_engine *e, const struct geometry *g, uint32_t tenant,
                      const struct talk *mine, uint32_t got[N_QUESTIONS], uint32_t ideal[N_QUESTIONS])
{
    struct answer a;
    ask(e, tenant, mine, &a);
    got[SAME] = reused(&a);
    ideal[SAME] = grid_floor(g, mine->n);

    struct talk next = {0};
    next.ids = malloc(mine->n * sizeof *next.ids);
    next.edges = malloc(mine->n_edges * sizeof *next.edges);
    if (!next.ids || !next.edges)
        die("out of memory");
    memcpy(next.ids, mine->ids, mine->n * sizeof *next.ids);
    memcpy(next.edges, mine->edges, mine->n_edges * sizeof *next.edges);
    next.n = mine->n;
    next.n_edges = mine->n_edges;
    talk_add(&next, g, tenant + 77, NEXT_TOKENS);
    ask(e, tenant, &next, &a);
    got[NEXT] = reused(&a);
    ideal[NEXT] = grid_floor(g, mine->n + 1);

    /* Edited: the message in the middle and everything behind it say something else. */
    size_t middle = mine->edges[mine->n_edges / 2];
    struct talk other;
    talk_make(&other, g, tenant + 1234, mine->n, mine->n_edges);
    memcpy(next.ids + middle, other.ids + middle, (mine->n - middle) * sizeof *next.ids);
    talk_free(&other);
    ask(e, tenant, &next, &a);
    got[EDITED] = reused(&a);
    ideal[EDITED] = grid_floor(g, middle + 1);
    talk_free(&next);
}

void bench_retention(const struct settings *s, const struct geometry *g)
{
    const struct {
        const char *name;
        uint32_t talks, messages, tokens;
    } crowd[] = {
        {"nobody", 0, 1, 1},
        {"4 with 60 messages each", 4, 60, s->other_tokens},
        {"2 with 240 messages each", 2, 240, s->other_tokens},
        {"many short ones", s->n_short, SHORT_MESSAGES, s->short_tokens},
    };
    enum { N = sizeof crowd / sizeof crowd[0] };
    uint64_t blocks = 64;
    for (size_t i = 0; i < N; i++)
        blocks += crowd[i].talks * talk_blocks(g, crowd[i].tokens) + 2 * talk_blocks(g, s->user_tokens + 64);

    blocks = blocks * s->room / 100;
    struct eng_engine *e = engine_open(s, g, blocks, NULL);
    struct watch *w = watch_start(e);
    struct talk users[N];
    uint32_t tenant = 1;
    for (size_t i = 0; i < N; i++) {
        struct answer a;
        talk_make(&users[i], g, i + 1, s->user_tokens, USER_MESSAGES);
        ask(e, (uint32_t)i + 1, &users[i], &a);
        tenant++;
    }
    printf(
        "\n## Who comes back\n\nA user with %u tokens in %u messages; others come meanwhile (%u tokens "
        "each, the "
        "short ones %u); the arena has %u %% of the blocks that all of them may take. Reused tokens; kept: "
        "what the same questions reuse before anybody else came.\n\n",
        s->user_tokens, USER_MESSAGES, s->other_tokens, s->short_tokens, s->room);
    printf(
        "| others meanwhile | %s: reused | kept | grid allows | %s: reused | kept | grid allows | %s: reused "
        "| kept | grid allows |\n|---|---|---|---|---|---|---|---|---|---|\n",
        questions[SAME], questions[NEXT], questions[EDITED]);
    uint32_t kept[N_QUESTIONS];
    for (size_t i = 0; i < N; i++) {
        uint32_t got[N_QUESTIONS];
        uint32_t ideal[N_QUESTIONS];
        for (uint32_t k = 0; k < crowd[i].talks; k++) {
            struct talk t;
            struct answer a;
            talk_make(&t, g, 1000 * (i + 1) + k, crowd[i].tokens, crowd[i].messages);
            ask(e, ++tenant, &t, &a);
            talk_free(&t);
        }
        come_back(e, g, (uint32_t)i + 1, &users[i], got, ideal);
        if (i == 0) {
            memcpy(kept, got, sizeof kept);
            claim(s->room < 100 || kept[NEXT] > 0, "the next turn reuses nothing before anybody else came");
        }
        if (crowd[i].messages == SHORT_MESSAGES)
            printf("| %u short ones |", crowd[i].talks);
        else
            printf("| %s |", crowd[i].name);
        for (size_t k = 0; k < N_QUESTIONS; k++) {
            printf(" %u | %u | %u |", got[k], kept[k], ideal[k]);
            claim(s->room < 100 || got[k] >= kept[k], "%s after %s: %u tokens reused, %u are kept",
                  questions[k], crowd[i].name, got[k], kept[k]);
        }
        claim(s->room < 100 || got[SAME] == ideal[SAME], "the same prompt after %s: %u of %u tokens reused",
              crowd[i].name, got[SAME], ideal[SAME]);
        printf("\n");
        talk_free(&users[i]);
    }
    struct counters c;
    counters_read(e, &c);
    printf("\nCheckpoints: %llu held in %llu of %llu blocks, %llu evicted.\n",
           (unsigned long long)c.store.checkpoints, (unsigned long long)c.store.checkpoint_blocks,
           (unsigned long long)c.store.pages_total, (unsigned long long)c.store.evicted_device_checkpoints);
    claim(s->room >= 100 || c.store.evicted_device_spans + c.store.evicted_device_checkpoints > 0,
          "nothing was evicted with %u %% of the room", s->room);
    watch_stop(w);
    engine_close(e);
}

/* ---- one arena ------------------------------------------------------------------------------------------
 */

/* One conversation that needs the whole arena; what is in there at its first token. */
static void fill(struct eng_engine *e, const struct geometry *g, const char *name, uint32_t tenant,
                 size_t tokens, size_t messages, uint64_t most_checkpoints, uint64_t least_checkpoints)
{
    struct talk t;
    struct answer a;
    talk_make(&t, g, 9000 + tenant, tokens, messages);
    ask(e, tenant, &t, &a);
    talk_free(&t);
    const struct cs_stats *s = &a.at_first_token;
    double share = 100.0 / (double)s->pages_total;
    double used = (double)(s->pages_live + s->pages_cached) * share;
    printf("| %s | %zu in %zu | %.1f | >= 95 | %.1f | %.1f | %llu | %llu |\n", name, tokens, messages, used,
           used - (double)s->checkpoint_blocks * share, (double)s->checkpoint_blocks * share,
           (unsigned long long)a.work.store.evicted_device_spans,
           (unsigned long long)a.work.store.evicted_device_checkpoints);
    claim(used >= 95, "%s: %.1f %% of the arena are used", name, used);
    claim(s->checkpoint_blocks <= most_checkpoints && s->checkpoint_blocks >= least_checkpoints,
          "%s: %llu blocks of checkpoints, not between %llu and %llu", name,
          (unsigned long long)s->checkpoint_blocks, (unsigned long long)least_checkpoints,
          (unsigned long long)most_checkpoints);
}

void bench_turnover(const struct settings *s, const struct geometry *g)
{
    if (!g->stateful) {
        printf("\n## One arena\n\nThis model has no checkpoints: nothing to turn.\n");
        return;
    }
    /* As many checkpoints as a path keeps, so far apart that no two share window pages. */
    uint64_t each = g->checkpoint_blocks;
    uint64_t apart = (g->state.window + g->state.grid) / g->state.grid * g->state.grid;
    size_t turns = (size_t)(CHECKPOINTS_A_PATH * apart);
    uint64_t blocks = turns / KN_PAGE_TOKENS + CHECKPOINTS_A_PATH * each;
    /* Window pages of a chunk are free again behind it: a small chunk, so that they are a small part. */
    struct settings narrow = *s;
    if (g->state.window_groups > 0) {
        uint64_t pages = blocks / 50 / g->state.window_groups;
        pages = pages > 0 ? pages : 1;
        narrow.chunk = pages * KN_PAGE_TOKENS < s->chunk ? (uint32_t)pages * KN_PAGE_TOKENS : s->chunk;
    }
    uint64_t running = g->state.window_groups * (narrow.chunk / KN_PAGE_TOKENS + 1);
    blocks += running;
    /* A long prompt: pages, the checkpoint at its end, and what a chunk runs with. */
    size_t tokens = (size_t)(blocks - running - each) * KN_PAGE_TOKENS - 2 * KN_PAGE_TOKENS;
    narrow.tokens = (uint32_t)tokens;
    struct eng_engine *e = engine_open(&narrow, g, blocks, NULL);
    if (tokens + 4 > eng_engine_context(e))
        tokens = eng_engine_context(e) - 4;
    struct watch *w = watch_start(e);
    printf(
        "\n## One arena, pages to checkpoints and back\n\n%llu blocks of %.0f KiB; a checkpoint takes %llu. "
        "Shares of the arena at the first token of each.\n\n"
        "| load | tokens in messages | arena used %% | target | pages %% | checkpoints %% | spans evicted "
        "| checkpoints evicted |\n|---|---|---|---|---|---|---|---|\n",
        (unsigned long long)blocks, (double)g->stride / 1024, (unsigned long long)each);
    fill(e, g, "pages", 1, tokens, 1, 2 * each, 0);
    fill(e, g, "checkpoints", 2, turns, CHECKPOINTS_A_PATH, blocks, (CHECKPOINTS_A_PATH - 1) * each);
    fill(e, g, "pages again", 3, tokens, 1, 2 * each, 0);
    watch_stop(w);
    engine_close(e);
}
