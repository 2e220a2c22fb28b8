/*
 * cachestore-admin drain and the live part of stats: what only a process that has the store open can say or
 * do.
 */
#include <inttypes.h>
#include <stdio_ext.h>
#include <string.h>
#include <time.h>

#include "tools/admin/admin.h"

enum { PENDING_LOOK_MS = 50, WATCH_LOOK_MS = 20 };

static void wait_ms(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

int process_lost(int rc)
{
    complain(rc == CS_ENOMEM ? "%s" : "the process no longer answers: %s", cs_strerror(rc));
    return rc == CS_ENOMEM ? EXIT_USAGE : EXIT_IN_USE;
}

/* ---- figures ----------------------------------------------------------------------------------------- */

struct figures {
    bool json;
    unsigned n;
};

struct wanted {
    const char *name;
    uint64_t value;
};

static int pick_figure(void *ctx, const struct cs_figure *f)
{
    struct wanted *w = ctx;
    if (f->text == NULL && f->histogram == NULL && strcmp(f->name, w->name) == 0)
        w->value = f->value;
    return 0;
}

int read_figure(struct cs_inspect *in, const char *name, uint64_t *out)
{
    struct wanted w = {.name = name};
    int rc = cs_inspect_figures(in, pick_figure, &w);
    *out = w.value;
    return rc;
}

/* The end of the bucket in which the share of all lies. */
static uint64_t quantile_us(const struct cs_histogram *h, double share)
{
    uint64_t all = 0, seen = 0;
    for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++)
        all += h->count[i];
    for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++) {
        seen += h->count[i];
        if ((double)seen >= share * (double)all)
            return 1ull << i;
    }
    return 1ull << (CS_HISTOGRAM_BUCKETS - 1);
}

static void print_histogram(const struct cs_figure *f)
{
    const struct cs_histogram *h = f->histogram;
    uint64_t all = 0;
    for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++)
        all += h->count[i];
    printf("%-34s %20" PRIu64, f->name, all);
    if (all > 0)
        printf("  of %.0f us, half below %" PRIu64 " us, 99 %% below %" PRIu64 " us",
               (double)h->sum_us / (double)all, quantile_us(h, 0.5), quantile_us(h, 0.99));
    printf("\n");
}

static void print_histogram_json(const struct cs_histogram *h)
{
    printf("{\"sum_us\":%" PRIu64 ",\"count\":[", h->sum_us);
    for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++)
        printf("%s%" PRIu64, i > 0 ? "," : "", h->count[i]);
    printf("]}");
}

static int print_figure(void *ctx, const struct cs_figure *f)
{
    struct figures *all = ctx;
    if (!all->json) {
        if (f->histogram != NULL) {
            print_histogram(f);
        } else if (f->text != NULL) {
            printf("%-34s ", f->name);
            print_escaped(stdout, f->text, false);
            printf("\n");
        } else {
            printf("%-34s %20" PRIu64 "\n", f->name, f->value);
        }
        return 0;
    }
    printf("%s\"", all->n++ > 0 ? "," : "");
    print_escaped(stdout, f->name, true);
    printf("\":");
    if (f->histogram != NULL) {
        print_histogram_json(f->histogram);
    } else if (f->text != NULL) {
        printf("\"");
        print_escaped(stdout, f->text, true);
        printf("\"");
    } else {
        printf("%" PRIu64, f->value);
    }
    return 0;
}

int print_figures(struct cs_inspect *in, bool json)
{
    struct figures all = {.json = json};
    if (json)
        printf("{");
    int rc = cs_inspect_figures(in, print_figure, &all);
    if (json)
        printf("}");
    return rc == CS_OK ? EXIT_FINE : process_lost(rc);
}

int watch_figures(struct cs_inspect *in, const struct options *o)
{
    stop_at_once_on_signals();
    while (!stopped()) {
        int code = print_figures(in, o->json);
        if (code != EXIT_FINE && !stopped())
            return code;
        printf("\n");
        if (fflush(stdout) != 0 && !stopped())
            return EXIT_USAGE;
        for (double waited = 0; waited < o->watch_s && !stopped(); waited += WATCH_LOOK_MS / 1e3)
            wait_ms(WATCH_LOOK_MS);
    }
    __fpurge(stdout); /* what nobody reads must not be waited for now, either */
    return EXIT_FINE; /* that is how it ends */
}

/* ---- drain ------------------------------------------------------------------------------------------- */

static void print_drain(const struct options *o, const struct cs_pending *p, bool was_stopped)
{
    char a[32];
    if (o->json)
        printf("{\"draining\":%s,\"pending_bytes\":%" PRIu64 ",\"stopped\":%s}\n",
               p->draining ? "true" : "false", p->bytes, was_stopped ? "true" : "false");
    else if (was_stopped)
        printf("stopped    waiting with %s to go; it goes on draining until 'drain --end'\n",
               bytes_text(p->bytes, a));
    else if (p->draining)
        printf(
            "drained    nothing is pending: the process can be stopped; 'drain --end' lets it write again\n");
    else
        printf("resumed    %s pending\n", bytes_text(p->bytes, a));
}

int run_drain(struct cs_inspect *in, const struct options *o)
{
    struct cs_pending p = {0};
    char a[32];
    if (!is_live(in)) {
        if (o->json)
            print_drain(o, &p, false);
        else
            printf("drained    no process has the store open, so nothing is pending\n");
        return EXIT_FINE;
    }
    stop_on_signals();
    int rc = cs_inspect_drain(in, !o->end);
    if (rc == CS_OK)
        rc = cs_inspect_pending(in, &p);
    while (rc == CS_OK && p.draining && p.bytes > 0 && !stopped()) {
        if (progress_due(o->every_s))
            progress_line("%s pending", bytes_text(p.bytes, a));
        wait_ms(PENDING_LOOK_MS);
        rc = cs_inspect_pending(in, &p);
    }
    progress_end();
    if (rc != CS_OK)
        return process_lost(rc);
    bool was_stopped = p.draining && p.bytes > 0;
    print_drain(o, &p, was_stopped);
    return was_stopped ? EXIT_STOPPED : EXIT_FINE;
}
