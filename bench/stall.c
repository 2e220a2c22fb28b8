/*
 * How long the engine's thread is held up by the store, while it publishes, restores and evicts, beside a
 * client that lists the store through its socket, and while the disk does not answer.
 *
 *   stall [--tenths N] [--freeze N] [--fsfreeze] [--io auto|uring|pread] DIR
 *
 * DIR is made (remove it afterwards). One thread does what the engine's does: it opens sequences of prompts
 * that conversations have in common, polls them, takes pages, publishes a chunk every few milliseconds and
 * closes; the arena holds a few conversations, the disk a few more, so each is evicted and restored all the
 * time. Every call is timed, and how late the thread woke up from its sleeps of a millisecond. A control
 * thread does nothing but sleep and look at the clock as often: what it sees is the machine's doing, not the
 * store's.
 *
 * N (100) tenths of a second of that, the same beside a client that lists all that is stored again and again
 * without a pause (what cachestore-admin ls does), N (100) with a frozen disk, the first N again. Frozen: the
 * I/O engine takes requests and completes none; with --fsfreeze the file system that DIR is on is frozen by
 * FIFREEZE instead (a loop mount; needs root), catalogue and all.
 */
#include "bench/clock.h"
#include "bench/disk_spans.h"
#include "bench/numbers.h"
#include "cachestore/inspect.h"
#include "cachestore/store.h"
#include "cachestore/tier_disk_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    PAGE_TOKENS = 16,
    PAGE_BYTES = 128 << 10,
    CHUNK_PAGES = 32,
    LONGEST = 192, /* pages */
    CONVERSATIONS = 64,
    LIVE = 4,
    SLEEP_US = 1000,
    DEADLINE_MS = 250
};

static void die(const char *what)
{
    fprintf(stderr, "stall: %s\n", what);
    exit(1);
}

/* ---- a disk that does not answer ---------------------------------------------------------------------- */

/* Between the tier and an engine: while `frozen`, requests are kept here, and nothing completes. */
enum { KEPT_MAX = 200, LOOK_MS = 10 };
struct freezer {
    struct io_engine base;
    struct io_engine *inner;
    struct io_op *kept[KEPT_MAX];
    unsigned n_kept;
};

static atomic_bool frozen;

static void pass_on(void *ctx, struct io_op *op, int result)
{
    struct freezer *f = ctx;
    f->base.complete(f->base.ctx, op, result);
}

static int freezer_submit(struct io_engine *e, struct io_op *op)
{
    struct freezer *f = (struct freezer *)e;
    int rc = 0;
    if (f->n_kept == KEPT_MAX)
        return -EAGAIN;
    if (!atomic_load(&frozen) && f->n_kept == 0) {
        rc = f->inner->ops->submit(f->inner, op);
    } else {
        f->kept[f->n_kept++] = op;
    }
    e->sqes = f->inner->sqes;
    e->submissions = f->inner->submissions;
    return rc;
}

static void freezer_wait(struct io_engine *e, int timeout_ms)
{
    struct freezer *f = (struct freezer *)e;
    if (atomic_load(&frozen)) { /* wakes are seen a little late */
        usleep(1000 * (timeout_ms < 0 || timeout_ms > LOOK_MS ? LOOK_MS : (unsigned)timeout_ms));
        return;
    }
    unsigned n = 0;
    while (n < f->n_kept && f->inner->ops->submit(f->inner, f->kept[n]) == 0)
        n++;
    f->n_kept -= n;
    memmove(f->kept, f->kept + n, f->n_kept * sizeof(struct io_op *));
    /* Not for long, so that a freeze is noticed. */
    f->inner->ops->wait(f->inner, timeout_ms < 0 || timeout_ms > LOOK_MS ? LOOK_MS : timeout_ms);
}

static void freezer_wake(struct io_engine *e)
{
    struct freezer *f = (struct freezer *)e;
    f->inner->ops->wake(f->inner);
}

static void freezer_close(struct io_engine *e)
{
    struct freezer *f = (struct freezer *)e;
    f->inner->ops->close(f->inner);
    free(f);
}

static const struct io_engine_ops freezer_ops = {.name = "freezer",
                                                 .submit = freezer_submit,
                                                 .wait = freezer_wait,
                                                 .wake = freezer_wake,
                                                 .close = freezer_close};

static int freezer_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len)
{
    struct freezer *f = calloc(1, sizeof *f);
    *out = NULL;
    if (f == NULL)
        return -ENOMEM;
    int rc = io_engine_open(kind, &f->inner, reason, reason_len);
    if (rc != 0) {
        free(f);
        return rc;
    }
    f->base.ops = &freezer_ops;
    f->inner->complete = pass_on;
    f->inner->ctx = f;
    *out = &f->base;
    return 0;
}

static int tier_open(const struct cs_config *config, const struct tier_disk_events *events,
                     struct tier_disk **out, uint8_t secret[16], char *err, size_t err_len)
{
    return tier_disk_open_with(config, events, freezer_open, out, secret, err, err_len);
}

/* ---- what is timed ------------------------------------------------------------------------------------ */

enum { OPEN, POLL, GROW, PUBLISH, CLOSE, LATE, N_KINDS };
static const char *const kind_names[N_KINDS] = {"open", "poll", "grow", "publish", "close", "woken late"};

struct series {
    double *us;
    size_t n, capacity;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void add(struct series *s, double us)
{
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 1 << 16;
        s->us = realloc(s->us, s->capacity * sizeof *s->us);
        if (!s->us)
            die("out of memory");
    }
    s->us[s->n++] = us;
}

static void report(const char *who, const char *what, struct series *s)
{
    if (s->n == 0)
        return;
    qsort(s->us, s->n, sizeof *s->us, compare_doubles);
    printf("  %-8s %-10s %8zu  p50 %9.1f  p99 %9.1f  p99.9 %9.1f  most %9.1f us\n", who, what, s->n,
           s->us[s->n / 2], s->us[s->n - 1 - s->n / 100], s->us[s->n - 1 - s->n / 1000], s->us[s->n - 1]);
    s->n = 0;
}

static void sleep_timed(struct series *late)
{
    struct timespec t = {.tv_nsec = SLEEP_US * 1000};
    uint64_t due = now_ns() + SLEEP_US * 1000;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    add(late, (double)(now_ns() - due) / 1e3);
}

struct control {
    pthread_t thread;
    struct series late, call;
    _Atomic bool stop;
};

static void *control_main(void *arg)
{
    struct control *c = arg;
    while (!c->stop) {
        sleep_timed(&c->late);
        uint64_t from = now_ns();
        add(&c->call, (double)(now_ns() - from) / 1e3);
    }
    return NULL;
}

/* ---- a client that lists ------------------------------------------------------------------------------ */

struct lister {
    pthread_t thread;
    const char *dir;
    struct series took; /* each listing, from connecting to its end */
    uint64_t rows;
    _Atomic bool stop;
};

static int count_row(void *ctx, const struct cs_span_info *span)
{
    (void)span;
    ++*(uint64_t *)ctx;
    return 0;
}

static void *lister_main(void *arg)
{
    struct lister *l = arg;
    while (!l->stop) {
        struct cs_inspect *in;
        char err[256] = "";
        uint64_t from = now_ns();
        if (cs_inspect_connect(l->dir, &in, err, sizeof err) != CS_OK)
            die(err);
        if (cs_inspect_spans(in, count_row, &l->rows) != CS_OK)
            die("the store cannot be listed");
        cs_inspect_close(in);
        add(&l->took, (double)(now_ns() - from) / 1e3);
    }
    return NULL;
}

/* ---- the engine's thread ------------------------------------------------------------------------------ */

struct live {
    struct cs_sequence *q;
    uint32_t conversation;
    size_t n, end; /* pages published; pages when it is closed */
    bool settled;
};

struct engine {
    struct cs_store *s;
    struct live live[LIVE];
    struct series times[N_KINDS], calls;
    uint32_t *ids;
    uint64_t random, published, restored, refused;
};

static uint32_t random_below(struct engine *e, uint32_t n)
{
    e->random = e->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((e->random >> 33) % n);
}

static const uint32_t *ids_of(struct engine *e, uint32_t conversation)
{
    return e->ids + (size_t)conversation * (LONGEST * PAGE_TOKENS + 1);
}

static void timed(struct engine *e, int kind, uint64_t from_ns)
{
    double us = (double)(now_ns() - from_ns) / 1e3;
    add(&e->times[kind], us);
    add(&e->calls, us);
}

static void step(struct engine *e, unsigned turn)
{
    struct live *l = &e->live[turn % LIVE];
    uint64_t t;
    if (!l->q) {
        struct cs_sequence *q;
        l->conversation = random_below(e, CONVERSATIONS);
        l->end = CHUNK_PAGES * (1 + random_below(e, LONGEST / CHUNK_PAGES));
        t = now_ns();
        int rc = cs_sequence_open(e->s, NULL, ids_of(e, l->conversation), l->end * PAGE_TOKENS + 1, &q);
        timed(e, OPEN, t);
        if (rc != CS_OK)
            die("open");
        l->q = q;
        l->settled = false;
        return;
    }
    if (!l->settled) {
        struct cs_reuse reuse;
        t = now_ns();
        l->settled = cs_sequence_poll(l->q, &reuse) == 1;
        timed(e, POLL, t);
        if (l->settled) {
            l->n = cs_reuse_tokens(&reuse) / PAGE_TOKENS;
            e->restored += reuse.tokens_disk / PAGE_TOKENS;
        }
        return;
    }
    if (l->n < l->end) {
        size_t to = l->n + CHUNK_PAGES < l->end ? l->n + CHUNK_PAGES : l->end;
        t = now_ns();
        int rc = cs_sequence_grow(l->q, to * PAGE_TOKENS);
        timed(e, GROW, t);
        if (rc == CS_OK) {
            t = now_ns();
            rc = cs_sequence_publish(l->q, ids_of(e, l->conversation), to * PAGE_TOKENS, NULL, 0);
            timed(e, PUBLISH, t);
            if (rc != CS_OK)
                die("publish");
            e->published += to - l->n;
            l->n = to;
            return;
        }
        e->refused++;
    }
    t = now_ns();
    cs_sequence_close(l->q);
    timed(e, CLOSE, t);
    l->q = NULL;
}

static void run(struct engine *e, const char *name, double seconds)
{
    struct control c = {0};
    struct cs_stats before, after;
    cs_stats_get(e->s, &before);
    if (pthread_create(&c.thread, NULL, control_main, &c) != 0)
        die("no thread");
    double end = wall_s() + seconds;
    for (unsigned turn = 0; wall_s() < end; turn++) {
        step(e, turn);
        sleep_timed(&e->times[LATE]);
    }
    c.stop = true;
    pthread_join(c.thread, NULL);
    cs_stats_get(e->s, &after);
    printf("%s, %.1f s: %llu pages published, %llu restored from disk, %llu spans evicted from the device, "
           "%llu from "
           "disk, %llu written; %llu times no page\n",
           name, seconds, (unsigned long long)e->published, (unsigned long long)e->restored,
           (unsigned long long)(after.evicted_device_spans - before.evicted_device_spans),
           (unsigned long long)(after.evicted_disk_spans - before.evicted_disk_spans),
           (unsigned long long)(after.spans_written - before.spans_written), (unsigned long long)e->refused);
    e->published = e->restored = e->refused = 0;
    for (int k = 0; k < LATE; k++)
        report("engine", kind_names[k], &e->times[k]);
    report("engine", "any call", &e->calls);
    report("engine", kind_names[LATE], &e->times[LATE]);
    report("control", "no call", &c.call);
    report("control", kind_names[LATE], &c.late);
    free(c.call.us);
    free(c.late.us);
}

static void freeze(const char *dir, bool file_system, bool on)
{
    if (!file_system) {
        atomic_store(&frozen, on);
        return;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, on ? FIFREEZE : FITHAW, 0) != 0)
        die("the file system cannot be frozen or thawed");
    close(fd);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"tenths", required_argument, NULL, 's'},
                                            {"freeze", required_argument, NULL, 'f'},
                                            {"fsfreeze", no_argument, NULL, 'r'},
                                            {"io", required_argument, NULL, 'i'},
                                            {NULL, 0, NULL, 0}};
    uint32_t tenths = 100, frozen_tenths = 100;
    enum cs_io_engine io = CS_IO_AUTO;
    bool ok = true, file_system = false;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (c == 's')
            ok = parse_number(optarg, 1, 36000, &tenths);
        else if (c == 'f')
            ok = parse_number(optarg, 1, 36000, &frozen_tenths);
        else if (c == 'r')
            file_system = true;
        else
            ok = c == 'i' && disk_spans_engine(optarg, &io);
    if (!ok || argc - optind != 1) {
        fprintf(stderr, "usage: stall [--tenths N] [--freeze N] [--fsfreeze] [--io auto|uring|pread] DIR\n");
        return 2;
    }
    struct tier_vtable tier = tier_disk_vtable;
    tier.open = tier_open;
    struct cs_config config = {.page_tokens = PAGE_TOKENS,
                               .page_bytes = PAGE_BYTES,
                               .arena_bytes = 192u << 20,
                               .disk_dir = argv[optind],
                               .disk_bytes = 640u << 20,
                               .extent_bytes = 128u << 20,
                               .restore_deadline_ms = DEADLINE_MS,
                               .io_engine = io};
    struct engine e = {.random = 1};
    char err[256] = "";
    if (store_open(&config, &tier, &e.s, err, sizeof err) != CS_OK)
        die(err);
    struct cs_stats st;
    cs_stats_get(e.s, &st);
    if (!st.disk_on)
        die("the disk tier is off");
    size_t n_ids = CONVERSATIONS * (size_t)(LONGEST * PAGE_TOKENS + 1);
    e.ids = malloc(n_ids * sizeof *e.ids);
    if (!e.ids)
        die("out of memory");
    for (size_t i = 0; i < n_ids; i++)
        e.ids[i] = (uint32_t)(i * 2654435761u);
    run(&e, "warming up", tenths / 20.0);
    run(&e, "at work", tenths / 10.0);
    struct lister l = {.dir = argv[optind]};
    if (pthread_create(&l.thread, NULL, lister_main, &l) != 0)
        die("no thread");
    run(&e, "beside a client that lists", tenths / 10.0);
    l.stop = true;
    pthread_join(l.thread, NULL);
    printf("  lister   %zu listings of %.0f spans and checkpoints each\n", l.took.n,
           l.took.n > 0 ? (double)l.rows / (double)l.took.n : 0.0);
    report("lister", "listing", &l.took);
    free(l.took.us);
    freeze(argv[optind], file_system, true);
    run(&e, "disk frozen", frozen_tenths / 10.0);
    freeze(argv[optind], file_system, false);
    run(&e, "thawed", tenths / 10.0);
    for (size_t i = 0; i < LIVE; i++)
        cs_sequence_close(e.live[i].q);
    cs_close(e.s, 30000);
    for (int k = 0; k < N_KINDS; k++)
        free(e.times[k].us);
    free(e.calls.us);
    free(e.ids);
    return 0;
}
