/*
 * Makes a store for the tests of cachestore-admin.
 *
 *   disk_fixture DIR make    a path of three spans (positions 0..40, 40..60, 60..64), a fork of the first
 *                            after its fourth page (16..24), one span of another tenant, checkpoints at 16
 *                            (system, 3 blocks) and 60 (turn, 30 blocks), one note; prints nothing
 *   disk_fixture DIR empty   a store without records
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
                                struct cs_key *keys)
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

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct cs_tenant nobody = {{0}}, somebody = {{1, 2, 3}};
    struct cs_key keys[SPAN_PAGES_MAX];
    struct rig r;
    rig_init(&r);
    remove_tree(r.dir);
    snprintf(r.dir, sizeof r.dir, "%s", argv[1]);
    char err[256];
    if (rig_try_open(&r, err, sizeof err) != CS_OK) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    if (strcmp(argv[2], "make") == 0) {
        struct cs_key seed = key_seed(r.secret, r.config.fingerprint, &nobody);
        struct cs_key last = write_span(&r, seed, true, 0, 10, 1, &nobody, keys);
        struct cs_key fork = keys[3];
        last = write_span(&r, last, false, 40, 5, 2, &nobody, keys);
        write_checkpoint(&r, last, 60, 30, 6, CS_BOUNDARY_TURN);
        write_checkpoint(&r, fork, 16, 3, 7, CS_BOUNDARY_SYSTEM);
        write_span(&r, last, false, 60, 1, 3, &nobody, keys);
        write_span(&r, fork, false, 16, 2, 4, &nobody, keys);
        write_span(&r, key_seed(r.secret, r.config.fingerprint, &somebody), true, 0, 6, 5, &somebody, keys);
    } else if (strcmp(argv[2], "hold") == 0) {
        char byte;
        puts("open");
        fflush(stdout);
        while (read(STDIN_FILENO, &byte, 1) > 0)
            ;
    }
    rig_close(&r);
    return 0;
}
