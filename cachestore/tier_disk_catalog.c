/*
 * The catalogue thread of the disk tier: takes groups in order, commits each as one batch, measures what the
 * catalogue takes on disk and hands the group back to the I/O thread. RocksDB may take milliseconds, or
 * seconds when it compacts: no read waits for it here.
 */
#include "cachestore/tier_disk_impl.h"

static void say_full(struct tier_disk *t)
{
    if (atomic_exchange(&t->catalog_state, CATALOG_FULL) != CATALOG_FULL)
        tier_log(t, CS_LOG_WARN, "disk cache: the file system is full; what is stored is still read");
}

static void say_failing(struct tier_disk *t, const char *problem)
{
    if (!t->catalog_fails)
        tier_log(t, CS_LOG_WARN,
                 "disk cache: the catalogue cannot be written; what is stored is still read: %s", problem);
    t->catalog_fails = true;
}

static void say_written(struct tier_disk *t)
{
    if (t->catalog_fails)
        tier_log(t, CS_LOG_INFO, "disk cache: the catalogue is written again");
    t->catalog_fails = false;
}

/* After a failed write RocksDB refuses all others until it is opened anew. Rows of the failed batch may turn
 * up then, or not: either is right, because their records' chunks are not used again before the next open of
 * the store. */
static void catalog_reopen(struct tier_disk *t)
{
    char problem[256];
    catalog_close(t->catalog);
    t->catalog = NULL;
    if (!catalog_has_room(t->dir_fd, atomic_load(&t->catalog_reserve))) {
        say_full(t);
        return;
    }
    int rc = catalog_open(t->dir_fd, false, t->catalog_share, &t->catalog, problem, sizeof problem);
    atomic_store(&t->catalog_state, rc == CS_OK ? CATALOG_FINE : CATALOG_BROKEN);
    if (rc != CS_OK)
        say_failing(t, problem);
}

void tier_measure_catalog(struct tier_disk *t)
{
    atomic_store(&t->stats.catalog_bytes, catalog_disk_bytes(t->dir_fd));
    if (t->catalog != NULL)
        atomic_store(&t->stats.catalog_most, catalog_most_bytes(t->catalog, t->dir_fd));
}

/* Rows go nowhere while the file system is full; deletes, which make room, may use more of what is left. */
static bool commit_has_room(struct tier_disk *t, const struct group *g)
{
    uint64_t need = atomic_load(&t->catalog_reserve);
    bool there = catalog_has_room(t->dir_fd, g->deletes != NULL ? need / 4 : need);
    if (!there) {
        say_full(t);
    } else if (atomic_load(&t->catalog_state) == CATALOG_FULL && g->deletes == NULL) {
        atomic_store(&t->catalog_state, t->catalog != NULL ? CATALOG_FINE : CATALOG_BROKEN);
        tier_log(t, CS_LOG_INFO, "disk cache: the file system has room again");
    }
    return there;
}

static void group_commit(struct tier_disk *t, struct group *g)
{
    g->result = CS_EFULL;
    if (!commit_has_room(t, g))
        return;
    g->result = CS_EIO;
    if (t->catalog == NULL)
        catalog_reopen(t);
    struct catalog *c = t->catalog;
    if (c == NULL) {
        g->result = atomic_load(&t->catalog_state) == CATALOG_FULL ? CS_EFULL : CS_EIO;
        return;
    }
    for (struct transfer *x = g->writes; x != NULL; x = x->next)
        catalog_put(c, CATALOG_RECORD, x->rec->id, x->row, x->row_bytes);
    for (struct row_op *row = g->rows; row != NULL; row = row->next) {
        if (row->quota && row->value != NULL)
            catalog_put(c, CATALOG_QUOTA, row->id, row->value, row->len);
        else if (row->quota)
            catalog_delete(c, CATALOG_QUOTA, row->id);
        else if (row->pin && row->value != NULL)
            catalog_put(c, CATALOG_PINNED, row->owner, row->value, row->len);
        else if (row->pin)
            catalog_delete(c, CATALOG_PINNED, row->owner);
        else if (row->value != NULL)
            catalog_put_notes(c, row->owner, row->id, row->value, row->len);
        else
            catalog_delete_notes(c, row->owner, row->id);
    }
    for (size_t i = 0; i < g->n_touches; i++)
        catalog_put(c, CATALOG_USED, g->touches[i].id, &g->touches[i].used_unix,
                    sizeof g->touches[i].used_unix);
    for (struct disk_record *rec = g->deletes; rec != NULL; rec = rec->list_next) {
        catalog_delete(c, CATALOG_RECORD, rec->id);
        catalog_delete(c, CATALOG_USED, rec->id);
        if (rec->pinned)
            catalog_delete(c, CATALOG_PINNED, rec->id);
        if (rec->note_rows)
            catalog_delete_notes_of(c, rec->id);
    }
    unsigned rows = catalog_batch_rows(c);
    g->result = rows == 0 ? CS_OK : catalog_commit(c, g->writes != NULL || g->rows != NULL || g->for_good);
    if (rows > 0 && g->result == CS_OK) {
        atomic_fetch_add(&t->stats.catalog_batches, 1);
        atomic_fetch_add(&t->stats.catalog_rows, rows);
        say_written(t);
    }
    if (g->result != CS_OK) {
        say_failing(t, "a batch failed");
        catalog_reopen(t);
    }
    tier_measure_catalog(t);
}

void *tier_catalog_main(void *arg)
{
    struct tier_disk *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct group *g = t->to_catalog;
        if (g == NULL) {
            if (t->catalog_stop)
                break;
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        t->to_catalog = g->next;
        if (t->to_catalog == NULL)
            t->to_catalog_tail = &t->to_catalog;
        pthread_mutex_unlock(&t->lock);
        group_commit(t, g);
        pthread_mutex_lock(&t->lock);
        g->next = t->from_catalog;
        t->from_catalog = g;
        bool wake = t->io_sleeps;
        t->io_sleeps = false;
        if (wake)
            io_wake(t->io);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}
