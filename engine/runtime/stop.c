/*
 * Stop strings, also when they are split over tokens.
 *
 * The match that completes first wins (of those that complete at the same byte, the longest), so that where a
 * reply is cut depends on its text only and not on how the text was split into tokens. Text is held back
 * while its end is a proper prefix of a stop string: it cannot be shown before it is clear that it stays. As
 * stop strings begin with a whole character, so does what is held: what is let go is always whole characters.
 */
#include "engine/runtime/stop.h"
#include "engine/tokenizer/errors.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int stop_set_init(struct stop_set *s, const char *const *stop, size_t n)
{
    memset(s, 0, sizeof *s);
    if (n == 0)
        return ENG_OK;
    s->text = calloc(n, sizeof *s->text);
    s->len = calloc(n, sizeof *s->len);
    if (!s->text || !s->len)
        goto no_memory;
    for (size_t i = 0; i < n; i++) {
        if (stop[i][0] == '\0' || ((unsigned char)stop[i][0] & 0xc0) == 0x80) {
            stop_set_free(s);
            return ENG_EINVAL;
        }
        s->text[i] = strdup(stop[i]);
        if (!s->text[i])
            goto no_memory;
        s->n++;
        s->len[i] = strlen(stop[i]);
    }
    return ENG_OK;
no_memory:
    stop_set_free(s);
    return ENG_ENOMEM;
}

void stop_set_free(struct stop_set *s)
{
    for (size_t i = 0; s->text && i < s->n; i++)
        free(s->text[i]);
    free(s->text);
    free(s->len);
    memset(s, 0, sizeof *s);
}

void stop_stream_free(struct stop_stream *t)
{
    free(t->data);
    memset(t, 0, sizeof *t);
}

static int reserve(char **data, size_t *cap, size_t need)
{
    if (need <= *cap)
        return ENG_OK;
    size_t grown = *cap ? *cap : 64;
    while (grown < need) {
        if (grown > SIZE_MAX / 2)
            return ENG_ENOMEM;
        grown *= 2;
    }
    char *p = realloc(*data, grown);
    if (!p)
        return ENG_ENOMEM;
    *data = p;
    *cap = grown;
    return ENG_OK;
}

int text_buffer_add(struct text_buffer *b, const char *data, size_t len)
{
    if (len > SIZE_MAX - b->len || reserve(&b->data, &b->cap, b->len + len) != ENG_OK)
        return ENG_ENOMEM;
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    return ENG_OK;
}

/* Start of the longest stop string that ends at data[end], or SIZE_MAX. */
static size_t match_ending_at(const struct stop_set *s, const char *data, size_t end)
{
    size_t start = SIZE_MAX;
    for (size_t i = 0; i < s->n; i++) {
        if (s->len[i] <= end && memcmp(data + end - s->len[i], s->text[i], s->len[i]) == 0 &&
            (start == SIZE_MAX || end - s->len[i] < start))
            start = end - s->len[i];
    }
    return start;
}

/* Bytes at the end of data that are a proper prefix of a stop string: the most there are. */
static size_t held_bytes(const struct stop_set *s, const char *data, size_t len)
{
    size_t most = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t n = s->len[i] - 1 < len ? s->len[i] - 1 : len;
        for (; n > most; n--) {
            if (memcmp(data + len - n, s->text[i], n) == 0)
                most = n;
        }
    }
    return most;
}

int stop_stream_push(struct stop_stream *t, const struct stop_set *s, const char *text, size_t len, bool last,
                     struct text_buffer *out)
{
    if (t->stopped)
        return ENG_OK;
    size_t before = t->len;
    if (len > SIZE_MAX - before || reserve(&t->data, &t->cap, before + len) != ENG_OK)
        return ENG_ENOMEM;
    if (len > 0)
        memcpy(t->data + before, text, len);
    t->len += len;

    size_t release = t->len;
    for (size_t end = before + 1; end <= t->len; end++) {
        size_t start = match_ending_at(s, t->data, end);
        if (start != SIZE_MAX) {
            t->stopped = true;
            release = start;
            break;
        }
    }
    if (!t->stopped && !last)
        release -= held_bytes(s, t->data, t->len);
    if (text_buffer_add(out, t->data, release) != ENG_OK)
        return ENG_ENOMEM;
    t->released += release;
    t->len -= release;
    if (t->stopped)
        t->len = 0;
    else if (release > 0)
        memmove(t->data, t->data + release, t->len);
    return ENG_OK;
}
