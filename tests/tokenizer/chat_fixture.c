/* See chat_fixture.h. */
#include "tests/tokenizer/chat_fixture.h"
#include <stdlib.h>
#include <string.h>

static const struct tiny_token tokens[] = {{"<|im_start|>", 3},
                                           {"<|im_end|>", 3},
                                           {"<think>", 4},
                                           {"</think>", 4},
                                           {"<|eot_id|>", 3},
                                           {"<|start_header_id|>", 3},
                                           {"<|end_header_id|>", 3},
                                           {"<|begin_of_text|>", 3},
                                           {"he", 1},
                                           {"ll", 1},
                                           {"hell", 1},
                                           {NULL, 0}};
static const char *const merges[] = {"h e", "l l", "he ll", NULL};
const struct tiny chat_base = {.model = "gpt2", .pre = "qwen2", .extra = tokens, .merges = merges};

int set_up_with(void **state, const struct tiny *spec)
{
    static struct fixture f;
    char err[256];
    *state = &f;
    if (tiny_open(spec, &f.g, &f.t, err) != 0)
        fail_msg("%s", err);
    return 0;
}

int set_up(void **state)
{
    return set_up_with(state, &chat_base);
}

int tear_down(void **state)
{
    struct fixture *f = *state;
    tiny_close(f->g, f->t);
    return 0;
}

const char *spell(const struct eng_tokenizer *t, const uint32_t *ids, size_t n)
{
    static char out[4096];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        size_t piece_len;
        const char *piece = eng_tokenizer_piece(t, ids[i], true, &piece_len);
        assert_true(len + piece_len < sizeof(out));
        memcpy(out + len, piece, piece_len);
        len += piece_len;
    }
    out[len] = '\0';
    return out;
}

struct eng_message message(enum eng_role role, const char *content)
{
    return (struct eng_message){role, content, strlen(content)};
}

void render(const struct eng_tokenizer *t, const char *name, const struct eng_message *messages, size_t n,
            enum eng_generation generation, const struct eng_chat_memo *memo, struct eng_rendered *out)
{
    char err[256];
    const struct eng_chat_template *c = eng_chat_by_name(name);
    assert_non_null(c);
    assert_int_equal(eng_chat_check(c, t, err, sizeof(err)), ENG_OK);
    assert_int_equal(eng_chat_render(c, t, messages, n, generation, memo, out, err, sizeof(err)), ENG_OK);
}

void expect_text(const struct eng_tokenizer *t, const char *name, const struct eng_message *messages,
                 size_t n, bool add_generation, const char *text)
{
    struct eng_rendered r;
    render(t, name, messages, n, add_generation, NULL, &r);
    assert_string_equal(spell(t, r.ids.data, r.ids.n), text);
    eng_rendered_free(&r);
}

int system_end(const struct eng_rendered *r)
{
    int found = -1;
    for (size_t i = 0; i < r->n_boundaries; i++)
        if (r->boundaries[i].ends_system)
            found = found == -1 ? (int)i : -2;
    return found;
}

bool look_up(void *ctx, const uint32_t *ids, size_t n, const char *text, size_t len, struct eng_ids *out)
{
    struct note *note = ctx;
    note->asked++;
    if (len != note->len || memcmp(text, note->text, len) != 0)
        return false;
    if (!note->everywhere && (n != note->n_before || memcmp(ids, note->before, n * sizeof(*ids)) != 0))
        return false;
    note->answered++;
    return eng_ids_add(out, note->ids, note->n) == ENG_OK;
}

void learned(void *ctx, size_t position, const char *text, size_t len, const uint32_t *ids, size_t n)
{
    struct note *note = ctx;
    (void)position;
    (void)text;
    (void)len;
    (void)ids;
    (void)n;
    note->learned++;
}

int remember(const struct eng_tokenizer *t, const char *name, const struct eng_rendered *prompt,
             const uint32_t *sampled, size_t n, const char *text, struct note *note)
{
    char *run;
    size_t run_len;
    struct eng_ids ids;
    *note = (struct note){0};
    int rc = eng_chat_reply_note(eng_chat_by_name(name), t, prompt, sampled, n, text, strlen(text), &run,
                                 &run_len, &ids);
    if (rc != ENG_OK)
        return rc;
    assert_true(prompt->reply_run <= 64 && run_len <= 64 && ids.n <= 64);
    memcpy(note->before, prompt->ids.data, prompt->reply_run * sizeof(uint32_t));
    note->n_before = prompt->reply_run;
    memcpy(note->text, run, run_len);
    note->len = run_len;
    memcpy(note->ids, ids.data, ids.n * sizeof(uint32_t));
    note->n = ids.n;
    free(run);
    eng_ids_free(&ids);
    return ENG_OK;
}
