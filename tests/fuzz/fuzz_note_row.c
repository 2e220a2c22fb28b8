/*
 * Catalogue rows of notes on any bytes: what decodes is walked to its end, and its notes written again give
 * the same bytes.
 */
#include "formats/note_row.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int promise)
{
    if (!promise)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fmt_note_row row;
    struct fmt_note note;
    size_t from = 0;
    if (fmt_note_row_decode(data, size, &row) != 0)
        return 0;
    uint8_t *again = malloc(size);
    if (again == NULL)
        return 0;
    size_t to = fmt_note_row_begin(&row, again), data_bytes = 0;
    for (uint32_t i = 0; i < row.n_notes; i++) {
        fmt_note_row_next(data, &from, &note);
        require(note.len <= FMT_NOTE_BYTES_MAX);
        data_bytes += note.len;
        to = fmt_note_row_add(&note, again, to);
        require(to == from && to <= size);
    }
    require(to == size && fmt_note_row_bytes(row.n_notes, data_bytes) == size);
    require(memcmp(again, data, size) == 0);
    free(again);
    return 0;
}
