/*
 * The templates, how a file's own template is recognised, and the rules for content.
 *
 * A file's template is a Jinja program; it is not run but recognised. White space, line breaks written either
 * way and the kind of quotes are ignored, then the parts that decide what a plain conversation becomes must
 * be there. A template that says something else is unknown: a wrong prompt is worse than none.
 */
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/unicode.h"
#include "formats/gguf.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHATML                                                                                               \
    .start = "<|im_start|>", .separator = "\n", .end = "<|im_end|>", .after = "\n",                          \
    .reply_header = "assistant\n"
#define LLAMA3                                                                                               \
    .bos = "<|begin_of_text|>", .start = "<|start_header_id|>", .end_role = "<|end_header_id|>",             \
    .separator = "\n\n", .end = "<|eot_id|>", .reply_header = "\n\n", .rule = CONTENT_TRIM

static const struct eng_chat_template templates[] = {
    {.name = "chatml", CHATML},
    {.name = "gemma",
     .file_bos = true,
     .turns = true,
     .assistant = "model",
     .start = "<start_of_turn>",
     .separator = "\n",
     .end = "<end_of_turn>",
     .after = "\n",
     .reply_header = "model\n",
     .rule = CONTENT_TRIM},
    {.name = "llama3", LLAMA3},
    /* The template puts today's date here where its host can tell it; the prefix would change each day. This
     * is the date that it falls back to. */
    {.name = "llama3.1",
     LLAMA3,
     .default_system = "",
     .system_prefix = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"},
    {.name = "qwen2", CHATML, .default_system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     CHATML,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3", CHATML, .no_thinking = "<think>\n\n</think>\n\n", .rule = CONTENT_QWEN3},
    {.name = "smollm2",
     CHATML,
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
};
#define N_TEMPLATES (sizeof(templates) / sizeof(templates[0]))

const struct eng_chat_template *eng_chat_by_name(const char *name)
{
    for (size_t i = 0; i < N_TEMPLATES; i++)
        if (strcmp(templates[i].name, name) == 0)
            return &templates[i];
    return NULL;
}

const char *eng_chat_names(void)
{
    return "chatml, gemma, llama3, llama3.1, qwen2, qwen2.5, qwen3, smollm2";
}

const char *eng_chat_name(const struct eng_chat_template *c)
{
    return c->name;
}

const char *eng_chat_reply_header(const struct eng_chat_template *c)
{
    return c->reply_header;
}

int eng_chat_check(const struct eng_chat_template *c, const struct eng_tokenizer *t, char *err,
                   size_t err_len)
{
    const char *needed[] = {c->bos, c->start, c->end_role, c->end};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (needed[i] == NULL || eng_tokenizer_special(t, needed[i]) != UINT32_MAX)
            continue;
        if (err_len > 0)
            snprintf(err, err_len, "chat template %s needs the token %s, which the vocabulary lacks", c->name,
                     needed[i]);
        return ENG_ENOTFOUND;
    }
    if (c->file_bos && eng_tokenizer_bos(t) == UINT32_MAX) {
        if (err_len > 0)
            snprintf(err, err_len, "chat template %s needs a BOS token, and the file names none", c->name);
        return ENG_ENOTFOUND;
    }
    return ENG_OK;
}

/* ---- recognition ------------------------------------------------------------------------------------- */

/* The template without white space and \n escapes, with one kind of quotes. */
static char *normalised(struct fmt_str s)
{
    char *out = malloc(s.len + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.len && out != NULL; i++) {
        char c = s.data[i];
        if (c == '\\' && i + 1 < s.len && s.data[i + 1] == 'n') {
            i++;
            continue;
        }
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\0')
            continue;
        out[n++] = c == '"' ? '\'' : c;
    }
    if (out != NULL)
        out[n] = '\0';
    return out;
}

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* Is each literal that opens a system message closed at once, so that no default text follows? */
static bool no_default_system(const char *text)
{
    static const char open[] = "<|im_start|>system";
    for (const char *p = text; (p = strstr(p, open)) != NULL;) {
        p += sizeof(open) - 1;
        if (*p != '\'')
            return false;
    }
    return true;
}

/* Gemma's files differ in what follows the system text, one line end or two, which normalising has taken
 * away. Two, written either way, is what is rendered here. */
static bool gemma_gap_is_an_empty_line(struct fmt_str s)
{
    static const char name[] = "first_user_prefix";
    const char *end = s.data + s.len, *p = memmem(s.data, s.len, name, sizeof(name) - 1);
    unsigned line_ends = 0;
    p = p != NULL ? memchr(p, '+', (size_t)(end - p)) : NULL;
    while (p != NULL && ++p < end && *p == ' ')
        ;
    if (p == NULL || p >= end || (*p != '\'' && *p != '"'))
        return false;
    for (char quote = *p++; p < end && *p != quote; p++) {
        if (*p == '\\' && p + 1 < end && p[1] == 'n')
            p++;
        else if (*p != '\n')
            return false;
        line_ends++;
    }
    return p < end && line_ends == 2;
}

static const char *recognise(const char *text, struct fmt_str original)
{
    if (has(text, "<start_of_turn>"))
        return has(text, "loop_messages=messages[1:]") && has(text, "setrole='model'") &&
                       has(text, "'<start_of_turn>'+role+''+(first_user_prefixifloop.firstelse'')") &&
                       has(text, "message['content']|trim") && has(text, "'<end_of_turn>'") &&
                       has(text, "'<start_of_turn>model'") && !has(text, "tool") &&
                       gemma_gap_is_an_empty_line(original)
                   ? "gemma"
                   : NULL;
    if (has(text, "<|start_header_id|>")) {
        if (!has(text, "<|end_header_id|>") || !has(text, "|trim") || !has(text, "'<|eot_id|>'"))
            return NULL;
        if (!has(text, "CuttingKnowledgeDate:"))
            return "llama3";
        return has(text, "'CuttingKnowledgeDate:December2023'") && has(text, "26Jul2024") ? "llama3.1" : NULL;
    }
    if (!has(text, "<|im_start|>") || !has(text, "<|im_end|>") || !has(text, "'<|im_start|>assistant'"))
        return NULL;
    if (has(text, "think")) /* newer relatives open the block in the reply's header: not these */
        return has(text, "last_query_index") && has(text, "enable_thinking") &&
                       has(text, "'<think></think>'") && !has(text, "'<think>'}}") && no_default_system(text)
                   ? "qwen3"
                   : NULL;
    if (has(text, "<|im_start|>systemYouareQwen,createdbyAlibabaCloud.Youareahelpfulassistant.<|im_end|>"))
        return "qwen2.5";
    if (has(text, "<|im_start|>systemYouareahelpfulAIassistantnamedSmolLM,trainedbyHuggingFace<|im_end|>"))
        return "smollm2";
    if (has(text, "<|im_start|>systemYouareahelpfulassistant.<|im_end|>"))
        return "qwen2";
    bool plain = has(text, "'<|im_start|>'+message['role']+''+message['content']") ||
                 has(text, "'<|im_start|>'+message.role+''+message.content") ||
                 has(text, "'<|im_start|>'+message.role+''+content");
    return plain && no_default_system(text) ? "chatml" : NULL;
}

const struct eng_chat_template *eng_chat_from_gguf(const struct fmt_gguf *g, const struct eng_tokenizer *t)
{
    struct fmt_str s;
    char err[8];
    if (fmt_gguf_str(g, "tokenizer.chat_template", &s) != FMT_OK)
        return NULL;
    char *text = normalised(s);
    const char *name = text != NULL ? recognise(text, s) : NULL;
    free(text);
    const struct eng_chat_template *c = name != NULL ? eng_chat_by_name(name) : NULL;
    return c != NULL && eng_chat_check(c, t, err, sizeof(err)) == ENG_OK ? c : NULL;
}

/* ---- content ----------------------------------------------------------------------------------------- */

struct view {
    const char *data;
    size_t len;
};

int text_add(struct text *t, const char *data, size_t len)
{
    if (len > t->cap - t->len) {
        if (len > SIZE_MAX / 4 - t->len)
            return ENG_ENOMEM;
        size_t cap = 2 * (t->len + len) + 64;
        char *grown = realloc(t->data, cap);
        if (grown == NULL)
            return ENG_ENOMEM;
        t->data = grown;
        t->cap = cap;
    }
    if (len > 0)
        memcpy(t->data + t->len, data, len);
    t->len += len;
    return ENG_OK;
}

/* What Python's str.isspace() takes for white space: \s and the four separators of ASCII. */
static bool is_python_space(uint32_t c)
{
    return (unicode_class(c) & UNICODE_SPACE) || (c >= 0x1C && c <= 0x1F);
}

static struct view trim(struct view v)
{
    uint32_t c;
    while (v.len > 0) {
        size_t n = unicode_decode((const uint8_t *)v.data, v.len, &c);
        if (!is_python_space(c))
            break;
        v.data += n;
        v.len -= n;
    }
    while (v.len > 0) {
        size_t n = 1;
        while (n < v.len && n < 4 && ((uint8_t)v.data[v.len - n] & 0xC0) == 0x80)
            n++;
        if (unicode_decode((const uint8_t *)v.data + v.len - n, n, &c) != n || !is_python_space(c))
            break;
        v.len -= n;
    }
    return v;
}

static struct view strip_newlines(struct view v, bool left, bool right)
{
    while (left && v.len > 0 && v.data[0] == '\n') {
        v.data++;
        v.len--;
    }
    while (right && v.len > 0 && v.data[v.len - 1] == '\n')
        v.len--;
    return v;
}

static const char *find(struct view v, const char *part)
{
    return v.len > 0 ? memmem(v.data, v.len, part, strlen(part)) : NULL;
}

/* What stands behind the last occurrence of part; all of v when there is none. */
static struct view behind_last(struct view v, const char *part)
{
    for (const char *p; (p = find(v, part)) != NULL;) {
        const char *next = p + strlen(part);
        v.len -= (size_t)(next - v.data);
        v.data = next;
    }
    return v;
}

static bool is_tool_response(struct view v)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    return v.len >= sizeof(close) - 1 && memcmp(v.data, open, sizeof(open) - 1) == 0 &&
           memcmp(v.data + v.len - (sizeof(close) - 1), close, sizeof(close) - 1) == 0;
}

size_t chat_last_query(const struct eng_message *messages, size_t n_messages)
{
    for (size_t i = n_messages; i-- > 0;)
        if (messages[i].role == ENG_ROLE_USER &&
            !is_tool_response((struct view){messages[i].content, messages[i].len}))
            return i;
    return n_messages - 1;
}

/* Qwen3: an assistant's think block is kept only behind the last question of a user; there it is written in
 * its canonical form, an empty one too when the message is the conversation's last. */
static int qwen3_content(const struct eng_message *messages, size_t n_messages, size_t last_query, size_t i,
                         struct text *run)
{
    struct view content = {messages[i].content, messages[i].len}, reasoning = {"", 0};
    if (messages[i].role != ENG_ROLE_ASSISTANT)
        return text_add(run, content.data, content.len);
    const char *close = find(content, "</think>");
    if (close != NULL) {
        struct view before = {content.data, (size_t)(close - content.data)};
        reasoning = strip_newlines(before, false, true);
        reasoning = strip_newlines(behind_last(reasoning, "<think>"), true, false);
        content = strip_newlines(behind_last(content, "</think>"), true, false);
    }
    if (i <= last_query || (i + 1 < n_messages && reasoning.len == 0))
        return text_add(run, content.data, content.len);
    reasoning = strip_newlines(reasoning, true, true);
    content = strip_newlines(content, true, false);
    int rc = text_add(run, "<think>\n", 8);
    if (rc == ENG_OK)
        rc = text_add(run, reasoning.data, reasoning.len);
    if (rc == ENG_OK)
        rc = text_add(run, "\n</think>\n\n", 11);
    return rc == ENG_OK ? text_add(run, content.data, content.len) : rc;
}

int chat_content(const struct eng_chat_template *c, const struct eng_message *messages, size_t n_messages,
                 size_t last_query, size_t i, struct text *run)
{
    struct view content = {messages[i].content, messages[i].len};
    switch (c->rule) {
    case CONTENT_TRIM:
        content = trim(content);
        break;
    case CONTENT_QWEN3:
        return qwen3_content(messages, n_messages, last_query, i, run);
    case CONTENT_AS_IS:
        break;
    }
    return text_add(run, content.data, content.len);
}

bool chat_reply_kept(const struct eng_chat_template *c, const char *reply, size_t len, size_t *kept)
{
    struct view v = {reply, len};
    if (c->rule == CONTENT_TRIM)
        v = trim(v);
    *kept = v.len;
    if (c->rule == CONTENT_QWEN3)
        return find(v, "</think>") == NULL;
    return v.data == reply;
}
