/*
 * Both sides of the control socket's protocol on any bytes. The first byte says what the rest is taken for: a
 * message's header, the payload of a request, or of a reply. What decodes, written again, gives the same
 * bytes, and nothing is read beyond them.
 */
#include "cachestore/control_wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int promise)
{
    if (!promise)
        __builtin_trap();
}

static struct wire_writer writer(uint8_t *room, size_t bytes)
{
    return (struct wire_writer){.at = room, .room = bytes};
}

static void header(const uint8_t *data, size_t size)
{
    struct control_header h;
    uint8_t again[CONTROL_HEADER_BYTES];
    if (size < CONTROL_HEADER_BYTES || control_header_decode(data, CONTROL_REQUEST_MAX, &h) != CS_OK)
        return;
    require(h.bytes <= CONTROL_REQUEST_MAX);
    control_header_encode(&h, again);
    require(memcmp(again, data, sizeof again) == 0);
}

static void request(uint16_t command, const uint8_t *data, size_t size, uint8_t *again, size_t room)
{
    static struct control_request q;
    struct wire_writer w = writer(again, room);
    if (!control_request_decode(command, data, size, &q))
        return;
    require(q.n_keys <= CONTROL_KEYS_MAX);
    control_request_encode(&q, &w);
    require(!w.full && w.len == size && memcmp(again, data, size) == 0);
}

static void rows(const uint8_t *data, size_t size, uint8_t *again, size_t room)
{
    struct wire_reader r = {.at = data, .left = size};
    struct control_row row;
    while (control_row_decode(&r, &row)) {
        struct wire_writer w = writer(again, room);
        control_row_encode(&row, &w);
        require(w.len == CONTROL_ROW_BYTES &&
                memcmp(again + 4, r.at - CONTROL_ROW_BYTES + 4, w.len - 4) == 0);
    }
}

static void figures(const uint8_t *data, size_t size, uint8_t *again, size_t room)
{
    struct wire_reader r = {.at = data, .left = size};
    struct control_figure_room names;
    struct cs_figure f;
    struct wire_writer w = writer(again, room);
    while (control_figure_decode(&r, &f, &names)) {
        require(strlen(f.name) < 64 && (f.text == NULL || strlen(f.text) < 64));
        control_figure_encode(&f, &w);
        require(!w.full && w.len == (size_t)(r.at - data) && memcmp(again, data, w.len) == 0);
    }
}

static void record(const uint8_t *data, size_t size)
{
    struct wire_reader r = {.at = data, .left = size};
    struct control_record record;
    uint64_t sum = 0;
    if (!control_record_decode(&r, &record))
        return;
    require(record.n_here <= record.n_ids - record.from && record.n_notes <= CONTROL_NOTES_MAX);
    for (uint32_t i = 0; i < record.n_here; i++)
        sum += control_record_id(&record, i);
    for (uint32_t i = 0; i < record.n_notes; i++)
        sum += control_record_note(&record, i).bytes;
    require(sum != UINT64_MAX);
}

static void small(const uint8_t *data, size_t size)
{
    struct wire_reader r = {.at = data, .left = size};
    struct control_hello h;
    struct control_progress p;
    if (control_hello_decode(&r, &h))
        require(h.page_tokens > 0 && h.stride > 0);
    r = (struct wire_reader){.at = data, .left = size};
    (void)control_progress_decode(&r, &p);
    uint8_t again[CONTROL_TENANT_BYTES];
    struct cs_tenant_use use;
    struct control_other other;
    r = (struct wire_reader){.at = data, .left = size};
    struct wire_writer w = writer(again, sizeof again);
    if (control_tenant_decode(&r, &use)) {
        control_tenant_encode(&use, &w);
        require(w.len == CONTROL_TENANT_BYTES && memcmp(again, data, w.len) == 0);
    }
    r = (struct wire_reader){.at = data, .left = size};
    w = writer(again, sizeof again);
    if (control_other_decode(&r, &other)) {
        control_other_encode(&other, &w);
        require(w.len == CONTROL_OTHER_BYTES && memcmp(again, data, w.len) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > CONTROL_REPLY_MAX)
        return 0;
    uint8_t what = data[0], *again = malloc(2 * size + 256);
    if (again == NULL)
        return 0;
    data++;
    size--;
    switch (what) {
    case 0:
        header(data, size);
        break;
    case 32:
        rows(data, size, again, 2 * size + 256);
        break;
    case 33:
        figures(data, size, again, 2 * size + 256);
        break;
    case 34:
        record(data, size);
        break;
    case 35:
        small(data, size);
        break;
    default:
        request(what, data, size, again, 2 * size + 256);
    }
    free(again);
    return 0;
}
