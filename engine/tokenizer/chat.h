/*
 * Chat templates as C tables: messages in, token ids and boundaries out.
 *
 * A message is encoded between special tokens. The text between two of them is a *run* and is encoded in one
 * piece, which is what the model's own template does. Each message has one run that holds its content:
 *
 *   chatml, qwen*, smollm2   <|im_start|> [user\nHello] <|im_end|> \n
 *   llama3                   <|start_header_id|> user <|end_header_id|> [\n\nHello] <|eot_id|>
 *   gemma                    <start_of_turn> [user\nBe brief.\n\nHello] <end_of_turn> \n
 *
 * gemma has no turn for a system message: its text stands in the first user's run, so the two messages have
 * one run; the user's boundary lies inside it.
 *
 * Content is never parsed for control tokens. What a template does to content (llama3 trims it, qwen3 drops
 * the think blocks of earlier turns) is done first: the run is the text that is encoded.
 *
 * The memo. The run of a message at a position may have been sampled by the model, not encoded, so its ids
 * cannot be told from its text. A memo maps (ids before the run, text of the run) to the ids it had. "ids
 * before the run" includes the special token in front of it: position is the index of the run's first id.
 * render asks the memo once for each message and proves the answer: the ids must detokenise to the run's
 * text, or they are ignored and the run is encoded.
 *
 * A reply continues the run that the prompt ends with: its header (eng_chat_reply_header, "assistant\n"). At
 * the end of a reply eng_chat_reply_note gives text and ids to remember under the prompt's first reply_run
 * ids; with them the next turn's look_up at the same position and text gives the sampled ids again.
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
    const char *content; /* any bytes; may be NULL when len is 0 */
    size_t len;
};

struct eng_boundary {
    uint32_t position; /* ids before it */
    int32_t message;   /* index of the message that starts here; -1: a default system message; n_messages: the
                          reply's header and the prompt's end */
    bool ends_system; /* all before it is the system part, and there is one: what conversations share. At most
                         one boundary of a prompt. In gemma it lies inside a run, behind the last id that
                         spells only system text: other text behind may move it, which costs reuse and nothing
                         else */
};

/* Optional memo. look_up: ids[0..n) is the whole prompt up to the run, text the run about to be encoded,
 * header included; returns true when it has appended the run's ids to `out`, which comes empty. learned: a
 * run that look_up did not know, or whose answer was not proven, was encoded; its ids lie at ids[position ..
 * position + n) of the prompt. ids are valid during the call only. Either may be NULL. */
struct eng_chat_memo {
    bool (*look_up)(void *ctx, const uint32_t *ids, size_t n, const char *text, size_t len,
                    struct eng_ids *out);
    void (*learned)(void *ctx, size_t position, const char *text, size_t len, const uint32_t *ids, size_t n);
    void *ctx;
};

struct eng_chat_template; /* static data */

/* By name (eng_chat_names lists them), NULL when unknown. */
const struct eng_chat_template *eng_chat_by_name(const char *name);
/* Recognised from the file's tokenizer.chat_template and vocabulary; NULL when missing or unknown. */
const struct eng_chat_template *eng_chat_from_gguf(const struct fmt_gguf *g, const struct eng_tokenizer *t);
const char *eng_chat_name(const struct eng_chat_template *c);
const char *eng_chat_names(void); /* "chatml, llama3, ..." for messages */
/* The special tokens the template needs are in the vocabulary; else ENG_ENOTFOUND and err names the missing
 * one (gemma needs the file to name a BOS token). Render needs a pair that has passed. */
int eng_chat_check(const struct eng_chat_template *c, const struct eng_tokenizer *t, char *err,
                   size_t err_len);

/* What follows the messages. */
enum eng_generation {
    ENG_GENERATE_NONE,        /* nothing */
    ENG_GENERATE_REPLY,       /* the header of a reply */
    ENG_GENERATE_NO_THINKING, /* the header, and an empty think block where the template has one */
};

struct eng_rendered {
    struct eng_ids ids;
    struct eng_boundary *boundaries; /* ascending positions */
    size_t n_boundaries;
    size_t reply_run; /* ids[reply_run .. ids.n) are the ids of the reply's header, the run that the reply
                         continues; ids.n where none is, and behind an empty think block: an earlier reply
                         comes back without it, so there its ids have another prefix */
};
void eng_rendered_free(struct eng_rendered *r);

/* Renders all messages and what is to follow them. ENG_OK; ENG_EINVAL with a message for what the template
 * forbids (no messages at all; gemma: users and assistants that do not take turns, a system message anywhere
 * but in front, or one alone); ENG_ENOMEM. *out is written whole, empty on failure. */
int eng_chat_render(const struct eng_chat_template *c, const struct eng_tokenizer *t,
                    const struct eng_message *messages, size_t n_messages, enum eng_generation generation,
                    const struct eng_chat_memo *memo, struct eng_rendered *out, char *err, size_t err_len);

/* The header's text: what the run of a reply starts with. */
const char *eng_chat_reply_header(const struct eng_chat_template *c);

/* What to remember of a reply. prompt: a render with a reply's header. sampled: the ids sampled after it,
 * without the token that ended the reply. text: what was returned to the client (whole characters, cut at a
 * stop string). On ENG_OK *run is the text under which the next turn will look the reply up (malloc'ed, the
 * caller frees it) and *ids the answer: the header's ids, the longest run of sampled ids whose text lies
 * inside the returned text, and the rest of the text encoded. The key's position is prompt->reply_run.
 * ENG_ENOTFOUND: nothing to remember, because the template will not send the beginning of this reply again
 * (qwen3 drops think blocks, llama3 and gemma leading white space) or not behind this prompt (reply_run is
 * ids.n). ENG_ENOMEM. */
int eng_chat_reply_note(const struct eng_chat_template *c, const struct eng_tokenizer *t,
                        const struct eng_rendered *prompt, const uint32_t *sampled, size_t n_sampled,
                        const char *text, size_t len, char **run, size_t *run_len, struct eng_ids *ids);

#endif
