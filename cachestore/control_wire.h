/*
 * What goes over the control socket of an open store: messages, as bytes. docs/control.md has the tables.
 *
 * A message is a header of CONTROL_HEADER_BYTES and a payload whose length the header says; numbers are
 * little-endian. The client sends a request, the store one reply with the same command and a status (CS_OK or
 * a CS_E code), then the next request. Both sides take what they read for untrusted: nothing is believed
 * beyond the bytes that are there.
 *
 * Pure functions over memory: no files, no threads, no globals.
 */
#ifndef ISOTHERM_CACHESTORE_CONTROL_WIRE_H
#define ISOTHERM_CACHESTORE_CONTROL_WIRE_H

#include "cachestore/inspect.h"

#define CONTROL_MAGIC 0x31435349u /* "ISC1" */

enum {
    CONTROL_VERSION = 1,
    CONTROL_HEADER_BYTES = 16,
    CONTROL_REQUEST_MAX = 8 << 10, /* of payloads */
    CONTROL_REPLY_MAX = 128 << 10,
    CONTROL_KEYS_MAX = 128, /* in one request */
    CONTROL_ROWS_MAX = 256, /* in one reply */
    CONTROL_IDS_MAX = 4096, /* the same */
    CONTROL_NOTES_MAX = 2048,
    CONTROL_TENANTS_MAX = 64,
    CONTROL_OTHERS_MAX = 256,
};

enum control_command {
    CONTROL_HELLO = 1, /* who is there */
    CONTROL_FIGURES,   /* cs_stats and cs_latencies, by name */
    CONTROL_LIST,      /* spans and checkpoints, a piece from a cursor on */
    CONTROL_RECORD,    /* token ids and notes of one of them */
    CONTROL_EVICT,     /* deletes some of them from every tier */
    CONTROL_ERASE,     /* zeroes a header that nothing leads to, or deletes a record of another model */
    CONTROL_EPOCH,     /* raises the purge epoch */
    CONTROL_PIN,
    CONTROL_DRAIN,
    CONTROL_PROGRESS, /* what is pending */
    CONTROL_TENANTS,  /* what they may have and do, a piece from a cursor on */
    CONTROL_QUOTA,    /* sets what one may have */
    CONTROL_OTHERS,   /* records of other models, a piece from a cursor on: where they lie */
    CONTROL_COMMANDS
};

/* Of each key of an EVICT. */
enum { CONTROL_EVICT_DONE, CONTROL_EVICT_BUSY, CONTROL_EVICT_NOT_THERE };

struct control_header {
    uint16_t command;
    int32_t status;
    uint32_t bytes; /* of the payload */
};

/* ---- bytes ------------------------------------------------------------------------------------------- */

/* Once something does not fit, nothing more is written, and `full` stays. */
struct wire_writer {
    uint8_t *at;
    size_t len, room;
    bool full;
};
void wire_bytes(struct wire_writer *w, const void *bytes, size_t n);
void wire_u8(struct wire_writer *w, uint8_t value);
void wire_u32(struct wire_writer *w, uint32_t value);
void wire_u64(struct wire_writer *w, uint64_t value);
void wire_key(struct wire_writer *w, struct cs_key key);
/* Overwrites what was written as 32 bits at `place`. */
void wire_put_u32(struct wire_writer *w, size_t place, uint32_t value);

/* Once something is not there, everything reads as 0, and `bad` stays. */
struct wire_reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};
/* NULL where they are not there. */
const uint8_t *read_bytes(struct wire_reader *r, size_t n);
uint8_t read_u8(struct wire_reader *r);
uint32_t read_u32(struct wire_reader *r);
uint64_t read_u64(struct wire_reader *r);
struct cs_key read_key(struct wire_reader *r);
/* All was there, and nothing is left over. */
bool read_ended(const struct wire_reader *r);

/* ---- messages ---------------------------------------------------------------------------------------- */

void control_header_encode(const struct control_header *h, uint8_t out[CONTROL_HEADER_BYTES]);
/* CS_OK; CS_EFORMAT: no header of this protocol; CS_EVERSION: of another version of it; CS_EINVAL: it says
 * more than max_bytes. */
int control_header_decode(const uint8_t in[CONTROL_HEADER_BYTES], size_t max_bytes, struct control_header *h);

struct control_request {
    enum control_command command;
    uint64_t cursor;   /* LIST, TENANTS, OTHERS */
    struct cs_key key; /* RECORD, PIN */
    uint32_t from;     /* RECORD: the first id wanted */
    bool on;           /* PIN, DRAIN */
    uint32_t n_keys;   /* EVICT */
    struct cs_key keys[CONTROL_KEYS_MAX];
    struct cs_tenant tenant; /* QUOTA */
    struct cs_quota quota;
    uint64_t record[2];                         /* ERASE: nonce, sequence */
    uint32_t volume, first_chunk, header_bytes; /* ... where its header lies */
};
void control_request_encode(const struct control_request *q, struct wire_writer *w);
/* False: it breaks a rule. */
bool control_request_decode(uint16_t command, const uint8_t *payload, size_t len, struct control_request *q);

enum { CONTROL_ROW_PINNED = 1, CONTROL_ROW_ON_DISK = 2, CONTROL_ROW_HAS_PARENT = 4 };

/* One of a listing. */
struct control_row {
    bool checkpoint;
    uint8_t boundary, flags;
    uint32_t first_position, n_pages, n_device, n_host;
    uint64_t record[2];
    struct cs_key key, parent_key,
        parent_span; /* parent_span: the key of the span that the parent page is of */
    struct cs_tenant tenant;
    int64_t created_unix, used_unix;
    uint64_t disk_bytes;
    uint32_t volume, first_chunk; /* where the record begins */
};
enum { CONTROL_ROW_BYTES = 132 };
void control_row_encode(const struct control_row *row, struct wire_writer *w);
/* False: it breaks a rule, or is not there. */
bool control_row_decode(struct wire_reader *r, struct control_row *row);

/* Token ids of one of them, a piece, and with the first piece its notes. */
struct control_record {
    uint64_t record[2];           /* zero: it is on no disk */
    uint32_t n_ids, from, n_here; /* in all; the first here, and how many */
    uint32_t n_notes;
    const uint8_t *ids, *notes; /* 4 bytes an id; 20 a note */
};
bool control_record_decode(struct wire_reader *r, struct control_record *record);
struct cs_record_note control_record_note(const struct control_record *record, uint32_t i);
uint32_t control_record_id(const struct control_record *record, uint32_t i);

struct control_hello {
    uint32_t pid, page_tokens, chunk_bytes;
    uint64_t stride, disk_budget, index_budget, records_foreign;
    uint8_t uuid[16], fingerprint[32];
    bool stateful, draining;
};
void control_hello_encode(const struct control_hello *h, struct wire_writer *w);
bool control_hello_decode(struct wire_reader *r, struct control_hello *h);

struct control_progress {
    uint64_t pending_bytes; /* published and not on disk */
    uint64_t asked, failed; /* headers and pins on their way to disk; those that did not get there, ever */
    bool draining;
};
void control_progress_encode(const struct control_progress *p, struct wire_writer *w);
bool control_progress_decode(struct wire_reader *r, struct control_progress *p);

/* A record of another model: the rest is in its header, in the volumes. */
struct control_other {
    uint64_t record[2];
    uint32_t volume, first_chunk;
    int64_t used_unix;
};
enum { CONTROL_OTHER_BYTES = 32 };
void control_other_encode(const struct control_other *o, struct wire_writer *w);
bool control_other_decode(struct wire_reader *r, struct control_other *o);

enum { CONTROL_TENANT_BYTES = 16 + 12 * 8 };
void control_tenant_encode(const struct cs_tenant_use *u, struct wire_writer *w);
bool control_tenant_decode(struct wire_reader *r, struct cs_tenant_use *u);

/* A named figure: a number, a word or a histogram. */
void control_figure_encode(const struct cs_figure *f, struct wire_writer *w);
/* name and text lie in `room`. */
struct control_figure_room {
    char name[64], text[64];
    struct cs_histogram histogram;
};
bool control_figure_decode(struct wire_reader *r, struct cs_figure *f, struct control_figure_room *room);

#endif
