/*
 * JSON at the edge: a guarded parser for bodies from outside, field readers that report what is wrong with
 * which field, and writers for text that must come out as valid UTF-8 whatever went in.
 *
 * Pure: no engine, no sockets, no globals. Any thread.
 */
#ifndef ISOTHERM_ENGINE_SERVE_JSON_H
#define ISOTHERM_ENGINE_SERVE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a client is told. type and code are static strings; param is empty where no field is to blame. */
struct eng_api_error {
    int status; /* HTTP; 0: no error */
    const char *type;
    const char *code; /* NULL: null */
    char param[64];
    char message[512];
};

/* Fills err with a 400 that blames `param` (NULL: none). Returns -1, so that parsers can end with it. */
int eng_api_fail(struct eng_api_error *err, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with another status, type and code. */
int eng_api_fail_as(struct eng_api_error *err, int status, const char *type, const char *code,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));

enum {
    ENG_JSON_MAX_DEPTH = 64,       /* nesting that a request may have; no offered field needs more than 5 */
    ENG_JSON_MAX_VALUES = 1 << 20, /* a value costs up to 100 times its bytes once it is parsed */
};

/* Parses a body into an object. Depth and number of values are checked on the bytes, before anything recurses
 * or allocates. NULL with a 400 in err. */
json_t *eng_json_parse_object(const char *body, size_t len, struct eng_api_error *err);

/* Field readers. A missing field and null leave *out as it is and return 0; 1: read; -1: err says what is
 * wrong. Ranges are inclusive. */
int eng_json_bool(const json_t *object, const char *name, bool *out, struct eng_api_error *err);
int eng_json_number(const json_t *object, const char *name, double low, double high, float *out,
                    struct eng_api_error *err);
int eng_json_integer(const json_t *object, const char *name, int64_t low, int64_t high, int64_t *out,
                     struct eng_api_error *err);
/* The member, or NULL when it is missing or null. */
json_t *eng_json_member(const json_t *object, const char *name);

/* A JSON string of any bytes: what is not UTF-8 becomes U+FFFD. NULL: no memory. */
json_t *eng_json_text(const char *bytes, size_t len);
/* A JSON string of n bytes in hex, at most 32. */
json_t *eng_json_hex(const uint8_t *bytes, size_t n);
/* A JSON number; what JSON cannot say (infinities) becomes -9999, as OpenAI writes "never". */
json_t *eng_json_logprob(float logprob);

/* A growing run of bytes. Zero-initialise. After a failed allocation it stays failed and empty. */
struct eng_bytes {
    char *data;
    size_t len, cap;
    bool failed;
};
void eng_bytes_add(struct eng_bytes *b, const void *data, size_t len);
void eng_bytes_add_str(struct eng_bytes *b, const char *s);
void eng_bytes_printf(struct eng_bytes *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes the value compactly and drops the reference; a NULL value marks b as failed. */
void eng_bytes_add_json(struct eng_bytes *b, json_t *value);
void eng_bytes_free(struct eng_bytes *b);

/* True when the bytes are whole, valid UTF-8. */
bool eng_utf8_valid(const char *bytes, size_t len);

#endif
