/* See headers.h. */
#include "cachestore/headers.h"

#include <stdlib.h>
#include <string.h>

#include "cachestore/catalog.h"
#include "cachestore/list.h"

static const struct fmt_record_run *runs_of(const struct header *h)
{
    return h->runs != NULL ? h->runs : &h->one;
}

void headers_free(struct headers *h)
{
    for (size_t i = 0; i < h->n; i++)
        free(h->all[i].runs);
    free(h->all);
    *h = (struct headers){0};
}

int headers_add(struct headers *h, const struct fmt_record *r)
{
    if (!list_reserve((void **)&h->all, &h->room, h->n, sizeof *h->all))
        return CS_ENOMEM;
    struct header *one = &h->all[h->n];
    *one = (struct header){.id = {.nonce = r->id_nonce, .sequence = r->id_sequence},
                           .one = r->runs[0],
                           .n_runs = r->n_runs,
                           .row_bytes = (uint32_t)fmt_record_row_bytes(r),
                           .first_position = r->first_position};
    if (r->n_runs > 1) {
        one->runs = malloc(r->n_runs * sizeof *one->runs);
        if (one->runs == NULL)
            return CS_ENOMEM;
        memcpy(one->runs, r->runs, r->n_runs * sizeof *one->runs);
    }
    h->n++;
    return CS_OK;
}

static int newest_first(const void *a, const void *b)
{
    const struct record_id *x = &((const struct header *)a)->id, *y = &((const struct header *)b)->id;
    if (x->sequence != y->sequence)
        return x->sequence > y->sequence ? -1 : 1;
    return x->nonce > y->nonce ? -1 : x->nonce < y->nonce;
}

void headers_release(const struct headers *h, struct volumes *v)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->all[i].kept)
            volumes_release(v, runs_of(&h->all[i]), h->all[i].n_runs);
}

void headers_hold(struct headers *h, struct volumes *v)
{
    for (size_t i = 0; i < h->n; i++)
        h->all[i].kept = volumes_claim(v, runs_of(&h->all[i]), h->all[i].n_runs);
}

void headers_claim(struct headers *h, struct volumes *v)
{
    if (h->n > 0)
        qsort(h->all, h->n, sizeof *h->all, newest_first);
    headers_hold(h, v);
    headers_release(h, v);
}

struct header *headers_find(const struct headers *h, struct record_id id)
{
    const struct header wanted = {.id = id};
    struct header *found = h->n > 0 ? bsearch(&wanted, h->all, h->n, sizeof *h->all, newest_first) : NULL;
    return found != NULL && found->kept ? found : NULL;
}

uint64_t headers_catalog_bytes(const struct headers *h)
{
    uint64_t n = 0, bytes = 0;
    for (size_t i = 0; i < h->n; i++) {
        n += h->all[i].kept;
        bytes += h->all[i].kept ? h->all[i].row_bytes : 0;
    }
    return catalog_new_bytes(n, bytes);
}

static int deepest_first(const void *a, const void *b)
{
    const struct header *x = *(struct header *const *)a, *y = *(struct header *const *)b;
    if (x->first_position != y->first_position)
        return x->first_position > y->first_position ? -1 : 1;
    return -newest_first(x, y);
}

bool headers_fit(struct headers *h, struct volumes *v, uint64_t bytes)
{
    struct header **may_go = calloc(h->n + 1, sizeof(struct header *));
    size_t n = 0;
    for (size_t i = 0; i < h->n; i++) {
        if (!h->all[i].kept)
            continue;
        (void)volumes_claim(v, runs_of(&h->all[i]), h->all[i].n_runs);
        if (may_go != NULL && !h->all[i].wanted)
            may_go[n++] = &h->all[i];
    }
    if (n > 0)
        qsort((void *)may_go, n, sizeof(struct header *), deepest_first);
    volumes_empty_unused(v);
    /* A few more at a time each turn, for each looks at all that is kept. */
    bool fits = false;
    for (size_t at = 0, turn = 1;; turn *= 2) {
        fits = volumes_file_bytes(v) + headers_catalog_bytes(h) <= bytes;
        if (fits || at == n)
            break;
        for (size_t end = at + turn < n ? at + turn : n; at < end; at++) {
            may_go[at]->kept = false;
            volumes_release(v, runs_of(may_go[at]), may_go[at]->n_runs);
        }
        volumes_empty_unused(v);
    }
    headers_release(h, v);
    free((void *)may_go);
    return fits;
}
