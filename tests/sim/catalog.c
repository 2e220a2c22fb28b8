/*
 * The simulated catalogue (cachestore/catalog.h), on the rows of rows.c. A batch is applied whole or not at
 * all; a killed process loses none that was applied. It fails at any call, and after a failed commit refuses
 * all others until it is opened anew, as RocksDB does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/checker.h"
#include "tests/sim/rows.h"

struct catalog {
    bool read_only, broken;
    bool beside; /* a rebuild's */
    struct change *batch;
    size_t n, room;
};

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
    if (rows_garbled || (read_only && !files_has_catalog)) {
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
    rows_beside_clear();
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
    rows_beside_take();
    return 0;
}

int catalog_remove_new(int dir_fd)
{
    (void)dir_fd;
    rows_beside_clear();
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
        rows_synced();
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
    rows_garbled = files_has_catalog = false;
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
    const struct row key = {.kind = STORE_KIND}, *row = rows_find(&key);
    (void)c;
    if (sim_fault(FAULT_catalog_scan_error))
        return CS_ECORRUPT;
    if (row == NULL)
        return CS_ENOTFOUND;
    if (row->spoiled)
        return CS_ECORRUPT;
    struct store_row s;
    memcpy(&s, row->value, sizeof s);
    memcpy(uuid, s.uuid, sizeof s.uuid);
    *epoch = s.epoch;
    return CS_OK;
}

/* Not simulated: a power cut takes what was not synced, and nothing else. */
uint64_t catalog_missing(const struct catalog *c)
{
    (void)c;
    return 0;
}

int catalog_budget_get(struct catalog *c, uint64_t *bytes)
{
    const struct row key = {.kind = BUDGET_KIND}, *row = rows_find(&key);
    (void)c;
    if (row == NULL)
        return CS_ENOTFOUND;
    if (row->spoiled || sim_fault(FAULT_catalog_scan_error))
        return CS_ECORRUPT;
    memcpy(bytes, row->value, sizeof *bytes);
    return CS_OK;
}

uint64_t catalog_new_bytes(uint64_t n_rows, uint64_t value_bytes)
{
    return SECTOR + value_bytes + n_rows * ROW_OVERHEAD_BYTES;
}

int catalog_scan(struct catalog *c, enum catalog_kind kind, catalog_row_fn fn, void *ctx)
{
    (void)c;
    fibers_yield();
    const struct row *row;
    for (size_t i = 0; (row = rows_at(i)) != NULL; i++) {
        if (row->kind != kind)
            continue;
        if (row->spoiled || sim_fault(FAULT_catalog_scan_error))
            return CS_ECORRUPT;
        /* 8-byte aligned, and nobody's for longer than the call. */
        void *value = rows_copy(row->value, row->len);
        const struct catalog_row told = {.id = row->id, .notes = row->notes, .value = value, .len = row->len};
        int rc = fn(ctx, &told);
        __real_free(value);
        if (rc != 0)
            return rc;
    }
    return CS_OK;
}

int catalog_get(struct catalog *c, struct record_id id, void **value, size_t *len)
{
    const struct row key = {.kind = CATALOG_RECORD, .id = id}, *row = rows_find(&key);
    (void)c;
    if (row == NULL)
        return CS_ENOTFOUND;
    if (row->spoiled || sim_fault(FAULT_catalog_scan_error))
        return CS_ECORRUPT;
    *value = malloc(row->len + 1);
    if (*value == NULL)
        return CS_ENOMEM;
    memcpy(*value, row->value, row->len);
    *len = row->len;
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

void catalog_budget_put(struct catalog *c, uint64_t bytes)
{
    batch_add(
        c, (struct change){.put = true, .row = {.kind = BUDGET_KIND, .value = &bytes, .len = sizeof bytes}});
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
        rows_batch_begin();
        for (size_t i = 0; i < c->n; i++)
            if (c->beside)
                rows_beside_add(&c->batch[i]);
            else
                rows_apply(&c->batch[i], true);
        checker_budget();
    }
    SIM_SAY("batch of %zu rows%s: %s", c->n, sync ? ", synced" : "", fails ? "failed" : "done");
    sim_note(c->n << 8 | (unsigned)fails);
    batch_clear(c);
    takes_time(100); /* a kill may come between the batch and its return */
    if (!fails && sync && !sim_fault(FAULT_catalog_lost_flush) && !c->beside)
        rows_synced();
    return fails ? CS_EIO : CS_OK;
}
