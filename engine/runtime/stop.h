/* Stop strings in a stream of text. Internal to the runtime. */
#ifndef ISOTHERM_ENGINE_RUNTIME_STOP_H
#define ISOTHERM_ENGINE_RUNTIME_STOP_H

#include <stdbool.h>
#include <stddef.h>

/* The stop strings of a request; owned by the request, shared by its choices. */
struct stop_set {
    char **text;
    size_t *len;
    size_t n;
};
/* Copies. ENG_OK, ENG_ENOMEM, or ENG_EINVAL for one that is empty or begins inside a UTF-8 character. */
int stop_set_init(struct stop_set *s, const char *const *stop, size_t n);
void stop_set_free(struct stop_set *s);

/* Text that came in and may not be shown yet. Zero-initialise; stop_stream_free when done. */
struct stop_stream {
    char *data; /* held text, then, until the next call, nothing else */
    size_t len, cap;
    size_t released; /* bytes let go so far, in all */
    bool stopped;
};
void stop_stream_free(struct stop_stream *t);

/* Adds text (whole characters). What may be shown now is appended to out as a growing buffer of the caller:
 * at most held + len bytes. With `last`, nothing is held back any more. Once a stop string has completed,
 * `stopped` is set, the text before it has been let go and the rest is dropped. ENG_OK, ENG_ENOMEM. */
struct text_buffer {
    char *data;
    size_t len, cap;
};
int text_buffer_add(struct text_buffer *b, const char *data, size_t len);
int stop_stream_push(struct stop_stream *t, const struct stop_set *s, const char *text, size_t len, bool last,
                     struct text_buffer *out);

#endif
