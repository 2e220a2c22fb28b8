/*
 * See store_file.h. The text, in this order and nothing else:
 *
 *   isotherm-store 2
 *   uuid 8-4-4-4-12 hex digits
 *   secret 32 hex digits
 *   chunk_bytes N
 *   purge_epoch N
 *   checksum 16 hex digits: XXH3-64 of the lines above
 */
#include "cachestore/store_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cachestore/inspect.h"
#include "formats/record.h"

enum { STORE_TEXT_MAX = 1024 };
static const char store_name[] = "STORE", store_new_name[] = "STORE.new";

int store_dir_lock(const char *dir, bool create, int *dir_fd, char *err, size_t err_len)
{
    *dir_fd = -1;
    if (create && mkdir(dir, 0700) < 0 && errno != EEXIST) {
        snprintf(err, err_len, "cannot make %s: %s", dir, strerror(errno));
        return CS_EIO;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        int rc = errno == ENOENT || errno == ENOTDIR ? CS_ENOTFOUND : CS_EIO;
        snprintf(err, err_len, "cannot open %s: %s", dir, strerror(errno));
        return rc;
    }
    int rc;
    do {
        rc = flock(fd, LOCK_EX | LOCK_NB);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        bool busy = errno == EWOULDBLOCK;
        if (busy)
            snprintf(err, err_len, "%s is in use by another process", dir);
        else
            snprintf(err, err_len, "cannot lock %s: %s", dir, strerror(errno));
        close(fd);
        return busy ? CS_EBUSY : CS_EIO;
    }
    *dir_fd = fd;
    return CS_OK;
}

/* A folder and what is in it, `levels` of folders below it. */
static void folder_remove(int dir_fd, const char *name, unsigned levels)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(fd, e->d_name, 0) < 0 && levels > 0)
            folder_remove(fd, e->d_name, levels - 1);
    }
    if (d != NULL)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    (void)unlinkat(dir_fd, name, AT_REMOVEDIR);
}

void store_scratch_remove(int dir_fd)
{
    folder_remove(dir_fd, CS_SCRATCH_FOLDER, 1);
}

void store_uuid_text(const uint8_t uuid[16], char out[37])
{
    char *p = out;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        p += snprintf(p, 3, "%02x", uuid[i]);
    }
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The canonical text of s; its length. Reading compares with it byte for byte, so there is one spelling only.
 */
static size_t store_text(const struct store_file *s, char out[STORE_TEXT_MAX])
{
    char uuid[37], secret[33];
    store_uuid_text(s->uuid, uuid);
    for (int i = 0; i < 16; i++)
        snprintf(secret + 2 * (size_t)i, 3, "%02x", s->secret[i]);
    int n =
        snprintf(out, STORE_TEXT_MAX,
                 "isotherm-store %d\nuuid %s\nsecret %s\nchunk_bytes %" PRIu32 "\npurge_epoch %" PRIu64 "\n",
                 STORE_FORMAT_VERSION, uuid, secret, s->chunk_bytes, s->purge_epoch);
    size_t len = (size_t)n;
    len += (size_t)snprintf(out + len, STORE_TEXT_MAX - len, "checksum %016" PRIx64 "\n",
                            (uint64_t)XXH3_64bits(out, len));
    return len;
}

/* Hex digits of `text` into bytes, skipping dashes; false unless exactly n bytes come out. */
static bool parse_hex(const char *text, size_t len, uint8_t *bytes, size_t n)
{
    size_t digits = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '-')
            continue;
        int value = hex_value(text[i]);
        if (value < 0 || digits == 2 * n)
            return false;
        bytes[digits / 2] = (uint8_t)(digits % 2 == 0 ? value << 4 : bytes[digits / 2] | value);
        digits++;
    }
    return digits == 2 * n;
}

/* The value of the line "name value\n" at *p, which moves behind it. */
static bool parse_line(const char **p, const char *name, const char **value, size_t *len)
{
    size_t name_len = strlen(name);
    if (strncmp(*p, name, name_len) != 0 || (*p)[name_len] != ' ')
        return false;
    const char *end = strchr(*p, '\n');
    if (end == NULL)
        return false;
    *value = *p + name_len + 1;
    *len = (size_t)(end - *value);
    *p = end + 1;
    return true;
}

static int store_parse(const char *text, size_t len, struct store_file *s, char *err, size_t err_len)
{
    const char *p = text, *value;
    size_t n;
    if (strlen(text) != len || !parse_line(&p, "isotherm-store", &value, &n))
        goto damaged;
    /* Another version first: its other lines may be unknown to us. */
    if (n == 0 || n > 6 || strspn(value, "0123456789") != n)
        goto damaged;
    long version = strtol(value, NULL, 10);
    if (version != STORE_FORMAT_VERSION) {
        snprintf(err, err_len, "the store has format version %ld, this program reads %d", version,
                 STORE_FORMAT_VERSION);
        return CS_EVERSION;
    }
    memset(s, 0, sizeof *s);
    if (!parse_line(&p, "uuid", &value, &n) || !parse_hex(value, n, s->uuid, 16) ||
        !parse_line(&p, "secret", &value, &n) || !parse_hex(value, n, s->secret, 16) ||
        !parse_line(&p, "chunk_bytes", &value, &n))
        goto damaged;
    unsigned long long chunk = strtoull(value, NULL, 10);
    if (chunk < FMT_RECORD_CHUNK_BYTES_MIN || chunk > FMT_RECORD_CHUNK_BYTES_MAX ||
        (chunk & (chunk - 1)) != 0)
        goto damaged;
    s->chunk_bytes = (uint32_t)chunk;
    if (!parse_line(&p, "purge_epoch", &value, &n))
        goto damaged;
    s->purge_epoch = strtoull(value, NULL, 10);
    char canonical[STORE_TEXT_MAX];
    if (store_text(s, canonical) != len || memcmp(canonical, text, len) != 0)
        goto damaged;
    return CS_OK;
damaged:
    snprintf(err, err_len,
             "the STORE file is damaged; it is not overwritten: move the directory away to start anew");
    return CS_EFORMAT;
}

int store_file_read(int dir_fd, struct store_file *out, char *err, size_t err_len)
{
    int fd = openat(dir_fd, store_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        snprintf(err, err_len, "STORE is no regular file: not a store");
        return CS_EFORMAT;
    }
    if (fd < 0) {
        int rc = errno == ENOENT ? CS_ENOTFOUND : CS_EIO;
        snprintf(err, err_len,
                 rc == CS_ENOTFOUND ? "no STORE file: not a store" : "cannot open the STORE file: %s",
                 strerror(errno));
        return rc;
    }
    char text[STORE_TEXT_MAX];
    size_t len = 0;
    ssize_t got;
    while ((got = read(fd, text + len, sizeof text - len)) > 0)
        len += (size_t)got;
    int saved = errno;
    close(fd);
    if (got < 0) {
        snprintf(err, err_len, "cannot read the STORE file: %s", strerror(saved));
        return CS_EIO;
    }
    if (len == sizeof text)
        len--;
    text[len] = 0;
    return store_parse(text, len, out, err, err_len);
}

/* Whether the directory holds nothing but what an interrupted creation leaves. */
static bool directory_is_fresh(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool fresh = true;
    const struct dirent *e;
    while (fresh && (e = readdir(d)) != NULL) {
        static const char *const harmless[] = {".", "..", store_new_name, "lost+found"};
        bool known = false;
        for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
            known = known || strcmp(e->d_name, harmless[i]) == 0;
        fresh = known;
    }
    closedir(d);
    return fresh;
}

static bool random_fill(void *out, size_t n)
{
    ssize_t got;
    do {
        got = getrandom(out, n, 0);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)n;
}

static int store_file_write(int dir_fd, const struct store_file *s)
{
    char text[STORE_TEXT_MAX];
    size_t len = store_text(s, text), done = 0;
    int fd = openat(dir_fd, store_new_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int rc = 0;
    while (rc == 0 && done < len) {
        ssize_t n = write(fd, text + done, len - done);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno != EINTR)
            rc = -errno;
    }
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    if (close(fd) < 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && renameat(dir_fd, store_new_name, dir_fd, store_name) < 0)
        rc = -errno;
    if (rc == 0 && fsync(dir_fd) < 0)
        rc = -errno;
    return rc;
}

int store_file_create(int dir_fd, uint32_t chunk_bytes, struct store_file *out, char *err, size_t err_len)
{
    if (!directory_is_fresh(dir_fd)) {
        snprintf(err, err_len, "the directory is not empty and has no STORE file: not a store");
        return CS_EFORMAT;
    }
    memset(out, 0, sizeof *out);
    out->chunk_bytes = chunk_bytes;
    if (!random_fill(out->uuid, sizeof out->uuid) || !random_fill(out->secret, sizeof out->secret)) {
        snprintf(err, err_len, "no random bytes for a new store");
        return CS_EIO;
    }
    out->uuid[6] = (uint8_t)((out->uuid[6] & 0x0f) | 0x40); /* RFC 4122: a random UUID */
    out->uuid[8] = (uint8_t)((out->uuid[8] & 0x3f) | 0x80);
    int rc = store_file_write(dir_fd, out);
    if (rc < 0) {
        snprintf(err, err_len, "cannot write the STORE file: %s", strerror(-rc));
        return CS_EIO;
    }
    return CS_OK;
}

int store_file_update(int dir_fd, const struct store_file *s, char *err, size_t err_len)
{
    int rc = store_file_write(dir_fd, s);
    if (rc < 0)
        snprintf(err, err_len, "cannot write the STORE file: %s", strerror(-rc));
    return rc < 0 ? CS_EIO : CS_OK;
}
