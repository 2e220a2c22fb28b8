/* The message memo of one prompt. Internal to the runtime. */
#ifndef ISOTHERM_ENGINE_RUNTIME_MEMO_H
#define ISOTHERM_ENGINE_RUNTIME_MEMO_H

#include "engine/runtime/runtime.h"

/* Everything named must outlive the memo; tenant is copied. NULL: out of memory. */
struct eng_memo *memo_new(struct cs_store *store, const struct eng_tokenizer *tokenizer,
                          const struct eng_chat_template *chat, const struct cs_tenant *tenant);
void memo_free(struct eng_memo *m);

/* For eng_chat_render; m is its ctx. */
struct eng_chat_memo memo_hooks(struct eng_memo *m);

/* The notes learned while rendering that were not handed out before and whose run lies in the first n_ids ids
 * of the prompt: to be published with them. Owned by the memo, valid until memo_free. */
const struct cs_note *memo_take(struct eng_memo *m, size_t n_ids, size_t *n_notes);

/* The note of a reply to ids[0..n_prompt) whose run starts at reply_run: sampled ids without the end token,
 * text as the client got it. ENG_OK: note->data is malloc'ed, the caller frees it. ENG_ENOTFOUND: nothing to
 * remember. ENG_ENOMEM. */
int memo_reply(struct eng_memo *m, const uint32_t *ids, size_t n_prompt, size_t reply_run, size_t n_sampled,
               const char *text, size_t len, struct cs_note *note);

#endif
