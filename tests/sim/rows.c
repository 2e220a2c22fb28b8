/*
 * The simulated catalogue's rows: an ordered map in memory that outlives a killed process. A power cut loses
 * the batches since the last sync, from the newest to some older one.
 */
#include <stdlib.h>
#include <string.h>

#include "formats/record.h"
#include "tests/sim/rows.h"

enum { N_UNDO = 4096 };

struct undo {
    struct change change; /* owns its value */
    uint32_t batch;
};

static struct row *rows;
static size_t n_rows, rows_room;
static uint64_t all_bytes;
static struct undo undos[N_UNDO]; /* of what is not durable, oldest first */
static uint32_t n_undos, batch_number;
bool rows_garbled;
static struct change *beside; /* of a rebuild; the machine's */
static size_t n_beside, beside_room;

/* ---- the map ----------------------------------------------------------------------------------------- */

static int compare_ids(struct record_id a, struct record_id b)
{
    if (a.sequence != b.sequence)
        return a.sequence > b.sequence ? -1 : 1; /* from new to old */
    return a.nonce == b.nonce ? 0 : a.nonce > b.nonce ? -1 : 1;
}

static int compare(const struct row *a, const struct row *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    int order = compare_ids(a->id, b->id);
    return order != 0 ? order : compare_ids(a->notes, b->notes);
}

/* Where it is, or would be. */
static size_t find(const struct row *key, bool *there)
{
    size_t low = 0, high = n_rows;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = compare(&rows[middle], key);
        if (order == 0) {
            *there = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *there = false;
    return low;
}

const struct row *rows_find(const struct row *key)
{
    bool there;
    size_t at = find(key, &there);
    return there ? &rows[at] : NULL;
}

const struct row *rows_at(size_t i)
{
    return i < n_rows ? &rows[i] : NULL;
}

void *rows_copy(const void *value, size_t len)
{
    void *copy = __real_malloc(len + 1);
    if (copy == NULL)
        sim_fail("no memory for the catalogue");
    if (len > 0)
        memcpy(copy, value, len);
    return copy;
}

static void undo_push(struct row row, bool put)
{
    if (n_undos == N_UNDO) { /* the oldest have reached the disk */
        for (uint32_t i = 0; i < N_UNDO / 2; i++)
            __real_free(undos[i].change.row.value);
        memmove(undos, undos + N_UNDO / 2, N_UNDO / 2 * sizeof undos[0]);
        n_undos = N_UNDO / 2;
    }
    undos[n_undos++] = (struct undo){.change = {.row = row, .put = put}, .batch = batch_number};
}

void rows_synced(void)
{
    for (uint32_t i = 0; i < n_undos; i++)
        __real_free(undos[i].change.row.value);
    n_undos = 0;
}

static void row_remove(size_t at, bool undoable)
{
    struct row gone = rows[at];
    all_bytes -= gone.len + ROW_OVERHEAD_BYTES;
    memmove(rows + at, rows + at + 1, (n_rows - at - 1) * sizeof *rows);
    n_rows--;
    if (undoable)
        undo_push(gone, true);
    else
        __real_free(gone.value);
}

static void row_put(const struct row *row, bool undoable)
{
    bool there;
    size_t at = find(row, &there);
    if (there)
        row_remove(at, undoable);
    else if (undoable) {
        struct row key = *row;
        key.value = NULL;
        key.len = 0;
        undo_push(key, false);
    }
    if (n_rows == rows_room) {
        rows_room = rows_room == 0 ? 256 : 2 * rows_room;
        rows = __real_realloc(rows, rows_room * sizeof *rows);
        if (rows == NULL)
            sim_fail("no memory for the catalogue");
    }
    memmove(rows + at + 1, rows + at, (n_rows - at) * sizeof *rows);
    rows[at] = *row;
    rows[at].value = rows_copy(row->value, row->len);
    n_rows++;
    all_bytes += row->len + ROW_OVERHEAD_BYTES;
}

void rows_batch_begin(void)
{
    batch_number++;
}

void rows_apply(const struct change *c, bool undoable)
{
    bool there;
    if (c->put) {
        row_put(&c->row, undoable);
    } else if (c->range) {
        struct row first = c->row;
        first.notes = (struct record_id){UINT64_MAX, UINT64_MAX};
        size_t at = find(&first, &there);
        while (at < n_rows && rows[at].kind == c->row.kind && record_id_equal(rows[at].id, c->row.id))
            row_remove(at, undoable);
    } else {
        size_t at = find(&c->row, &there);
        if (there)
            row_remove(at, undoable);
    }
}

void rows_clear(void)
{
    while (n_rows > 0)
        row_remove(n_rows - 1, false);
    rows_synced();
}

/* ---- the one beside ---------------------------------------------------------------------------------- */

void rows_beside_clear(void)
{
    while (n_beside > 0)
        __real_free(beside[--n_beside].row.value);
}

void rows_beside_add(const struct change *c)
{
    if (n_beside == beside_room) {
        beside_room = beside_room == 0 ? 64 : 2 * beside_room;
        beside = __real_realloc(beside, beside_room * sizeof *beside);
        if (beside == NULL)
            sim_fail("no memory for the catalogue");
    }
    beside[n_beside] = *c;
    beside[n_beside++].row.value = rows_copy(c->row.value, c->row.len);
}

void rows_beside_take(void)
{
    rows_clear();
    for (size_t i = 0; i < n_beside; i++)
        rows_apply(&beside[i], false);
    rows_beside_clear();
    rows_garbled = false;
    files_has_catalog = true;
}

/* ---- the machine ------------------------------------------------------------------------------------- */

void rows_reset(void)
{
    rows_clear();
    rows_beside_clear();
    rows_garbled = false;
    batch_number = 0;
}

uint64_t rows_bytes(void)
{
    return files_has_catalog ? SECTOR + all_bytes : 0;
}

size_t rows_n(void)
{
    return n_rows;
}

void rows_process_ended(bool killed, bool power)
{
    rows_beside_clear(); /* the next open removes it */
    if (!killed || !power)
        return;
    /* Batches from the newest on, as many as the seed says. */
    uint32_t oldest = n_undos > 0 ? undos[0].batch : 0, newest = n_undos > 0 ? undos[n_undos - 1].batch : 0;
    uint32_t keep = oldest + (n_undos > 0 ? sim_below(&sim.random_faults, newest - oldest + 2) : 0);
    while (n_undos > 0 && undos[n_undos - 1].batch >= keep) {
        struct change c = undos[--n_undos].change;
        rows_apply(&c, false);
        __real_free(c.row.value);
        sim_count(COUNT_rows_undone, 1);
    }
    rows_synced();
    if (!files_has_catalog) /* the folder itself had not been synced */
        rows_clear();
}

void rows_flip(size_t i, uint64_t random)
{
    if (i >= n_rows || rows[i].len == 0)
        return;
    uint8_t *bytes = rows[i].value;
    bytes[random / 8 % (rows[i].len < FMT_RECORD_FIXED_BYTES ? rows[i].len : FMT_RECORD_FIXED_BYTES)] ^=
        (uint8_t)(1u << random % 8);
}

void rows_spoil(size_t i)
{
    if (i < n_rows)
        rows[i].spoiled = true;
}

void rows_lose(size_t i)
{
    if (i < n_rows && rows[i].kind != STORE_KIND)
        row_remove(i, false);
}

void rows_lose_all(void)
{
    rows_clear();
    files_has_catalog = sim_below(&sim.random_faults, 2) == 0;
    rows_garbled = files_has_catalog && sim_below(&sim.random_faults, 2) == 0;
}

bool rows_record(size_t i, uint64_t *nonce, uint64_t *sequence)
{
    if (i >= n_rows || rows[i].kind != CATALOG_RECORD)
        return false;
    *nonce = rows[i].id.nonce;
    *sequence = rows[i].id.sequence;
    return true;
}

int rows_quota(const uint8_t tenant[16], struct cs_quota *out)
{
    struct cs_tenant t;
    bool there;
    memcpy(t.id, tenant, sizeof t.id);
    struct row key = {.kind = CATALOG_QUOTA, .id = catalog_quota_id(&t)};
    size_t at = find(&key, &there);
    *out = (struct cs_quota){0};
    if (rows_garbled || (there && rows[at].spoiled))
        return -1;
    return !there ? 0 : catalog_quota_decode(rows[at].value, rows[at].len, out) ? 1 : -1;
}

int rows_state(uint64_t nonce, uint64_t sequence)
{
    bool there;
    struct row key = {.kind = CATALOG_RECORD, .id = {.nonce = nonce, .sequence = sequence}};
    (void)find(&key, &there);
    if (!there)
        return 0;
    for (uint32_t i = 0; i < n_undos; i++)
        if (undos[i].change.row.kind == CATALOG_RECORD && record_id_equal(undos[i].change.row.id, key.id))
            return 1;
    return 2;
}
