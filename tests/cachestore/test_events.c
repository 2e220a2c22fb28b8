/* What the store says of troubles while it runs: each once when it begins and once when it has ended. */
#include "cachestore/store.h"
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/fake_tier.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { N = 41, LINES_MOST = 32 };

static struct {
    pthread_mutex_t lock;
    char line[LINES_MOST][256];
    unsigned n;
    const struct cs_store *store; /* whose lock nobody may hold who says something; NULL: not open yet */
} said = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    pthread_mutex_lock(&said.lock);
    if (said.n < LINES_MOST)
        snprintf(said.line[said.n++], sizeof said.line[0], "%s", line);
    struct cs_store *s = (struct cs_store *)said.store;
    pthread_mutex_unlock(&said.lock);
    /* It would wait here for ever. */
    if (s) {
        pthread_mutex_lock(&s->lock);
        pthread_mutex_unlock(&s->lock);
    }
}

static unsigned lines_with(const char *text)
{
    unsigned n = 0;
    pthread_mutex_lock(&said.lock);
    for (unsigned i = 0; i < said.n; i++)
        n += strstr(said.line[i], text) != NULL;
    pthread_mutex_unlock(&said.lock);
    return n;
}

static void wait_for_line(const char *text)
{
    for (time_t start = time(NULL); lines_with(text) == 0;
         nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL))
        assert_true(time(NULL) - start < 20);
}

static struct cs_store *open_said(struct fake_tier *f, struct cs_config *c)
{
    said.n = 0;
    said.store = NULL;
    c->log = on_log;
    struct cs_store *s = fake_open(f, c);
    pthread_mutex_lock(&said.lock);
    said.store = s;
    pthread_mutex_unlock(&said.lock);
    return s;
}

/* Closes; all that was said are these lines, each once. */
static void close_said(struct cs_store *s, struct fake_tier *f, const char *begins, const char *ended)
{
    assert_int_equal(lines_with("prefix cache"), 1); /* it has not ended yet */
    settle_store(s, f);
    said.store = NULL; /* what is said at last is said while it closes */
    cs_close(s, 0);
    assert_int_equal(lines_with(begins), 1);
    assert_int_equal(lines_with(ended), 1);
    assert_int_equal(lines_with(""), 2);
}

static void restores_that_are_late_are_said_in_two_lines(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(32);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    c.restore_deadline_ms = 1;
    struct cs_store *s = open_said(&f, &c);
    store_durably(&f, s, ids, 40);
    assert_int_equal(lines_with(""), 0); /* nothing of normal work */
    for (unsigned i = 0; i < 3; i++) {
        empty_device(s);
        struct cs_sequence *q = open_loading(s, ids, N);
        assert_int_equal(wait_settled(q).miss, CS_MISS_DEADLINE);
        cs_sequence_close(q);
        fake_finish_reads(&f, TIER_OK);
        wait_for_line("a restore of 40 tokens had not come after");
    }
    close_said(s, &f, "its deadline", "late were 3");
    fake_free(&f);
}

static void a_quota_that_refuses_is_said_with_its_tenant(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(32);
    const struct cs_tenant tenant = {.id = {0x05, 0xcd}};
    struct cs_store *s = open_said(&f, &c);
    uint32_t ids[N];
    assert_int_equal(cs_quota_set(s, &tenant, &(struct cs_quota){.disk_bytes = 1}), CS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        make_ids(ids, N, 0, i + 1);
        round_trip(s, &tenant, ids, 4);
        cs_flush(s, 0);
    }
    wait_for_line("the quota of tenant 05cd0000000000000000000000000000 has no room");
    char ended[64];
    snprintf(ended, sizeof ended, "refused were %llu", (unsigned long long)stats_of(s).dropped_quota);
    assert_true(stats_of(s).dropped_quota >= 2);
    close_said(s, &f, "the quota of tenant", ended);
    fake_free(&f);
}

static void a_disk_without_room_and_a_day_without_bytes_are_said(void **state)
{
    (void)state;
    for (unsigned day = 0; day < 2; day++) {
        struct fake_tier f = {0};
        struct cs_config c = tiny_config(32);
        f.budget = day ? 0 : 1;
        c.disk_bytes_a_day = day ? 1 : 0;
        struct cs_store *s = open_said(&f, &c);
        uint32_t ids[N];
        for (uint32_t i = 0; i < 3; i++) { /* a little of the day may have passed before the first */
            make_ids(ids, N, 0, i + 1);
            round_trip(s, NULL, ids, 4);
            cs_flush(s, 0);
        }
        struct cs_stats st = stats_of(s);
        char ended[64];
        uint64_t n = day ? st.dropped_endurance : st.dropped_disk_full;
        assert_true(n >= 2);
        snprintf(ended, sizeof ended, day ? "left out were %llu" : "none was there for %llu",
                 (unsigned long long)n);
        const char *begins = day ? "of the 1 bytes that a day may have" : "no room for a record of";
        wait_for_line(begins);
        close_said(s, &f, begins, ended);
        fake_free(&f);
    }
}

static void the_host_tier_says_that_it_is_in_place_and_what_was_wrong_with_it(void **state)
{
    (void)state;
    for (unsigned damaged = 0; damaged < 2; damaged++) {
        struct fake_tier f = {0};
        struct cs_config c = tiny_config(32);
        c.host_bytes = 64 * (uint64_t)PAGE;
        c.device = fake_device_open(false);
        struct cs_store *s = open_said(&f, &c);
        uint32_t ids[N];
        make_ids(ids, N, N, 0);
        wait_for_line("all 262144 bytes of host memory are in place");
        assert_int_equal(lines_with(""), 1);
        pthread_mutex_lock(&said.lock);
        said.n = 0;
        pthread_mutex_unlock(&said.lock);
        round_trip(s, NULL, ids, 40);
        fake_finish_everything(&f);
        empty_device(s);
        uint64_t rng = 1;
        if (damaged)
            assert_true(damage_host_block(s, &rng));
        struct cs_sequence *q = open_loading(s, ids, N);
        while (fake_device_n_queued() > 0)
            fake_device_finish(0, damaged || fake_device_n_queued() > 1);
        wait_settled(q);
        cs_sequence_close(q);
        wait_for_line(damaged ? "is not what was put there" : "a copy between device and host failed");
        close_said(s, &f, damaged ? "host memory has at token" : "a copy",
                   damaged ? "wrong were 1" : "failed had 1");
        fake_device_close();
        fake_free(&f);
    }
}

/* A minute is long for a test: it is said to have passed. */
static void what_has_ended_is_said_by_the_keeper_in_time(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(8);
    struct cs_store *s = open_said(&f, &c);
    pthread_mutex_lock(&s->lock);
    events_note_locked(s, EVENT_COPY_FAILED, &(struct cs_tenant){0}, 0, 0);
    assert_true(events_due_ns_locked(s) > store_now_ns());
    pthread_mutex_unlock(&s->lock);
    wait_for_line("a copy between device and host failed");
    pthread_mutex_lock(&s->lock);
    s->events[EVENT_COPY_FAILED].episode.last_ms -= EPISODE_QUIET_MS;
    pthread_cond_signal(&s->keeper_wake);
    pthread_mutex_unlock(&s->lock);
    wait_for_line("failed had 1");
    said.store = NULL;
    cs_close(s, 0);
    assert_int_equal(lines_with(""), 2);
    fake_free(&f);
}

static void records_that_leave_for_a_smaller_budget_are_said_at_open(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(32);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct cs_store *s = open_said(&f, &c);
    store_durably(&f, s, ids, 40);
    said.store = NULL;
    cs_close(s, 0);
    assert_int_equal(lines_with(""), 0);
    size_t before = f.n_records;
    f.budget = 2 * SPAN_BYTES;
    s = open_said(&f, &c);
    char line[64];
    snprintf(line, sizeof line, "at open: %zu for the disk's budget", before - f.n_records);
    assert_true(before > f.n_records);
    assert_int_equal(lines_with(line), 1);
    assert_int_equal(lines_with(""), 1);
    said.store = NULL;
    cs_close(s, 0);
    fake_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restores_that_are_late_are_said_in_two_lines),
        cmocka_unit_test(a_quota_that_refuses_is_said_with_its_tenant),
        cmocka_unit_test(a_disk_without_room_and_a_day_without_bytes_are_said),
        cmocka_unit_test(the_host_tier_says_that_it_is_in_place_and_what_was_wrong_with_it),
        cmocka_unit_test(what_has_ended_is_said_by_the_keeper_in_time),
        cmocka_unit_test(records_that_leave_for_a_smaller_budget_are_said_at_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
