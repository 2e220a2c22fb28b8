/*
 * Law 1 (flat): the same 64 MiB, published and restored as 1, 64 and 512 messages in one publish, and as a
 * path built by 400 publishes. Beside each restore stands what the same disk gives at best for O_DIRECT reads
 * of the same volume file: the fastest of those between the rounds of the same run.
 *
 *   build/bench/flat [DIR] [ROUNDS]      DIR: where the stores are made (default: the current directory)
 *
 * A message is a note here, as the engine publishes it: the store knows no messages beside those. Reads land
 * in the pages that sequences use: there is no copy to count.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/numbers.h"
#include "cachestore/cachestore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PAGE_TOKENS = 16,
    PAGE_BYTES = 128 << 10,
    N_PAGES = 512,
    N_TOKENS = N_PAGES * PAGE_TOKENS,
    NOTE_BYTES = 64,
    MAX_ROUNDS = 51,
    FLUSH_MS = 60000
};

#define TOTAL_BYTES ((double)N_PAGES * PAGE_BYTES)

struct variant {
    const char *name;
    size_t n_publishes, n_messages;
    double publish_ms[MAX_ROUNDS], durable_ms[MAX_ROUNDS], restore_ms[MAX_ROUNDS];
    struct cs_stats wrote, read;
};

static uint32_t ids[N_TOKENS + 1];
static double ceiling_ms; /* the least reading; 0: none yet */

static void die(const char *what)
{
    fprintf(stderr, "flat: %s\n", what);
    exit(1);
}

static struct cs_store *open_store(const char *dir)
{
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = PAGE_BYTES,
                          .arena_bytes = 256u << 20,
                          .disk_dir = dir,
                          .disk_bytes = 512u << 20,
                          .extent_bytes = 128u << 20};
    struct cs_store *s;
    char err[256] = "";
    if (cs_open(&c, &s, err, sizeof err) != CS_OK)
        die(err);
    struct cs_stats st;
    cs_stats_get(s, &st);
    if (!st.disk_on)
        die("the disk tier is off");
    return s;
}

static struct cs_sequence *open_settled(struct cs_store *s, size_t n)
{
    struct cs_sequence *q;
    struct cs_reuse r;
    if (cs_sequence_open(s, NULL, ids, n, &q) != CS_OK)
        die("open");
    while (!cs_sequence_poll(q, &r))
        usleep(50);
    return q;
}

/* As many bytes as a restore reads, from the volume file, as fast as O_DIRECT gives them. */
static double volume_ms(const char *dir)
{
    if (ceiling_disk_file_bytes(dir) < (uint64_t)TOTAL_BYTES)
        die("no volume as large as what it has to hold");
    double s = ceiling_disk_read_s(dir, (uint64_t)TOTAL_BYTES, 64, NULL, 0);
    if (s <= 0)
        die("no volume to read with O_DIRECT");
    return s * 1e3;
}

static void run_round(struct variant *v, const char *dir, int round)
{
    struct cs_store *s = open_store(dir);
    struct cs_sequence *q = open_settled(s, 1);
    if (cs_sequence_grow(q, N_TOKENS) != CS_OK)
        die("grow");
    for (size_t p = 0; p < N_PAGES; p++)
        memset(cs_sequence_pages(q)[p], (int)p + 1, PAGE_BYTES);
    static char text[NOTE_BYTES];
    struct cs_note *notes = calloc(v->n_messages, sizeof *notes);
    if (!notes)
        die("memory");
    for (size_t i = 0; i < v->n_messages; i++)
        notes[i] = (struct cs_note){.key = {i + 1, 1}, .data = text, .len = NOTE_BYTES};
    double start = wall_s();
    for (size_t k = 1; k <= v->n_publishes; k++) {
        size_t from = (k - 1) * v->n_messages / v->n_publishes, to = k * v->n_messages / v->n_publishes;
        if (cs_sequence_publish(q, ids, N_TOKENS * k / v->n_publishes, notes + from, to - from) != CS_OK)
            die("publish");
    }
    v->publish_ms[round] = (wall_s() - start) * 1e3;
    if (cs_flush(s, FLUSH_MS) != CS_OK)
        die("flush");
    v->durable_ms[round] = (wall_s() - start) * 1e3;
    cs_stats_get(s, &v->wrote);
    cs_sequence_close(q);
    cs_close(s, FLUSH_MS);
    free(notes);

    /* Small records leave parts of their chunks unwritten, and holes read faster than any disk. */
    if (v->n_publishes == 1) {
        double ms = volume_ms(dir);
        if (ceiling_ms == 0 || ms < ceiling_ms)
            ceiling_ms = ms;
    }
    s = open_store(dir);
    /* The arena's memory is backed ahead of use; a restore right behind open would measure page faults. */
    q = open_settled(s, 1);
    if (cs_sequence_grow(q, N_TOKENS) != CS_OK)
        die("grow");
    for (size_t p = 0; p < N_PAGES; p++)
        memset(cs_sequence_pages(q)[p], 0, PAGE_BYTES);
    cs_sequence_close(q);
    struct cs_stats before;
    cs_stats_get(s, &before);
    start = wall_s();
    q = open_settled(s, N_TOKENS + 1);
    v->restore_ms[round] = (wall_s() - start) * 1e3;
    cs_stats_get(s, &v->read);
    v->read.sqes -= before.sqes;
    v->read.submissions -= before.submissions;
    if (cs_sequence_n_pages(q) != N_PAGES)
        die("the restore was not complete");
    for (size_t p = 0; p < N_PAGES; p++)
        if (((uint8_t *)cs_sequence_pages(q)[p])[PAGE_BYTES - 1] != (uint8_t)(p + 1))
            die("wrong bytes");
    cs_sequence_close(q);
    cs_close(s, FLUSH_MS);
}

int main(int argc, char **argv)
{
    static struct variant variants[] = {
        {.name = "1 message", .n_publishes = 1, .n_messages = 1},
        {.name = "64 messages", .n_publishes = 1, .n_messages = 64},
        {.name = "512 messages", .n_publishes = 1, .n_messages = 512},
        {.name = "400 publishes", .n_publishes = 400, .n_messages = 400},
    };
    const size_t n_variants = sizeof variants / sizeof variants[0];
    const char *base = argc > 1 ? argv[1] : ".";
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    if (rounds < 1 || rounds > MAX_ROUNDS)
        die("ROUNDS must be 1 to 51");
    const size_t n_rounds = (size_t)rounds;
    for (size_t i = 0; i < N_TOKENS; i++)
        ids[i] = (uint32_t)(i * 2654435761u);
    for (int r = 0; r < rounds; r++)
        for (size_t k = 0; k < n_variants; k++) {
            char dir[4096];
            snprintf(dir, sizeof dir, "%s/flat-XXXXXX", base);
            if (!mkdtemp(dir))
                die("no directory for the store");
            run_round(&variants[k], dir, r);
            bench_remove_tree(dir);
        }
    printf("%d MiB in pages of %d KiB, medians of %d rounds; O_DIRECT reads of the same bytes from the "
           "volume, the fastest: %.1f ms\n",
           (int)(TOTAL_BYTES / (1 << 20)), PAGE_BYTES >> 10, rounds, ceiling_ms);
    printf("%-14s %10s %10s %10s %10s %6s %6s %9s %11s\n", "", "publish ms", "durable ms", "restore ms",
           "of ceiling", "spans", "rows", "read SQEs", "submissions");
    for (size_t k = 0; k < n_variants; k++) {
        struct variant *v = &variants[k];
        double restore = median(v->restore_ms, n_rounds);
        printf("%-14s %10.3f %10.1f %10.1f %9.0f%% %6llu %6llu %9llu %11llu\n", v->name,
               median(v->publish_ms, n_rounds), median(v->durable_ms, n_rounds), restore,
               100 * ceiling_ms / restore, (unsigned long long)v->wrote.publish_spans,
               (unsigned long long)v->wrote.catalog_rows, (unsigned long long)v->read.sqes,
               (unsigned long long)v->read.submissions);
    }
    return 0;
}
