/*
 * The scanners. Each tries its pattern's alternatives from left to right at the current position, as a
 * regular expression engine does; every alternative looks no further than the run of characters it is about,
 * so that the whole text is linear.
 */
#include "engine/tokenizer/pretok.h"
#include "engine/tokenizer/unicode.h"
#include <string.h>

/* File names of the same pattern. The first of a group is the one this project's documents use. */
static const struct pretok_name names[] = {
    {"gpt-2", PRETOK_GPT2, false, false},
    {"gpt2", PRETOK_GPT2, false, false},
    {"phi-2", PRETOK_GPT2, false, false},
    {"mpt", PRETOK_GPT2, false, false},
    {"olmo", PRETOK_GPT2, false, false},
    {"jais", PRETOK_GPT2, false, false},
    {"smollm", PRETOK_SMOLLM, false, false},
    {"starcoder", PRETOK_SMOLLM, false, false},
    {"refact", PRETOK_SMOLLM, false, false},
    {"command-r", PRETOK_SMOLLM, false, false},
    {"codeshell", PRETOK_SMOLLM, false, false},
    {"exaone", PRETOK_SMOLLM, false, false},
    {"minerva-7b", PRETOK_SMOLLM, false, false},
    {"llama-bpe", PRETOK_LLAMA3, true, true},
    {"llama3", PRETOK_LLAMA3, true, true},
    {"llama-v3", PRETOK_LLAMA3, true, true},
    {"falcon3", PRETOK_LLAMA3, true, true},
    {"dbrx", PRETOK_LLAMA3, false, false},
    {"smaug-bpe", PRETOK_LLAMA3, false, false},
    {"qwen2", PRETOK_QWEN2, false, false},
    {"deepseek-r1-qwen", PRETOK_QWEN2, false, false},
    {"stablelm2", PRETOK_QWEN2, false, false},
    {"megrez", PRETOK_QWEN2, false, false},
    {"qwen35", PRETOK_QWEN35, false, false},
};

const struct pretok_name *pretok_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i].name) == len && memcmp(names[i].name, name, len) == 0)
            return &names[i];
    return NULL;
}

struct character {
    size_t len;     /* 0: the end */
    unsigned class; /* of unicode.h; 0 for everything else */
    bool newline;
};

static struct character at(const uint8_t *s, size_t len, size_t pos)
{
    struct character c = {0};
    if (pos < len) {
        uint32_t code_point;
        c.len = unicode_decode(s + pos, len - pos, &code_point);
        c.class = unicode_class(code_point);
        c.newline = code_point == '\r' || code_point == '\n';
    }
    return c;
}

/* Neither letter (a class or several), number nor white space. */
static bool is_other(struct character c, unsigned letter)
{
    return c.len > 0 && !(c.class & (letter | UNICODE_NUMBER | UNICODE_SPACE));
}

/* End of the run of characters of these classes that goes on at pos. */
static size_t run_end(const uint8_t *s, size_t len, size_t pos, unsigned classes)
{
    for (;;) {
        struct character c = at(s, len, pos);
        if (!(c.class & classes))
            return pos;
        pos += c.len;
    }
}

static size_t others_end(const uint8_t *s, size_t len, size_t pos, unsigned letter)
{
    for (;;) {
        struct character c = at(s, len, pos);
        if (!is_other(c, letter))
            return pos;
        pos += c.len;
    }
}

/* 's 't 'm 'd 're 've 'll: their length, or 0. Ignoring case takes in U+017F, whose upper case is S. */
static size_t contraction(const uint8_t *s, size_t len, bool ignore_case)
{
    if (len < 2 || s[0] != '\'')
        return 0;
    uint8_t fold = ignore_case ? 0x20 : 0;
    uint8_t a = s[1] | fold, b = len > 2 ? s[2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return ignore_case && len > 2 && s[1] == 0xC5 && s[2] == 0xBF ? 3 : 0;
}

/* \s+(?!\S)|\s+ : a run of white space without its last character when something follows, or all of it when
 * that would leave nothing. The run starts at 0. */
static size_t white(const uint8_t *s, size_t len)
{
    size_t last = 0, end = 0;
    for (;;) {
        struct character c = at(s, len, end);
        if (!(c.class & UNICODE_SPACE))
            return c.len > 0 && last > 0 ? last : end;
        last = end;
        end += c.len;
    }
}

static size_t word_gpt2(const uint8_t *s, size_t len)
{
    size_t n = contraction(s, len, false);
    if (n > 0)
        return n;
    size_t start = s[0] == ' ' ? 1 : 0;
    struct character c = at(s, len, start);
    if (c.class & UNICODE_LETTER)
        return run_end(s, len, start, UNICODE_LETTER);
    if (c.class & UNICODE_NUMBER)
        return run_end(s, len, start, UNICODE_NUMBER);
    if (is_other(c, UNICODE_LETTER))
        return others_end(s, len, start, UNICODE_LETTER);
    return white(s, len);
}

/* \s*[\r\n]+ : to behind the last line end in the run of white space that starts at 0; 0 when it has none. */
static size_t white_lines(const uint8_t *s, size_t len)
{
    size_t pos = 0, end = 0;
    for (;;) {
        struct character c = at(s, len, pos);
        if (!(c.class & UNICODE_SPACE))
            return end;
        pos += c.len;
        if (c.newline)
            end = pos;
    }
}

/* letter: the classes that make up words. (A mark may also stand for [^\r\n\p{L}\p{N}] in front of a word of
 * letters and marks, which makes the same word.) */
static size_t word_llama3(const uint8_t *s, size_t len, unsigned max_digits, unsigned letter)
{
    size_t n = contraction(s, len, true);
    if (n > 0)
        return n;
    struct character first = at(s, len, 0);
    if (first.class & letter)
        return run_end(s, len, 0, letter);
    if (first.class & UNICODE_NUMBER) {
        size_t end = 0;
        for (unsigned i = 0; i < max_digits; i++) {
            struct character c = at(s, len, end);
            if (!(c.class & UNICODE_NUMBER))
                break;
            end += c.len;
        }
        return end;
    }
    if (!first.newline && (at(s, len, first.len).class & letter))
        return run_end(s, len, first.len, letter);
    size_t start = s[0] == ' ' ? 1 : 0;
    if (is_other(at(s, len, start), letter)) {
        size_t end = others_end(s, len, start, letter);
        while (end < len && (s[end] == '\r' || s[end] == '\n'))
            end++;
        return end;
    }
    n = white_lines(s, len);
    return n > 0 ? n : white(s, len);
}

/* Finds the next isolated digit at or behind `from`. */
static void find_digit(struct pretok *p, size_t from)
{
    while (from < p->len) {
        struct character c = at(p->text, p->len, from);
        if (c.class & UNICODE_DIGIT) {
            p->digit_at = from;
            p->after_digit = from + c.len;
            return;
        }
        from += c.len;
    }
    p->digit_at = p->after_digit = p->len;
}

void pretok_init(struct pretok *p, enum pretok_kind kind, const char *text, size_t len)
{
    *p = (struct pretok){.kind = kind, .text = (const uint8_t *)text, .len = len};
    if (kind == PRETOK_SMOLLM)
        find_digit(p, 0);
}

size_t pretok_next(struct pretok *p)
{
    const uint8_t *s = p->text + p->pos;
    size_t len = p->len - p->pos, n = 0;
    if (len == 0)
        return 0;
    switch (p->kind) {
    case PRETOK_GPT2:
        n = word_gpt2(s, len);
        break;
    case PRETOK_SMOLLM:
        if (p->digit_at > p->pos) {
            n = word_gpt2(s, p->digit_at - p->pos);
        } else {
            n = p->after_digit - p->digit_at;
            find_digit(p, p->after_digit);
        }
        break;
    case PRETOK_LLAMA3:
        n = word_llama3(s, len, 3, UNICODE_LETTER);
        break;
    case PRETOK_QWEN2:
        n = word_llama3(s, len, 1, UNICODE_LETTER);
        break;
    case PRETOK_QWEN35:
        n = word_llama3(s, len, 1, UNICODE_LETTER | UNICODE_MARK);
        break;
    }
    p->pos += n;
    return n;
}
