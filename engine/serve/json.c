/* Guarded JSON in, valid JSON out; see json.h. */
#include "engine/serve/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------------------ */

int eng_api_fail(struct eng_api_error *err, const char *param, const char *format, ...)
{
    va_list args;
    err->status = 400;
    err->type = "invalid_request_error";
    err->code = NULL;
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return -1;
}

int eng_api_fail_as(struct eng_api_error *err, int status, const char *type, const char *code,
                    const char *format, ...)
{
    va_list args;
    err->status = status;
    err->type = type;
    err->code = code;
    err->param[0] = '\0';
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return -1;
}

/* ---- in ---------------------------------------------------------------------------------------------- */

/* One pass over the bytes outside of strings: how deep brackets nest and about how many values there are
 * (each needs an opening bracket or a comma before it). Says nothing about validity. */
static int json_check_shape(const char *body, size_t len, struct eng_api_error *err)
{
    size_t depth = 0, values = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = body[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        switch (c) {
        case '"':
            in_string = true;
            break;
        case '[':
        case '{':
            values++;
            if (++depth > ENG_JSON_MAX_DEPTH)
                return eng_api_fail(err, NULL,
                                    "The request body is not acceptable JSON: nested deeper than %d levels.",
                                    ENG_JSON_MAX_DEPTH);
            break;
        case ']':
        case '}':
            if (depth > 0)
                depth--;
            break;
        case ',':
            values++;
            break;
        default:
            break;
        }
        if (values > ENG_JSON_MAX_VALUES)
            return eng_api_fail(err, NULL, "The request body is not acceptable JSON: more than %d values.",
                                ENG_JSON_MAX_VALUES);
    }
    return 0;
}

/* The member of the outermost object that the byte at `at` belongs to: the last key there. Empty where there
 * is none, or one that no field of ours has. */
static void find_member(const char *body, size_t at, char *name, size_t cap)
{
    size_t depth = 0, text = 0, text_len = 0;
    bool in_string = false;
    name[0] = '\0';
    for (size_t i = 0; i < at; i++) {
        char c = body[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
                text_len = i - text;
            }
        } else if (c == '"') {
            in_string = true;
            text = i + 1;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ':' && depth == 1) {
            size_t plain = strspn(body + text, "abcdefghijklmnopqrstuvwxyz_");
            snprintf(name, cap, "%.*s", plain == text_len && plain < cap ? (int)plain : 0, body + text);
        }
    }
}

/* A number that no type of ours holds; it ends before `end`. */
static void fail_number(const char *body, size_t end, struct eng_api_error *err)
{
    enum { SHOWN_MAX = 32 };
    char member[sizeof err->param];
    size_t begin = end;
    while (begin > 0 && strchr("+-.0123456789eE", body[begin - 1]) && body[begin - 1])
        begin--;
    size_t shown = end - begin < SHOWN_MAX ? end - begin : SHOWN_MAX;
    find_member(body, begin, member, sizeof member);
    eng_api_fail(err, member[0] ? member : NULL,
                 "The request body has a number that is out of range%s%s%s: %.*s%s (integers have 64 bits, "
                 "others are doubles).",
                 member[0] ? ", in '" : "", member, member[0] ? "'" : "", (int)shown, body + begin,
                 shown < end - begin ? "..." : "");
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

json_t *eng_json_parse_object(const char *body, size_t len, struct eng_api_error *err)
{
    json_error_t problem;
    if (len == 0) {
        eng_api_fail(err, NULL, "The request body is empty; it must be a JSON object.");
        return NULL;
    }
    if (json_check_shape(body, len, err) != 0)
        return NULL;
    json_t *root = json_loadb(body, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &problem);
    if (!root && json_error_code(&problem) == json_error_numeric_overflow && problem.position >= 0 &&
        (size_t)problem.position <= len) {
        fail_number(body, (size_t)problem.position, err);
        return NULL;
    }
    if (!root) {
        /* jansson quotes what stood there, which may be any bytes; the position is enough. */
        eng_api_fail(err, NULL, "The request body is not valid JSON (line %d, column %d).", problem.line,
                     problem.column);
        return NULL;
    }
    if (!json_is_object(root)) {
        eng_api_fail(err, NULL, "The request body must be a JSON object, not %s.", type_name(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

json_t *eng_json_member(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

int eng_json_bool(const json_t *object, const char *name, bool *out, struct eng_api_error *err)
{
    const json_t *value = eng_json_member(object, name);
    if (!value)
        return 0;
    if (!json_is_boolean(value))
        return eng_api_fail(err, name, "'%s' must be true or false.", name);
    *out = json_is_true(value);
    return 1;
}

int eng_json_number(const json_t *object, const char *name, double low, double high, float *out,
                    struct eng_api_error *err)
{
    const json_t *value = eng_json_member(object, name);
    if (!value)
        return 0;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= low && number <= high))
        return eng_api_fail(err, name, "'%s' must be a number from %g to %g.", name, low, high);
    *out = (float)number;
    return 1;
}

int eng_json_integer(const json_t *object, const char *name, int64_t low, int64_t high, int64_t *out,
                     struct eng_api_error *err)
{
    const json_t *value = eng_json_member(object, name);
    if (!value)
        return 0;
    bool good = json_is_integer(value);
    int64_t integer = json_integer_value(value);
    if (json_is_real(value)) {
        /* Some clients write 5.0: taken where it is a whole number that a double holds exactly. */
        double number = json_real_value(value);
        good = number >= -9007199254740992.0 && number <= 9007199254740992.0 &&
               (double)(int64_t)number == number;
        integer = good ? (int64_t)number : 0;
    }
    if (good && integer >= low && integer <= high) {
        *out = integer;
        return 1;
    }
    if (high == INT64_MAX && low == INT64_MIN)
        return eng_api_fail(err, name, "'%s' must be an integer.", name);
    if (high == INT64_MAX)
        return eng_api_fail(err, name, "'%s' must be an integer of at least %lld.", name, (long long)low);
    return eng_api_fail(err, name, "'%s' must be an integer from %lld to %lld.", name, (long long)low,
                        (long long)high);
}

/* ---- out --------------------------------------------------------------------------------------------- */

/* Length of the valid character at s, or 0. */
static size_t utf8_char(const unsigned char *s, size_t len)
{
    if (len == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || len < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    /* Overlong forms, surrogates and what lies beyond U+10FFFF show in the second byte. */
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF0 && s[1] < 0x90) ||
        (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return n;
}

bool eng_utf8_valid(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = utf8_char((const unsigned char *)bytes + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

json_t *eng_json_text(const char *bytes, size_t len)
{
    if (len == 0)
        return json_string("");
    if (eng_utf8_valid(bytes, len))
        return json_stringn_nocheck(bytes, len);
    struct eng_bytes clean = {0};
    for (size_t i = 0; i < len;) {
        size_t n = utf8_char((const unsigned char *)bytes + i, len - i);
        eng_bytes_add(&clean, n ? bytes + i : "\xEF\xBF\xBD", n ? n : 3);
        i += n ? n : 1;
    }
    json_t *text = clean.failed ? NULL : json_stringn_nocheck(clean.data, clean.len);
    eng_bytes_free(&clean);
    return text;
}

json_t *eng_json_hex(const uint8_t *bytes, size_t n)
{
    char hex[2 * 32 + 1] = "";
    for (size_t i = 0; i < n && i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    return json_string(hex);
}

json_t *eng_json_logprob(float logprob)
{
    return json_real(isfinite(logprob) ? (double)logprob : -9999.0);
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

void eng_bytes_add(struct eng_bytes *b, const void *data, size_t len)
{
    if (b->failed || len == 0)
        return;
    if (b->cap - b->len < len) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap - b->len < len && cap <= SIZE_MAX / 2)
            cap *= 2;
        char *grown = cap - b->len < len ? NULL : realloc(b->data, cap);
        if (!grown) {
            eng_bytes_free(b);
            b->failed = true;
            return;
        }
        b->data = grown;
        b->cap = cap;
    }
    memcpy(b->data + b->len, data, len);
    b->len += len;
}

void eng_bytes_add_str(struct eng_bytes *b, const char *s)
{
    eng_bytes_add(b, s, strlen(s));
}

void eng_bytes_printf(struct eng_bytes *b, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n > 0)
        eng_bytes_add(b, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

static int bytes_sink(const char *data, size_t len, void *ctx)
{
    struct eng_bytes *b = ctx;
    eng_bytes_add(b, data, len);
    return b->failed ? -1 : 0;
}

void eng_bytes_add_json(struct eng_bytes *b, json_t *value)
{
    if (!value || json_dump_callback(value, bytes_sink, b, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0) {
        eng_bytes_free(b);
        b->failed = true;
    }
    json_decref(value);
}

void eng_bytes_free(struct eng_bytes *b)
{
    free(b->data);
    *b = (struct eng_bytes){0};
}
