/*
 * State at speaker boundaries, through the real engine: what it costs and what it keeps. Markdown on stdout,
 * the target or the ceiling beside each number. Exit 1 when a count is not as claimed; times only print.
 *
 *     states --model FILE [--threads N] [--chunk N] [--kv-cache-dtype f16|bf16|f32] [--only LIST]
 *            [--disk DIR] [--tokens N] [--rounds N] [--warm N] [--user N] [--other N] [--short N]
 *            [--n-short N] [--room PERCENT]
 *
 *   messages    the same --tokens ids as 4, 30, 120 and 240 messages: time to first token cold and warm,
 *               forwards, copies, checkpoints, bytes. --rounds rounds; in each 4 and 240 stand side by side
 *               and change places, with --warm warm questions; 30 and 120 in the first round only
 *   restart     the same from disk after closing and opening again: needs --disk
 *   retention   a user of --user tokens comes back after others of --other tokens, and --n-short of --short;
 *               the arena has --room per cent of what all of them take (under 100 only budgets are claimed)
 *   turnover    one arena under a load of pages, then of checkpoints, then of pages
 *
 * LIST names some of them with commas between; without it all of them run. The ids are the same in every
 * layout, only the boundaries differ; a new tenant makes the same ids cold again. The chunk is fixed, or the
 * number of forwards would follow the clock.
 */
#include "bench/states.h"
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/numbers.h"
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_LAYOUTS   4
#define SPAN_BYTES  (4u << 20)
#define FLUSH_MS    120000
#define MIB         1048576.0
#define WARM_MAX    16
#define DEADLINE_MS 20 /* that a restart may cost beside reading */

static const uint32_t layout_messages[N_LAYOUTS] = {4, 30, 120, 240};
enum { FEW = 0, MANY = N_LAYOUTS - 1 };

struct layout {
    struct talk talk;
    double cold[MAX_ROUNDS], warm[MAX_ROUNDS * WARM_MAX];
    size_t n_cold, n_warm;
    struct answer first_cold, first_warm;
};

/* ---- messages ------------------------------------------------------------------------------------------ */

static void check_counts(const struct settings *s, const struct geometry *g, const struct layout *l)
{
    const struct layout *few = &l[0];
    uint64_t chunks = (few->talk.n + s->chunk - 1) / s->chunk;
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        const struct counters *cold = &l[i].first_cold.work;
        const struct counters *warm = &l[i].first_warm.work;
        uint32_t m = layout_messages[i];
        claim(cold->engine.forwards == chunks + 1, "%u messages cold: %llu forwards, not %llu", m,
              (unsigned long long)cold->engine.forwards, (unsigned long long)chunks + 1);
        claim(warm->engine.forwards == few->first_warm.work.engine.forwards,
              "%u messages warm: %llu forwards, not %llu", m, (unsigned long long)warm->engine.forwards,
              (unsigned long long)few->first_warm.work.engine.forwards);
        claim(cold->store.publishes == few->first_cold.work.store.publishes,
              "%u messages cold: %llu publishes", m, (unsigned long long)cold->store.publishes);
        claim(warm->store.publishes == few->first_warm.work.store.publishes,
              "%u messages warm: %llu publishes", m, (unsigned long long)warm->store.publishes);
        claim(cold->engine.state_saves + cold->engine.state_loads ==
                  few->first_cold.work.engine.state_saves + few->first_cold.work.engine.state_loads,
              "%u messages cold: another number of copies than 4", m);
        claim(warm->engine.state_saves + warm->engine.state_loads ==
                  few->first_warm.work.engine.state_saves + few->first_warm.work.engine.state_loads,
              "%u messages warm: another number of copies than 4", m);
        claim(cold->store.dropped_checkpoints == 0, "%u messages: %llu checkpoints had no memory", m,
              (unsigned long long)cold->store.dropped_checkpoints);
        claim(reused(&l[i].first_cold) == 0, "%u messages: cold was not cold", m);
        claim(reused(&l[i].first_warm) == grid_floor(g, l[i].talk.n),
              "%u messages warm: %u tokens reused, not %u", m, reused(&l[i].first_warm),
              grid_floor(g, l[i].talk.n));
    }
    claim(l[2].first_cold.work.engine.state_captures == l[3].first_cold.work.engine.state_captures,
          "120 messages write %llu states, 240 write %llu",
          (unsigned long long)l[2].first_cold.work.engine.state_captures,
          (unsigned long long)l[3].first_cold.work.engine.state_captures);
}

static void print_ratio(const char *name, const struct layout *l, bool warm, const char *target)
{
    double mean;
    double low;
    double high;
    size_t n = warm ? l[FEW].n_warm : l[FEW].n_cold;
    const double *a = warm ? l[MANY].warm : l[MANY].cold;
    const double *b = warm ? l[FEW].warm : l[FEW].cold;
    paired_ratio(a, b, n, &mean, &low, &high);
    if (isnan(low))
        printf("| %s, 240 messages / 4 | %.3f | one pair | %s |\n", name, mean, target);
    else
        printf("| %s, 240 messages / 4 | %.3f | %.3f to %.3f, %zu pairs | %s |\n", name, mean, low, high, n,
               target);
}

/* Of a copy: pairs stay in their order. */
static double median_of(const double *v, size_t n)
{
    double copy[MAX_ROUNDS * WARM_MAX];
    memcpy(copy, v, n * sizeof *copy);
    return median(copy, n);
}

static void print_messages(const struct settings *s, const struct geometry *g, struct layout *l)
{
    printf(
        "\n## The same %u tokens in 4 to 240 messages\n\nPrefill in chunks of %u; medians of %u cold rounds "
        "and %zu warm ones, interleaved. Counts are of one request.\n\n",
        s->tokens, s->chunk, s->rounds, l[0].n_warm);
    double cold_s[N_LAYOUTS];
    printf(
        "| messages | cold TTFT s | forwards | publishes | states written inside the forward | copied out or "
        "in | state MiB | blocks kept, MiB |\n|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        const struct counters *cold = &l[i].first_cold.work;
        cold_s[i] = median_of(l[i].cold, l[i].n_cold);
        printf("| %u | %.3f | %llu | %llu | %llu | %llu | %.1f | %.1f |\n", layout_messages[i], cold_s[i],
               (unsigned long long)cold->engine.forwards, (unsigned long long)cold->store.publishes,
               (unsigned long long)cold->engine.state_captures,
               (unsigned long long)(cold->engine.state_saves + cold->engine.state_loads),
               (double)cold->engine.state_bytes / MIB,
               (double)cold->store.pages_cached * (double)g->stride / MIB);
    }
    printf(
        "\n| messages | warm TTFT ms | recomputed | as long in the cold prompt, ms | reused | the grid "
        "allows | "
        "forwards | publishes | copied out or in | state MiB |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        const struct counters *warm = &l[i].first_warm.work;
        size_t again = l[i].talk.n - reused(&l[i].first_warm);
        printf("| %u | %.1f | %zu | %.1f | %u | %u | %llu | %llu | %llu | %.1f |\n", layout_messages[i],
               median_of(l[i].warm, l[i].n_warm) * 1e3, again,
               cold_s[i] * 1e3 * (double)again / (double)l[i].talk.n, reused(&l[i].first_warm),
               grid_floor(g, l[i].talk.n), (unsigned long long)warm->engine.forwards,
               (unsigned long long)warm->store.publishes,
               (unsigned long long)(warm->engine.state_saves + warm->engine.state_loads),
               (double)warm->engine.state_bytes / MIB);
    }
    printf("\n| ratio of pairs | mean | 95 %% interval | target |\n|---|---|---|---|\n");
    print_ratio("cold TTFT", l, false, "<= 1.03");
    print_ratio("warm TTFT", l, true, "<= 1.05");
}

/* One question in each layout: cold (turn 0) or warm. Those that are compared stand side by side, and change
 * places from round to round; the others are asked in the first round only. */
static void messages_round(const struct settings *s, struct eng_engine *e, struct layout *layouts,
                           uint32_t round, uint32_t turn)
{
    static const size_t order[2][N_LAYOUTS] = {{FEW, MANY, 1, 2}, {MANY, FEW, 1, 2}};
    for (size_t place = 0; place < (round == 0 ? N_LAYOUTS : 2); place++) {
        size_t i = order[(round + turn) % 2][place];
        struct layout *l = &layouts[i];
        struct answer a;
        ask(e, round * N_LAYOUTS + (uint32_t)i + 1, &l->talk, &a);
        if (turn == 0) {
            if (l->n_cold == 0)
                l->first_cold = a;
            l->cold[l->n_cold++] = a.first_token_s;
            fprintf(stderr, "round %u of %u: %u messages cold in %.2f s\n", round + 1, s->rounds,
                    layout_messages[i], a.first_token_s);
        } else {
            if (l->n_warm == 0)
                l->first_warm = a;
            l->warm[l->n_warm++] = a.first_token_s;
        }
    }
}

void bench_messages(const struct settings *s, const struct geometry *g)
{
    static struct layout layouts[N_LAYOUTS];
    uint64_t blocks = 64 + (2 * s->rounds + N_LAYOUTS - 2) * talk_blocks(g, s->tokens);
    struct eng_engine *e = engine_open(s, g, blocks, NULL);
    struct talk warm_up;
    struct answer a;
    talk_make(&warm_up, g, 99, s->chunk < s->tokens ? s->chunk : s->tokens, 1);
    ask(e, UINT32_MAX, &warm_up, &a);
    talk_free(&warm_up);
    for (size_t i = 0; i < N_LAYOUTS; i++)
        talk_make(&layouts[i].talk, g, 1, s->tokens, layout_messages[i]);
    for (uint32_t r = 0; r < s->rounds; r++)
        for (uint32_t turn = 0; turn <= s->warm_rounds; turn++)
            messages_round(s, e, layouts, r, turn);
    print_messages(s, g, layouts);
    check_counts(s, g, layouts);
    for (size_t i = 0; i < N_LAYOUTS; i++)
        talk_free(&layouts[i].talk);
    engine_close(e);
}

/* ---- restart ------------------------------------------------------------------------------------------- */

struct written {
    uint64_t rows, bytes;
};

static void durable(struct eng_engine *e, struct cs_stats *out)
{
    if (cs_flush(eng_engine_store(e), FLUSH_MS) != CS_OK)
        die("the store did not become durable");
    cs_stats_get(eng_engine_store(e), out);
}

void bench_restart(const struct settings *s, const struct geometry *g)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%.4000s/states-XXXXXX", s->disk_dir);
    if (!mkdtemp(dir))
        die("no folder can be made in %s", s->disk_dir);
    static const uint32_t cuts[2] = {4, 240};
    uint64_t blocks = 64 + 2 * talk_blocks(g, s->tokens);
    struct talk talks[2];
    struct written written[2];
    double warm_s[2];
    struct eng_engine *e = engine_open(s, g, blocks, dir);
    struct cs_stats opened;
    cs_stats_get(eng_engine_store(e), &opened);
    if (!opened.disk_on) {
        fprintf(stderr, "states: no disk tier here: restart is left out\n");
        engine_close(e);
        bench_remove_tree(dir);
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct answer a;
        struct cs_stats before;
        struct cs_stats after;
        talk_make(&talks[i], g, 1, s->tokens, cuts[i]);
        durable(e, &before);
        ask(e, i + 1, &talks[i], &a);
        durable(e, &after);
        written[i] = (struct written){.rows = after.catalog_rows - before.catalog_rows,
                                      .bytes = after.bytes_written - before.bytes_written};
        /* Flat: a row a publish, a row a span of 4 MiB, and the checkpoints. */
        uint64_t most = a.work.store.publishes + written[i].bytes / SPAN_BYTES + CHECKPOINTS_A_PATH + 1;
        claim(written[i].rows <= most, "%u messages: %llu catalogue rows, more than %llu", cuts[i],
              (unsigned long long)written[i].rows, (unsigned long long)most);
        double v[3];
        for (size_t k = 0; k < 3; k++) {
            ask(e, i + 1, &talks[i], &a);
            v[k] = a.first_token_s;
        }
        warm_s[i] = median(v, 3);
    }
    engine_close(e);

    double start = wall_s();
    e = engine_open(s, g, blocks, dir);
    double open_s = wall_s() - start;
    printf("\n## After a restart\n\nClosed and opened again in %.2f s. Reading: O_DIRECT, 1 MiB requests, "
           "from the "
           "same volume, in this run.\n\n"
           "| messages | catalogue rows written | MiB written | reused, from disk | of | TTFT ms | warm in "
           "process ms | reading the same bytes ms | target: warm + reading / 0.9 + %d |\n"
           "|---|---|---|---|---|---|---|---|---|\n",
           open_s, DEADLINE_MS);
    for (uint32_t i = 0; i < 2; i++) {
        struct answer a;
        struct cs_stats before;
        struct cs_stats after;
        cs_stats_get(eng_engine_store(e), &before);
        ask(e, i + 1, &talks[i], &a);
        cs_stats_get(eng_engine_store(e), &after);
        uint64_t bytes = after.bytes_read - before.bytes_read;
        double reading = ceiling_disk_read_s(dir, bytes, 64, NULL, 0);
        if (reading <= 0)
            die("nothing in %s can be read with O_DIRECT: there is no ceiling", dir);
        printf("| %u | %llu | %.1f | %u | %u | %.1f | %.1f | %.1f | %.1f |\n", cuts[i],
               (unsigned long long)written[i].rows, (double)written[i].bytes / MIB, a.usage.reuse.tokens_disk,
               grid_floor(g, talks[i].n), a.first_token_s * 1e3, warm_s[i] * 1e3, reading * 1e3,
               (warm_s[i] + reading / 0.9) * 1e3 + DEADLINE_MS);
        claim(a.usage.reuse.tokens_disk == grid_floor(g, talks[i].n),
              "%u messages after a restart: %u of %u tokens from disk", cuts[i], a.usage.reuse.tokens_disk,
              grid_floor(g, talks[i].n));
        talk_free(&talks[i]);
    }
    engine_close(e);
    bench_remove_tree(dir);
}

/* ---- command line -------------------------------------------------------------------------------------- */

static int usage(const char *message)
{
    fprintf(
        stderr,
        "states: %s\nusage: states --model FILE [--threads N] [--chunk N] [--kv-cache-dtype f16|bf16|f32]\n"
        "              [--only messages,restart,retention,turnover] [--disk DIR] [--tokens N] [--rounds N]\n"
        "              [--warm N] [--user N] [--other N] [--short N] [--n-short N] [--room PERCENT]\n",
        message);
    return 2;
}

static bool parse_only(char *text, struct settings *s)
{
    const struct {
        const char *name;
        bool *on;
    } parts[] = {{"messages", &s->messages},
                 {"restart", &s->restart},
                 {"retention", &s->retention},
                 {"turnover", &s->turnover}};
    const size_t n_parts = sizeof parts / sizeof parts[0];
    for (size_t i = 0; i < n_parts; i++)
        *parts[i].on = false;
    for (char *save, *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        size_t i = 0;
        while (i < n_parts && strcmp(parts[i].name, p) != 0)
            i++;
        if (i == n_parts)
            return false;
        *parts[i].on = true;
    }
    return true;
}

static const char *parse(int argc, char **argv, struct settings *s)
{
    enum { MODEL = 1, ONLY, DISK, DTYPE, NUMBERS };
    const struct {
        uint32_t low, high, *out;
    } numbers[] = {{1, 1024, &s->threads},
                   {16, 65536, &s->chunk},
                   {300, 1u << 20, &s->tokens},
                   {1, MAX_ROUNDS, &s->rounds},
                   {1, WARM_MAX, &s->warm_rounds},
                   {200, 1u << 20, &s->user_tokens},
                   {300, 1u << 20, &s->other_tokens},
                   {3, 1u << 20, &s->short_tokens},
                   {0, 100000, &s->n_short},
                   {5, 100, &s->room}};
    static const struct option options[] = {{"model", required_argument, NULL, MODEL},
                                            {"only", required_argument, NULL, ONLY},
                                            {"disk", required_argument, NULL, DISK},
                                            {"kv-cache-dtype", required_argument, NULL, DTYPE},
                                            {"threads", required_argument, NULL, NUMBERS},
                                            {"chunk", required_argument, NULL, NUMBERS + 1},
                                            {"tokens", required_argument, NULL, NUMBERS + 2},
                                            {"rounds", required_argument, NULL, NUMBERS + 3},
                                            {"warm", required_argument, NULL, NUMBERS + 4},
                                            {"user", required_argument, NULL, NUMBERS + 5},
                                            {"other", required_argument, NULL, NUMBERS + 6},
                                            {"short", required_argument, NULL, NUMBERS + 7},
                                            {"n-short", required_argument, NULL, NUMBERS + 8},
                                            {"room", required_argument, NULL, NUMBERS + 9},
                                            {NULL, 0, NULL, 0}};
    static const char *const dtypes[] = {[KN_KV_F16] = "f16", [KN_KV_BF16] = "bf16", [KN_KV_F32] = "f32"};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool ok = false;
        if (c == MODEL) {
            s->model = optarg;
            ok = true;
        } else if (c == ONLY) {
            ok = parse_only(optarg, s);
        } else if (c == DISK) {
            s->disk_dir = optarg;
            ok = true;
        } else if (c == DTYPE) {
            for (int k = 0; k < 3; k++)
                if (strcmp(optarg, dtypes[k]) == 0) {
                    s->dtype = (enum kn_kv_dtype)k;
                    ok = true;
                }
        } else if (c >= NUMBERS) {
            ok = parse_number(optarg, numbers[c - NUMBERS].low, numbers[c - NUMBERS].high,
                              numbers[c - NUMBERS].out);
        }
        if (!ok)
            return "a flag or value is wrong";
    }
    if (optind < argc)
        return "too many arguments";
    return s->model ? NULL : "--model is missing";
}

int main(int argc, char **argv)
{
    struct settings s = {.threads = 2,
                         .chunk = 512,
                         .tokens = 14000,
                         .rounds = 3,
                         .warm_rounds = 5,
                         .user_tokens = 3000,
                         .other_tokens = 3500,
                         .short_tokens = 96,
                         .n_short = 200,
                         .room = 100,
                         .dtype = KN_KV_F16,
                         .messages = true,
                         .restart = true,
                         .retention = true,
                         .turnover = true};
    const char *wrong = parse(argc, argv, &s);
    if (wrong)
        return usage(wrong);
    struct geometry g;
    geometry_read(&s, &g);
    printf(
        "# State at boundaries: %s\n\n%s, %u layers (%u full, %u window, %u recurrent), %u threads, chunk "
        "%u. A "
        "page of %u tokens: %.1f KiB. A checkpoint: %llu blocks, %.1f MiB, every %u tokens at the finest.\n",
        g.desc.name, g.desc.architecture, g.desc.n_layers, g.desc.n_full, g.desc.n_window, g.desc.n_recurrent,
        s.threads, s.chunk, KN_PAGE_TOKENS, (double)g.stride / 1024, (unsigned long long)g.checkpoint_blocks,
        (double)(g.checkpoint_blocks * g.stride) / MIB, g.state.grid);
    fflush(stdout);
    if (s.messages)
        bench_messages(&s, &g);
    fflush(stdout);
    if (s.restart && s.disk_dir)
        bench_restart(&s, &g);
    else if (s.restart)
        fprintf(stderr, "states: no --disk: restart is left out\n");
    fflush(stdout);
    if (s.retention)
        bench_retention(&s, &g);
    fflush(stdout);
    if (s.turnover)
        bench_turnover(&s, &g);
    return claims_failed() ? 1 : 0;
}
