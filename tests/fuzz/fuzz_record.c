/*
 * Headers of spans and checkpoints on any bytes, as they are and with their checksum put right, since no
 * mutation finds a checksum. What decodes is read to its ends, and encoding it again must give the same
 * bytes.
 */
#include "formats/note_row.h"
#include "formats/record.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void require(int promise)
{
    if (!promise)
        __builtin_trap();
}

static void walk(const struct fmt_record *r)
{
    uint64_t sum = 0, chunks = 0;
    for (uint32_t i = 0; i < r->n_runs; i++)
        chunks += r->runs[i].n_chunks;
    for (uint64_t i = 0; i < fmt_record_n_ids(r->kind, r->n_pages, r->page_tokens); i++)
        sum += r->ids[i];
    for (uint32_t i = 0; r->page_sums != NULL && i < r->n_pages; i++)
        sum += r->page_sums[i];
    size_t at = 0;
    for (size_t i = 0; i < r->n_notes; i++) {
        struct fmt_note note;
        fmt_notes_next(r->notes, &at, &note);
        for (uint32_t k = 0; k < note.len; k++)
            sum += ((const uint8_t *)note.data)[k];
    }
    require(at == r->notes_bytes);
    sink += sum;
    require(chunks == r->n_chunks);
    require(chunks == fmt_record_chunks(r->kind, r->n_pages, r->page_tokens, r->page_bytes, r->chunk_bytes));
    require(r->header_bytes <= r->chunk_bytes && r->header_bytes >= FMT_RECORD_ALIGN);
    require(r->kind == FMT_RECORD_SPAN ? r->flags == 0 : r->first_position >= r->page_tokens);
}

/* The row of r, made anew, against the bytes it was decoded from. */
static void require_same_row(const struct fmt_record *r, const void *bytes, size_t len)
{
    size_t row_bytes = fmt_record_row_bytes(r);
    void *row = malloc(row_bytes);
    require(row_bytes <= len);
    if (row != NULL) {
        require(fmt_record_row_encode(r, row, row_bytes) == FMT_RECORD_OK);
        require(memcmp(row, bytes, row_bytes) == 0);
    }
    free(row);
}

static void decode_header(void *buffer, size_t size)
{
    struct fmt_record r;
    uint64_t header_bytes = 0;
    if (fmt_record_decode(buffer, size, &r) != FMT_RECORD_OK)
        return;
    require(fmt_record_peek(buffer, size, &header_bytes) == FMT_RECORD_OK && header_bytes <= size);
    require(r.page_sums != NULL);
    walk(&r);
    require_same_row(&r, buffer, size);

    void *again = malloc(header_bytes);
    if (again != NULL)
        require(fmt_record_encode(&r, again, header_bytes) == FMT_RECORD_OK &&
                fmt_record_decode(again, header_bytes, &r) == FMT_RECORD_OK);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fmt_record r;
    uint64_t header_bytes = 0;
    uint8_t *buffer = malloc(size > 0 ? size : 1); /* aligned to 8, as the header asks */
    if (buffer == NULL)
        return 0;
    memcpy(buffer, data, size);

    if (fmt_record_row_decode(buffer, size, &r) == FMT_RECORD_OK) {
        require(r.page_sums == NULL && fmt_record_row_bytes(&r) == size);
        walk(&r);
        require_same_row(&r, buffer, size);
    }
    if (size >= FMT_RECORD_ALIGN)
        decode_header(buffer, size);
    if (size >= FMT_RECORD_ALIGN && fmt_record_peek(buffer, size, &header_bytes) == FMT_RECORD_OK &&
        header_bytes <= size) {
        uint64_t sum = XXH3_64bits(buffer, header_bytes - 8);
        memcpy(buffer + header_bytes - 8, &sum, sizeof sum);
        decode_header(buffer, size);
    }
    free(buffer);
    return 0;
}
