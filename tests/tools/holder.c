/*
 * A process that has a store open, for the tests of its control socket: a small program on cachestore.h that
 * does what it reads from stdin, a line a command, and answers each with a line.
 *
 *   holder DIR [MODEL [OPTION...]]
 *
 * MODEL is a digit, another one another fingerprint. Options: no-control, without the socket; small, little
 * room on disk; forgetful, in the index; slow, nothing is flushed unless it must be.
 *
 * Commands, where TENANT is a digit (0: anonymous) and FIRST N the conversation of the ids from FIRST on:
 *
 *   publish TENANT FIRST N
 *     publishes it; "reused R of N"
 *   note TENANT FIRST N
 *     the same, with a note at its end
 *   hold TENANT FIRST N
 *     the same, and the sequence stays open
 *   release
 *     the one that was held publishes again and ends
 *   flush
 *     waits until all is on disk; "flushed" or "pending"
 *   busy N
 *     N threads publish and restore until `quiet`
 *   quiet
 *     "rounds R wrong W": rounds so far, restored pages that differ
 *   close
 *     ends the process in order, as the end of stdin does
 *
 * Threads: those of `busy` share the store, nothing else.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cachestore/cachestore.h"

enum { PAGE_TOKENS = 4, PAGE_BYTES = 4096, MOST_TOKENS = 400, THREADS_MAX = 4 };

static struct cs_store *store;
static struct cs_sequence *held;
static uint32_t held_ids[MOST_TOKENS], held_n;
static atomic_bool busy;
static atomic_uint rounds, wrong;

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

static struct cs_tenant tenant_of(unsigned digit)
{
    struct cs_tenant t = {{0}};
    memset(t.id, (int)(digit * 0x11), digit == 0 ? 0 : sizeof t.id);
    return t;
}

static uint8_t byte_of(const uint32_t *ids, size_t page)
{
    return (uint8_t)(ids[page * PAGE_TOKENS] * 7 + 1);
}

/* Reused tokens; -1: something failed. */
static int converse(unsigned tenant, const uint32_t *ids, uint32_t n, bool note, bool keep)
{
    struct cs_tenant t = tenant_of(tenant);
    struct cs_sequence *q;
    struct cs_reuse reuse;
    if (cs_sequence_open(store, &t, ids, n, &q) != CS_OK)
        return -1;
    while (cs_sequence_poll(q, &reuse) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    uint32_t reused = cs_reuse_tokens(&reuse);
    int result = (int)reused;
    if (cs_sequence_grow(q, n) != CS_OK) {
        cs_sequence_close(q);
        return -1;
    }
    for (size_t page = 0; page < n / PAGE_TOKENS; page++) {
        uint8_t *bytes = cs_sequence_pages(q)[page];
        if (page >= reused / PAGE_TOKENS)
            memset(bytes, byte_of(ids, page), PAGE_BYTES);
        else if (bytes[0] != byte_of(ids, page) || memcmp(bytes, bytes + 1, PAGE_BYTES - 1) != 0)
            atomic_fetch_add(&wrong, 1);
    }
    struct cs_chain chain;
    cs_chain_init(store, &t, &chain);
    cs_chain_add(&chain, ids, n);
    struct cs_note end = {.key = cs_chain_key(&chain), .data = "note", .len = 4};
    if (cs_sequence_publish(q, ids, n, note ? &end : NULL, note) != CS_OK)
        result = -1;
    if (keep)
        held = q;
    else
        cs_sequence_close(q);
    return result;
}

static void *busy_main(void *arg)
{
    uint32_t seed = (uint32_t)(uintptr_t)arg * 7919, ids[MOST_TOKENS];
    while (atomic_load(&busy)) {
        seed = seed * 1664525 + 1013904223;
        uint32_t first = 100000 + (seed >> 8) % 64 * 1000, n = 8 + (seed >> 20) % 120;
        for (uint32_t i = 0; i < n; i++)
            ids[i] = first + i;
        if (converse((seed >> 4) % 3, ids, n, seed % 5 == 0, false) >= 0)
            atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

static void obey(const char *word, unsigned tenant, uint32_t first, uint32_t n)
{
    uint32_t ids[MOST_TOKENS];
    n = n < MOST_TOKENS ? n : MOST_TOKENS;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = first + i;
    bool keep = strcmp(word, "hold") == 0 && held == NULL;
    int reused = converse(tenant, ids, n, strcmp(word, "note") == 0, keep);
    if (keep) {
        memcpy(held_ids, ids, sizeof held_ids);
        held_n = n;
    }
    printf("reused %d of %u\n", reused, n);
}

static void release(void)
{
    if (held != NULL && cs_sequence_publish(held, held_ids, held_n, NULL, 0) != CS_OK)
        printf("failed ");
    cs_sequence_close(held);
    held = NULL;
    printf("released\n");
}

static bool has(int argc, char **argv, const char *option)
{
    for (int i = 3; i < argc; i++)
        if (strcmp(argv[i], option) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    char err[256] = "", line[256], word[16];
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = PAGE_BYTES,
                          .fingerprint = "holder ",
                          .arena_bytes = 8 << 20,
                          .disk_dir = argc > 1 ? argv[1] : "",
                          .disk_bytes = has(argc, argv, "small") ? 8 << 20 : 48 << 20,
                          .span_bytes = 60 << 10,
                          .chunk_bytes = 64 << 10,
                          .index_bytes = has(argc, argv, "forgetful") ? 80 << 10 : 0,
                          .extent_bytes = 1 << 20,
                          .flush_interval_ms = has(argc, argv, "slow") ? 600000 : 20,
                          .no_control = has(argc, argv, "no-control"),
                          .log = on_log};
    pthread_t threads[THREADS_MAX];
    unsigned n_threads = 0;
    c.fingerprint[7] = argc > 2 ? (uint8_t)argv[2][0] : '0';
    if (cs_open(&c, &store, err, sizeof err) != CS_OK) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    printf("open\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned tenant = 0, first = 0, n = 0;
        if (sscanf(line, "%15s %u %u %u", word, &tenant, &first, &n) < 1)
            continue;
        if (strcmp(word, "close") == 0)
            break;
        if (strcmp(word, "flush") == 0) {
            printf(cs_flush(store, 30000) == CS_OK ? "flushed\n" : "pending\n");
        } else if (strcmp(word, "release") == 0) {
            release();
        } else if (strcmp(word, "busy") == 0) {
            atomic_store(&busy, true);
            while (n_threads < tenant && n_threads < THREADS_MAX &&
                   pthread_create(&threads[n_threads], NULL, busy_main, (void *)(uintptr_t)(n_threads + 1)) ==
                       0)
                n_threads++;
            printf("busy\n");
        } else if (strcmp(word, "quiet") == 0) {
            atomic_store(&busy, false);
            while (n_threads > 0)
                pthread_join(threads[--n_threads], NULL);
            printf("rounds %u wrong %u\n", atomic_load(&rounds), atomic_load(&wrong));
        } else {
            obey(word, tenant, first, n);
        }
        fflush(stdout);
    }
    atomic_store(&busy, false);
    while (n_threads > 0)
        pthread_join(threads[--n_threads], NULL);
    cs_sequence_close(held);
    cs_close(store, 10000);
    return 0;
}
