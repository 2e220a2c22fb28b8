/* Checks of a parsed GGUF file's well-known keys against each other; a part of fmt_gguf_open, not for others.
 */
#ifndef ISOTHERM_FORMATS_GGUF_CHECK_H
#define ISOTHERM_FORMATS_GGUF_CHECK_H

#include <stddef.h>

struct fmt_gguf;

/* FMT_OK, or FMT_EFORMAT with one line naming the key or tensor. A key that is missing is no error here: what
 * a model needs is its loader's question. */
int fmt_gguf_check(const struct fmt_gguf *g, char *err, size_t err_len);

#endif
