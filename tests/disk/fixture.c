/*
 * Makes a store for the tests of cachestore-admin.
 *
 *   disk_fixture DIR make    a path of three spans (positions 0..40, 40..60, 60..64), a fork of the first
 *                            after its fourth page (16..24), one span of another tenant, checkpoints at 16
 *                            (system, 3 blocks) and 60 (turn, 30 blocks), one note; prints nothing
 *   disk_fixture DIR leftovers   the same, but the last span of the path and that of the other tenant were
 *                            evicted: their headers are left
 *   disk_fixture DIR many    150 spans of one page
 *   disk_fixture DIR two     adds two spans of one chunk each
 *   disk_fixture DIR empty   a store without records
 *   disk_fixture DIR count   opens it and prints how many records there are
 *   disk_fixture DIR hold    opens it, prints "open", holds it until stdin ends
 */
#include "tests/disk/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cachestore/key.h"

static struct cs_key write_span(struct rig *r, struct cs_key before, bool root, uint32_t first_position,
                                uint32_t n_pages, uint32_t salt, const struct cs_tenant *tenant,
                                struct cs_key *keys, struct record_id *id)
{
    struct span_io *s = span_make(r, salt, n_pages);
    key_pages(before, s->ids, n_pages, PT, keys);
    struct cs_key last = keys[n_pages - 1];
    s->w.record.key = keys[0];
    s->w.record.parent = root ? (struct cs_key){0, 0} : before;
    s->w.record.first_position = first_position;
    s->w.record.tenant = *tenant;
    span_write(s);
    tier_disk_kick(r->tier);
    if (span_wait(s) != TIER_OK)
        exit(1);
    struct cs_note note = {.key = {salt, 0}, .data = "x", .len = 1};
    struct note_record n = {
        .id = tier_disk_next_id(r->tier), .owner = s->w.record.id, .notes = &note, .n_notes = 1};
    if (id != NULL)
        *id = s->w.record.id;
    if (salt == 1 && tier_disk_write_notes(r->tier, &n) != CS_OK)
        exit(1);
    span_free(s);
    return last;
}

static void write_checkpoint(struct rig *r, struct cs_key before, uint32_t position, uint32_t n_blocks,
                             uint32_t salt, enum cs_boundary_kind kind)
{
    struct span_io *s = span_make(r, salt | CHECKPOINT, n_blocks);
    s->w.record.parent = before;
    s->w.record.first_position = position;
    s->w.record.flags = kind;
    span_write(s);
    tier_disk_kick(r->tier);
    if (span_wait(s) != TIER_OK)
        exit(1);
    span_free(s);
}

static void make(struct rig *r, bool leftovers)
{
    struct cs_tenant nobody = {{0}}, somebody = {{1, 2, 3}};
    struct cs_key keys[SPAN_PAGES_MAX];
    struct record_id last_id, other_id;
    struct cs_key seed = key_seed(r->secret, r->config.fingerprint, &nobody);
    struct cs_key last = write_span(r, seed, true, 0, 10, 1, &nobody, keys, NULL);
    struct cs_key fork = keys[3];
    last = write_span(r, last, false, 40, 5, 2, &nobody, keys, NULL);
    write_checkpoint(r, last, 60, 30, 6, CS_BOUNDARY_TURN);
    write_checkpoint(r, fork, 16, 3, 7, CS_BOUNDARY_SYSTEM);
    write_span(r, last, false, 60, 1, 3, &nobody, keys, &last_id);
    write_span(r, fork, false, 16, 2, 4, &nobody, keys, NULL);
    seed = key_seed(r->secret, r->config.fingerprint, &somebody);
    write_span(r, seed, true, 0, 6, 5, &somebody, keys, &other_id);
    if (!leftovers)
        return;
    tier_disk_delete(r->tier, last_id);
    tier_disk_delete(r->tier, other_id);
    if (!wait_until(deletes_done, r))
        exit(1);
}

enum { MANY = 150 };

static void add_spans(struct rig *r, uint32_t n)
{
    struct span_io *spans[MANY];
    for (uint32_t i = 0; i < n; i++) {
        spans[i] = span_make(r, 100 + i, 1);
        span_write(spans[i]);
    }
    tier_disk_kick(r->tier);
    for (uint32_t i = 0; i < n; i++) {
        if (span_wait(spans[i]) != TIER_OK)
            exit(1);
        span_free(spans[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct rig r;
    rig_init(&r);
    remove_tree(r.dir);
    r.takes_any_row = true;
    snprintf(r.dir, sizeof r.dir, "%s", argv[1]);
    char err[256];
    if (rig_try_open(&r, err, sizeof err) != CS_OK) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    if (strcmp(argv[2], "make") == 0 || strcmp(argv[2], "leftovers") == 0) {
        make(&r, strcmp(argv[2], "leftovers") == 0);
    } else if (strcmp(argv[2], "many") == 0) {
        add_spans(&r, MANY);
    } else if (strcmp(argv[2], "two") == 0) {
        add_spans(&r, 2);
    } else if (strcmp(argv[2], "count") == 0) {
        printf("%zu\n", r.n_seen);
    } else if (strcmp(argv[2], "hold") == 0) {
        char byte;
        puts("open");
        fflush(stdout);
        while (read(STDIN_FILENO, &byte, 1) > 0)
            ;
    }
    rig_close(&r);
    free(r.seen);
    return 0;
}
