/*
 * What the store's policies keep of real workloads: replays a trace through the index and the policies that
 * serve, with pages that hold nothing, and prints what was reused beside what other choices of a victim would
 * have kept at the same budget, and beside the ceiling: all that earlier requests have had, and the future
 * known.
 *
 *   build/bench/policy-sim TRACE [--model dense|a3b|27b] [--kv BYTES] [--state BYTES]
 *       [--budget 16G,32G,5%] [--policy store,exact,lru,gdsf,future] [--placement 1,2,8,all] [--disk 64G]
 *       [--page 32] [--grid 32] [--k 8] [--users 16] [--sessions N] [--seed 7] [--gap 1800] [--within POINTS]
 *
 * --budget   bytes of the device, in G (10^9) or in per cent of what all distinct tokens take
 * --placement   instead: nothing is evicted, and so many checkpoints a path are kept
 * --within   exit 1 if the store's choice reuses fewer tokens (of those matchable) than the exact one by more
 *
 * A model is a3b: 20 KB a token and checkpoints of 66 MB (a hybrid of 35 B); 27b: 64 KiB and 78 MB; dense:
 * 128 KiB (8 B with grouped queries).
 */
#include "bench/policy_sim.h"
#include "bench/numbers.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GIGA 1e9
#define ALL  (1u << 20) /* checkpoints a path: more than there are */

enum { MAX_PAGE = 32, MAX_GRID = 1 << 16 };

static const char *const policy_names[SIM_POLICIES] = {[SIM_STORE] = "store",
                                                       [SIM_EXACT] = "exact",
                                                       [SIM_LRU] = "lru",
                                                       [SIM_GDSF] = "gdsf",
                                                       [SIM_FUTURE] = "future"};

struct options {
    const char *trace, *budgets, *policies, *placements;
    struct sim_arrival arrival;
    struct sim_setup setup;
    double within; /* points; negative: not asked */
};

void sim_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "policy-sim: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(2);
}

double sim_prefill_s(double n)
{
    return n / 8000 * (1 + n / 200000);
}

/* ---- command line ------------------------------------------------------------------------------------ */

/* Cuts the next item off a list with commas. False: there is none. */
static bool next_item(const char **list, char *item, size_t size)
{
    size_t n = strcspn(*list, ",");
    if (n == 0 || n >= size)
        return false;
    memcpy(item, *list, n);
    item[n] = 0;
    *list += n + ((*list)[n] == ',');
    return true;
}

/* 16G, or 5% of `whole`. */
static uint64_t parse_bytes(const char *text, double whole)
{
    char *end;
    double v = strtod(text, &end);
    double unit = strcmp(end, "G") == 0 ? GIGA : strcmp(end, "%") == 0 ? whole / 100 : 0;
    if (!(v > 0) || unit == 0 || v * unit > 1e15)
        sim_die("%s is no budget", text);
    return (uint64_t)(v * unit);
}

static void take_model(struct sim_setup *s, const char *name)
{
    static const struct {
        const char *name;
        uint64_t kv_bytes, state_bytes;
    } models[] = {{"dense", 128 << 10, 0}, {"a3b", 20000, 66000000}, {"27b", 64 << 10, 78000000}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(name, models[i].name) == 0) {
            s->kv_bytes = models[i].kv_bytes;
            s->state_bytes = models[i].state_bytes;
            return;
        }
    sim_die("no model %s", name);
}

static uint32_t take_number(const char *text, uint32_t low, uint32_t high)
{
    uint32_t v = 0;
    if (!parse_number(text, low, high, &v))
        sim_die("%s is not between %u and %u", text, low, high);
    return v;
}

static void take_option(struct options *o, const char *name, const char *value)
{
    struct sim_setup *s = &o->setup;
    if (strcmp(name, "--model") == 0)
        take_model(s, value);
    else if (strcmp(name, "--kv") == 0)
        s->kv_bytes = take_number(value, 1, UINT32_MAX);
    else if (strcmp(name, "--state") == 0)
        s->state_bytes = take_number(value, 0, UINT32_MAX);
    else if (strcmp(name, "--budget") == 0)
        o->budgets = value;
    else if (strcmp(name, "--policy") == 0)
        o->policies = value;
    else if (strcmp(name, "--placement") == 0)
        o->placements = value;
    else if (strcmp(name, "--disk") == 0)
        s->disk_bytes = parse_bytes(value, 0);
    else if (strcmp(name, "--page") == 0)
        s->page_tokens = take_number(value, 1, MAX_PAGE);
    else if (strcmp(name, "--grid") == 0)
        s->grid_tokens = take_number(value, 1, MAX_GRID);
    else if (strcmp(name, "--k") == 0)
        s->checkpoints_a_path = take_number(value, 1, ALL);
    else if (strcmp(name, "--users") == 0)
        o->arrival.users = take_number(value, 1, 1 << 16);
    else if (strcmp(name, "--sessions") == 0)
        o->arrival.sessions = take_number(value, 1, UINT32_MAX);
    else if (strcmp(name, "--seed") == 0)
        o->arrival.seed = take_number(value, 0, UINT32_MAX);
    else if (strcmp(name, "--gap") == 0)
        o->arrival.gap_cap_s = take_number(value, 0, UINT32_MAX);
    else if (strcmp(name, "--within") == 0)
        o->within = strtod(value, NULL);
    else
        sim_die("no option %s", name);
}

/* ---- tables ------------------------------------------------------------------------------------------ */

static double per_cent(double a, double b)
{
    return b > 0 ? 100 * a / b : 0;
}

static void print_head(void)
{
    printf("| budget | victim | tokens reused | of matchable | from disk | seconds saved | of matchable | "
           "checkpoints a path, most | victims | refused | processor s |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|\n");
}

static void print_row(const char *budget, const char *policy, const struct sim_result *r)
{
    printf("| %s | %s | %.2f %% | %.3f %% | %.2f %% | %.2f %% | %.3f %% | %.1f, %u | %llu | %llu | %.1f |\n",
           budget, policy, per_cent((double)r->reused_tokens, (double)r->prompt_tokens),
           per_cent((double)r->reused_tokens, (double)r->matchable_tokens),
           per_cent((double)r->disk_tokens, (double)r->prompt_tokens), per_cent(r->saved_s, r->prompt_s),
           per_cent(r->saved_s, r->matchable_s), r->requests ? r->path_checkpoints / (double)r->requests : 0,
           r->most_checkpoints, (unsigned long long)r->victims, (unsigned long long)r->refused, r->cpu_s);
    fflush(stdout);
}

static void print_trace(const struct options *o, const struct sim_trace *t)
{
    uint64_t prompt = 0, matchable = 0;
    uint32_t longest = 0;
    for (size_t i = 0; i < t->n_requests; i++)
        if (t->requests[i].measured) {
            prompt += t->requests[i].n_prompt;
            matchable += t->matchable[i];
            longest = t->requests[i].n_prompt > longest ? t->requests[i].n_prompt : longest;
        }
    printf("%s: %zu requests in %u groups, %.1f h; prompts of %.1f million tokens, the longest %u, %.2f %% "
           "matchable; "
           "%.2f million distinct tokens\n",
           o->trace, t->n_requests, t->n_groups, (double)t->requests[t->n_requests - 1].at_us / 3.6e9,
           (double)prompt / 1e6, longest, per_cent((double)matchable, (double)prompt),
           (double)t->n_distinct_tokens / 1e6);
    printf("model: %llu bytes a token, checkpoints of %llu bytes; pages of %u tokens, grid %u\n\n",
           (unsigned long long)o->setup.kv_bytes, (unsigned long long)o->setup.state_bytes,
           o->setup.page_tokens, o->setup.grid_tokens);
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static void run_placements(const struct options *o, const struct sim_trace *t)
{
    char item[32];
    printf("| checkpoints a path | tokens reused, of matchable | seconds saved, of matchable | on a path, "
           "mean and most | "
           "published | processor s |\n|---|---|---|---|---|---|\n");
    for (const char *list = o->placements; next_item(&list, item, sizeof item);) {
        struct sim_setup s = o->setup;
        struct sim_result r;
        bool all = strcmp(item, "all") == 0;
        s.checkpoints_a_path = all ? ALL : take_number(item, 1, ALL);
        s.budget_bytes = SIM_NO_BUDGET;
        s.disk_bytes = 0;
        s.state_bytes = s.state_bytes ? s.state_bytes : 1;
        sim_replay(t, &s, &r);
        printf("| %s | %.3f %% | %.3f %% | %.1f, %u | %llu | %.1f |\n", item,
               per_cent((double)r.reused_tokens, (double)r.matchable_tokens),
               per_cent(r.saved_s, r.matchable_s), r.requests ? r.path_checkpoints / (double)r.requests : 0,
               r.most_checkpoints, (unsigned long long)r.published, r.cpu_s);
        fflush(stdout);
    }
}

/* Who uses what when: of a dense model known from the prompts, of another from a replay that evicts nothing.
 */
static struct sim_uses find_uses(const struct options *o, const struct sim_trace *t)
{
    if (o->setup.state_bytes == 0)
        return sim_uses_of_prompts(t);
    struct sim_setup s = o->setup;
    struct sim_result r;
    s.policy = SIM_STORE;
    s.budget_bytes = SIM_NO_BUDGET;
    s.disk_bytes = 0;
    s.resumed = calloc(t->n_requests, sizeof *s.resumed);
    if (!s.resumed)
        sim_die("out of memory");
    sim_replay(t, &s, &r);
    print_row("none", "nothing", &r);
    struct sim_uses uses = sim_uses_of(t, s.resumed);
    free(s.resumed);
    return uses;
}

static bool run_budgets(const struct options *o, const struct sim_trace *t)
{
    char budget[32], policy[32];
    bool close_enough = true;
    struct sim_uses uses = {0};
    double whole = (double)t->n_distinct_tokens * (double)o->setup.kv_bytes;
    print_head();
    if (strstr(o->policies, policy_names[SIM_FUTURE]))
        uses = find_uses(o, t);
    for (const char *budgets = o->budgets; next_item(&budgets, budget, sizeof budget);) {
        struct sim_result results[SIM_POLICIES] = {0};
        for (const char *policies = o->policies; next_item(&policies, policy, sizeof policy);) {
            struct sim_setup s = o->setup;
            s.policy = SIM_POLICIES;
            for (int p = 0; p < SIM_POLICIES; p++)
                if (strcmp(policy, policy_names[p]) == 0)
                    s.policy = (enum sim_policy)p;
            if (s.policy == SIM_POLICIES)
                sim_die("no policy %s", policy);
            s.budget_bytes = parse_bytes(budget, whole);
            s.uses = &uses;
            sim_replay(t, &s, &results[s.policy]);
            print_row(budget, policy, &results[s.policy]);
        }
        const struct sim_result *store = &results[SIM_STORE], *exact = &results[SIM_EXACT];
        if (o->within >= 0 &&
            per_cent((double)exact->reused_tokens, (double)exact->matchable_tokens) -
                    per_cent((double)store->reused_tokens, (double)store->matchable_tokens) >
                o->within)
            close_enough = false;
    }
    sim_uses_free(&uses);
    return close_enough;
}

int main(int argc, char **argv)
{
    struct options o = {.budgets = "16G,32G,64G,128G",
                        .policies = "store,exact,lru,gdsf,future",
                        .arrival = {.users = 16, .seed = 7, .gap_cap_s = 1800},
                        .setup = {.page_tokens = 32, .checkpoints_a_path = 8},
                        .within = -1};
    take_model(&o.setup, "a3b");
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 && !o.trace)
            o.trace = argv[i];
        else if (i + 1 == argc)
            sim_die("%s wants a value", argv[i]);
        else {
            take_option(&o, argv[i], argv[i + 1]);
            i++;
        }
    }
    if (!o.trace)
        sim_die("which trace? (the head of bench/policy_sim.c says how)");
    if (o.setup.grid_tokens == 0)
        o.setup.grid_tokens = o.setup.page_tokens;
    struct sim_trace t = {0};
    sim_read(o.trace, &o.arrival, &t);
    sim_trace_finish(&t, o.setup.page_tokens);
    print_trace(&o, &t);
    bool good = true;
    if (o.placements)
        run_placements(&o, &t);
    else
        good = run_budgets(&o, &t);
    sim_trace_free(&t);
    if (!good)
        fprintf(stderr, "policy-sim: the store's choice falls behind the exact one\n");
    return good ? 0 : 1;
}
