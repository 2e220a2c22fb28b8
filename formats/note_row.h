/*
 * The catalogue row of notes that were published together: the fingerprint and span they belong to, then each
 * note's key, length and bytes. Pure functions; everything in a row is untrusted.
 */
#ifndef ISOTHERM_FORMATS_NOTE_ROW_H
#define ISOTHERM_FORMATS_NOTE_ROW_H

#include <stddef.h>
#include <stdint.h>

#define FMT_NOTE_BYTES_MAX (1u << 20)
#define FMT_NOTE_ROW_FIXED 64u

struct fmt_note_row {
    uint8_t fingerprint[32];
    uint64_t owner_nonce, owner_sequence;
    uint32_t n_notes;
};
struct fmt_note {
    uint64_t key[2];
    const void *data;
    uint32_t len;
};

/* Row bytes for notes whose lengths sum to data_bytes. */
size_t fmt_note_row_bytes(uint32_t n_notes, size_t data_bytes);
/* Writes the fixed part; the return is where the first note goes. */
size_t fmt_note_row_begin(const struct fmt_note_row *row, void *out);
/* Writes one note at out[at..); the return is where the next goes. */
size_t fmt_note_row_add(const struct fmt_note *note, void *out, size_t at);

/* Checks buf[0..len) whole. 0, or -1: not a note row of this version. */
int fmt_note_row_decode(const void *buf, size_t len, struct fmt_note_row *row);
/* Note at offset *at of a row that was decoded (start with 0: the first); *at moves behind it. */
void fmt_note_row_next(const void *buf, size_t *at, struct fmt_note *note);

#endif
