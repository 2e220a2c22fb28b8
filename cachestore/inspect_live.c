/*
 * Inspection of a store that a process has open: asked through its control socket, in pieces of a bounded
 * size. What the process says becomes entries as rows do, so all that looks at entries works on either;
 * records are read from the volumes directly, which costs the process nothing, and where something does not
 * fit it is asked whether the record is still the one it serves.
 *
 * The process is as untrusted as a file: lengths and positions are checked before anything is believed.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cachestore/control.h"
#include "cachestore/inspect_impl.h"
#include "cachestore/key.h"
#include "cachestore/list.h"

enum { ANSWER_MS = 30000, SETTLE_LOOK_MS = 5, SETTLE_LOOKS = 24000, ENTRIES_MAX = 1 << 28 };

struct live {
    int fd;
    struct control_hello hello;
    bool listed;
    uint64_t numbered; /* entries without a record so far */
    struct control_request request;
    uint8_t reply[CONTROL_REPLY_MAX];
};

struct by_key {
    struct cs_key key;
    uint32_t entry;
};

/* ---- messages ---------------------------------------------------------------------------------------- */

/* 0 or CS_EIO: the process is gone, or silent. */
static int move_all(int fd, void *bytes, size_t n, bool sends)
{
    uint8_t *at = bytes;
    while (n > 0) {
        ssize_t done = sends ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return CS_EIO;
        at += done;
        n -= (size_t)done;
    }
    return CS_OK;
}

/* Sends live->request; *reply is valid until the next one. The status of the reply, or CS_EIO. */
static int ask(struct live *live, struct wire_reader *reply)
{
    uint8_t message[CONTROL_HEADER_BYTES + CONTROL_REQUEST_MAX];
    struct wire_writer w = {.at = message + CONTROL_HEADER_BYTES, .room = CONTROL_REQUEST_MAX};
    struct control_header h = {.command = (uint16_t)live->request.command};
    control_request_encode(&live->request, &w);
    h.bytes = (uint32_t)w.len;
    control_header_encode(&h, message);
    *reply = (struct wire_reader){.at = live->reply};
    if (w.full || move_all(live->fd, message, CONTROL_HEADER_BYTES + w.len, true) != CS_OK ||
        move_all(live->fd, message, CONTROL_HEADER_BYTES, false) != CS_OK)
        return CS_EIO;
    int rc = control_header_decode(message, CONTROL_REPLY_MAX, &h);
    if (rc == CS_EVERSION)
        return rc;
    if (rc != CS_OK || h.command != (uint16_t)live->request.command || h.status > 0 ||
        move_all(live->fd, live->reply, h.bytes, false) != CS_OK)
        return CS_EIO;
    reply->left = h.bytes;
    return h.status;
}

static int ask_for(struct cs_inspect *in, enum control_command command, struct wire_reader *reply)
{
    in->live->request.command = command;
    return ask(in->live, reply);
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static int connect_to(int dir_fd)
{
    struct sockaddr_un address;
    const struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
    control_address(dir_fd, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int problem = errno;
    close(fd);
    errno = problem;
    return -1;
}

static int say_hello(struct cs_inspect *in, char *err, size_t err_len)
{
    struct wire_reader reply;
    int rc = ask_for(in, CONTROL_HELLO, &reply);
    if (rc == CS_EVERSION) {
        snprintf(err, err_len, "the process that has the store open speaks another version of its protocol");
    } else if (rc != CS_OK) {
        snprintf(err, err_len, "the process that has the store open does not answer, or not this user");
        rc = CS_ENOTFOUND;
    } else if (!control_hello_decode(&reply, &in->live->hello) || !read_ended(&reply) ||
               memcmp(in->live->hello.uuid, in->store.uuid, sizeof in->store.uuid) != 0 ||
               in->live->hello.chunk_bytes != in->store.chunk_bytes) {
        snprintf(err, err_len, "what listens in the directory is not the process of this store");
        rc = CS_EFORMAT;
    }
    return rc;
}

int cs_inspect_connect(const char *dir, struct cs_inspect **out, char *err, size_t err_len)
{
    *out = NULL;
    struct cs_inspect *in = calloc(1, sizeof *in);
    struct live *live = calloc(1, sizeof *live);
    if (in == NULL || live == NULL) {
        snprintf(err, err_len, "out of memory");
        free(in);
        free(live);
        return CS_ENOMEM;
    }
    in->first_root = NONE;
    in->live = live;
    live->fd = -1;
    int rc;
    in->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (in->dir_fd < 0) {
        snprintf(err, err_len, "cannot open %s: %s", dir, strerror(errno));
        rc = errno == ENOENT || errno == ENOTDIR ? CS_ENOTFOUND : CS_EIO;
        goto fail;
    }
    live->fd = connect_to(in->dir_fd);
    if (live->fd < 0) {
        snprintf(err, err_len, "no process that has the store open can be asked: %s", strerror(errno));
        rc = CS_ENOTFOUND;
        goto fail;
    }
    rc = store_file_read(in->dir_fd, &in->store, err, err_len);
    if (rc == CS_ENOTFOUND)
        rc = CS_EFORMAT;
    if (rc == CS_OK)
        rc = say_hello(in, err, err_len);
    if (rc != CS_OK)
        goto fail;
    rc = volumes_open(&in->volumes, in->dir_fd, in->store.chunk_bytes, in->store.chunk_bytes, true);
    if (rc < 0) {
        snprintf(err, err_len, "cannot open the volumes: %s", strerror(-rc));
        rc = CS_EIO;
        goto fail;
    }
    inspect_measure(in);
    in->info.catalog_ok = true;
    in->info.live = true;
    in->info.draining = live->hello.draining;
    in->info.pid = live->hello.pid;
    in->info.n_foreign = live->hello.records_foreign;
    memcpy(in->info.fingerprint, live->hello.fingerprint, sizeof in->info.fingerprint);
    *out = in;
    return CS_OK;
fail:
    cs_inspect_close(in);
    return rc;
}

void inspect_live_close(struct live *live)
{
    if (live == NULL)
        return;
    if (live->fd >= 0)
        close(live->fd);
    free(live);
}

/* ---- listing ----------------------------------------------------------------------------------------- */

static int row_add(struct cs_inspect *in, const struct control_row *row)
{
    struct live *live = in->live;
    if (in->n >= ENTRIES_MAX || !list_reserve((void **)&in->entries, &in->room, in->n, sizeof *in->entries))
        return CS_ENOMEM;
    struct entry *e = &in->entries[in->n++];
    memset(e, 0, sizeof *e);
    e->parent = e->first_child = e->sibling = NONE;
    struct cs_span_info *s = &e->info;
    s->on_disk = (row->flags & CONTROL_ROW_ON_DISK) != 0 && row->record[0] != 0;
    s->record_id[0] = s->on_disk ? row->record[0] : 0;
    s->record_id[1] = s->on_disk ? row->record[1] : ++live->numbered;
    e->first_run = (struct fmt_record_run){row->volume, row->first_chunk, 1};
    s->key = row->key;
    s->parent = row->parent_key;
    memcpy(s->fingerprint, live->hello.fingerprint, sizeof s->fingerprint);
    s->tenant = row->tenant;
    s->checkpoint = row->checkpoint;
    s->boundary = (enum cs_boundary_kind)row->boundary;
    s->first_position = row->first_position;
    s->n_tokens = row->checkpoint ? 0 : row->n_pages * live->hello.page_tokens;
    s->n_pages = row->n_pages;
    s->payload_bytes = row->n_pages * live->hello.stride;
    s->disk_bytes = s->on_disk ? row->disk_bytes : 0;
    s->created_unix = row->created_unix;
    s->used_unix = row->used_unix;
    s->pinned = (row->flags & CONTROL_ROW_PINNED) != 0;
    s->n_device = row->n_device;
    s->n_host = row->n_host;
    *(s->checkpoint ? &in->info.n_checkpoints : &in->info.n_spans) += 1;
    *(s->checkpoint ? &in->info.checkpoint_bytes : &in->info.payload_bytes) += s->payload_bytes;
    return CS_OK;
}

static int compare_by_key(const void *a, const void *b)
{
    return inspect_compare_key(((const struct by_key *)a)->key, ((const struct by_key *)b)->key);
}

/* parent_span[i]: the key of the span above entry i; zero: it has none. */
static int link_parents(struct cs_inspect *in, const struct cs_key *parent_span)
{
    struct by_key *keys = malloc(((size_t)in->n + 1) * sizeof *keys);
    if (keys == NULL)
        return CS_ENOMEM;
    for (uint32_t i = 0; i < in->n; i++)
        keys[i] = (struct by_key){in->entries[i].info.key, i};
    qsort(keys, in->n, sizeof *keys, compare_by_key);
    for (uint32_t i = 0; i < in->n; i++) {
        struct entry *e = &in->entries[i];
        const struct by_key wanted = {.key = parent_span[i]};
        const struct by_key *at =
            in->n > 0 ? bsearch(&wanted, keys, in->n, sizeof *keys, compare_by_key) : NULL;
        if (at == NULL || key_equal(parent_span[i], (struct cs_key){0, 0}))
            continue;
        const struct cs_span_info *above = &in->entries[at->entry].info;
        /* Positions must agree, which also makes a circle impossible. */
        if (above->checkpoint || above->first_position >= e->info.first_position ||
            e->info.first_position - above->first_position > above->n_tokens)
            continue;
        e->parent = at->entry;
        memcpy(e->info.parent_record_id, above->record_id, sizeof above->record_id);
    }
    free(keys);
    return CS_OK;
}

static int list_all(struct cs_inspect *in)
{
    struct cs_key *parent_span = NULL;
    size_t room = 0;
    struct wire_reader reply;
    uint64_t cursor = 0, next;
    int rc;
    do {
        in->live->request.cursor = cursor;
        rc = ask_for(in, CONTROL_LIST, &reply);
        next = read_u64(&reply);
        uint32_t n = read_u32(&reply);
        if (rc == CS_OK && (reply.bad || n > CONTROL_ROWS_MAX || next <= cursor))
            rc = CS_EIO; /* it would not end */
        for (uint32_t i = 0; i < n && rc == CS_OK; i++) {
            struct control_row row;
            if (!control_row_decode(&reply, &row))
                rc = CS_EIO;
            else if (!list_reserve((void **)&parent_span, &room, in->n, sizeof *parent_span))
                rc = CS_ENOMEM;
            if (rc != CS_OK)
                break;
            parent_span[in->n] =
                (row.flags & CONTROL_ROW_HAS_PARENT) != 0 ? row.parent_span : (struct cs_key){0, 0};
            rc = row_add(in, &row);
        }
        if (rc == CS_OK && !read_ended(&reply))
            rc = CS_EIO;
        cursor = next;
    } while (rc == CS_OK && next != UINT64_MAX);
    if (rc == CS_OK && parent_span != NULL)
        rc = link_parents(in, parent_span);
    free(parent_span);
    return rc;
}

/* A process that does not know the question has none to tell. */
int inspect_live_others(struct cs_inspect *in, int (*fn)(void *ctx, const struct control_other *o), void *ctx)
{
    uint64_t cursor = 0, next;
    struct wire_reader reply;
    do {
        in->live->request.cursor = cursor;
        int rc = ask_for(in, CONTROL_OTHERS, &reply);
        if (rc == CS_EINVAL && cursor == 0)
            return CS_OK;
        next = read_u64(&reply);
        uint32_t n = read_u32(&reply);
        if (rc != CS_OK || reply.bad || n > CONTROL_OTHERS_MAX || next <= cursor)
            return CS_EIO; /* it would not end */
        for (; n > 0; n--) {
            struct control_other o;
            if (!control_other_decode(&reply, &o))
                return CS_EIO;
            rc = fn(ctx, &o);
            if (rc != 0)
                return rc;
        }
        if (!read_ended(&reply))
            return CS_EIO;
        cursor = next;
    } while (next != UINT64_MAX);
    return CS_OK;
}

static int list_anew(struct cs_inspect *in)
{
    in->n = 0;
    in->first_root = NONE;
    in->info.n_spans = in->info.n_checkpoints = 0;
    in->info.payload_bytes = in->info.checkpoint_bytes = 0;
    int rc = list_all(in);
    if (rc == CS_OK)
        rc = inspect_others_list(in);
    if (rc == CS_OK)
        rc = inspect_sort(in);
    if (rc == CS_OK)
        rc = inspect_others_link(in);
    if (rc == CS_OK)
        inspect_link_tree(in);
    else
        in->n = 0; /* half of it would say what is not so */
    in->live->listed = rc == CS_OK;
    return rc == CS_ENOMEM ? rc : rc == CS_OK ? CS_OK : CS_EIO;
}

int inspect_live_list(struct cs_inspect *in)
{
    return in->live == NULL || in->live->listed ? CS_OK : list_anew(in);
}

int inspect_live_look_again(struct cs_inspect *in)
{
    volumes_close(&in->volumes);
    int rc = volumes_open(&in->volumes, in->dir_fd, in->store.chunk_bytes, in->store.chunk_bytes, true);
    return rc < 0 ? CS_EIO : list_anew(in);
}

uint64_t inspect_live_disk_budget(const struct cs_inspect *in)
{
    return in->live->hello.disk_budget;
}

bool inspect_live_is_stateful(const struct cs_inspect *in)
{
    return in->live->hello.stateful;
}

/* ---- one of them ------------------------------------------------------------------------------------- */

static int record_piece(struct cs_inspect *in, const struct entry *e, uint32_t from, struct control_record *r)
{
    struct wire_reader reply;
    in->live->request.key = e->info.key;
    in->live->request.from = from;
    int rc = ask_for(in, CONTROL_RECORD, &reply);
    if (rc != CS_OK)
        return rc == CS_ENOTFOUND ? rc : CS_EIO;
    return control_record_decode(&reply, r) && read_ended(&reply) && r->from == from ? CS_OK : CS_EIO;
}

int inspect_live_record(struct cs_inspect *in, const struct entry *e, uint32_t **ids, size_t *n_ids,
                        struct cs_record *notes)
{
    struct control_record r;
    uint64_t pages = e->info.checkpoint ? 1 : e->info.n_pages, expected = pages * in->live->hello.page_tokens;
    *ids = NULL;
    *n_ids = 0;
    int rc = record_piece(in, e, 0, &r);
    if (rc == CS_OK && r.n_ids != expected) /* it ends elsewhere by now */
        rc = CS_ENOTFOUND;
    if (rc == CS_OK && notes != NULL && r.n_notes > 0) {
        notes->notes = calloc(r.n_notes, sizeof *notes->notes);
        if (notes->notes == NULL)
            return CS_ENOMEM;
        for (; notes->n_notes < r.n_notes; notes->n_notes++)
            notes->notes[notes->n_notes] = control_record_note(&r, (uint32_t)notes->n_notes);
    }
    uint32_t *all = rc == CS_OK ? malloc(expected * sizeof *all) : NULL;
    if (rc == CS_OK && all == NULL)
        rc = CS_ENOMEM;
    for (size_t n = 0; rc == CS_OK;) {
        for (uint32_t i = 0; i < r.n_here && n < expected; i++)
            all[n++] = control_record_id(&r, i);
        if (n == expected)
            break;
        if (r.n_here == 0)
            rc = CS_EIO;
        if (rc == CS_OK)
            rc = record_piece(in, e, (uint32_t)n, &r);
        if (rc == CS_OK && r.n_ids != expected)
            rc = CS_ENOTFOUND;
    }
    if (rc != CS_OK) {
        free(all);
        return rc;
    }
    *ids = all;
    *n_ids = expected;
    return CS_OK;
}

static int is_other(void *ctx, const struct control_other *o)
{
    return memcmp(o->record, ((const struct entry *)ctx)->info.record_id, sizeof o->record) == 0;
}

bool inspect_live_is_there(struct cs_inspect *in, const struct entry *e)
{
    struct control_record r;
    if (e->foreign)
        return inspect_live_others(in, is_other, (void *)e) == 1;
    return record_piece(in, e, 0, &r) == CS_OK && r.record[0] == e->info.record_id[0] &&
           r.record[1] == e->info.record_id[1];
}

/* ---- changes ----------------------------------------------------------------------------------------- */

int inspect_live_evict(struct cs_inspect *in, const struct cs_key *keys, uint32_t n, uint8_t *result)
{
    struct wire_reader reply;
    struct control_request *q = &in->live->request;
    q->n_keys = n;
    memcpy(q->keys, keys, n * sizeof *keys);
    int rc = ask_for(in, CONTROL_EVICT, &reply);
    for (uint32_t i = 0; i < n && rc == CS_OK; i++)
        result[i] = read_u8(&reply);
    return rc == CS_OK && !read_ended(&reply) ? CS_EIO : rc;
}

int inspect_live_erase(struct cs_inspect *in, const struct entry *e, uint32_t header_bytes)
{
    struct wire_reader reply;
    struct control_request *q = &in->live->request;
    memcpy(q->record, e->info.record_id, sizeof q->record);
    q->volume = e->first_run.volume;
    q->first_chunk = e->first_run.first_chunk;
    q->header_bytes = header_bytes;
    return ask_for(in, CONTROL_ERASE, &reply);
}

int inspect_live_raise_epoch(struct cs_inspect *in)
{
    struct wire_reader reply;
    return ask_for(in, CONTROL_EPOCH, &reply);
}

int inspect_live_pin(struct cs_inspect *in, const struct entry *e, bool pinned)
{
    struct wire_reader reply;
    in->live->request.key = e->info.key;
    in->live->request.on = pinned;
    return ask_for(in, CONTROL_PIN, &reply);
}

static int ask_progress(struct cs_inspect *in, struct control_progress *p)
{
    struct wire_reader reply;
    int rc = ask_for(in, CONTROL_PROGRESS, &reply);
    return rc == CS_OK && (!control_progress_decode(&reply, p) || !read_ended(&reply)) ? CS_EIO : rc;
}

int inspect_live_settle(struct cs_inspect *in)
{
    struct control_progress p;
    uint64_t failed_before = 0;
    for (unsigned i = 0; i < SETTLE_LOOKS; i++) {
        int rc = ask_progress(in, &p);
        if (rc != CS_OK)
            return rc;
        if (i == 0)
            failed_before = p.failed;
        if (p.asked == 0)
            return p.failed == failed_before ? CS_OK : CS_EIO;
        poll(NULL, 0, SETTLE_LOOK_MS);
    }
    return CS_EIO;
}

int inspect_live_set_quota(struct cs_inspect *in, const struct cs_tenant *tenant,
                           const struct cs_quota *quota)
{
    struct wire_reader reply;
    in->live->request.tenant = *tenant;
    in->live->request.quota = *quota;
    return ask_for(in, CONTROL_QUOTA, &reply);
}

int inspect_live_tenants(struct cs_inspect *in, int (*fn)(void *ctx, const struct cs_tenant_use *use),
                         void *ctx)
{
    uint64_t cursor = 0, next;
    struct wire_reader reply;
    do {
        in->live->request.cursor = cursor;
        int rc = ask_for(in, CONTROL_TENANTS, &reply);
        if (rc != CS_OK)
            return CS_EIO;
        next = read_u64(&reply);
        uint32_t n = read_u32(&reply);
        if (reply.bad || n > CONTROL_TENANTS_MAX || next <= cursor)
            return CS_EIO;
        for (; n > 0; n--) {
            struct cs_tenant_use use;
            if (!control_tenant_decode(&reply, &use))
                return CS_EIO;
            rc = fn(ctx, &use);
            if (rc != 0)
                return rc;
        }
        if (!read_ended(&reply))
            return CS_EIO;
        cursor = next;
    } while (next != UINT64_MAX);
    return CS_OK;
}

uint32_t cs_inspect_process(const struct cs_inspect *in)
{
    return in->live != NULL ? in->live->hello.pid : 0;
}

/* ---- figures, drain ---------------------------------------------------------------------------------- */

int cs_inspect_figures(struct cs_inspect *in, int (*fn)(void *ctx, const struct cs_figure *f), void *ctx)
{
    struct wire_reader reply;
    struct control_figure_room room;
    struct cs_figure f;
    if (in->live == NULL)
        return CS_EINVAL;
    int rc = ask_for(in, CONTROL_FIGURES, &reply);
    while (rc == CS_OK && reply.left > 0)
        rc = control_figure_decode(&reply, &f, &room) ? fn(ctx, &f) : CS_EIO;
    return rc;
}

int cs_inspect_drain(struct cs_inspect *in, bool on)
{
    struct wire_reader reply;
    if (in->live == NULL)
        return CS_EINVAL;
    in->live->request.on = on;
    return ask_for(in, CONTROL_DRAIN, &reply) == CS_OK ? CS_OK : CS_EIO;
}

int cs_inspect_pending(struct cs_inspect *in, struct cs_pending *out)
{
    struct control_progress p;
    if (in->live == NULL)
        return CS_EINVAL;
    int rc = ask_progress(in, &p);
    if (rc == CS_OK)
        *out = (struct cs_pending){.bytes = p.pending_bytes, .draining = p.draining};
    return rc == CS_OK ? CS_OK : CS_EIO;
}
