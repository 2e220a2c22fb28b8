/*
 * The simulated catalogue (cachestore/catalog.h): an ordered map in memory. A batch is applied whole or not
 * at all; a killed process loses none that was applied; a power cut loses those since the last sync, from the
 * newest to some older one. It fails at any call, and after a failed commit refuses all others until it is
 * opened anew, as RocksDB does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/catalog.h"
#include "formats/record.h"
#include "tests/sim/checker.h"

enum { ROW_OVERHEAD_BYTES = 24, N_UNDO = 4096 };

struct row {
    uint8_t kind; /* in the order of the keys; STORE_KIND: the row about the store */
    struct record_id id, notes;
    void *value; /* malloc'ed for the machine, not the process */
    size_t len;
    bool spoiled; /* a checksum of its block fails */
};
enum { STORE_KIND = 255 };

/* One change, or what undoes it. */
struct change {
    struct row row;
    bool put;
    bool range; /* delete: all notes of the record */
};

struct undo {
    struct change change; /* owns its value */
    uint32_t batch;
};

struct catalog {
    bool read_only, broken;
    bool beside; /* a rebuild's: what it commits takes the place of all there is, or goes */
    struct change *batch;
    size_t n, room;
};

static struct row *rows;
static size_t n_rows, rows_room;
static uint64_t all_bytes;
static struct undo undos[N_UNDO]; /* of what is not durable, oldest first */
static uint32_t n_undos, batch_number;
static bool garbled;          /* it will not open until it is removed */
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

static void *copy_of(const void *value, size_t len)
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

static void undos_drop(void)
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
    rows[at].value = copy_of(row->value, row->len);
    n_rows++;
    all_bytes += row->len + ROW_OVERHEAD_BYTES;
}

static void apply(const struct change *c, bool undoable)
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

static void rows_clear(void)
{
    while (n_rows > 0)
        row_remove(n_rows - 1, false);
    undos_drop();
}

/* ---- the one beside ---------------------------------------------------------------------------------- */

static void beside_clear(void)
{
    while (n_beside > 0)
        __real_free(beside[--n_beside].row.value);
}

static void beside_add(const struct change *c)
{
    if (n_beside == beside_room) {
        beside_room = beside_room == 0 ? 64 : 2 * beside_room;
        beside = __real_realloc(beside, beside_room * sizeof *beside);
        if (beside == NULL)
            sim_fail("no memory for the catalogue");
    }
    beside[n_beside] = *c;
    beside[n_beside++].row.value = copy_of(c->row.value, c->row.len);
}

/* ---- the machine ------------------------------------------------------------------------------------- */

void rows_reset(void)
{
    rows_clear();
    beside_clear();
    garbled = false;
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
    beside_clear(); /* the next open removes it */
    if (!killed || !power)
        return;
    /* Batches from the newest on, as many as the seed says. */
    uint32_t oldest = n_undos > 0 ? undos[0].batch : 0, newest = n_undos > 0 ? undos[n_undos - 1].batch : 0;
    uint32_t keep = oldest + (n_undos > 0 ? sim_below(&sim.random_faults, newest - oldest + 2) : 0);
    while (n_undos > 0 && undos[n_undos - 1].batch >= keep) {
        struct change c = undos[--n_undos].change;
        apply(&c, false);
        __real_free(c.row.value);
        sim_count(COUNT_rows_undone, 1);
    }
    undos_drop();
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
    garbled = files_has_catalog && sim_below(&sim.random_faults, 2) == 0;
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
    if (garbled || (there && rows[at].spoiled))
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

/* ---- catalog.h --------------------------------------------------------------------------------------- */

static void takes_time(uint32_t us)
{
    fibers_sleep(1000 + sim_below(&sim.random_faults, us * 1000));
}

int catalog_open(int dir_fd, bool read_only, uint64_t share_bytes, struct catalog **out, char *err,
                 size_t err_len)
{
    (void)dir_fd;
    (void)share_bytes;
    *out = NULL;
    takes_time(300);
    if (sim_fault(FAULT_catalog_open_error)) {
        snprintf(err, err_len, "a simulated error");
        return sim_below(&sim.random_faults, 2) == 0 ? CS_EIO : CS_ECORRUPT;
    }
    if (garbled || (read_only && !files_has_catalog)) {
        snprintf(err, err_len, "it is damaged");
        return CS_ECORRUPT;
    }
    struct catalog *c = calloc(1, sizeof *c);
    if (c == NULL) {
        snprintf(err, err_len, "out of memory");
        return CS_ENOMEM;
    }
    c->read_only = read_only;
    files_has_catalog = true;
    *out = c;
    return CS_OK;
}

int catalog_open_new(int dir_fd, uint64_t share_bytes, struct catalog **out, char *err, size_t err_len)
{
    (void)dir_fd;
    (void)share_bytes;
    *out = NULL;
    takes_time(300);
    beside_clear();
    if (sim_fault(FAULT_catalog_open_error)) {
        snprintf(err, err_len, "a simulated error");
        return CS_EIO;
    }
    struct catalog *c = calloc(1, sizeof *c);
    if (c == NULL) {
        snprintf(err, err_len, "out of memory");
        return CS_ENOMEM;
    }
    c->beside = true;
    *out = c;
    return CS_OK;
}

int catalog_replace(int dir_fd)
{
    (void)dir_fd;
    fibers_yield();
    if (sim_fault(FAULT_call_error))
        return -5;
    rows_clear();
    for (size_t i = 0; i < n_beside; i++)
        apply(&beside[i], false);
    beside_clear();
    garbled = false;
    files_has_catalog = true;
    return 0;
}

int catalog_remove_new(int dir_fd)
{
    (void)dir_fd;
    beside_clear();
    return 0;
}

uint64_t catalog_reserve_bytes(uint64_t share_bytes)
{
    return share_bytes / 2;
}

bool catalog_has_room(int dir_fd, uint64_t bytes)
{
    (void)dir_fd;
    return !files_is_full(bytes);
}

static void batch_clear(struct catalog *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->batch[i].row.value);
    c->n = 0;
}

void catalog_close(struct catalog *c)
{
    if (c == NULL)
        return;
    takes_time(300);
    if (!c->read_only && !c->broken && !c->beside)
        undos_drop();
    batch_clear(c);
    free(c->batch);
    free(c);
}

int catalog_remove(int dir_fd)
{
    (void)dir_fd;
    fibers_yield();
    if (sim_fault(FAULT_call_error))
        return -5;
    rows_clear();
    garbled = files_has_catalog = false;
    return 0;
}

uint64_t catalog_disk_bytes(int dir_fd)
{
    (void)dir_fd;
    return rows_bytes();
}

/* What is there is all there ever is. */
uint64_t catalog_most_bytes(const struct catalog *c, int dir_fd)
{
    (void)c;
    return catalog_disk_bytes(dir_fd);
}

struct store_row {
    uint8_t uuid[16];
    uint32_t epoch;
};

int catalog_store_get(struct catalog *c, uint8_t uuid[16], uint32_t *epoch)
{
    bool there;
    const struct row key = {.kind = STORE_KIND};
    (void)c;
    if (sim_fault(FAULT_catalog_scan_error))
        return CS_ECORRUPT;
    size_t at = find(&key, &there);
    if (!there)
        return CS_ENOTFOUND;
    if (rows[at].spoiled)
        return CS_ECORRUPT;
    struct store_row s;
    memcpy(&s, rows[at].value, sizeof s);
    memcpy(uuid, s.uuid, sizeof s.uuid);
    *epoch = s.epoch;
    return CS_OK;
}

int catalog_scan(struct catalog *c, enum catalog_kind kind, catalog_row_fn fn, void *ctx)
{
    (void)c;
    fibers_yield();
    for (size_t i = 0; i < n_rows; i++) {
        if (rows[i].kind != kind)
            continue;
        if (rows[i].spoiled || sim_fault(FAULT_catalog_scan_error))
            return CS_ECORRUPT;
        /* 8-byte aligned, and nobody's for longer than the call. */
        void *value = copy_of(rows[i].value, rows[i].len);
        const struct catalog_row row = {
            .id = rows[i].id, .notes = rows[i].notes, .value = value, .len = rows[i].len};
        int rc = fn(ctx, &row);
        __real_free(value);
        if (rc != 0)
            return rc;
    }
    return CS_OK;
}

int catalog_get(struct catalog *c, struct record_id id, void **value, size_t *len)
{
    bool there;
    const struct row key = {.kind = CATALOG_RECORD, .id = id};
    (void)c;
    size_t at = find(&key, &there);
    if (!there)
        return CS_ENOTFOUND;
    if (rows[at].spoiled || sim_fault(FAULT_catalog_scan_error))
        return CS_ECORRUPT;
    *value = malloc(rows[at].len + 1);
    if (*value == NULL)
        return CS_ENOMEM;
    memcpy(*value, rows[at].value, rows[at].len);
    *len = rows[at].len;
    return CS_OK;
}

static void batch_add(struct catalog *c, struct change change)
{
    if (c->read_only)
        sim_fail("a batch for a catalogue that was opened for reading");
    sim.calm++; /* "The calls before the commit cannot fail." */
    if (c->n == c->room) {
        c->room = c->room == 0 ? 32 : 2 * c->room;
        c->batch = realloc(c->batch, c->room * sizeof *c->batch);
    }
    if (change.put) {
        void *copy = malloc(change.row.len + 1);
        if (change.row.len > 0)
            memcpy(copy, change.row.value, change.row.len);
        change.row.value = copy;
    }
    c->batch[c->n++] = change;
    sim.calm--;
}

void catalog_put(struct catalog *c, enum catalog_kind kind, struct record_id id, const void *value,
                 size_t len)
{
    batch_add(c,
              (struct change){.put = true,
                              .row = {.kind = (uint8_t)kind, .id = id, .value = (void *)value, .len = len}});
}

void catalog_delete(struct catalog *c, enum catalog_kind kind, struct record_id id)
{
    if (kind == CATALOG_RECORD)
        checker_row_delete(id.nonce, id.sequence);
    batch_add(c, (struct change){.row = {.kind = (uint8_t)kind, .id = id}});
}

void catalog_put_notes(struct catalog *c, struct record_id owner, struct record_id id, const void *value,
                       size_t len)
{
    batch_add(
        c, (struct change){
               .put = true,
               .row = {.kind = CATALOG_NOTES, .id = owner, .notes = id, .value = (void *)value, .len = len}});
}

void catalog_delete_notes(struct catalog *c, struct record_id owner, struct record_id id)
{
    batch_add(c, (struct change){.row = {.kind = CATALOG_NOTES, .id = owner, .notes = id}});
}

void catalog_delete_notes_of(struct catalog *c, struct record_id owner)
{
    batch_add(c, (struct change){.range = true, .row = {.kind = CATALOG_NOTES, .id = owner}});
}

void catalog_store_put(struct catalog *c, const uint8_t uuid[16], uint32_t epoch)
{
    struct store_row s = {.epoch = epoch};
    memcpy(s.uuid, uuid, sizeof s.uuid);
    batch_add(c, (struct change){.put = true, .row = {.kind = STORE_KIND, .value = &s, .len = sizeof s}});
}

unsigned catalog_batch_rows(const struct catalog *c)
{
    return (unsigned)c->n;
}

int catalog_commit(struct catalog *c, bool sync)
{
    if (c->n == 0)
        return CS_OK;
    takes_time(sim_fault(FAULT_late) ? 3000000 : 200);
    bool fails = c->broken || sim_fault(FAULT_catalog_error);
    /* Of a batch that failed nobody knows whether it is there. */
    bool applied = !c->broken && (!fails || sim_below(&sim.random_faults, 2) == 0);
    c->broken = fails;
    if (applied) {
        batch_number++;
        for (size_t i = 0; i < c->n; i++)
            if (c->beside)
                beside_add(&c->batch[i]);
            else
                apply(&c->batch[i], true);
        checker_budget();
    }
    SIM_SAY("batch of %zu rows%s: %s", c->n, sync ? ", synced" : "", fails ? "failed" : "done");
    sim_note(c->n << 8 | (unsigned)fails);
    batch_clear(c);
    takes_time(100); /* a kill may come between the batch and its return */
    if (!fails && sync && !sim_fault(FAULT_catalog_lost_flush) && !c->beside)
        undos_drop();
    return fails ? CS_EIO : CS_OK;
}
