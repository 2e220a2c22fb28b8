/* See note_row.h; docs/format.md has the offsets. */
#include "formats/note_row.h"

#include <string.h>

enum { NOTE_LENGTH = 16, NOTE_HEAD = 20 }; /* key, length, bytes */
_Static_assert(sizeof((struct fmt_note){.len = 0}.key) == NOTE_LENGTH, "docs/format.md");
_Static_assert(NOTE_LENGTH + sizeof((struct fmt_note){.len = 0}.len) == NOTE_HEAD, "docs/format.md");

size_t fmt_notes_bytes(size_t n_notes, size_t data_bytes)
{
    return n_notes * NOTE_HEAD + data_bytes;
}

size_t fmt_notes_add(const struct fmt_note *note, void *out, size_t at)
{
    uint8_t *p = (uint8_t *)out + at;
    memcpy(p, note->key, sizeof note->key);
    memcpy(p + NOTE_LENGTH, &note->len, sizeof note->len);
    if (note->len > 0)
        memcpy(p + NOTE_HEAD, note->data, note->len);
    return at + NOTE_HEAD + note->len;
}

int fmt_notes_check(const void *buf, size_t len, size_t *n_notes)
{
    size_t at = 0, n = 0;
    for (; at < len; n++) {
        uint32_t note_len;
        if (len - at < NOTE_HEAD)
            return -1;
        memcpy(&note_len, (const uint8_t *)buf + at + NOTE_LENGTH, sizeof note_len);
        at += NOTE_HEAD;
        if (note_len > FMT_NOTE_BYTES_MAX || note_len > len - at)
            return -1;
        at += note_len;
    }
    *n_notes = n;
    return 0;
}

void fmt_notes_next(const void *buf, size_t *at, struct fmt_note *note)
{
    const uint8_t *p = (const uint8_t *)buf + *at;
    memcpy(note->key, p, sizeof note->key);
    memcpy(&note->len, p + NOTE_LENGTH, sizeof note->len);
    note->data = p + NOTE_HEAD;
    *at += NOTE_HEAD + note->len;
}
