/*
 * tokenize GGUF: a pipe for the Python tests. Reads records from stdin until its end and answers each on
 * stdout; all numbers are little-endian u32, all texts are preceded by their length.
 *
 *   'E' flags text              -> n ids          flags: 1 parse_special
 *   'D' n ids                   -> text           through the streaming detokenizer, control tokens left out
 *   'C' flags template n (role text)...           flags: 1 add_generation; roles: 0 system 1 user 2 assistant
 *                               -> code n ids n_boundaries positions reply_run
 *   'R'                         -> text           name of the recognised template, or nothing
 */
#include "engine/tokenizer/chat.h"
#include "formats/gguf.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int get(uint32_t *v)
{
    return fread(v, sizeof(*v), 1, stdin) == 1;
}

static void put(uint32_t v)
{
    fwrite(&v, sizeof(v), 1, stdout);
}

static void put_ids(const struct eng_ids *ids)
{
    put((uint32_t)ids->n);
    if (ids->n > 0)
        fwrite(ids->data, sizeof(*ids->data), ids->n, stdout);
}

/* A text from stdin, NUL-terminated as well; NULL at the end of input. */
static char *get_text(uint32_t *len)
{
    if (!get(len))
        return NULL;
    char *text = calloc(1, (size_t)*len + 1);
    if (text != NULL && fread(text, 1, *len, stdin) != *len) {
        free(text);
        return NULL;
    }
    return text;
}

static int answer_encode(const struct eng_tokenizer *t)
{
    uint32_t flags, len;
    struct eng_ids ids = {0};
    if (!get(&flags))
        return 1;
    char *text = get_text(&len);
    int rc = text == NULL || eng_tokenizer_encode(t, text, len, flags & 1, &ids) != ENG_OK;
    put_ids(&ids);
    free(text);
    eng_ids_free(&ids);
    return rc;
}

static int answer_decode(const struct eng_tokenizer *t)
{
    uint32_t n;
    if (!get(&n))
        return 1;
    uint32_t *ids = calloc((size_t)n + 1, sizeof(*ids));
    if (ids == NULL || fread(ids, sizeof(*ids), n, stdin) != n) {
        free(ids);
        return 1;
    }
    struct eng_detok d = {0};
    char *out = malloc(16);
    size_t used = 0;
    for (uint32_t i = 0; i < n && out != NULL; i++) {
        size_t len;
        const char *piece = eng_tokenizer_piece(t, ids[i], false, &len);
        char *grown = realloc(out, used + 3 * (len + 3) + 3);
        if (grown == NULL)
            break;
        out = grown;
        used += eng_detok_push(&d, piece, len, out + used);
    }
    if (out != NULL)
        used += eng_detok_finish(&d, out + used);
    put((uint32_t)used);
    fwrite(out, 1, used, stdout);
    free(out);
    free(ids);
    return 0;
}

/* Reads n messages; their contents are the caller's to free, also when this fails. */
static int get_messages(struct eng_message *messages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t role, len;
        if (!get(&role))
            return 1;
        messages[i].role = (enum eng_role)role;
        messages[i].content = get_text(&len);
        if (messages[i].content == NULL)
            return 1;
        messages[i].len = len;
    }
    return 0;
}

static int answer_chat(const struct eng_tokenizer *t)
{
    uint32_t flags, len, n = 0;
    char err[256] = "", *name = get(&flags) ? get_text(&len) : NULL;
    struct eng_message *messages = NULL;
    int failed = name == NULL || !get(&n) || n > 10000;
    if (!failed) {
        messages = calloc((size_t)n + 1, sizeof(*messages));
        failed = messages == NULL || get_messages(messages, n);
    }
    if (!failed) {
        const struct eng_chat_template *c = eng_chat_by_name(name);
        struct eng_rendered r = {0};
        int rc = c == NULL ? ENG_ENOTFOUND : eng_chat_check(c, t, err, sizeof(err));
        if (rc == ENG_OK)
            rc = eng_chat_render(c, t, messages, n, (enum eng_generation)(flags % 3), NULL, &r, err,
                                 sizeof(err));
        if (rc != ENG_OK && rc != ENG_EINVAL) /* a refusal is an answer */
            fprintf(stderr, "%s: %s\n", name, err);
        put((uint32_t)rc);
        put_ids(&r.ids);
        put((uint32_t)r.n_boundaries);
        for (size_t i = 0; i < r.n_boundaries; i++)
            put(r.boundaries[i].position);
        put((uint32_t)r.reply_run);
        eng_rendered_free(&r);
    }
    for (uint32_t i = 0; messages != NULL && i < n; i++)
        free((char *)messages[i].content);
    free(messages);
    free(name);
    return failed;
}

int main(int argc, char **argv)
{
    char err[256] = "usage: tokenize GGUF";
    struct fmt_gguf *g = NULL;
    struct eng_tokenizer *t = NULL;
    if (argc != 2 || fmt_gguf_open(argv[1], &g, err, sizeof(err)) != FMT_OK ||
        eng_tokenizer_open(g, &t, err, sizeof(err)) != ENG_OK) {
        fprintf(stderr, "%s\n", err);
        fmt_gguf_close(g);
        return 2;
    }
    int rc = 0, command;
    while (rc == 0 && (command = getchar()) != EOF) {
        if (command == 'E') {
            rc = answer_encode(t);
        } else if (command == 'D') {
            rc = answer_decode(t);
        } else if (command == 'C') {
            rc = answer_chat(t);
        } else if (command == 'R') {
            const struct eng_chat_template *c = eng_chat_from_gguf(g, t);
            const char *name = c != NULL ? eng_chat_name(c) : "";
            put((uint32_t)strlen(name));
            fwrite(name, 1, strlen(name), stdout);
        } else {
            rc = 1;
        }
        fflush(stdout);
    }
    eng_tokenizer_close(t);
    fmt_gguf_close(g);
    return rc;
}
