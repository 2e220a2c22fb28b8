/*
 * Streaming detokenizer: bytes of tokens in, whole UTF-8 characters out.
 *
 * At most three bytes wait: the beginning of a character that is well formed so far. A byte that cannot go on
 * from there turns what waited into one U+FFFD and is looked at again as a beginning. This replaces each
 * maximal part of an ill-formed character once (The Unicode Standard, section 3.9, "U+FFFD Substitution of
 * Maximal Subparts").
 */
#include "engine/tokenizer/tokenizer.h"
#include <string.h>

static size_t put_replacement(char *out)
{
    static const char replacement[3] = {'\xEF', '\xBF', '\xBD'};
    memcpy(out, replacement, sizeof(replacement));
    return sizeof(replacement);
}

/* Bytes of the character that starts with this byte; 0 when none does. */
static size_t length_of(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}

/* May c be the n-th byte (n >= 1) of a character that starts with lead? The second byte rules out overlong
 * forms, surrogates and what lies above U+10FFFF. */
static bool continues(uint8_t lead, size_t n, uint8_t c)
{
    uint8_t low = 0x80, high = 0xBF;
    if (n == 1) {
        if (lead == 0xE0)
            low = 0xA0;
        else if (lead == 0xED)
            high = 0x9F;
        else if (lead == 0xF0)
            low = 0x90;
        else if (lead == 0xF4)
            high = 0x8F;
    }
    return c >= low && c <= high;
}

size_t eng_detok_push(struct eng_detok *d, const char *bytes, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)bytes[i];
        if (d->n_pending > 0 && !continues(d->pending[0], d->n_pending, c)) {
            n += put_replacement(out + n);
            d->n_pending = 0;
        }
        if (d->n_pending == 0 && length_of(c) == 0) {
            n += put_replacement(out + n);
            continue;
        }
        d->pending[d->n_pending++] = c;
        if (d->n_pending == length_of(d->pending[0])) {
            memcpy(out + n, d->pending, d->n_pending);
            n += d->n_pending;
            d->n_pending = 0;
        }
    }
    return n;
}

size_t eng_detok_finish(struct eng_detok *d, char *out)
{
    if (d->n_pending == 0)
        return 0;
    d->n_pending = 0;
    return put_replacement(out);
}
