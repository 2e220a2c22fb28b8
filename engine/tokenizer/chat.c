/*
 * Rendering: messages to ids and boundaries through a template's data, the memo's answers and their proof,
 * and what is remembered of a reply. Pure functions; chat.h has the contract.
 */
#include "engine/tokenizer/chat.h"
#include "engine/tokenizer/chat_template.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const role_names[] = {
    [ENG_ROLE_SYSTEM] = "system", [ENG_ROLE_USER] = "user", [ENG_ROLE_ASSISTANT] = "assistant"};

struct renderer {
    const struct eng_chat_template *c;
    const struct eng_tokenizer *t;
    const struct eng_chat_memo *memo;
    struct eng_rendered *out;
    struct text run;                 /* reused from message to message */
    bool system_seen, behind_system; /* a system part; something that is none */
};

/* ---- proof ------------------------------------------------------------------------------------------- */

/* Do these ids spell this text: byte for byte, or as a client sees them, with U+FFFD for what is no
 * character? Pieces go through in slices, because a piece may have any length. */
static bool ids_spell(const struct eng_tokenizer *t, const uint32_t *ids, size_t n, const char *text,
                      size_t len)
{
    struct eng_detok d = {0};
    char shown[3 * (64 + 3)];
    size_t raw_at = 0, shown_at = 0;
    bool raw = true, as_shown = true;
    for (size_t i = 0; i < n && (raw || as_shown); i++) {
        size_t left;
        if (ids[i] >= eng_tokenizer_n_vocab(t))
            return false;
        const char *piece = eng_tokenizer_piece(t, ids[i], false, &left);
        raw = raw && left <= len - raw_at && memcmp(text + raw_at, piece, left) == 0;
        raw_at += raw ? left : 0;
        while (left > 0 && as_shown) {
            size_t slice = left < 64 ? left : 64;
            size_t n_shown = eng_detok_push(&d, piece, slice, shown);
            as_shown = n_shown <= len - shown_at && memcmp(text + shown_at, shown, n_shown) == 0;
            shown_at += as_shown ? n_shown : 0;
            piece += slice;
            left -= slice;
        }
    }
    if (raw && raw_at == len)
        return true;
    size_t n_shown = eng_detok_finish(&d, shown);
    return as_shown && len - shown_at == n_shown && memcmp(text + shown_at, shown, n_shown) == 0;
}

/* ---- rendering --------------------------------------------------------------------------------------- */

static int add_boundary(struct renderer *r, int32_t message, bool is_system)
{
    struct eng_rendered *out = r->out;
    if (out->ids.n > UINT32_MAX / 2)
        return ENG_ENOMEM;
    bool ends_system = !is_system && r->system_seen && !r->behind_system;
    out->boundaries[out->n_boundaries++] = (struct eng_boundary){(uint32_t)out->ids.n, message, ends_system};
    r->system_seen |= is_system;
    r->behind_system |= !is_system;
    return ENG_OK;
}

static int add_token(struct renderer *r, const char *text)
{
    uint32_t id = eng_tokenizer_special(r->t, text);
    return id == UINT32_MAX ? ENG_EINVAL : eng_ids_add(&r->out->ids, &id, 1);
}

static int add_text(struct renderer *r, const char *text)
{
    return eng_tokenizer_encode(r->t, text, strlen(text), false, &r->out->ids);
}

/* The ids of r->run: the memo's when it has proven ones, else encoded and taught. */
static int add_run(struct renderer *r)
{
    const struct eng_chat_memo *memo = r->memo;
    struct eng_ids *ids = &r->out->ids;
    size_t position = ids->n;
    const char *text = r->run.len > 0 ? r->run.data : "";
    if (memo != NULL && memo->look_up != NULL) {
        struct eng_ids found = {0};
        bool known = memo->look_up(memo->ctx, ids->data, ids->n, text, r->run.len, &found) &&
                     ids_spell(r->t, found.data, found.n, text, r->run.len);
        int rc = known ? eng_ids_add(ids, found.data, found.n) : ENG_OK;
        eng_ids_free(&found);
        if (known)
            return rc;
    }
    int rc = eng_tokenizer_encode(r->t, text, r->run.len, false, ids);
    if (rc == ENG_OK && memo != NULL && memo->learned != NULL)
        memo->learned(memo->ctx, position, text, r->run.len, ids->data + position, ids->n - position);
    return rc;
}

/* A message up to its run: boundary, start token and role; r->run gets the header. */
static int open_message(struct renderer *r, enum eng_role kind, int32_t message)
{
    const struct eng_chat_template *c = r->c;
    const char *role = kind == ENG_ROLE_ASSISTANT && c->assistant != NULL ? c->assistant : role_names[kind];
    r->run.len = 0;
    int rc = add_boundary(r, message, kind == ENG_ROLE_SYSTEM);
    if (rc == ENG_OK)
        rc = add_token(r, c->start);
    if (rc == ENG_OK)
        rc = c->end_role != NULL ? add_text(r, role) : text_add(&r->run, role, strlen(role));
    if (rc == ENG_OK && c->end_role != NULL)
        rc = add_token(r, c->end_role);
    return rc == ENG_OK ? text_add(&r->run, c->separator, strlen(c->separator)) : rc;
}

static int close_message(struct renderer *r)
{
    int rc = add_token(r, r->c->end);
    return rc == ENG_OK && r->c->after != NULL ? add_text(r, r->c->after) : rc;
}

static int add_bos(struct renderer *r)
{
    if (r->c->bos != NULL)
        return add_token(r, r->c->bos);
    uint32_t bos = eng_tokenizer_bos(r->t);
    bool wanted = r->c->file_bos || eng_tokenizer_add_bos(r->t);
    if (!wanted || bos == eng_tokenizer_special(r->t, r->c->start))
        return ENG_OK;
    return eng_ids_add(&r->out->ids, &bos, 1);
}

static int add_default_system(struct renderer *r)
{
    const struct eng_chat_template *c = r->c;
    int rc = open_message(r, ENG_ROLE_SYSTEM, -1);
    if (rc == ENG_OK && c->system_prefix != NULL)
        rc = text_add(&r->run, c->system_prefix, strlen(c->system_prefix));
    if (rc == ENG_OK)
        rc = text_add(&r->run, c->default_system, strlen(c->default_system));
    if (rc == ENG_OK)
        rc = eng_tokenizer_encode(r->t, r->run.data, r->run.len, false, &r->out->ids);
    return rc == ENG_OK ? close_message(r) : rc;
}

/* Bytes of text that the piece spells: all of it, or 0. SentencePiece gives a space for U+2581 as well. */
static size_t spelt_by(const char *piece, size_t n, const char *text, size_t len)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (at < len && text[at] == piece[i])
            at++;
        else if (piece[i] == ' ' && len - at >= 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0)
            at += 3;
        else
            return 0;
    }
    return at;
}

/* The boundary inside the run that starts at id `run`: behind the last id that spells nothing but its first
 * `len` bytes, the system text. */
static int add_boundary_in_run(struct renderer *r, size_t run, size_t len, int32_t message)
{
    struct eng_rendered *out = r->out;
    size_t i = run, at = 0, n;
    for (; i < out->ids.n && at < len; i++) {
        const char *piece = eng_tokenizer_piece(r->t, out->ids.data[i], false, &n);
        size_t more = spelt_by(piece, n, r->run.data + at, len - at);
        if (more == 0)
            break;
        at += more;
    }
    if (i > UINT32_MAX / 2)
        return ENG_ENOMEM;
    out->boundaries[out->n_boundaries++] =
        (struct eng_boundary){.position = (uint32_t)i, .message = message, .ends_system = true};
    return ENG_OK;
}

static int add_message(struct renderer *r, const struct eng_message *messages, size_t n_messages,
                       size_t last_query, size_t i)
{
    const struct eng_chat_template *c = r->c;
    const bool with_system = c->turns && i == 1 && messages[0].role == ENG_ROLE_SYSTEM;
    int rc = open_message(r, messages[i].role, with_system ? 0 : (int32_t)i);
    if (rc == ENG_OK && i == 0 && messages[i].role == ENG_ROLE_SYSTEM && c->system_prefix != NULL)
        rc = text_add(&r->run, c->system_prefix, strlen(c->system_prefix));
    if (rc == ENG_OK && with_system)
        rc = text_add(&r->run, messages[0].content, messages[0].len);
    if (rc == ENG_OK && with_system)
        rc = text_add(&r->run, "\n\n", 2);
    const size_t run = r->out->ids.n, system_len = r->run.len;
    if (rc == ENG_OK)
        rc = chat_content(c, messages, n_messages, last_query, i, &r->run);
    if (rc == ENG_OK)
        rc = add_run(r);
    if (rc == ENG_OK && with_system)
        rc = add_boundary_in_run(r, run, system_len, (int32_t)i);
    return rc == ENG_OK ? close_message(r) : rc;
}

static int add_reply_header(struct renderer *r, size_t n_messages, bool thinking)
{
    const char *block = thinking ? NULL : r->c->no_thinking;
    int rc = open_message(r, ENG_ROLE_ASSISTANT, (int32_t)n_messages);
    r->out->reply_run = r->out->ids.n;
    if (rc == ENG_OK && block != NULL)
        rc = text_add(&r->run, block, strlen(block));
    /* The block is the template's own text: its tags are tokens, of whatever type the file gives them. */
    if (rc == ENG_OK)
        rc = eng_tokenizer_encode(r->t, r->run.data, r->run.len, block != NULL, &r->out->ids);
    if (block != NULL)
        r->out->reply_run = r->out->ids.n;
    return rc;
}

static int render(struct renderer *r, const struct eng_message *messages, size_t n_messages,
                  enum eng_generation generation)
{
    int rc = add_bos(r);
    if (rc == ENG_OK && r->c->default_system != NULL && messages[0].role != ENG_ROLE_SYSTEM)
        rc = add_default_system(r);
    size_t last_query = chat_last_query(messages, n_messages);
    size_t first = r->c->turns && messages[0].role == ENG_ROLE_SYSTEM ? 1 : 0;
    for (size_t i = first; i < n_messages && rc == ENG_OK; i++)
        rc = add_message(r, messages, n_messages, last_query, i);
    r->out->reply_run = r->out->ids.n;
    if (rc == ENG_OK && generation != ENG_GENERATE_NONE)
        rc = add_reply_header(r, n_messages, generation != ENG_GENERATE_NO_THINKING);
    return rc == ENG_OK ? add_boundary(r, (int32_t)n_messages, false) : rc;
}

static int refuse(char *err, size_t err_len, const char *why)
{
    if (err_len > 0)
        snprintf(err, err_len, "%s", why);
    return ENG_EINVAL;
}

/* What a template of turns forbids; NULL: nothing. */
static const char *fault_of_turns(const struct eng_message *messages, size_t n_messages)
{
    size_t first = messages[0].role == ENG_ROLE_SYSTEM ? 1 : 0;
    if (n_messages == first)
        return "a system message needs a user's message behind it";
    for (size_t i = first; i < n_messages; i++)
        if (messages[i].role != ((i - first) % 2 == 0 ? ENG_ROLE_USER : ENG_ROLE_ASSISTANT))
            return "Conversation roles must alternate user/assistant/user/assistant/...";
    return NULL;
}

int eng_chat_render(const struct eng_chat_template *c, const struct eng_tokenizer *t,
                    const struct eng_message *messages, size_t n_messages, enum eng_generation generation,
                    const struct eng_chat_memo *memo, struct eng_rendered *out, char *err, size_t err_len)
{
    *out = (struct eng_rendered){0};
    if (n_messages == 0)
        return refuse(err, err_len, "messages is empty");
    if (n_messages > INT32_MAX / 2)
        return refuse(err, err_len, "too many messages");
    for (size_t i = 0; i < n_messages; i++)
        if ((unsigned)messages[i].role > ENG_ROLE_ASSISTANT)
            return refuse(err, err_len, "a message has an unknown role");
    const char *fault = c->turns ? fault_of_turns(messages, n_messages) : NULL;
    if (fault != NULL)
        return refuse(err, err_len, fault);
    struct renderer r = {.c = c, .t = t, .memo = memo, .out = out};
    out->boundaries = malloc((n_messages + 3) * sizeof(*out->boundaries));
    int rc = out->boundaries == NULL ? ENG_ENOMEM : render(&r, messages, n_messages, generation);
    free(r.run.data);
    if (rc != ENG_OK) {
        eng_rendered_free(out);
        if (err_len > 0)
            snprintf(err, err_len, "chat template %s: %s", c->name, eng_strerror(rc));
    }
    return rc;
}

void eng_rendered_free(struct eng_rendered *r)
{
    eng_ids_free(&r->ids);
    free(r->boundaries);
    *r = (struct eng_rendered){0};
}

/* ---- replies ----------------------------------------------------------------------------------------- */

/* How many leading ids spell, as shown to a client, a beginning of text that ends with a whole character;
 * *used is the length of that beginning. */
static size_t ids_inside(const struct eng_tokenizer *t, const uint32_t *ids, size_t n, const char *text,
                         size_t len, size_t *used)
{
    struct eng_detok d = {0};
    char shown[3 * (64 + 3)];
    size_t inside = 0, at = 0;
    *used = 0;
    for (size_t i = 0; i < n; i++) {
        size_t left;
        const char *piece = eng_tokenizer_piece(t, ids[i], false, &left);
        while (left > 0) {
            size_t slice = left < 64 ? left : 64;
            size_t n_shown = eng_detok_push(&d, piece, slice, shown);
            if (n_shown > len - at || memcmp(text + at, shown, n_shown) != 0)
                return inside;
            at += n_shown;
            piece += slice;
            left -= slice;
        }
        if (d.n_pending == 0) {
            inside = i + 1;
            *used = at;
        }
    }
    size_t n_shown = eng_detok_finish(&d, shown);
    if (n_shown > 0 && n_shown == len - at && memcmp(text + at, shown, n_shown) == 0) {
        inside = n; /* the reply ended inside a character, and so does the text that was returned */
        *used = len;
    }
    return inside;
}

int eng_chat_reply_note(const struct eng_chat_template *c, const struct eng_tokenizer *t,
                        const struct eng_rendered *prompt, const uint32_t *sampled, size_t n_sampled,
                        const char *text, size_t len, char **run, size_t *run_len, struct eng_ids *ids)
{
    struct text whole = {0};
    size_t kept, used, header = prompt->ids.n - prompt->reply_run;
    *run = NULL;
    *run_len = 0;
    *ids = (struct eng_ids){0};
    if (header == 0 || !chat_reply_kept(c, text, len, &kept))
        return ENG_ENOTFOUND;
    size_t inside = ids_inside(t, sampled, n_sampled, text, kept, &used);
    int rc = eng_ids_add(ids, prompt->ids.data + prompt->reply_run, header);
    if (rc == ENG_OK)
        rc = eng_ids_add(ids, sampled, inside);
    if (rc == ENG_OK)
        rc = eng_tokenizer_encode(t, text + used, kept - used, false, ids);
    if (rc == ENG_OK)
        rc = text_add(&whole, c->reply_header, strlen(c->reply_header));
    if (rc == ENG_OK)
        rc = text_add(&whole, text, kept);
    if (rc != ENG_OK) {
        eng_ids_free(ids);
        free(whole.data);
        return rc;
    }
    *run = whole.data;
    *run_len = whole.len;
    return ENG_OK;
}
