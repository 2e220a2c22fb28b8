/*
 * Another engine on libcachestore, as small as it gets: `embed DIR` computes a conversation, goes on with it,
 * asks it as another tenant, and once more after a restart; each line says where the tokens came from.
 *
 * The model is a chain: the 256 bytes of KV of a token follow from those of the token before and from its id,
 * and the answer is the last word of the last token. One wrong byte that comes back would change it.
 *
 * docs/embedding.md walks through this file; it is built in the tree and, by the tests, outside of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "cachestore/cachestore.h"

enum {
    PAGE_TOKENS = 16,
    TOKEN_WORDS = 32,
    PAGE_BYTES = PAGE_TOKENS * TOKEN_WORDS * 8,
    FIRST_TOKENS = 1000, /* of the conversation in its first turn, and in its second */
    SECOND_TOKENS = 1500,
    CLOSE_MS = 10000,
};

struct engine {
    struct cs_store *store;
    sem_t landed; /* outlives the store: a callback may still be running when a sequence is closed */
};

/* ---- the model --------------------------------------------------------------------------------------- */

static uint64_t *token_kv(void *const *pages, size_t position)
{
    return (uint64_t *)pages[position / PAGE_TOKENS] + position % PAGE_TOKENS * TOKEN_WORDS;
}

/* Computes the KV of tokens [from, n) into the sequence's pages, reading that of the tokens before. */
static uint64_t forward(void *const *pages, const uint32_t *ids, size_t from, size_t n)
{
    uint64_t word = from > 0 ? token_kv(pages, from - 1)[TOKEN_WORDS - 1] : 0;
    for (size_t i = from; i < n; i++) {
        word += ids[i];
        for (size_t w = 0; w < TOKEN_WORDS; w++)
            token_kv(pages, i)[w] = word = word * 6364136223846793005u + 1442695040888963407u;
    }
    return word;
}

/* ---- one request ------------------------------------------------------------------------------------- */

/* On a thread of the store's, which must go on at once: wake whoever waits, nothing else. */
static void on_landed(void *ctx)
{
    sem_post(&((struct engine *)ctx)->landed);
}

static int answer(struct engine *e, const char *what, const struct cs_tenant *tenant, const uint32_t *ids,
                  size_t n, uint64_t *out)
{
    struct cs_sequence *q = NULL;
    struct cs_reuse reuse;
    /* What is stored of these ids: found, pinned, and on its way if it is on disk. */
    int rc = cs_sequence_open(e->store, tenant, ids, n, &q);
    if (rc != CS_OK)
        goto out;
    /* A server would compute other sequences meanwhile, and poll when it is woken. */
    cs_sequence_notify(q, on_landed, e);
    while (cs_sequence_poll(q, &reuse) == 0)
        while (sem_wait(&e->landed) < 0 && errno == EINTR)
            ;
    size_t reused = reuse.tokens_device + reuse.tokens_disk;
    /* Pages for the rest: ours until they are published. Those of the reused tokens are shared: read only. */
    rc = cs_sequence_grow(q, n);
    if (rc != CS_OK)
        goto out;
    *out = forward(cs_sequence_pages(q), ids, reused, n);
    /* From here on anybody with this tenant and these ids finds all full pages; disk follows by itself. */
    rc = cs_sequence_publish(q, ids, n, NULL, 0);
    if (rc != CS_OK)
        goto out;
    printf("%-16s %4zu tokens: %4" PRIu32 " from memory, %4" PRIu32 " from disk, %4zu computed; miss %s; "
           "answer %016" PRIx64 "\n",
           what, n, reuse.tokens_device, reuse.tokens_disk, n - reused, cs_miss_name(reuse.miss), *out);
out:
    if (rc != CS_OK)
        fprintf(stderr, "embed: %s: %s\n", what, cs_strerror(rc));
    cs_sequence_close(q);
    return rc;
}

/* ---- the store --------------------------------------------------------------------------------------- */

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    if (level == CS_LOG_WARN)
        fprintf(stderr, "embed: %s\n", line);
}

static int start(struct engine *e, const char *dir)
{
    struct cs_config config = {
        .page_tokens = PAGE_TOKENS,
        .page_bytes = PAGE_BYTES,
        .arena_bytes = 16 << 20, /* all KV, live and cached */
        .disk_dir = dir,
        .disk_bytes = 64 << 20,
        .extent_bytes = 4 << 20,
        .restore_deadline_ms = 0, /* a server sets one (250): this waits until everything has come */
        .log = on_log,
    };
    /* Whatever, if changed, would make stored KV wrong, must be in here: a digest of the weights, types,
     * versions. */
    memcpy(config.fingerprint, "toy chain, 32 words a token, v1", sizeof config.fingerprint);
    char err[256];
    int rc = cs_open(&config, &e->store, err, sizeof err);
    if (rc != CS_OK)
        fprintf(stderr, "embed: %s\n", err);
    return rc;
}

static int run(struct engine *e, const char *dir, const uint32_t *ids)
{
    const struct cs_tenant other = {.id = "somebody else"};
    uint64_t first = 0, second = 0, others = 0, again = 0;
    int rc = start(e, dir);
    if (rc != CS_OK)
        return rc;
    rc = answer(e, "first turn", NULL, ids, FIRST_TOKENS, &first);
    if (rc == CS_OK)
        rc = answer(e, "second turn", NULL, ids, SECOND_TOKENS, &second);
    if (rc == CS_OK)
        rc = answer(e, "another tenant", &other, ids, FIRST_TOKENS, &others);
    cs_close(e->store, CLOSE_MS); /* writes what is not on disk yet */
    if (rc == CS_OK)
        rc = start(e, dir);
    if (rc != CS_OK)
        return rc;
    rc = answer(e, "after a restart", NULL, ids, SECOND_TOKENS, &again);
    cs_close(e->store, CLOSE_MS);
    if (rc == CS_OK && (others != first || again != second)) {
        fprintf(stderr, "embed: answers depend on where tokens came from\n");
        rc = CS_ECORRUPT;
    }
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: embed DIR\n");
        return 2;
    }
    uint32_t ids[SECOND_TOKENS];
    for (uint32_t i = 0; i < SECOND_TOKENS; i++)
        ids[i] = i * 2654435761u >> 17;
    struct engine e;
    sem_init(&e.landed, 0, 0);
    int rc = run(&e, argv[1], ids);
    sem_destroy(&e.landed);
    return rc == CS_OK ? 0 : 1;
}
