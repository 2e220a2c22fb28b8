/*
 * Notes as they lie in catalogue rows: behind a span's row, or as the value of a row of their own. Each is
 * key, length, bytes, back to back to the end of the value. Pure functions; everything in a row is untrusted.
 */
#ifndef ISOTHERM_FORMATS_NOTE_ROW_H
#define ISOTHERM_FORMATS_NOTE_ROW_H

#include <stddef.h>
#include <stdint.h>

#define FMT_NOTE_BYTES_MAX (1u << 20)

struct fmt_note {
    uint64_t key[2];
    const void *data;
    uint32_t len;
};

/* Bytes of n_notes whose lengths sum to data_bytes. */
size_t fmt_notes_bytes(size_t n_notes, size_t data_bytes);
/* Writes one note at out[at..); the return is where the next goes. */
size_t fmt_notes_add(const struct fmt_note *note, void *out, size_t at);

/* Checks buf[0..len) whole and counts its notes. 0, or -1: not a list of notes. */
int fmt_notes_check(const void *buf, size_t len, size_t *n_notes);
/* Note at offset *at of a list that was checked; *at moves behind it. */
void fmt_notes_next(const void *buf, size_t *at, struct fmt_note *note);

#endif
