/* Checkpoints over the disk tier in memory: written after their grace, read back with their path, thinned. */
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"
#include "tests/cachestore/stateful.h"

#include "cachestore/store.h"

enum { N = 400 };

static const struct cs_boundary system_only[] = {{.position = 21, .kind = CS_BOUNDARY_SYSTEM}};

static struct cs_config disk_config(uint32_t arena_pages, uint32_t grace_ms)
{
    struct cs_config c = stateful_config(arena_pages);
    c.checkpoint_grace_ms = grace_ms;
    return c;
}

static size_t checkpoint_records(const struct fake_tier *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_records; i++)
        n += f->records[i].record.kind == RECORD_CHECKPOINT;
    return n;
}

static void end(struct cs_store *s, struct fake_tier *f)
{
    fake_finish_reads(f, TIER_OK);
    fake_finish_writes(f, TIER_OK);
    check_balance(s);
    assert_int_equal(stats_of(s).pages_live, 0);
    cs_close(s, 0);
}

/* A store with one path of 100 tokens on disk: checkpoints at 16, 56 (a prompt's end) and 96. */
static struct cs_store *store_one_path(struct fake_tier *f, const struct cs_config *c, const uint32_t *ids)
{
    struct cs_store *s = fake_open(f, c);
    assert_int_equal(
        run_turn(s, c, 0, ids, 60, 100, (struct cs_boundary[]){system_only[0], {60, CS_BOUNDARY_END}}, 2), 0);
    assert_int_equal(cs_flush(s, 0), CS_EIO); /* nobody finishes the writes meanwhile */
    fake_finish_writes(f, TIER_OK);
    assert_int_equal(checkpoint_records(f), 3);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    return s;
}

static void a_restart_resumes_at_the_deepest_checkpoint_with_one_submission(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(300, 0);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    cs_close(store_one_path(&f, &c, ids), 0);
    struct cs_store *s = fake_open(&f, &c);
    assert_int_equal(stats_of(s).checkpoints, 3);
    struct run r;
    run_open(&r, s, &c, 0, ids, 120);
    assert_false(run_settle(&r));
    assert_int_equal(f.n_read_calls, 1);
    fake_finish_reads(&f, TIER_OK);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 96);
    assert_int_equal(r.reuse.tokens_disk, 96);
    assert_int_equal(run_compute(&r, 120, 10), CS_OK);
    run_publish(&r);
    run_close(&r);
    /* Now it is resident. */
    assert_int_equal(run_start(&r, s, &c, 0, ids, 120), 96);
    assert_int_equal(r.reuse.tokens_device, 96);
    run_close(&r);
    end(s, &f);
    fake_free(&f);
}

static void two_sequences_share_the_load_of_a_checkpoint(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(300, 0);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    cs_close(store_one_path(&f, &c, ids), 0);
    struct cs_store *s = fake_open(&f, &c);
    struct run a, b;
    run_open(&a, s, &c, 0, ids, 120);
    size_t reads = f.n_reads;
    run_open(&b, s, &c, 0, ids, 120);
    assert_int_equal(f.n_reads, reads);
    assert_false(run_settle(&b));
    run_close(&a); /* the other one still waits */
    fake_finish_reads(&f, TIER_OK);
    assert_true(run_settle(&b));
    assert_int_equal(b.n_computed, 96);
    run_close(&b);
    end(s, &f);
    fake_free(&f);
}

static void a_checkpoint_that_cannot_be_read_gives_way_to_a_resident_one(void **state)
{
    (void)state;
    static const struct {
        enum tier_result result;
        enum cs_miss miss;
    } cases[] = {{TIER_EIO, CS_MISS_IO}, {TIER_CORRUPT_PAYLOAD, CS_MISS_CORRUPT}};
    for (size_t k = 0; k < 2; k++) {
        struct fake_tier f = {.allow_parent_delete = true};
        struct cs_config c = disk_config(300, 0);
        uint32_t ids[N];
        make_ids(ids, N, N, 0);
        cs_close(store_one_path(&f, &c, ids), 0);
        struct cs_store *s = fake_open(&f, &c);
        struct run r;
        run_open(&r, s, &c, 0, ids, 61);
        fake_finish_reads(&f, TIER_OK);
        assert_true(run_settle(&r));
        assert_int_equal(r.n_computed, 56);
        run_close(&r);
        run_open(&r, s, &c, 0, ids, 120);
        /* All pages land, the state does not. */
        bool failed = false;
        while (f.n_reads > 0) {
            bool checkpoint = f.reads[0]->record.kind == RECORD_CHECKPOINT;
            failed = failed || checkpoint;
            fake_finish_read(&f, 0, checkpoint ? cases[k].result : TIER_OK);
        }
        assert_true(failed);
        assert_true(run_settle(&r));
        assert_int_equal(r.n_computed, 56);
        assert_int_equal(r.reuse.tokens_matched, 100);
        assert_int_equal(r.reuse.miss, cases[k].miss);
        /* It is gone, and said to be until it is computed anew. */
        assert_int_equal(checkpoint_records(&f), 2);
        assert_int_equal(stats_of(s).checkpoints, 2);
        assert_int_equal(run_compute(&r, 100, 100), CS_OK);
        assert_int_equal(run_capture(&r), CS_OK);
        run_publish(&r);
        run_close(&r);
        assert_int_equal(run_start(&r, s, &c, 0, ids, 120), 96);
        run_close(&r);
        cs_flush(s, 0);
        fake_finish_writes(&f, TIER_OK);
        assert_int_equal(checkpoint_records(&f), 3);
        end(s, &f);
        fake_free(&f);
    }
}

/* The state fails while the pages are still being read: they are waited for no longer, and that is not what
 * ended the reuse. */
static void a_state_that_fails_before_its_pages_land_is_the_reason(void **state)
{
    (void)state;
    static const struct {
        enum tier_result result;
        enum cs_miss miss;
    } cases[] = {{TIER_EIO, CS_MISS_IO}, {TIER_CORRUPT_PAYLOAD, CS_MISS_CORRUPT}};
    for (size_t k = 0; k < 4; k++) {
        struct fake_tier f = {.allow_parent_delete = true};
        struct cs_config c = disk_config(300, 0);
        uint32_t ids[N], resumes_at = k % 2 ? 56 : 0;
        make_ids(ids, N, N, 0);
        cs_close(store_one_path(&f, &c, ids), 0);
        struct cs_store *s = fake_open(&f, &c);
        struct run r;
        if (resumes_at > 0) {
            run_open(&r, s, &c, 0, ids, 61);
            fake_finish_reads(&f, TIER_OK);
            assert_true(run_settle(&r));
            run_close(&r);
        }
        run_open(&r, s, &c, 0, ids, 120);
        size_t i = 0;
        while (f.reads[i]->record.kind != RECORD_CHECKPOINT)
            i++;
        assert_true(f.n_reads > 1);
        fake_finish_read(&f, i, cases[k / 2].result);
        assert_true(run_settle(&r));
        assert_int_equal(r.n_computed, resumes_at);
        assert_int_equal(r.reuse.miss, cases[k / 2].miss);
        run_close(&r);
        end(s, &f);
        fake_free(&f);
    }
}

static unsigned turn_at(struct run *r, uint32_t position)
{
    pthread_mutex_lock(&r->s->lock);
    const struct span *c = checkpoint_at_locked(r->s, r->q->place, r->q->place_ordinal, position);
    assert_non_null(c);
    assert_true(index_is_resident(c) && c->rank[RANK_DEVICE].ranked);
    unsigned turn = c->rank[RANK_DEVICE].turn;
    pthread_mutex_unlock(&r->s->lock);
    return turn;
}

/* While it is held, a checkpoint that landed is worth keeping to the last; whoever held it gave up before its
 * pages came, or resumed at another one. */
static void a_checkpoint_that_was_held_for_nothing_is_ranked_again(void **state)
{
    (void)state;
    for (int closed = 0; closed < 2; closed++) {
        struct fake_tier f = {.allow_parent_delete = true};
        struct cs_config c = disk_config(300, 0);
        uint32_t ids[N];
        make_ids(ids, N, N, 0);
        cs_close(store_one_path(&f, &c, ids), 0);
        struct cs_store *s = fake_open(&f, &c);
        struct run r;
        run_open(&r, s, &c, 0, ids, 120);
        size_t i = 0;
        while (f.reads[i]->record.kind != RECORD_CHECKPOINT)
            i++;
        fake_finish_read(&f, i, TIER_OK);
        struct span *end_of_path = r.q->place;
        uint32_t ordinal = r.q->place_ordinal;
        assert_int_equal(turn_at(&r, 96), EVICT_WAITING_LAST);
        if (closed) {
            run_close(&r);
        } else {
            assert_int_equal(f.reads[0]->record.first_position, 0);
            fake_finish_read(&f, 0, TIER_EIO);
            assert_true(run_settle(&r));
            assert_int_equal(r.n_computed, 0);
        }
        struct cs_sequence at = {.s = s, .place = end_of_path, .place_ordinal = ordinal};
        struct run there = {.s = s, .q = &at};
        assert_true(turn_at(&there, 96) < EVICT_WAITING_LAST);
        if (!closed)
            run_close(&r);
        end(s, &f);
        fake_free(&f);
    }
}

static void behind_the_deadline_the_resident_one_serves(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(300, 0);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    cs_close(store_one_path(&f, &c, ids), 0);
    c.restore_deadline_ms = 1;
    struct cs_store *s = fake_open(&f, &c);
    struct run r;
    do { /* a run that lands before its deadline, to have something resident */
        run_open(&r, s, &c, 0, ids, 61);
        fake_finish_reads(&f, TIER_OK);
        assert_true(run_settle(&r));
        run_close(&r);
    } while (r.n_computed != 56);
    run_open(&r, s, &c, 0, ids, 120);
    assert_true(f.n_reads > 0);
    wait_settled(r.q);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 56);
    assert_int_equal(r.reuse.miss, CS_MISS_DEADLINE);
    assert_int_equal(run_compute(&r, 100, 100), CS_OK);
    fake_finish_reads(&f, TIER_OK); /* late: into pages that are nobody else's */
    assert_int_equal(run_compute(&r, 120, 5), CS_OK);
    run_publish(&r);
    run_close(&r);
    end(s, &f);
    fake_free(&f);
}

static void what_is_thinned_within_its_grace_is_never_written(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(2000, 1000000);
    c.checkpoints_a_path = 3;
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct cs_store *s = fake_open(&f, &c);
    for (uint32_t n = 20; n + 17 < N; n += 34) {
        run_turn(s, &c, 0, ids, n, n + 17, system_only, 1);
        fake_finish_writes(&f, TIER_OK);
    }
    struct cs_stats st = stats_of(s);
    assert_true(st.thinned_checkpoints > 5);
    assert_int_equal(checkpoint_records(&f), 0);
    assert_true(st.pending_bytes > 0);
    cs_flush(s, 0);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(checkpoint_records(&f), 3);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    end(s, &f);
    fake_free(&f);
}

/* 4 messages or 90 in the same tokens, published in one call: the same captures, rows and reads. */
static void cost_follows_bytes_and_not_boundaries(void **state)
{
    (void)state;
    size_t rows[2], reads[2];
    for (int many = 0; many < 2; many++) {
        struct fake_tier f = {0};
        struct cs_config c = disk_config(600, UINT32_MAX);
        uint32_t ids[N], n_boundaries = many ? 90 : 8;
        struct cs_boundary b[90];
        make_ids(ids, N, N, 0);
        for (uint32_t i = 0; i < n_boundaries; i++)
            b[i] = (struct cs_boundary){.position = 360 * (i + 1) / n_boundaries, .kind = CS_BOUNDARY_TURN};
        struct cs_store *s = fake_open(&f, &c);
        assert_int_equal(run_turn(s, &c, 0, ids, 361, 361, b, n_boundaries), 0);
        fake_finish_writes(&f, TIER_OK);
        struct cs_stats st = stats_of(s);
        assert_int_equal(st.captures, 8);
        assert_int_equal(st.publishes, 1);
        assert_int_equal(st.thinned_checkpoints, 0);
        rows[many] = f.n_records;
        cs_close(s, 0);
        s = fake_open(&f, &c);
        run_fake = &f;
        struct run r;
        assert_int_equal(run_start(&r, s, &c, 0, ids, 361), 360);
        run_fake = NULL;
        run_close(&r);
        assert_int_equal(f.n_read_calls, 1);
        reads[many] = f.n_reads_queued;
        end(s, &f);
        fake_free(&f);
    }
    assert_int_equal(rows[0], rows[1]);
    assert_int_equal(rows[0], 30 + 8); /* spans of three pages, and checkpoints */
    assert_int_equal(reads[0], reads[1]);
}

static void the_grace_is_ten_seconds_where_nothing_is_said(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(300, 0);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct cs_store *s = fake_open(&f, &c);
    const uint64_t grace_ns = 10000000000ull, before = store_now_ns();
    assert_int_equal(run_turn(s, &c, 0, ids, 60, 100, system_only, 1), 0);
    uint64_t after = store_now_ns();
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(checkpoint_records(&f), 0);
    pthread_mutex_lock(&s->lock);
    for (const struct span *sp = s->grace.first; sp; sp = sp->backlog_next)
        assert_in_range(sp->write_due_ns, before + grace_ns, after + grace_ns);
    assert_non_null(s->grace.first);
    pthread_mutex_unlock(&s->lock);
    cs_flush(s, 0);
    end(s, &f);
    fake_free(&f);
}

static void the_grace_ends_by_itself(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(300, 1);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct cs_store *s = fake_open(&f, &c);
    run_turn(s, &c, 0, ids, 40, 50, NULL, 0);
    uint64_t start = store_now_ns();
    bool queued = false;
    while (!queued && store_now_ns() - start < 20ull * 1000000000) {
        pthread_mutex_lock(&s->lock);
        queued = s->grace.first == NULL;
        pthread_mutex_unlock(&s->lock);
    }
    assert_true(queued);
    pthread_mutex_lock(&s->lock); /* the keeper is done with the queue */
    pthread_mutex_unlock(&s->lock);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(checkpoint_records(&f), 1);
    end(s, &f);
    fake_free(&f);
}

static void a_checkpoint_thinned_while_it_is_written_leaves_no_record(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(2000, UINT32_MAX);
    c.checkpoints_a_path = 2;
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct cs_store *s = fake_open(&f, &c);
    for (uint32_t n = 20; n < 150; n += 20)
        run_turn(s, &c, 0, ids, n, n + 10, NULL, 0); /* the writes stay in the queue */
    struct cs_stats st = stats_of(s);
    assert_true(st.thinned_checkpoints > 2);
    assert_int_equal(st.checkpoints, 2);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(checkpoint_records(&f), 2);
    assert_int_equal(stats_of(s).spans, st.spans); /* those on their way out were not counted as spans */
    recount(s);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    end(s, &f);
    fake_free(&f);
}

static void a_checkpoint_thinned_while_it_is_read_serves_who_waits(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(2000, UINT32_MAX);
    uint32_t ids[N], b[N];
    make_ids(ids, N, N, 0);
    cs_close(store_one_path(&f, &c, ids), 0);
    c.checkpoints_a_path = 2;
    struct cs_store *s = fake_open(&f, &c);
    make_ids(b, N, 60, 1);
    struct run waits, r;
    run_open(&waits, s, &c, 0, b, 70);
    assert_true(f.n_reads > 0);
    /* The path grows: what the other one waits for is interior now. */
    run_open(&r, s, &c, 0, ids, 140);
    while (f.n_reads > 0 && !run_settle(&r))
        for (size_t i = 0; i < f.n_reads; i++)
            if (f.reads[i]->record.kind == RECORD_SPAN || f.reads[i]->record.first_position == 96) {
                fake_finish_read(&f, i, TIER_OK);
                break;
            }
    assert_int_equal(r.n_computed, 96);
    assert_int_equal(run_compute(&r, 140, 140), CS_OK);
    assert_int_equal(run_capture(&r), CS_OK);
    run_publish(&r);
    run_close(&r);
    assert_int_equal(stats_of(s).checkpoints, 2);
    assert_int_equal(f.n_reads, 1);
    fake_finish_reads(&f, TIER_OK);
    assert_true(run_settle(&waits));
    assert_int_equal(waits.n_computed, 56);
    run_close(&waits);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(checkpoint_records(&f), 2);
    end(s, &f);
    fake_free(&f);
}

static void rows_of_checkpoints_without_their_span_are_deleted_at_open(void **state)
{
    (void)state;
    struct fake_tier f = {.allow_parent_delete = true};
    struct cs_config c = disk_config(300, 0);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    cs_close(store_one_path(&f, &c, ids), 0);
    /* The span with the page before 96 is lost, and with it the last one. */
    size_t last = 0;
    while (f.records[last].record.kind != RECORD_SPAN || f.records[last].record.first_position != 84)
        last++;
    fake_vtable.delete_span((struct tier_disk *)&f, f.records[last].record.id);
    struct cs_store *s = fake_open(&f, &c);
    assert_int_equal(checkpoint_records(&f), 2);
    assert_int_equal(stats_of(s).checkpoints, 2);
    struct run r;
    run_open(&r, s, &c, 0, ids, 120);
    fake_finish_reads(&f, TIER_OK);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 56);
    run_close(&r);
    end(s, &f);
    fake_free(&f);
}

/* State of three blocks and no windows: whoever resumes holds nothing else of a checkpoint. */
static struct cs_config state_config(uint32_t arena_pages, uint32_t grace_ms)
{
    struct cs_config c = disk_config(arena_pages, grace_ms);
    c.window_groups = c.window_tokens = 0;
    return c;
}

/* The deepest one is on disk and there is no room to read it, because the rest of the arena is in use or on
 * its way to disk: what making room takes is the node of the one that is held in its place. */
static void the_resident_one_serves_when_making_room_forgets_it(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = state_config(40, UINT32_MAX);
    uint32_t ids[N], b[N];
    make_ids(ids, N, N, 0);
    make_ids(b, N, 40, 1);
    struct cs_store *s = fake_open(&f, &c);
    assert_int_equal(run_turn(s, &c, 0, ids, 100, 101, NULL, 0), 0); /* a checkpoint at 96 */
    fake_finish_writes(&f, TIER_OK);
    cs_close(s, 0);
    c.checkpoint_grace_ms = 1000000;
    s = fake_open(&f, &c);
    assert_int_equal(run_turn(s, &c, 0, b, 57, 57, NULL, 0), 0); /* another one where the paths part, at 40 */
    assert_int_equal(stats_of(s).checkpoints, 2);
    assert_true(f.n_writes > 0);
    struct cs_reuse reuse;
    struct cs_sequence *filler = open_settled(s, NULL, NULL, 0, &reuse);
    assert_int_equal(cs_sequence_grow(filler, stats_of(s).pages_free * PT), CS_OK);
    assert_int_equal(stats_of(s).evicted_device_checkpoints, 0);

    struct run r;
    run_open(&r, s, &c, 0, ids, 120);
    assert_int_equal(stats_of(s).evicted_device_checkpoints, 1);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 40);
    assert_int_equal(r.reuse.miss, CS_MISS_ARENA_FULL);
    assert_int_equal(f.n_reads, 0);
    recount(s);
    run_close(&r);
    cs_sequence_close(filler);
    recount(s);
    end(s, &f);
    fake_free(&f);
}

static void on_a_small_disk_checkpoints_leave_before_their_spans(void **state)
{
    (void)state;
    struct fake_tier f = {.budget = 60 * PAGE}; /* checks each delete and the budget */
    struct cs_config c = disk_config(120, UINT32_MAX);
    uint32_t ids[N];
    struct cs_store *s = fake_open(&f, &c);
    run_fake = &f;
    for (uint32_t k = 1; k < 30; k++) {
        make_ids(ids, N, 16, k);
        run_turn(s, &c, 0, ids, 40, 61, system_only, 1);
        fake_finish_writes(&f, TIER_OK);
        check_balance(s);
    }
    assert_true(stats_of(s).evicted_disk_checkpoints > 5);
    assert_true(stats_of(s).evicted_disk_spans > 5);
    assert_true(checkpoint_records(&f) > 0);
    run_fake = NULL;
    cs_close(s, 0);
    s = fake_open(&f, &c);
    /* Every row still leads somewhere. */
    assert_int_equal(records_known(s), f.n_records);
    end(s, &f);
    fake_free(&f);
}

/* At 8, 12 and 20, windows of three pages: of the first two no block is one's alone until the third has left,
 * which stays on disk. */
static void a_checkpoint_gives_room_once_who_shared_its_blocks_has_left(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = disk_config(60, 0);
    c.state_bytes = 0;
    c.grid_tokens = PT;
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    const struct cs_boundary b[] = {{.position = 8, .kind = CS_BOUNDARY_SYSTEM},
                                    {.position = 12, .kind = CS_BOUNDARY_TURN}};
    assert_int_equal(run_turn(s, &c, 0, ids, 17, 21, b, 2), 0);
    assert_int_equal(cs_flush(s, 0), CS_EIO);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(checkpoint_records(&f), 3);
    struct run r; /* so the one at 8 is the next to leave, were they worth the same */
    assert_int_equal(run_start(&r, s, &c, 0, ids, 16), 12);
    run_close(&r);
    set_quota(s, &(struct cs_tenant){{0}}, (struct cs_quota){.device_bytes = 1});
    assert_int_equal(stats_of(s).pages_cached, 0);
    end(s, &f);
    fake_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_resumes_at_the_deepest_checkpoint_with_one_submission),
        cmocka_unit_test(two_sequences_share_the_load_of_a_checkpoint),
        cmocka_unit_test(a_checkpoint_that_cannot_be_read_gives_way_to_a_resident_one),
        cmocka_unit_test(a_state_that_fails_before_its_pages_land_is_the_reason),
        cmocka_unit_test(a_checkpoint_that_was_held_for_nothing_is_ranked_again),
        cmocka_unit_test(behind_the_deadline_the_resident_one_serves),
        cmocka_unit_test(what_is_thinned_within_its_grace_is_never_written),
        cmocka_unit_test(cost_follows_bytes_and_not_boundaries),
        cmocka_unit_test(the_grace_ends_by_itself),
        cmocka_unit_test(the_grace_is_ten_seconds_where_nothing_is_said),
        cmocka_unit_test(a_checkpoint_thinned_while_it_is_written_leaves_no_record),
        cmocka_unit_test(a_checkpoint_thinned_while_it_is_read_serves_who_waits),
        cmocka_unit_test(rows_of_checkpoints_without_their_span_are_deleted_at_open),
        cmocka_unit_test(the_resident_one_serves_when_making_room_forgets_it),
        cmocka_unit_test(on_a_small_disk_checkpoints_leave_before_their_spans),
        cmocka_unit_test(a_checkpoint_gives_room_once_who_shared_its_blocks_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
