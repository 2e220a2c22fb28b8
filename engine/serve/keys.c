/*
 * API keys; see keys.h.
 *
 * A tenant id lies on disk beside the tenant's spans, so it must not give the key away: it is made from a
 * slow one-way hash of it (SHA-512 crypt with a fixed salt, because the same key must find its tenant again
 * after a restart), computed when a key is first presented: thousands of them at start would hold it up for
 * seconds. A presented key is compared with each known one as two
 * zero-padded blocks of one length, without an early end.
 */
#include "engine/serve/keys.h"

#include <crypt.h>
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

enum { KEY_BYTES = 256 }; /* a key's block; the longest key is one shorter */

struct api_key {
    char block[KEY_BYTES];
    struct cs_tenant tenant; /* once hashed */
    bool hashed, is_operator;
};

struct eng_keys {
    pthread_mutex_t lock; /* tenant and hashed of all keys */
    size_t n;
    struct api_key *list;
};

static int tenant_from_key(const char *key, struct cs_tenant *tenant)
{
    struct crypt_data *data = calloc(1, sizeof *data);
    int result = -1;
    const char *digest = data ? crypt_r(key, "$6$rounds=5000$isotherm-tenant$", data) : NULL;
    if (digest && digest[0] == '$') {
        XXH128_canonical_t id;
        XXH128_canonicalFromHash(&id, XXH3_128bits(digest, strlen(digest)));
        memcpy(tenant->id, id.digest, sizeof tenant->id);
        result = 0;
    }
    free(data);
    return result;
}

static bool hash_key(struct api_key *key)
{
    if (!key->hashed)
        key->hashed = tenant_from_key(key->block, &key->tenant) == 0;
    return key->hashed;
}

/* line: "KEY" or "operator KEY" */
static int add_key(struct eng_keys *keys, const char *line, char *err, size_t err_len)
{
    static const char mark[] = "operator";
    size_t mark_len = sizeof mark - 1;
    bool is_operator =
        strncmp(line, mark, mark_len) == 0 && (line[mark_len] == ' ' || line[mark_len] == '\t');
    const char *key = is_operator ? line + mark_len + strspn(line + mark_len, " \t") : line;
    if (strcmp(line, mark) == 0) {
        snprintf(err, err_len, "API key file: a line is 'operator' without a key");
        return -1;
    }
    for (const char *c = key; *c; c++)
        if (!isgraph((unsigned char)*c)) {
            snprintf(err, err_len,
                     "API key file: a key has a blank or another character that no header can carry");
            return -1;
        }
    if (strlen(key) >= KEY_BYTES) {
        snprintf(err, err_len, "API key file: a key is longer than %d bytes", KEY_BYTES - 1);
        return -1;
    }
    struct api_key *grown = realloc(keys->list, (keys->n + 1) * sizeof *grown);
    if (!grown) {
        snprintf(err, err_len, "API key file: out of memory");
        return -1;
    }
    keys->list = grown;
    struct api_key *slot = &keys->list[keys->n];
    memset(slot, 0, sizeof *slot);
    snprintf(slot->block, sizeof slot->block, "%s", key);
    slot->is_operator = is_operator;
    if (keys->n == 0 && !hash_key(slot)) { /* what works for one works for all */
        snprintf(err, err_len, "API key file: this system's crypt() cannot hash a key");
        return -1;
    }
    keys->n++;
    return 0;
}

/* Cuts white space at both ends. */
static char *trim(char *line)
{
    while (*line == ' ' || *line == '\t')
        line++;
    size_t len = strlen(line);
    while (len > 0 && strchr(" \t\r\n", line[len - 1]))
        line[--len] = '\0';
    return line;
}

int eng_keys_load(const char *path, struct eng_keys **out, char *err, size_t err_len)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len = 0;
    int result = -1;
    FILE *file = fopen(path, "re");
    struct eng_keys *keys = calloc(1, sizeof *keys);
    if (!file || !keys) {
        snprintf(err, err_len, "cannot read the API key file %s: %s", path, strerror(errno));
        free(keys);
        keys = NULL;
        goto out;
    }
    pthread_mutex_init(&keys->lock, NULL);
    while ((len = getline(&line, &cap, file)) >= 0) {
        if (memchr(line, '\0', (size_t)len)) {
            snprintf(err, err_len, "API key file: not a text file");
            goto out;
        }
        const char *key = trim(line);
        if (*key && *key != '#' && add_key(keys, key, err, err_len) != 0)
            goto out;
    }
    if (ferror(file)) {
        snprintf(err, err_len, "cannot read the API key file %s", path);
        goto out;
    }
    if (keys->n == 0) {
        snprintf(err, err_len, "the API key file %s holds no key", path);
        goto out;
    }
    *out = keys;
    keys = NULL;
    result = 0;
out:
    if (line)
        explicit_bzero(line, cap);
    free(line);
    if (file)
        fclose(file);
    eng_keys_free(keys);
    return result;
}

void eng_keys_free(struct eng_keys *keys)
{
    if (!keys)
        return;
    if (keys->list)
        explicit_bzero(keys->list, keys->n * sizeof *keys->list);
    free(keys->list);
    pthread_mutex_destroy(&keys->lock);
    free(keys);
}

bool eng_keys_find(struct eng_keys *keys, const char *authorization, struct cs_tenant *tenant,
                   bool *is_operator)
{
    char block[KEY_BYTES] = {0}; /* padding, not termination: all of it is compared */
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    const char *key = authorization + 7;
    while (*key == ' ')
        key++;
    size_t len = strlen(key);
    if (len == 0 || len >= KEY_BYTES)
        return false;
    snprintf(block, sizeof block, "%s", key);
    struct api_key *found = NULL;
    for (size_t i = 0; i < keys->n; i++) {
        volatile unsigned char difference = 0;
        for (size_t k = 0; k < KEY_BYTES; k++)
            difference = (unsigned char)(difference | (block[k] ^ keys->list[i].block[k]));
        if (difference == 0)
            found = &keys->list[i];
    }
    explicit_bzero(block, sizeof block);
    if (!found)
        return false;
    pthread_mutex_lock(&keys->lock);
    bool known = hash_key(found); /* false: no memory; nobody gets in as somebody else */
    *tenant = found->tenant;
    *is_operator = found->is_operator;
    pthread_mutex_unlock(&keys->lock);
    return known;
}
