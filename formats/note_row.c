/* See note_row.h; docs/format.md has the offsets. */
#include "formats/note_row.h"

#include <string.h>

static const uint8_t note_magic[8] = {'I', 's', 'o', 'N', 'o', 't', 'e', '1'};
enum { NOTE_HEAD = 20 }; /* key, length */

struct note_fixed {
    uint8_t magic[8];
    uint64_t owner_nonce, owner_sequence;
    uint8_t fingerprint[32];
    uint32_t n_notes, reserved;
};
_Static_assert(sizeof(struct note_fixed) == FMT_NOTE_ROW_FIXED, "docs/format.md");
_Static_assert(offsetof(struct note_fixed, owner_nonce) == 8, "docs/format.md");
_Static_assert(offsetof(struct note_fixed, owner_sequence) == 16, "docs/format.md");
_Static_assert(offsetof(struct note_fixed, fingerprint) == 24, "docs/format.md");
_Static_assert(offsetof(struct note_fixed, n_notes) == 56, "docs/format.md");

size_t fmt_note_row_bytes(uint32_t n_notes, size_t data_bytes)
{
    return FMT_NOTE_ROW_FIXED + (size_t)n_notes * NOTE_HEAD + data_bytes;
}

size_t fmt_note_row_begin(const struct fmt_note_row *row, void *out)
{
    struct note_fixed f = {
        .owner_nonce = row->owner_nonce, .owner_sequence = row->owner_sequence, .n_notes = row->n_notes};
    memcpy(f.magic, note_magic, sizeof f.magic);
    memcpy(f.fingerprint, row->fingerprint, sizeof f.fingerprint);
    memcpy(out, &f, sizeof f);
    return sizeof f;
}

size_t fmt_note_row_add(const struct fmt_note *note, void *out, size_t at)
{
    uint8_t *p = (uint8_t *)out + at;
    memcpy(p, note->key, 16);
    memcpy(p + 16, &note->len, 4);
    if (note->len > 0)
        memcpy(p + NOTE_HEAD, note->data, note->len);
    return at + NOTE_HEAD + note->len;
}

int fmt_note_row_decode(const void *buf, size_t len, struct fmt_note_row *row)
{
    struct note_fixed f;
    if (len < sizeof f)
        return -1;
    memcpy(&f, buf, sizeof f);
    if (memcmp(f.magic, note_magic, sizeof f.magic) != 0 || f.reserved != 0)
        return -1;
    size_t at = sizeof f;
    for (uint32_t i = 0; i < f.n_notes; i++) {
        uint32_t n;
        if (len - at < NOTE_HEAD)
            return -1;
        memcpy(&n, (const uint8_t *)buf + at + 16, 4);
        at += NOTE_HEAD;
        if (n > FMT_NOTE_BYTES_MAX || n > len - at)
            return -1;
        at += n;
    }
    if (at != len)
        return -1;
    memcpy(row->fingerprint, f.fingerprint, sizeof row->fingerprint);
    row->owner_nonce = f.owner_nonce;
    row->owner_sequence = f.owner_sequence;
    row->n_notes = f.n_notes;
    return 0;
}

void fmt_note_row_next(const void *buf, size_t *at, struct fmt_note *note)
{
    if (*at == 0)
        *at = FMT_NOTE_ROW_FIXED;
    const uint8_t *p = (const uint8_t *)buf + *at;
    memcpy(note->key, p, 16);
    memcpy(&note->len, p + 16, 4);
    note->data = p + NOTE_HEAD;
    *at += NOTE_HEAD + note->len;
}
