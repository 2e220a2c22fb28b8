/*
 * A chat template as data, and the rules for content that data cannot say. Private to engine/tokenizer.
 */
#ifndef ISOTHERM_ENGINE_TOKENIZER_CHAT_TEMPLATE_H
#define ISOTHERM_ENGINE_TOKENIZER_CHAT_TEMPLATE_H

#include "engine/tokenizer/chat.h"

enum content_rule {
    CONTENT_AS_IS,
    CONTENT_TRIM,  /* white space at both ends goes, as Python's str.strip() does */
    CONTENT_QWEN3, /* think blocks of earlier turns go, the last turn's are written afresh */
};

/* [bos] then for each message: start [role end_role] run end after. The run is header + content; header is
 * role + separator, or the separator alone where the role stands between tokens of its own. */
struct eng_chat_template {
    const char *name;
    const char *bos;            /* a token before everything; NULL: BOS where the file asks for it */
    const char *assistant;      /* the assistant's role; NULL: "assistant" */
    const char *start;          /* token at a message's start */
    const char *end_role;       /* token behind the role's name; NULL: the role is part of the run */
    const char *separator;      /* text between role and content */
    const char *end;            /* token behind the content */
    const char *after;          /* text behind that token; NULL: none */
    const char *reply_header;   /* the header of an assistant's run */
    const char *no_thinking;    /* text behind that header which says not to think; NULL: none */
    const char *default_system; /* content where the first message is no system message; NULL: none */
    const char *system_prefix;  /* text in front of the first system message's content; NULL: none */
    enum content_rule rule;
    bool file_bos; /* the file's BOS before everything, asked for or not */
    bool turns;    /* users and assistants take turns, the user first; a leading system text and an
                      empty line are put in front of the first user's content */
};

/* A growing text. Zero-initialise; free data. */
struct text {
    char *data;
    size_t len, cap;
};
int text_add(struct text *t, const char *data, size_t len); /* ENG_OK or ENG_ENOMEM */

/* Index of the last question of a user; the last message where there is none. Linear, so once a prompt. */
size_t chat_last_query(const struct eng_message *messages, size_t n_messages);
/* Appends to `run` what the template makes of the content of messages[i]. */
int chat_content(const struct eng_chat_template *c, const struct eng_message *messages, size_t n_messages,
                 size_t last_query, size_t i, struct text *run);
/* Of a reply, how many leading bytes come back as they are when it is an earlier message; false when its
 * beginning does not. */
bool chat_reply_kept(const struct eng_chat_template *c, const char *reply, size_t len, size_t *kept);

#endif
