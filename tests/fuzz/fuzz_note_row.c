/*
 * Notes of catalogue rows on any bytes: what decodes is walked to its end, and its notes written again give
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
    struct fmt_note note;
    size_t from = 0, to = 0, data_bytes = 0, n_notes;
    if (fmt_notes_check(data, size, &n_notes) != 0)
        return 0;
    uint8_t *again = malloc(size + 1);
    if (again == NULL)
        return 0;
    for (size_t i = 0; i < n_notes; i++) {
        fmt_notes_next(data, &from, &note);
        require(note.len <= FMT_NOTE_BYTES_MAX);
        data_bytes += note.len;
        to = fmt_notes_add(&note, again, to);
        require(to == from && to <= size);
    }
    require(to == size && fmt_notes_bytes(n_notes, data_bytes) == size);
    require(memcmp(again, data, size) == 0);
    free(again);
    return 0;
}
