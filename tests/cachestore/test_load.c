/*
 * Rows of a disk tier become spans when a store opens: whichever order they come in, and whatever is wrong
 * with some, exactly those are kept that a plain search says are reachable, and the others are deleted. Few
 * rows and many, for many are prepared by a thread while they come.
 */
#include "cachestore/key.h"
#include "cachestore/store.h"
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"

#include <stdlib.h>
#include <string.h>

enum { NO_ROW = -1, ROOT = -2 };

/* What the plain search knows of a row. */
struct facts {
    struct cs_key page_key[SPAN_PAGES];
    int parent; /* the row that it hangs on; NO_ROW: it is not kept */
    uint32_t ordinal;
    uint32_t skip; /* it is kept for its pages behind these, which others have, and without bytes */
};

static void keys_of(const struct span_record *r, struct cs_key *keys)
{
    uint8_t secret[16];
    static const uint8_t fingerprint[32];
    memset(secret, 42, sizeof secret);
    key_pages(r->first_position > 0 ? r->parent : key_seed(secret, fingerprint, &r->tenant), r->ids,
              r->n_pages, PT, keys);
}

static void ids_set(struct span_record *r, const uint32_t *ids)
{
    uint32_t *copy = malloc(SPAN_PAGES * PT * sizeof *copy);
    memcpy(copy, ids, r->n_pages * PT * sizeof *copy);
    r->ids = copy;
}

/* A row below page `ordinal` of another (NULL: a root). */
static struct span_record row_below(const struct span_record *parent, uint32_t ordinal, uint64_t *rng)
{
    uint32_t ids[SPAN_PAGES * PT];
    for (size_t i = 0; i < SPAN_PAGES * PT; i++)
        ids[i] = (uint32_t)random_next(rng) % 1000;
    struct span_record r = {.kind = RECORD_SPAN, .n_pages = 1 + random_next(rng) % SPAN_PAGES};
    if (parent != NULL) {
        struct cs_key keys[SPAN_PAGES];
        keys_of(parent, keys);
        r.parent = keys[ordinal];
        r.tenant = parent->tenant;
        r.first_position = parent->first_position + (ordinal + 1) * PT;
        /* Now and then what follows in the parent anyway: it must not stand beside it. */
        if (ordinal + 1 < parent->n_pages && random_next(rng) % 8 == 0) {
            r.n_pages = 1;
            memcpy(ids, parent->ids + (size_t)(ordinal + 1) * PT, PT * sizeof *ids);
        }
    }
    ids_set(&r, ids);
    struct cs_key keys[SPAN_PAGES];
    keys_of(&r, keys);
    r.key = keys[0];
    return r;
}

/* The same path as another row, cut in another way or not. */
static struct span_record row_again(const struct span_record *like, uint64_t *rng)
{
    struct span_record r = *like;
    r.n_pages = 1 + random_next(rng) % like->n_pages;
    ids_set(&r, like->ids);
    return r;
}

static void row_spoil(struct span_record *r, uint64_t *rng)
{
    switch (random_next(rng) % 6) {
    case 0:
        r->key.hi ^= 1;
        break;
    case 1:
        r->parent.lo ^= 1;
        break;
    case 2:
        r->tenant.id[3] ^= 1;
        break;
    case 3:
        r->first_position += PT;
        break;
    case 4:
        r->first_position += 1;
        break;
    default:
        r->kind = RECORD_CHECKPOINT;
        break; /* the store has none */
    }
}

/* Records of f are from old to new. */
static void make_rows(struct fake_tier *f, size_t n, uint64_t *rng)
{
    f->records = calloc(n, sizeof *f->records);
    f->n_records = n;
    f->allow_parent_delete = true;
    for (size_t i = 0; i < n; i++) {
        struct span_record *r = &f->records[i].record;
        const struct span_record *other = i > 0 ? &f->records[random_next(rng) % i].record : NULL;
        bool sound = other != NULL && other->kind == RECORD_SPAN && other->first_position % PT == 0;
        if (sound && random_next(rng) % 32 == 0)
            *r = row_again(other, rng);
        else if (sound && random_next(rng) % 16 != 0)
            *r = row_below(other, random_next(rng) % other->n_pages, rng);
        else
            *r = row_below(NULL, 0, rng);
        if (random_next(rng) % 64 == 0)
            row_spoil(r, rng);
        f->records[i].bytes = malloc(1);
    }
    /* Some are missing, and a parent is not always older than what hangs on it. */
    for (size_t i = n; i-- > 1;) {
        size_t from = random_next(rng) % 4 == 0 ? random_next(rng) % (i + 1) : i;
        struct fake_record swap = f->records[i];
        f->records[i] = f->records[from];
        f->records[from] = swap;
    }
    size_t missing = n / 100;
    for (size_t i = 0; i < missing; i++) {
        free((void *)f->records[--f->n_records].record.ids);
        free(f->records[f->n_records].bytes);
    }
    for (size_t i = 0; i < f->n_records; i++)
        f->records[i].record.id = (struct record_id){.nonce = 1, .sequence = i + 1};
}

static struct fake_record *sorted_rows;

static int parents_first(const void *a, const void *b)
{
    const struct span_record *x = &sorted_rows[*(const int *)a].record,
                             *y = &sorted_rows[*(const int *)b].record;
    if (x->first_position != y->first_position)
        return x->first_position < y->first_position ? -1 : 1;
    return x->id.sequence > y->id.sequence ? -1 : 1;
}

static int parent_by_search(const struct fake_tier *f, const struct facts *facts, int i, uint32_t *ordinal)
{
    const struct span_record *r = &f->records[i].record;
    for (int p = 0; p < (int)f->n_records; p++) {
        const struct span_record *above = &f->records[p].record;
        for (uint32_t k = facts[p].skip; facts[p].parent != NO_ROW && k < above->n_pages; k++) {
            *ordinal = k - facts[p].skip;
            if (key_equal(facts[p].page_key[k], r->parent) &&
                above->first_position + (k + 1) * PT == r->first_position &&
                memcmp(&above->tenant, &r->tenant, sizeof r->tenant) == 0)
                return p;
        }
    }
    return NO_ROW;
}

static bool starts_alike(const uint32_t *a, const uint32_t *b)
{
    return memcmp(a, b, PT * sizeof *a) == 0;
}

/* The row that is kept behind a page of another (or ROOT) and begins with these ids; NO_ROW: none. */
static int kept_there(const struct fake_tier *f, const struct facts *facts, int parent, uint32_t ordinal,
                      const struct cs_tenant *tenant, const uint32_t *ids)
{
    for (int k = 0; k < (int)f->n_records; k++)
        if (facts[k].parent == parent && facts[k].ordinal == ordinal &&
            memcmp(&f->records[k].record.tenant, tenant, sizeof *tenant) == 0 &&
            starts_alike(f->records[k].record.ids + (size_t)facts[k].skip * PT, ids))
            return k;
    return NO_ROW;
}

static bool is_sound(const struct fake_tier *f, const struct facts *facts, int i)
{
    const struct span_record *r = &f->records[i].record;
    return r->kind == RECORD_SPAN && r->first_position % PT == 0 && key_equal(facts[i].page_key[0], r->key);
}

/* Rows that are not kept yet, parents first. */
static void keep_what_stands(const struct fake_tier *f, struct facts *facts, const int *order)
{
    for (size_t at = 0; at < f->n_records; at++) {
        int i = order[at];
        const struct span_record *r = &f->records[i].record;
        struct facts *own = &facts[i];
        if (own->parent != NO_ROW || !is_sound(f, facts, i))
            continue;
        int parent = r->first_position == 0 ? ROOT : parent_by_search(f, facts, i, &own->ordinal);
        bool stands = parent != NO_ROW;
        if (stands && parent != ROOT) {
            uint32_t next = own->ordinal + facts[parent].skip + 1;
            stands = next >= f->records[parent].record.n_pages ||
                     !starts_alike(f->records[parent].record.ids + (size_t)next * PT, r->ids);
        }
        if (stands && kept_there(f, facts, parent, own->ordinal, &r->tenant, r->ids) == NO_ROW)
            own->parent = parent;
    }
}

/* Rows that are longer than those with their first pages. */
static void keep_rests(const struct fake_tier *f, struct facts *facts, const int *order)
{
    for (size_t at = 0; at < f->n_records; at++) {
        int i = order[at];
        const struct span_record *r = &f->records[i].record;
        uint32_t ordinal = 0, done = 0;
        if (facts[i].parent != NO_ROW || !is_sound(f, facts, i))
            continue;
        int above = r->first_position == 0 ? ROOT : parent_by_search(f, facts, i, &ordinal), next;
        while (above != NO_ROW && done < r->n_pages &&
               (next = kept_there(f, facts, above, ordinal, &r->tenant, r->ids + (size_t)done * PT)) !=
                   NO_ROW) {
            const struct span_record *there = &f->records[next].record;
            bool alike = facts[next].skip == 0 && there->n_pages < r->n_pages - done &&
                         memcmp(there->ids, r->ids + (size_t)done * PT,
                                (size_t)there->n_pages * PT * sizeof *r->ids) == 0;
            above = alike ? next : NO_ROW;
            ordinal = there->n_pages - 1;
            done += there->n_pages;
        }
        if (above != NO_ROW && done > 0) {
            facts[i].parent = above;
            facts[i].ordinal = ordinal;
            facts[i].skip = done;
        }
    }
}

static struct facts *search_plainly(const struct fake_tier *f)
{
    int n = (int)f->n_records, *order = malloc(f->n_records * sizeof *order);
    struct facts *facts = calloc(f->n_records, sizeof *facts);
    for (int i = 0; i < n; i++) {
        order[i] = i;
        facts[i].parent = NO_ROW;
        keys_of(&f->records[i].record, facts[i].page_key);
    }
    sorted_rows = f->records;
    qsort(order, f->n_records, sizeof *order, parents_first);
    keep_what_stands(f, facts, order);
    keep_rests(f, facts, order);
    keep_what_stands(f, facts, order);
    for (int i = 0; i < n; i++) { /* those on which nothing hangs */
        bool leads_on = facts[i].skip == 0;
        for (int k = 0; k < n && !leads_on; k++)
            leads_on = facts[k].parent == i;
        if (!leads_on)
            facts[i].parent = NO_ROW;
    }
    free(order);
    return facts;
}

static struct span *span_of(struct cs_store *s, const struct fake_record *rows, const struct facts *facts,
                            int i)
{
    struct span *above = facts[i].parent == ROOT ? NULL : span_of(s, rows, facts, facts[i].parent);
    const struct span_record *r = &rows[i].record;
    uint32_t skip = facts[i].skip;
    struct span *sp = index_find_locked(&s->index, above, facts[i].ordinal, facts[i].page_key[skip],
                                        &r->tenant, r->ids + (size_t)skip * PT);
    assert_non_null(sp);
    assert_true(record_id_equal(skip > 0 ? sp->husk : sp->id, r->id));
    assert_int_equal(sp->n_pages, r->n_pages - skip);
    return sp;
}

static void open_and_compare(size_t n, uint64_t seed)
{
    struct fake_tier f = {0};
    uint64_t rng = seed;
    make_rows(&f, n, &rng);
    struct facts *facts = search_plainly(&f);
    size_t n_rows = f.n_records, n_kept = 0;
    struct fake_record *rows = malloc(n_rows * sizeof *rows); /* what is deleted is freed: a copy */
    for (size_t i = 0; i < n_rows; i++) {
        rows[i] = f.records[i];
        ids_set(&rows[i].record, f.records[i].record.ids);
        n_kept += facts[i].parent != NO_ROW;
    }
    struct cs_config c = tiny_config(64);
    c.index_bytes = 64 << 20;
    struct cs_store *s = fake_open(&f, &c);
    assert_int_equal(stats_of(s).spans, n_kept);
    assert_int_equal(f.n_records, n_kept);
    for (size_t i = 0, kept = 0; i < n_rows; i++) {
        if (facts[i].parent == NO_ROW)
            continue;
        assert_true(record_id_equal(f.records[kept++].record.id, rows[i].record.id));
        span_of(s, rows, facts, (int)i);
    }
    recount(s);
    assert_in_range(n_kept, n > 1000 ? n / 2 : 1, n_rows);
    cs_close(s, 0);
    for (size_t i = 0; i < n_rows; i++)
        free((void *)rows[i].record.ids);
    free(rows);
    free(facts);
    fake_free(&f);
}

static void few_rows_in_any_order_are_kept_if_they_can_be_reached(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++)
        open_and_compare(200, seed);
}

static void many_rows_in_any_order_are_kept_if_they_can_be_reached(void **state)
{
    (void)state;
    open_and_compare(6000, 7);
}

/* ---- the memory that spans are made in -------------------------------------------------------------------
 */

static void slots_keep_what_is_written_and_are_used_again(void **state)
{
    (void)state;
    enum { N = 4000 };
    static struct {
        uint8_t *at;
        size_t bytes;
    } slot[N];
    struct slots slots = {0};
    uint64_t rng = 3, regions = 0;
    for (size_t round = 0; round < 20 * N; round++) {
        size_t i = random_next(&rng) % N;
        uint8_t mark = (uint8_t)i;
        if (slot[i].at != NULL) {
            assert_int_equal(slot[i].at[0], mark);
            assert_int_equal(slot[i].at[slot[i].bytes - 1], mark);
            slots_give(&slots, slot[i].at, slot[i].bytes);
            slot[i].at = NULL;
        } else {
            slot[i].bytes = 8 + random_next(&rng) % (round % 16 == 0 ? 20000 : 700);
            slot[i].at = slots_take(&slots, slot[i].bytes);
            assert_non_null(slot[i].at);
            memset(slot[i].at, mark, slot[i].bytes);
        }
        if (round == 10 * N)
            regions = slots.n_regions;
    }
    assert_in_range(slots.n_regions, 1, regions + 1); /* as many are given back as are taken */
    for (size_t i = 0; i < N; i++) {
        if (slot[i].at == NULL)
            continue;
        assert_int_equal(slot[i].at[slot[i].bytes / 2], (uint8_t)i);
        slots_give(&slots, slot[i].at, slot[i].bytes);
    }
    /* All are empty: any size is made of them. */
    regions = slots.n_regions;
    for (size_t i = 0; i < 300 * regions; i++)
        assert_non_null(slots_take(&slots, 6000));
    assert_int_equal(slots.n_regions, regions);
    slots_end(&slots);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_keep_what_is_written_and_are_used_again),
        cmocka_unit_test(few_rows_in_any_order_are_kept_if_they_can_be_reached),
        cmocka_unit_test(many_rows_in_any_order_are_kept_if_they_can_be_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
