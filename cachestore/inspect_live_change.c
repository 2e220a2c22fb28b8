/*
 * What changes a store that a process has open: the process does it, record by record; what is to go is
 * chosen here, with the same rules as for a store that nobody has open.
 *
 * Deletion, in this order: the purge epoch rises; what is chosen goes from every tier, children first;
 * headers that no row names, of records that left earlier or are of another model, are zeroed; and all of
 * that is waited for. What the store has let go of by itself meanwhile has left its header and is treated
 * like those. Then listing and headers are read again: what came since goes as well. A request that computes
 * on top of what was deleted brings it back when it publishes, for it has it in its hands; what is left then
 * is counted.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/control_wire.h"
#include "cachestore/inspect_impl.h"

enum { ROUNDS = 3, RETRY_MS = 10, RETRIES = 3000 };

struct deletion {
    struct cs_inspect *in;
    int (*wanted)(void *ctx, const struct cs_span_info *span);
    void *ctx;
    bool below, raised;
    uint32_t *by_place;
    bool *goes;
    uint64_t n; /* that go in this round */
    struct cs_evicted *out;
};

/* The header of a record that has left, zeroed unless somebody has its chunk. */
static int erase(struct cs_inspect *in, const struct entry *e, uint32_t header_bytes)
{
    int rc = inspect_live_erase(in, e, header_bytes);
    return rc == CS_EBUSY ? CS_OK : rc; /* written since; the next round has it */
}

/* Deletes up to CONTROL_KEYS_MAX of them, those that are being read or written as soon as they are not. */
static int delete_some(struct cs_inspect *in, const struct entry *const *e, uint32_t n)
{
    struct cs_key keys[CONTROL_KEYS_MAX];
    const struct entry *left[CONTROL_KEYS_MAX];
    uint8_t result[CONTROL_KEYS_MAX];
    uint32_t most =
        in->store.chunk_bytes < FMT_RECORD_HEADER_MAX ? in->store.chunk_bytes : FMT_RECORD_HEADER_MAX;
    int rc = CS_OK;
    for (unsigned round = 0; n > 0 && rc == CS_OK; round++) {
        uint32_t n_left = 0;
        if (round > RETRIES)
            return CS_EBUSY;
        if (round > 0)
            poll(NULL, 0, RETRY_MS);
        for (uint32_t i = 0; i < n; i++)
            keys[i] = e[i]->info.key;
        rc = inspect_live_evict(in, keys, n, result);
        for (uint32_t i = 0; i < n && rc == CS_OK; i++) {
            if (result[i] == CONTROL_EVICT_BUSY)
                left[n_left++] = e[i];
            else if (result[i] == CONTROL_EVICT_NOT_THERE && e[i]->info.on_disk)
                rc = erase(in, e[i], most);
        }
        n = n_left;
        e = left;
    }
    return rc;
}

static void count(struct cs_evicted *out, const struct entry *e)
{
    if (e->leftover) {
        out->leftovers++;
        return;
    }
    *(e->info.checkpoint ? &out->checkpoints : &out->spans) += 1;
    out->disk_bytes += e->info.disk_bytes;
}

static int delete_chosen(struct deletion *d)
{
    struct cs_inspect *in = d->in;
    const struct entry *some[CONTROL_KEYS_MAX];
    uint32_t n = 0;
    int rc = CS_OK;
    for (uint32_t i = in->n; i > 0 && rc == CS_OK; i--) {
        const struct entry *e = &in->entries[d->by_place[i - 1]];
        if (!d->goes[d->by_place[i - 1]])
            continue;
        count(d->out, e);
        if (!e->leftover)
            some[n++] = e;
        if (n == CONTROL_KEYS_MAX) {
            rc = delete_some(in, some, n);
            n = 0;
        }
    }
    if (rc == CS_OK && n > 0)
        rc = delete_some(in, some, n);
    for (uint32_t i = 0; i < in->n && rc == CS_OK; i++)
        if (d->goes[i] && in->entries[i].leftover)
            rc = erase(in, &in->entries[i], in->entries[i].header_bytes);
    return rc;
}

static int choose(struct deletion *d)
{
    struct cs_inspect *in = d->in;
    free(d->by_place);
    free(d->goes);
    d->by_place = malloc(((size_t)in->n + 1) * sizeof *d->by_place);
    d->goes = calloc((size_t)in->n + 1, sizeof *d->goes);
    if (d->by_place == NULL || d->goes == NULL)
        return CS_ENOMEM;
    for (uint32_t i = 0; i < in->n; i++)
        d->goes[i] = d->wanted(d->ctx, &in->entries[i].info) != 0;
    inspect_mark(in, d->by_place, d->below, d->goes);
    d->n = 0;
    for (uint32_t i = 0; i < in->n; i++)
        d->n += d->goes[i];
    return CS_OK;
}

/* What is there, and which of it goes. */
static int look(struct deletion *d)
{
    int rc = d->raised ? inspect_live_look_again(d->in) : inspect_live_list(d->in);
    if (rc == CS_OK)
        rc = inspect_leftovers_load(d->in);
    return rc == CS_OK ? choose(d) : rc;
}

static int one_round(struct deletion *d)
{
    int rc = d->raised ? CS_OK : inspect_live_raise_epoch(d->in);
    d->raised = true;
    d->in->volumes.scanned = NULL; /* from here on it goes through */
    if (rc == CS_OK)
        rc = delete_chosen(d);
    int settled = inspect_live_settle(d->in);
    return rc == CS_OK ? settled : rc;
}

int inspect_live_delete(struct cs_inspect *in, int (*wanted)(void *ctx, const struct cs_span_info *span),
                        void *ctx, bool below, struct cs_evicted *out, char *err, size_t err_len)
{
    struct deletion d = {.in = in, .wanted = wanted, .ctx = ctx, .below = below, .out = out};
    int rc = look(&d);
    for (unsigned i = 0; i < ROUNDS && d.n > 0 && rc == CS_OK; i++) {
        rc = one_round(&d);
        if (rc == CS_OK)
            rc = look(&d);
    }
    if (rc == CS_OK)
        out->remaining = d.n;
    if (rc < 0)
        snprintf(err, err_len, "%s",
                 rc == CS_EBUSY ? "records are being read or written without end" : cs_strerror(rc));
    free(d.by_place);
    free(d.goes);
    return rc;
}

/* ---- pins -------------------------------------------------------------------------------------------- */

/* Bytes of records that the pinned ones and `more` keep: each with its path. */
static uint64_t kept_bytes(struct cs_inspect *in, const struct entry *more, bool *kept)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < in->n; i++) {
        if (!in->entries[i].info.pinned && &in->entries[i] != more)
            continue;
        for (uint32_t at = i; at != NONE && !kept[at]; at = in->entries[at].parent) {
            kept[at] = true;
            bytes += in->entries[at].info.disk_bytes;
        }
    }
    return bytes;
}

int inspect_live_set_pin(struct cs_inspect *in, const struct cs_span_info *span, bool pinned, char *err,
                         size_t err_len)
{
    int rc = inspect_live_list(in);
    const struct entry *e = rc == CS_OK ? inspect_entry(in, span->record_id[0], span->record_id[1]) : NULL;
    if (rc == CS_OK && e == NULL)
        rc = CS_ENOTFOUND;
    if (rc == CS_OK && e->foreign) {
        snprintf(err, err_len,
                 "it is of another model than the process that has the store open: stop that first");
        return CS_EBUSY;
    }
    bool *kept = rc == CS_OK ? calloc((size_t)in->n + 1, sizeof *kept) : NULL;
    if (rc == CS_OK && kept == NULL)
        rc = CS_ENOMEM;
    if (rc == CS_OK && pinned && kept_bytes(in, e, kept) > inspect_live_disk_budget(in) / 2) {
        snprintf(err, err_len, "all pins together would hold more than half of the disk budget");
        free(kept);
        return CS_EFULL;
    }
    free(kept);
    if (rc == CS_OK)
        rc = inspect_live_pin(in, e, pinned);
    if (rc == CS_OK)
        rc = inspect_live_settle(in);
    if (rc == CS_EBUSY)
        snprintf(err, err_len, "it is on no disk yet");
    else if (rc < 0)
        snprintf(err, err_len, "cannot %s: %s", pinned ? "pin" : "unpin", cs_strerror(rc));
    return rc;
}
