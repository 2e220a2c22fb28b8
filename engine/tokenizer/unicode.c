/* UTF-8 decoding and look-up in the generated table of classes. Pure functions. */
#include "engine/tokenizer/unicode.h"

size_t unicode_decode(const uint8_t *s, size_t len, uint32_t *code_point)
{
    uint8_t lead = s[0];
    *code_point = lead;
    if (lead < 0x80)
        return 1;
    *code_point = 0xFFFD;
    size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || len < n)
        return 1;
    uint32_t c = lead & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 1;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    if ((n == 3 && c < 0x800) || (n == 4 && (c < 0x10000 || c > 0x10FFFF)) || (c >= 0xD800 && c < 0xE000))
        return 1;
    *code_point = c;
    return n;
}

unsigned unicode_class(uint32_t c)
{
    if (c < 0x80) {
        if ((c | 0x20) - 'a' < 26)
            return UNICODE_LETTER;
        if (c - '0' < 10)
            return UNICODE_NUMBER | UNICODE_DIGIT;
        return c == ' ' || c - 9 < 5 ? UNICODE_SPACE : 0;
    }
    size_t low = 0, high = unicode_n_ranges;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (c > unicode_ranges[mid].last)
            low = mid + 1;
        else if (c < unicode_ranges[mid].first)
            high = mid;
        else
            return unicode_ranges[mid].class;
    }
    return 0;
}
