/* Notes (see notes.h). */
#include "cachestore/notes.h"
#include "cachestore/key.h"

#include <stdlib.h>
#include <string.h>

#define MIN_BUCKETS      64
#define BYTES_PER_BUCKET 1024
#define ALLOC_OVERHEAD   16

struct note {
    struct note *hash_next, *batch_next;
    struct note_batch *batch;
    struct cs_key key;
    uint64_t order; /* of publishing */
    struct note_blob *blob;
};

int notes_open(struct notes *n, uint64_t index_budget)
{
    uint64_t n_buckets = MIN_BUCKETS;
    while (n_buckets * BYTES_PER_BUCKET < index_budget)
        n_buckets *= 2;
    *n = (struct notes){
        .buckets = calloc(n_buckets, sizeof(struct note *)), .bucket_mask = n_buckets - 1, .next_order = 1};
    return n->buckets ? CS_OK : CS_ENOMEM;
}

static uint64_t note_bytes(uint32_t len)
{
    return sizeof(struct note) + sizeof(struct note_blob) + len + 2 * ALLOC_OVERHEAD;
}

static uint64_t batch_bytes(void)
{
    return sizeof(struct note_batch) + ALLOC_OVERHEAD;
}

uint64_t notes_bytes(const struct cs_note *notes, size_t n_notes)
{
    uint64_t sum = batch_bytes();
    for (size_t i = 0; i < n_notes; i++)
        sum += note_bytes(notes[i].len);
    return sum;
}

uint64_t notes_bytes_of(const struct span *owner)
{
    uint64_t sum = 0;
    for (const struct note_batch *b = owner->batches; b; b = b->next) {
        sum += batch_bytes();
        for (const struct note *note = b->notes; note; note = note->batch_next)
            sum += note_bytes(note->blob->len);
    }
    return sum;
}

void note_blob_unref(struct note_blob *b)
{
    if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1)
        free(b);
}

void notes_close(struct notes *n)
{
    /* Batches are freed with their spans' last notes; at close the buckets reach every note, and each batch
     * is freed with the last of its own. */
    for (uint64_t b = 0; n->buckets && b <= n->bucket_mask; b++)
        while (n->buckets[b]) {
            struct note *note = n->buckets[b];
            n->buckets[b] = note->hash_next;
            if (--note->batch->n_notes == 0)
                free(note->batch);
            note_blob_unref(note->blob);
            free(note);
        }
    free(n->buckets);
    *n = (struct notes){0};
}

static struct note **bucket_of(const struct notes *n, struct cs_key key)
{
    return &n->buckets[key.lo & n->bucket_mask];
}

static struct note *find(const struct notes *n, struct cs_key key)
{
    struct note *note = *bucket_of(n, key);
    while (note && !key_equal(note->key, key))
        note = note->hash_next;
    return note;
}

/* Takes the note out of its batch and of the hash, and frees it. */
static void note_remove(struct notes *n, struct index *ix, struct note *note)
{
    struct note **at = bucket_of(n, note->key);
    while (*at != note)
        at = &(*at)->hash_next;
    *at = note->hash_next;
    at = &note->batch->notes;
    while (*at != note)
        at = &(*at)->batch_next;
    *at = note->batch_next;
    note->batch->n_notes--;
    index_discharge_locked(ix, note->batch->owner->account, note_bytes(note->blob->len));
    n->n_notes--;
    note_blob_unref(note->blob);
    free(note);
}

static void batch_remove(struct index *ix, const struct tier_vtable *tier, struct tier_disk *disk,
                         struct note_batch *b)
{
    if (b->stored && disk && !record_id_equal(b->row, b->owner->id))
        tier->delete_notes(disk, b->owner->id, b->row);
    if (b->previous)
        b->previous->next = b->next;
    else
        b->owner->batches = b->next;
    if (b->next)
        b->next->previous = b->previous;
    index_discharge_locked(ix, b->owner->account, batch_bytes());
    free(b);
}

static struct note *note_new(const struct cs_note *from, uint64_t order)
{
    struct note *note = calloc(1, sizeof *note);
    struct note_blob *blob = malloc(sizeof *blob + from->len);
    if (!note || !blob) {
        free(note);
        free(blob);
        return NULL;
    }
    atomic_init(&blob->refs, 1);
    blob->len = from->len;
    if (from->len)
        memcpy(blob->bytes, from->data, from->len);
    note->blob = blob;
    note->key = from->key;
    note->order = order;
    return note;
}

struct note_batch *notes_add_locked(struct notes *n, struct index *ix, const struct tier_vtable *tier,
                                    struct tier_disk *disk, struct span *owner, const struct cs_note *notes,
                                    size_t n_notes, uint64_t order)
{
    struct note_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return NULL;
    if (order == 0)
        order = n->next_order;
    if (order >= n->next_order)
        n->next_order = order + 1;
    batch->owner = owner;
    batch->next = owner->batches;
    if (batch->next)
        batch->next->previous = batch;
    owner->batches = batch;
    index_charge_locked(ix, owner->account, batch_bytes());

    for (size_t i = 0; i < n_notes; i++) {
        struct note *old = find(n, notes[i].key);
        if (old && old->order > order)
            continue;
        struct note *note = note_new(&notes[i], order);
        if (!note)
            break;
        if (old) {
            struct note_batch *old_batch = old->batch;
            note_remove(n, ix, old);
            if (old_batch->n_notes == 0 && old_batch != batch)
                batch_remove(ix, tier, disk, old_batch);
        }
        note->batch = batch;
        note->batch_next = batch->notes;
        batch->notes = note;
        batch->n_notes++;
        struct note **bucket = bucket_of(n, note->key);
        note->hash_next = *bucket;
        *bucket = note;
        n->n_notes++;
        index_charge_locked(ix, owner->account, note_bytes(note->blob->len));
    }
    if (batch->n_notes == 0) {
        batch_remove(ix, tier, disk, batch);
        return NULL;
    }
    return batch;
}

void notes_drop_locked(struct notes *n, struct index *ix, const struct tier_vtable *tier,
                       struct tier_disk *disk, struct span *owner)
{
    for (struct note_batch *b = owner->batches, *next_batch; b; b = next_batch) {
        next_batch = b->next;
        for (struct note *note = b->notes, *next; note; note = next) {
            next = note->batch_next;
            note_remove(n, ix, note);
        }
        batch_remove(ix, tier, disk, b);
    }
}

static size_t batch_list(const struct note_batch *b, struct cs_note *out)
{
    size_t n = 0;
    for (const struct note *note = b->notes; note; note = note->batch_next)
        out[n++] = (struct cs_note){.key = note->key, .data = note->blob->bytes, .len = note->blob->len};
    return n;
}

struct cs_note *notes_for_row_locked(struct span *owner, size_t *n_notes)
{
    size_t room = 0, n = 0;
    for (const struct note_batch *b = owner->batches; b; b = b->next)
        room += b->n_notes;
    struct cs_note *notes = room ? malloc(room * sizeof *notes) : NULL;
    for (struct note_batch *b = owner->batches; notes && b; b = b->next) {
        n += batch_list(b, notes + n);
        b->stored = true;
        b->row = owner->id;
    }
    *n_notes = n;
    return notes;
}

static void batch_store(const struct tier_vtable *tier, struct tier_disk *disk, struct note_batch *b)
{
    struct cs_note *notes = malloc(b->n_notes * sizeof *notes);
    if (!notes)
        return;
    b->row = tier->next_id(disk);
    const struct note_record record = {
        .id = b->row, .owner = b->owner->id, .notes = notes, .n_notes = batch_list(b, notes)};
    if (tier->write_notes(disk, &record) != CS_OK)
        b->row = b->owner->id; /* refused and counted: it has no row, and is not tried with every publish */
    b->stored = true;
    free(notes);
}

/* Oldest first, so that ids rise with age and the newest note of a key wins after a restart. */
void notes_store_locked(const struct tier_vtable *tier, struct tier_disk *disk, struct span *owner)
{
    struct note_batch *b = owner->batches;
    while (b && b->next)
        b = b->next;
    for (; b; b = b->previous)
        if (!b->stored)
            batch_store(tier, disk, b);
}

void notes_unstore_locked(struct span *owner)
{
    for (struct note_batch *b = owner->batches; b; b = b->next)
        b->stored = false;
}

void notes_each_locked(const struct span *owner, void (*fn)(void *ctx, struct cs_key key, uint32_t len),
                       void *ctx)
{
    for (const struct note_batch *b = owner->batches; b; b = b->next)
        for (const struct note *note = b->notes; note; note = note->batch_next)
            fn(ctx, note->key, note->blob->len);
}

struct note_blob *notes_find_locked(const struct notes *n, struct cs_key key)
{
    struct note *note = find(n, key);
    if (!note)
        return NULL;
    atomic_fetch_add_explicit(&note->blob->refs, 1, memory_order_relaxed);
    return note->blob;
}
