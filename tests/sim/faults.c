/* What goes wrong in a seed: which faults the running processes meet and how often, and what becomes of
 * sectors, rows and volumes between two of them. */
#include "tests/sim/faults.h"

#include <string.h>

#include "tests/sim/checker.h"
#include "tests/sim/sim.h"

/* ---- of the running process
 * --------------------------------------------------------------------------------- */

static void odds_set(enum sim_fault fault, uint32_t most)
{
    sim.odds[fault] = 1 + sim_below(&sim.random_faults, most);
}

/* Faults of the running process. */
static const enum sim_fault running_faults[] = {
    FAULT_short_read,
    FAULT_short_write,
    FAULT_read_error,
    FAULT_write_error,
    FAULT_sync_error,
    FAULT_no_space,
    FAULT_interrupted,
    FAULT_again,
    FAULT_late,
    FAULT_lost_flush,
    FAULT_lost_write,
    FAULT_misdirected_write,
    FAULT_torn_write,
    FAULT_catalog_error,
    FAULT_catalog_lost_flush,
    FAULT_catalog_open_error,
    FAULT_catalog_scan_error,
    FAULT_call_error,
    FAULT_copy_error,
    FAULT_clock_jump,
};
static const enum sim_fault resting_faults[] = {
    FAULT_bit_flip,    FAULT_zero_page, FAULT_stale_page,   FAULT_swapped_chunks, FAULT_row_flip,
    FAULT_row_spoiled, FAULT_row_lost,  FAULT_catalog_lost, FAULT_volume_cut,     FAULT_volume_lost};
enum {
    N_RUNNING = sizeof running_faults / sizeof running_faults[0],
    N_RESTING = sizeof resting_faults / sizeof resting_faults[0]
};

void faults_plan(uint32_t *restore_deadline_ms)
{
    memset(sim.odds, 0, sizeof sim.odds);
    switch (sim_below(&sim.random_faults, 9)) {
    case 0:
    case 1:
        break;
    case 2:
        for (uint32_t n = 1 + sim_below(&sim.random_faults, 3); n > 0; n--)
            odds_set(resting_faults[sim_below(&sim.random_faults, N_RESTING)], 40000);
        break;
    case 3:
    case 4:
        odds_set(running_faults[sim_below(&sim.random_faults, N_RUNNING)], 9000);
        break;
    case 5:
        for (uint32_t n = 2 + sim_below(&sim.random_faults, 3); n > 0; n--)
            odds_set(running_faults[sim_below(&sim.random_faults, N_RUNNING)], 3000);
        break;
    case 6:
        for (uint32_t i = 0; i < N_RUNNING; i++)
            odds_set(running_faults[i], 500);
        for (uint32_t i = 0; i < N_RESTING; i++)
            odds_set(resting_faults[i], 12000);
        break;
    case 8:
        odds_set(FAULT_no_memory, 300);
        break;
    case 7:
        odds_set(FAULT_late, 12000);
        odds_set(FAULT_never, 800);
        *restore_deadline_ms =
            sim_below(&sim.random_faults, 4) > 0 ? 5 + sim_below(&sim.random_faults, 200) : 0;
        break;
    }
}

static bool rests(enum sim_fault fault)
{
    return sim_fault(fault);
}

static uint32_t chance(uint32_t n)
{
    return sim_below(&sim.random_faults, n);
}

/* A sector of a volume that something was written to. */
static uint8_t *any_sector(uint32_t *volume, uint64_t *sector)
{
    for (int i = 0; i < 20; i++) {
        *volume = chance(3);
        uint64_t n = files_volume_sectors(*volume);
        if (n == 0)
            continue;
        *sector = chance((uint32_t)n);
        uint8_t *bytes = files_sector(*volume, *sector);
        if (bytes != NULL)
            return bytes;
    }
    return NULL;
}

static void mark_damaged(uint32_t volume, uint64_t sector)
{
    struct sector_origin o = files_origin(volume, sector);
    o.damaged = true;
    files_set_origin(volume, sector, o);
    sim_count(COUNT_records_damaged, 1);
}

static void damage_rows(void)
{
    size_t i = rows_n() > 0 ? chance((uint32_t)rows_n()) : 0;
    uint64_t nonce, sequence;
    if (!rows_record(i, &nonce, &sequence))
        return;
    if (rests(FAULT_row_flip)) {
        checker_rows_flipped();
        rows_flip(i, sim_next(&sim.random_faults));
    } else if (rests(FAULT_row_spoiled)) {
        rows_spoil(i);
    } else if (rests(FAULT_row_lost)) {
        checker_row_damaged(nonce, sequence);
        rows_lose(i);
    }
}

static uint8_t kept[SECTOR]; /* a sector of some time ago */
static struct sector_origin kept_origin;

static void damage_sectors(void)
{
    uint32_t v, w;
    uint64_t a, b;
    uint8_t *bytes = any_sector(&v, &a);
    if (bytes == NULL)
        return;
    if (rests(FAULT_bit_flip)) {
        bytes[chance(SECTOR)] ^= (uint8_t)(1u << chance(8));
        mark_damaged(v, a);
    }
    if (rests(FAULT_zero_page)) {
        memset(bytes, 0, SECTOR);
        mark_damaged(v, a);
    }
    if (rests(FAULT_stale_page)) {
        uint8_t before[SECTOR];
        struct sector_origin origin = files_origin(v, a);
        memcpy(before, bytes, SECTOR);
        memcpy(bytes, kept, SECTOR);
        files_set_origin(v, a, kept_origin);
        memcpy(kept, before, SECTOR);
        kept_origin = origin;
        sim_count(COUNT_records_damaged, 1);
    }
    uint8_t *other = rests(FAULT_swapped_chunks) ? any_sector(&w, &b) : NULL;
    if (other != NULL && other != bytes) {
        struct sector_origin x = files_origin(v, a), y = files_origin(w, b);
        for (int i = 0; i < SECTOR; i++) {
            uint8_t byte = bytes[i];
            bytes[i] = other[i];
            other[i] = byte;
        }
        files_set_origin(v, a, y);
        files_set_origin(w, b, x);
        sim_count(COUNT_records_damaged, 2);
    }
}

void faults_between(void)
{
    for (int i = 0; i < 3; i++) {
        damage_rows();
        damage_sectors();
    }
    uint32_t volume = chance(2);
    uint64_t n = files_volume_sectors(volume);
    if (n > 0 && chance(4) == 0 && rests(FAULT_volume_cut))
        files_volume_cut(volume, chance((uint32_t)n));
    if (n > 0 && chance(4) == 0 && rests(FAULT_volume_lost))
        files_volume_lose(volume);
    if (chance(4) == 0 && rests(FAULT_catalog_lost))
        rows_lose_all();
}

void faults_reset(void)
{
    memset(kept, 0, sizeof kept);
    kept_origin = (struct sector_origin){0};
}
