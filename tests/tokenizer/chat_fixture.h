/*
 * What the tests of chat templates share: a tiny vocabulary with the special tokens of several templates,
 * rendering that must succeed, and a memo of one note.
 */
#ifndef ISOTHERM_TESTS_TOKENIZER_CHAT_FIXTURE_H
#define ISOTHERM_TESTS_TOKENIZER_CHAT_FIXTURE_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include "engine/tokenizer/chat.h"
#include "formats/gguf.h"
#include "tests/tokenizer/tiny.h"

enum { IM_START = TINY(0), IM_END = TINY(1), HE = TINY(8), LL = TINY(9), HELL = TINY(10) };
extern const struct tiny chat_base;

/* The state of every test: a vocabulary that is open. */
struct fixture {
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
};
int set_up_with(void **state, const struct tiny *spec);
/* With chat_base. */
int set_up(void **state);
int tear_down(void **state);

/* Ids as text: pieces as they are, special tokens included. Valid until the next call. */
const char *spell(const struct eng_tokenizer *t, const uint32_t *ids, size_t n);
struct eng_message message(enum eng_role role, const char *content);
void render(const struct eng_tokenizer *t, const char *name, const struct eng_message *messages, size_t n,
            enum eng_generation generation, const struct eng_chat_memo *memo, struct eng_rendered *out);
void expect_text(const struct eng_tokenizer *t, const char *name, const struct eng_message *messages,
                 size_t n, bool add_generation, const char *text);
/* Index of the boundary that ends the system part; -1: none, -2: several. */
int system_end(const struct eng_rendered *r);

/* ---- memo -------------------------------------------------------------------------------------------- */

/* One note, as a runtime would keep it, and a record of what was asked. */
struct note {
    uint32_t before[64];
    size_t n_before;
    char text[64];
    size_t len;
    uint32_t ids[64];
    size_t n;
    unsigned asked, answered, learned;
    bool everywhere; /* answers at any position */
};

/* For struct eng_chat_memo, with a note as ctx. */
bool look_up(void *ctx, const uint32_t *ids, size_t n, const char *text, size_t len, struct eng_ids *out);
void learned(void *ctx, size_t position, const char *text, size_t len, const uint32_t *ids, size_t n);
/* A runtime at a reply's end. */
int remember(const struct eng_tokenizer *t, const char *name, const struct eng_rendered *prompt,
             const uint32_t *sampled, size_t n, const char *text, struct note *note);

#endif
