/*
 * Chat templates as C tables: messages in, token ids and boundaries out.
 *
 * A message is encoded between special tokens, as one text run of header and content ("user\nHello"), which
 * is what the model's own template does. Content is never parsed for special tokens. A memo may supply the
 * ids of a message that was seen (or sampled) before at the same prefix; eng_chat_render asks it with the
 * rolling position and falls back to encoding.
 *
 * Boundaries: positions in ids where a conversation may be resumed: before each role start, and the prompt's
 * end. Threads: pure functions over an immutable tokenizer; the memo is the caller's.
 */
#ifndef ISOTHERM_ENGINE_CHAT_H
#define ISOTHERM_ENGINE_CHAT_H

#include "engine/tokenizer/tokenizer.h"

enum eng_role { ENG_ROLE_SYSTEM, ENG_ROLE_USER, ENG_ROLE_ASSISTANT };

struct eng_message {
    enum eng_role role;
    const char *content; /* any bytes */
    size_t len;
};

struct eng_boundary {
    uint32_t position; /* ids before it */
    int32_t message;   /* index of the message that starts here; -1: a default system message; n_messages: the
                          reply's header */
};

/* Optional memo. look_up: ids[0..n) is the whole prompt so far; role, text: the run about to be encoded,
 * header included. Returns true and appends the ids of the run to `out`. Called once a message. learned:
 * tells what an encoded run became, position = n before it. */
struct eng_chat_memo {
    bool (*look_up)(void *ctx, const uint32_t *ids, size_t n, const char *text, size_t len,
                    struct eng_ids *out);
    void (*learned)(void *ctx, size_t position, const char *text, size_t len, const uint32_t *ids, size_t n);
    void *ctx;
};

struct eng_chat_template; /* static data */

/* By name ("chatml", "qwen3", "llama3", "smollm2", "qwen2.5"), NULL when unknown. */
const struct eng_chat_template *eng_chat_by_name(const char *name);
/* Recognised from the file's tokenizer.chat_template and vocabulary; NULL when missing or unknown. */
const struct eng_chat_template *eng_chat_from_gguf(const struct fmt_gguf *g, const struct eng_tokenizer *t);
const char *eng_chat_name(const struct eng_chat_template *c);
const char *eng_chat_names(void); /* "chatml, llama3, qwen2.5, qwen3, smollm2" for messages */
/* The special tokens the template needs are in the vocabulary; else err names the missing one. */
int eng_chat_check(const struct eng_chat_template *c, const struct eng_tokenizer *t, char *err,
                   size_t err_len);

/* Renders all messages and, with add_generation, the reply's header. The text run that a reply will belong to
 * (the header's text, "assistant\n") is what look_up and learned see in front of the reply's text on the next
 * turn: eng_chat_reply_header gives it. ENG_EINVAL with a message for what the template forbids. */
int eng_chat_render(const struct eng_chat_template *c, const struct eng_tokenizer *t,
                    const struct eng_message *messages, size_t n_messages, bool add_generation,
                    const struct eng_chat_memo *memo, struct eng_ids *out, struct eng_boundary **boundaries,
                    size_t *n_boundaries, char *err, size_t err_len);
const char *eng_chat_reply_header(const struct eng_chat_template *c);

#endif
