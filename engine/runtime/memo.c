/*
 * The message memo: which ids a message's text stood for at this place of this conversation.
 *
 * A reply at temperature 1.5 is rarely the encoding of its own text, so encoding it again on the next turn
 * would leave the stored path at its first odd token. The memo keeps the ids: a note in the store under
 *
 *     key = XXH3_128(tag | key of the ids before the run | XXH3_128(text of the run))
 *     value = magic, count, ids (little-endian u32)
 *
 * The first part is the store's own rolling key, seeded by its secret, the fingerprint and the tenant: equal
 * texts in two conversations have two notes, and no tenant can find another's. The hash only finds;
 * eng_chat_render proves an answer by detokenising it. Notes are published with the pages of their run and
 * live and die with that path; the latest published wins. One publish, one row, however many messages.
 *
 * Threads: a memo belongs to one thread at a time (the one that renders, then the engine's).
 */
#include "engine/runtime/memo.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MEMO_TAG          0x316f6d656d6f7369u /* "isomemo1" */
#define MEMO_MAGIC        0x4d4f5349u         /* "ISOM" */
#define MEMO_HEADER_WORDS 2                   /* magic, count */
#define NOTE_MAX_BYTES    (1u << 20)          /* the store's limit */

struct eng_memo {
    struct cs_store *store;
    const struct eng_tokenizer *tokenizer;
    const struct eng_chat_template *chat;
    struct cs_tenant tenant;
    struct cs_chain chain; /* of the prompt so far */
    struct cs_note *notes;
    size_t *note_end; /* ids up to the end of each note's run, ascending */
    size_t n_notes, cap_notes;
    size_t n_taken;
};

struct eng_memo *memo_new(struct cs_store *store, const struct eng_tokenizer *tokenizer,
                          const struct eng_chat_template *chat, const struct cs_tenant *tenant)
{
    struct eng_memo *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->store = store;
    m->tokenizer = tokenizer;
    m->chat = chat;
    m->tenant = *tenant;
    cs_chain_init(store, tenant, &m->chain);
    return m;
}

void memo_free(struct eng_memo *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_notes; i++)
        free((void *)m->notes[i].data);
    free(m->notes);
    free(m->note_end);
    free(m);
}

/* Takes the chain to ids[0..n): only the new ids are hashed while a prompt grows. */
static struct cs_key key_before(struct eng_memo *m, const uint32_t *ids, size_t n)
{
    if (m->chain.n > n)
        cs_chain_init(m->store, &m->tenant, &m->chain);
    cs_chain_add(&m->chain, ids + m->chain.n, n - m->chain.n);
    return cs_chain_key(&m->chain);
}

static struct cs_key note_key(struct cs_key before, const char *text, size_t len)
{
    XXH128_hash_t t = XXH3_128bits(text, len);
    uint64_t words[5] = {MEMO_TAG, before.lo, before.hi, t.low64, t.high64};
    XXH128_hash_t h = XXH3_128bits(words, sizeof words);
    return (struct cs_key){h.low64, h.high64};
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ENG_ENOTFOUND: too long to be a note; the run is encoded each time, which is right, only slower. */
static int note_make(struct cs_key key, const uint32_t *ids, size_t n, struct cs_note *note)
{
    if (n > NOTE_MAX_BYTES / 4 - MEMO_HEADER_WORDS)
        return ENG_ENOTFOUND;
    size_t bytes = (MEMO_HEADER_WORDS + n) * 4;
    uint8_t *data = malloc(bytes);
    if (!data)
        return ENG_ENOMEM;
    put_u32(data, MEMO_MAGIC);
    put_u32(data + 4, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        put_u32(data + (MEMO_HEADER_WORDS + i) * 4, ids[i]);
    *note = (struct cs_note){key, data, (uint32_t)bytes};
    return ENG_OK;
}

static bool memo_look_up(void *ctx, const uint32_t *ids, size_t n, const char *text, size_t len,
                         struct eng_ids *out)
{
    struct eng_memo *m = ctx;
    void *data = NULL;
    uint32_t bytes = 0;
    if (cs_note_get(m->store, note_key(key_before(m, ids, n), text, len), &data, &bytes) != CS_OK)
        return false;
    bool found = false;
    const uint8_t *p = data;
    if (bytes < MEMO_HEADER_WORDS * 4 || get_u32(p) != MEMO_MAGIC)
        goto out;
    size_t count = get_u32(p + 4);
    if (count != bytes / 4 - MEMO_HEADER_WORDS || bytes % 4 != 0)
        goto out;
    uint32_t n_vocab = eng_tokenizer_n_vocab(m->tokenizer);
    for (size_t i = 0; i < count; i++) {
        uint32_t id = get_u32(p + (MEMO_HEADER_WORDS + i) * 4);
        if (id >= n_vocab || eng_ids_add(out, &id, 1) != ENG_OK) {
            out->n = 0;
            goto out;
        }
    }
    found = true;
out:
    free(data);
    return found;
}

/* A note that cannot be kept for want of memory is only a slower next turn. */
static void memo_learned(void *ctx, size_t position, const char *text, size_t len, const uint32_t *ids,
                         size_t n)
{
    struct eng_memo *m = ctx;
    if (m->chain.n != position)
        return; /* render always looks up first; without that there is no key */
    if (m->n_notes == m->cap_notes) {
        size_t cap = m->cap_notes ? 2 * m->cap_notes : 8;
        struct cs_note *notes = realloc(m->notes, cap * sizeof *notes);
        if (!notes)
            return;
        m->notes = notes;
        size_t *ends = realloc(m->note_end, cap * sizeof *ends);
        if (!ends)
            return;
        m->note_end = ends;
        m->cap_notes = cap;
    }
    if (note_make(note_key(cs_chain_key(&m->chain), text, len), ids, n, &m->notes[m->n_notes]) != ENG_OK)
        return;
    m->note_end[m->n_notes] = position + n;
    m->n_notes++;
}

struct eng_chat_memo memo_hooks(struct eng_memo *m)
{
    return (struct eng_chat_memo){.look_up = memo_look_up, .learned = memo_learned, .ctx = m};
}

const struct cs_note *memo_take(struct eng_memo *m, size_t n_ids, size_t *n_notes)
{
    size_t from = m->n_taken;
    while (m->n_taken < m->n_notes && m->note_end[m->n_taken] <= n_ids)
        m->n_taken++;
    *n_notes = m->n_taken - from;
    return m->notes + from;
}

int memo_reply(struct eng_memo *m, const uint32_t *ids, size_t n_prompt, size_t reply_run, size_t n_sampled,
               const char *text, size_t len, struct cs_note *note)
{
    /* eng_chat_reply_note reads the prompt's ids and reply_run only. */
    struct eng_rendered prompt = {.ids = {.data = (uint32_t *)ids, .n = n_prompt}, .reply_run = reply_run};
    char *run = NULL;
    size_t run_len = 0;
    struct eng_ids answer = {0};
    int rc = eng_chat_reply_note(m->chat, m->tokenizer, &prompt, ids + n_prompt, n_sampled, text, len, &run,
                                 &run_len, &answer);
    if (rc == ENG_OK)
        rc = note_make(note_key(key_before(m, ids, reply_run), run, run_len), answer.data, answer.n, note);
    free(run);
    eng_ids_free(&answer);
    return rc;
}
