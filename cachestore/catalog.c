/* See catalog.h. */
#include "cachestore/catalog.h"
#include "cachestore/catalog_folder.h"

#include <errno.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CF_DEFAULT, CF_RECORD, CF_META, N_CF };
enum { KEY_BYTES = 17, NOTES_KEY_BYTES = 33 };
static const char *const cf_names[N_CF] = {"default", "record", "meta"};
static const char store_key[] = "store", budget_key[] = "budget";

struct store_row {
    uint8_t uuid[16];
    uint32_t format, epoch;
};
_Static_assert(sizeof(struct store_row) == 24, "docs/format.md");
_Static_assert(offsetof(struct store_row, uuid) == 0 && offsetof(struct store_row, format) == 16 &&
                   offsetof(struct store_row, epoch) == 20,
               "docs/format.md");
_Static_assert(KEY_BYTES == 1 + 16 && NOTES_KEY_BYTES == KEY_BYTES + 16,
               "docs/format.md: kind, one id, another");
enum { STORE_ROW_FORMAT = 3 };

struct catalog {
    rocksdb_t *db;
    rocksdb_column_family_handle_t *cf[N_CF];
    rocksdb_writebatch_t *batch;
    bool read_only;
    bool made; /* by a rebuild: see catalog_open_new */
    int mark_fd;
    uint64_t missing;
};

static char kind_byte(enum catalog_kind kind)
{
    return "RNUPQ"[kind];
}

static rocksdb_column_family_handle_t *kind_cf(const struct catalog *c, enum catalog_kind kind)
{
    return c->cf[kind == CATALOG_RECORD || kind == CATALOG_NOTES ? CF_RECORD : CF_META];
}

static void put_big_endian(char *out, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (char)(v >> (56 - 8 * i));
}

static uint64_t get_big_endian(const char *in)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | (uint8_t)in[i];
    return v;
}

/* Complements, so that the order of keys is from new to old: RocksDB reads ahead only forwards. */
static void put_id(char out[16], struct record_id id)
{
    put_big_endian(out, ~id.sequence);
    put_big_endian(out + 8, ~id.nonce);
}

static struct record_id get_id(const char in[16])
{
    return (struct record_id){.sequence = ~get_big_endian(in), .nonce = ~get_big_endian(in + 8)};
}

static void key_make(char key[KEY_BYTES], enum catalog_kind kind, struct record_id id)
{
    key[0] = kind_byte(kind);
    put_id(key + 1, id);
}

static void notes_key_make(char key[NOTES_KEY_BYTES], struct record_id owner, struct record_id id)
{
    key_make(key, CATALOG_NOTES, owner);
    put_id(key + KEY_BYTES, id);
}

/* Buffers follow the share of the budget: two memtables, their log and one level of tables must fit well
 * inside it. 16 MiB is where loading is fastest and a crashed log still replays in a quarter of a second. */
static rocksdb_options_t *options_make(uint64_t share_bytes, bool meta)
{
    uint64_t buffer = share_bytes / 8;
    buffer = buffer < (64u << 10) ? 64u << 10 : buffer > (16u << 20) ? 16u << 20 : buffer;
    rocksdb_options_t *base = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(base, 1);
    rocksdb_options_set_create_missing_column_families(base, 1);
    rocksdb_options_set_paranoid_checks(base, 1);
    rocksdb_options_set_compression(base, rocksdb_no_compression);
    rocksdb_options_set_write_buffer_size(base, meta ? buffer / 4 : buffer);
    rocksdb_options_set_max_write_buffer_number(base, 2);
    rocksdb_options_set_max_total_wal_size(base, 2 * buffer);
    rocksdb_options_set_target_file_size_base(base, buffer < (4u << 20) ? 4u << 20 : buffer);
    rocksdb_options_set_max_background_jobs(base, 2);
    rocksdb_options_set_max_manifest_file_size(base, 1u << 20);
    rocksdb_options_set_manifest_preallocation_size(base, 64u << 10);
    /* The store's own log says what matters. A limit of its size would put another logger in between, which
     * writes a head of 18 KiB at each open whatever the level; where that fails, Debian's build ends the
     * process. Without one nothing is written but what is fatal. */
    rocksdb_options_set_keep_log_file_num(base, 1);
    rocksdb_options_set_info_log_level(base, 4);
    /* An idle store must cost nothing: no thread that wakes up to gather statistics. */
    rocksdb_options_set_stats_dump_period_sec(base, 0);
    rocksdb_options_set_stats_persist_period_sec(base, 0);
    rocksdb_options_set_skip_stats_update_on_db_open(base, 1);
    /* Rows are only ever scanned: large blocks, few reads. */
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_size(table, 64u << 10);
    rocksdb_options_set_block_based_table_factory(base, table);
    rocksdb_block_based_options_destroy(table);
    /* Preallocation would take a memtable's size from the budget for an empty log. */
    char *err = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_get_options_from_string(base, "allow_fallocate=false", options, &err);
    if (err != NULL) {
        rocksdb_free(err);
        rocksdb_options_destroy(options);
        return base;
    }
    rocksdb_options_destroy(base);
    return options;
}

/* Whether RocksDB's words are those of a shortage that will pass, or of rights that this process lacks: the
 * catalogue is sound then, as far as anybody knows, and a rebuild would lose its notes. RocksDB tells errors
 * apart by their text only. */
static bool is_circumstance(const char *problem)
{
    static const int causes[] = {EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT, EROFS, EACCES, EPERM};
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++) {
        if (strstr(problem, strerror(causes[i])) != NULL)
            return true;
    }
    return false;
}

/* RocksDB's words with the path by which it knows the folder made short. */
static void problem_text(const char *problem, const char *path, char *err, size_t err_len)
{
    const char *at = strstr(problem, path);
    if (at != NULL)
        snprintf(err, err_len, "%.*s%s%s", (int)(at - problem), problem, CATALOG_FOLDER, at + strlen(path));
    else
        snprintf(err, err_len, "%s", problem);
}

static int folder_open(int dir_fd, const char *name, bool read_only, uint64_t share_bytes, bool made,
                       struct catalog **out, char *err, size_t err_len)
{
    int rc = CS_OK;
    struct catalog *c = calloc(1, sizeof *c);
    if (c == NULL) {
        snprintf(err, err_len, "out of memory");
        return CS_ENOMEM;
    }
    char path[64];
    int prefix = snprintf(path, sizeof path, "/proc/self/fd/%d", dir_fd);
    if (access(path, F_OK) != 0) { /* no fault of the catalogue's */
        snprintf(err, err_len, "%s cannot be reached", path);
        free(c);
        return CS_EIO;
    }
    snprintf(path + prefix, sizeof path - (size_t)prefix, "/%s", name);
    if (access(path, R_OK | X_OK) != 0 && errno == EACCES) { /* to RocksDB what it cannot see is not there */
        snprintf(err, err_len, "cannot open %s: %s", name, strerror(EACCES));
        free(c);
        return CS_EIO;
    }
    c->read_only = read_only;
    c->made = made;
    rocksdb_options_t *options = options_make(share_bytes, false), *meta = options_make(share_bytes, true);
    if (made) {
        rocksdb_options_set_disable_auto_compactions(options, 1);
        rocksdb_options_set_disable_auto_compactions(meta, 1);
    }
    const rocksdb_options_t *cf_options[N_CF] = {meta, options, meta};
    char *problem = NULL;
    if (read_only)
        c->db = rocksdb_open_for_read_only_column_families(options, path, N_CF, cf_names, cf_options, c->cf,
                                                           0, &problem);
    else
        c->db = rocksdb_open_column_families(options, path, N_CF, cf_names, cf_options, c->cf, &problem);
    rocksdb_options_destroy(options);
    rocksdb_options_destroy(meta);
    if (problem != NULL) {
        problem_text(problem, path, err, err_len);
        rc = is_circumstance(problem) ? CS_EIO : CS_ECORRUPT;
        rocksdb_free(problem);
        free(c);
        return rc;
    }
    c->batch = rocksdb_writebatch_create();
    c->mark_fd = catalog_mark_open(dir_fd, name, read_only);
    uint64_t synced = catalog_mark_read(c->mark_fd), there = rocksdb_get_latest_sequence_number(c->db);
    c->missing = synced > there ? synced - there : 0;
    *out = c;
    return CS_OK;
}

int catalog_open(int dir_fd, bool read_only, uint64_t share_bytes, struct catalog **out, char *err,
                 size_t err_len)
{
    *out = NULL;
    int rc = catalog_folder_ready(dir_fd, read_only, err, err_len);
    return rc == CS_OK ? folder_open(dir_fd, CATALOG_FOLDER, read_only, share_bytes, false, out, err, err_len)
                       : rc;
}

int catalog_open_new(int dir_fd, uint64_t share_bytes, struct catalog **out, char *err, size_t err_len)
{
    *out = NULL;
    int rc = catalog_folder_new(dir_fd, err, err_len);
    return rc == CS_OK ? folder_open(dir_fd, CATALOG_FOLDER_NEW, false, share_bytes, true, out, err, err_len)
                       : rc;
}

static bool flush_all(struct catalog *c)
{
    rocksdb_flushoptions_t *fo = rocksdb_flushoptions_create();
    bool good = true;
    for (int i = 0; i < N_CF; i++) {
        char *problem = NULL;
        rocksdb_flush_cf(c->db, fo, c->cf[i], &problem);
        good = good && problem == NULL;
        if (problem != NULL)
            rocksdb_free(problem);
    }
    rocksdb_flushoptions_destroy(fo);
    return good;
}

/* Files beside tables; of a row what is not its value; of all, what is lost at the end of blocks and tables.
 */
uint64_t catalog_new_bytes(uint64_t n_rows, uint64_t value_bytes)
{
    enum { OTHERS_BYTES = 192 << 10, ROW_BYTES = NOTES_KEY_BYTES + 24, LOST_SHARE = 8 };
    uint64_t bytes = value_bytes + n_rows * ROW_BYTES;
    return bytes + bytes / LOST_SHARE + OTHERS_BYTES;
}

void catalog_close(struct catalog *c)
{
    if (c == NULL)
        return;
    if (!c->read_only)
        (void)flush_all(c); /* a failure costs the next open a replay, nothing else */
    rocksdb_writebatch_destroy(c->batch);
    for (int i = 0; i < N_CF; i++)
        rocksdb_column_family_handle_destroy(c->cf[i]);
    rocksdb_close(c->db);
    if (c->mark_fd >= 0)
        close(c->mark_fd);
    free(c);
}

uint64_t catalog_missing(const struct catalog *c)
{
    return c->missing;
}

uint64_t catalog_most_bytes(const struct catalog *c, int dir_fd)
{
    struct catalog_sizes sizes = catalog_folder_sizes(dir_fd);
    uint64_t tables = 0;
    for (int i = 0; i < N_CF; i++) {
        uint64_t bytes = 0;
        if (rocksdb_property_int_cf(c->db, c->cf[i], "rocksdb.live-sst-files-size", &bytes) == 0)
            tables += bytes;
    }
    return 2 * (tables + sizes.logs) + sizes.others;
}

int catalog_store_get(struct catalog *c, uint8_t uuid[16], uint32_t *epoch)
{
    rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
    char *problem = NULL;
    size_t len = 0;
    char *value = rocksdb_get_cf(c->db, ro, c->cf[CF_META], store_key, sizeof store_key - 1, &len, &problem);
    rocksdb_readoptions_destroy(ro);
    if (problem != NULL) {
        rocksdb_free(problem);
        return CS_ECORRUPT;
    }
    if (value == NULL)
        return CS_ENOTFOUND;
    struct store_row row = {.format = 0};
    if (len == sizeof row)
        memcpy(&row, value, sizeof row);
    rocksdb_free(value);
    if (row.format != STORE_ROW_FORMAT)
        return CS_ECORRUPT;
    memcpy(uuid, row.uuid, sizeof row.uuid);
    *epoch = row.epoch;
    return CS_OK;
}

int catalog_budget_get(struct catalog *c, uint64_t *bytes)
{
    rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
    char *problem = NULL;
    size_t len = 0;
    char *value =
        rocksdb_get_cf(c->db, ro, c->cf[CF_META], budget_key, sizeof budget_key - 1, &len, &problem);
    rocksdb_readoptions_destroy(ro);
    int rc = problem != NULL || (value != NULL && len != sizeof *bytes) ? CS_ECORRUPT
             : value == NULL                                            ? CS_ENOTFOUND
                                                                        : CS_OK;
    if (rc == CS_OK)
        memcpy(bytes, value, sizeof *bytes);
    if (value != NULL)
        rocksdb_free(value);
    if (problem != NULL)
        rocksdb_free(problem);
    return rc;
}

int catalog_scan(struct catalog *c, enum catalog_kind kind, catalog_row_fn fn, void *ctx)
{
    rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(ro, 1);
    rocksdb_readoptions_set_fill_cache(ro, 0);
    rocksdb_readoptions_set_readahead_size(ro, 2u << 20);
    rocksdb_iterator_t *it = rocksdb_create_iterator_cf(c->db, ro, kind_cf(c, kind));
    char first = kind_byte(kind);
    size_t want_len = kind == CATALOG_NOTES ? NOTES_KEY_BYTES : KEY_BYTES;
    void *aligned = NULL;
    size_t room = 0;
    int rc = CS_OK;
    rocksdb_iter_seek(it, &first, 1);
    for (; rc == CS_OK && rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        size_t key_len, len;
        const char *key = rocksdb_iter_key(it, &key_len);
        if (key_len == 0 || key[0] != first)
            break;
        if (key_len != want_len)
            continue;
        const char *value = rocksdb_iter_value(it, &len);
        if (len > room || aligned == NULL) {
            void *larger = realloc(aligned, len + 64);
            if (larger == NULL) {
                rc = CS_ENOMEM;
                break;
            }
            aligned = larger;
            room = len + 64;
        }
        memcpy(aligned, value, len);
        struct catalog_row row = {.id = get_id(key + 1), .value = aligned, .len = len};
        if (kind == CATALOG_NOTES)
            row.notes = get_id(key + KEY_BYTES);
        rc = fn(ctx, &row);
    }
    if (rc == CS_OK) {
        char *problem = NULL;
        rocksdb_iter_get_error(it, &problem);
        if (problem != NULL) {
            rocksdb_free(problem);
            rc = CS_ECORRUPT;
        }
    }
    free(aligned);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(ro);
    return rc;
}

int catalog_get(struct catalog *c, struct record_id id, void **value, size_t *len)
{
    char key[KEY_BYTES];
    key_make(key, CATALOG_RECORD, id);
    rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
    char *problem = NULL;
    char *found = rocksdb_get_cf(c->db, ro, kind_cf(c, CATALOG_RECORD), key, sizeof key, len, &problem);
    rocksdb_readoptions_destroy(ro);
    int rc = problem != NULL ? CS_ECORRUPT : found == NULL ? CS_ENOTFOUND : CS_OK;
    if (rc == CS_OK && (*value = malloc(*len ? *len : 1)) == NULL)
        rc = CS_ENOMEM;
    if (rc == CS_OK)
        memcpy(*value, found, *len);
    if (found != NULL)
        rocksdb_free(found);
    if (problem != NULL)
        rocksdb_free(problem);
    return rc;
}

void catalog_put(struct catalog *c, enum catalog_kind kind, struct record_id id, const void *value,
                 size_t len)
{
    char key[KEY_BYTES];
    key_make(key, kind, id);
    rocksdb_writebatch_put_cf(c->batch, kind_cf(c, kind), key, sizeof key, value, len);
}

void catalog_delete(struct catalog *c, enum catalog_kind kind, struct record_id id)
{
    char key[KEY_BYTES];
    key_make(key, kind, id);
    rocksdb_writebatch_delete_cf(c->batch, kind_cf(c, kind), key, sizeof key);
}

void catalog_put_notes(struct catalog *c, struct record_id owner, struct record_id id, const void *value,
                       size_t len)
{
    char key[NOTES_KEY_BYTES];
    notes_key_make(key, owner, id);
    rocksdb_writebatch_put_cf(c->batch, c->cf[CF_RECORD], key, sizeof key, value, len);
}

void catalog_delete_notes(struct catalog *c, struct record_id owner, struct record_id id)
{
    char key[NOTES_KEY_BYTES];
    notes_key_make(key, owner, id);
    rocksdb_writebatch_delete_cf(c->batch, c->cf[CF_RECORD], key, sizeof key);
}

void catalog_delete_notes_of(struct catalog *c, struct record_id owner)
{
    char first[KEY_BYTES], end[NOTES_KEY_BYTES + 1];
    key_make(first, CATALOG_NOTES, owner);
    memcpy(end, first, sizeof first);
    memset(end + sizeof first, 0xff, sizeof end - sizeof first); /* above every key of this owner */
    rocksdb_writebatch_delete_range_cf(c->batch, c->cf[CF_RECORD], first, sizeof first, end, sizeof end);
}

void catalog_store_put(struct catalog *c, const uint8_t uuid[16], uint32_t epoch)
{
    struct store_row row = {.format = STORE_ROW_FORMAT, .epoch = epoch};
    memcpy(row.uuid, uuid, sizeof row.uuid);
    rocksdb_writebatch_put_cf(c->batch, c->cf[CF_META], store_key, sizeof store_key - 1, (const char *)&row,
                              sizeof row);
}

void catalog_budget_put(struct catalog *c, uint64_t bytes)
{
    rocksdb_writebatch_put_cf(c->batch, c->cf[CF_META], budget_key, sizeof budget_key - 1,
                              (const char *)&bytes, sizeof bytes);
}

unsigned catalog_batch_rows(const struct catalog *c)
{
    return (unsigned)rocksdb_writebatch_count(c->batch);
}

int catalog_commit(struct catalog *c, bool sync)
{
    /* What is in no log must be in tables before anything says that it is there. */
    if (c->made && sync && !flush_all(c)) {
        rocksdb_writebatch_clear(c->batch);
        return CS_EIO;
    }
    if (rocksdb_writebatch_count(c->batch) == 0)
        return CS_OK;
    rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(wo, sync);
    rocksdb_writeoptions_disable_WAL(wo, c->made && !sync);
    char *problem = NULL;
    rocksdb_write(c->db, wo, c->batch, &problem);
    rocksdb_writebatch_clear(c->batch);
    rocksdb_writeoptions_destroy(wo);
    /* Where changes are missing it goes on saying so, until the rows are made again. */
    if (problem == NULL && sync && c->missing == 0)
        catalog_mark_write(c->mark_fd, rocksdb_get_latest_sequence_number(c->db));
    if (problem == NULL)
        return CS_OK;
    rocksdb_free(problem);
    return CS_EIO;
}
