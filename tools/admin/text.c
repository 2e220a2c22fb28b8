/* How things are written: see admin.h. */
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/admin/admin.h"

/* Text of outside origin: control characters and, in JSON, quotes are escaped. */
void print_escaped(FILE *f, const char *text, bool json)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p++) {
        if (*p < 0x20 || *p == 0x7f)
            fprintf(f, json ? "\\u%04x" : "\\x%02x", *p);
        else if (json && (*p == '"' || *p == '\\'))
            fprintf(f, "\\%c", *p);
        else if (*p >= 0x80 && json)
            fprintf(f, "\\u%04x", *p);
        else
            fputc(*p, f);
    }
}

const char *bytes_text(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

const char *age_text(int64_t then, char out[32])
{
    int64_t seconds = (int64_t)time(NULL) - then;
    if (seconds < 0)
        snprintf(out, 32, "in the future");
    else if (seconds < 120)
        snprintf(out, 32, "%" PRId64 " s", seconds);
    else if (seconds < 7200)
        snprintf(out, 32, "%" PRId64 " min", seconds / 60);
    else if (seconds < 48 * 3600)
        snprintf(out, 32, "%" PRId64 " h", seconds / 3600);
    else
        snprintf(out, 32, "%" PRId64 " d", seconds / 86400);
    return out;
}

const char *hex_text(const uint8_t *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return out;
}

const char *key_text(struct cs_key key, char out[33])
{
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, key.hi, key.lo);
    return out;
}

/* "sequence-nonce", the order in which records were made. */
const char *record_text(const uint64_t id[2], char out[34])
{
    snprintf(out, 34, "%016" PRIx64 "-%016" PRIx64, id[1], id[0]);
    return out;
}

/* What a checkpoint serves; NULL: it is a span. */
const char *boundary_text(const struct cs_span_info *s)
{
    static const char *const names[] = {[CS_BOUNDARY_TURN] = "turn",
                                        [CS_BOUNDARY_SYSTEM] = "system",
                                        [CS_BOUNDARY_BRANCH] = "branch",
                                        [CS_BOUNDARY_END] = "end"};
    if (!s->checkpoint)
        return NULL;
    return (unsigned)s->boundary < sizeof names / sizeof *names ? names[s->boundary] : "unknown";
}

/* "40..60" for a span, "@60 turn" for a checkpoint. */
const char *place_text(const struct cs_span_info *s, char out[48])
{
    if (s->checkpoint)
        snprintf(out, 48, "@%" PRIu32 " %s", s->first_position, boundary_text(s));
    else
        snprintf(out, 48, "%" PRIu32 "..%" PRIu32, s->first_position, s->first_position + s->n_tokens);
    return out;
}

void print_span_fields(const struct cs_span_info *s, bool live)
{
    char key[33], parent[33], record[34], above[34], fingerprint[65], tenant[33];
    bool has_parent = s->parent_record_id[0] != 0 || s->parent_record_id[1] != 0;
    const char *boundary = boundary_text(s), *quote = boundary != NULL ? "\"" : "";
    bool parent_on_disk = has_parent && s->parent_record_id[0] != 0;
    printf("\"record\":%s%s%s,\"kind\":\"%s\",\"boundary\":%s%s%s,\"parent_record\":%s%s%s,\"depth\":%" PRIu32
           ",\"key\":\"%s\",\"parent_key\":\"%s\",\"fingerprint\":\"%s\",\"tenant\":\"%s\"",
           s->on_disk ? "\"" : "", s->on_disk ? record_text(s->record_id, record) : "null",
           s->on_disk ? "\"" : "", s->checkpoint ? "checkpoint" : "span", quote,
           boundary != NULL ? boundary : "null", quote, parent_on_disk ? "\"" : "",
           parent_on_disk ? record_text(s->parent_record_id, above) : "null", parent_on_disk ? "\"" : "",
           s->depth, key_text(s->key, key), key_text(s->parent, parent),
           hex_text(s->fingerprint, sizeof s->fingerprint, fingerprint),
           hex_text(s->tenant.id, sizeof s->tenant.id, tenant));
    printf(",\"first_position\":%" PRIu32 ",\"tokens\":%" PRIu32 ",\"pages\":%" PRIu32
           ",\"payload_bytes\":%" PRIu64 ",\"disk_bytes\":%" PRIu64 ",\"created\":%" PRId64
           ",\"used\":%" PRId64,
           s->first_position, s->n_tokens, s->n_pages, s->payload_bytes, s->disk_bytes, s->created_unix,
           s->used_unix);
    printf(",\"pinned\":%s", s->pinned ? "true" : "false");
    if (live)
        printf(",\"pages_device\":%" PRIu32 ",\"pages_host\":%" PRIu32, s->n_device, s->n_host);
}

int complain(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "cachestore-admin: ");
    print_escaped(stderr, line, false);
    fprintf(stderr, "\n");
    return EXIT_USAGE;
}

/* ---- what people write ------------------------------------------------------------------------------- */

bool is_hex(const char *text, size_t n_min, size_t n_max)
{
    size_t n = strspn(text, "0123456789abcdefABCDEF");
    return text[n] == 0 && n >= n_min && n <= n_max;
}

bool hex_begins(const char *hex, const char *beginning)
{
    for (; *beginning != 0; hex++, beginning++) {
        if (tolower((unsigned char)*beginning) != *hex)
            return false;
    }
    return true;
}

static uint8_t hex_digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : tolower((unsigned char)c) - 'a' + 10);
}

void hex_bytes(const char *hex, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
}

bool parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    uint64_t value = 0;
    size_t n = 0;
    for (; text[n] >= '0' && text[n] <= '9'; n++) {
        if (value > (UINT64_MAX - 9) / 10)
            return false;
        value = value * 10 + (uint64_t)(text[n] - '0');
    }
    const char *unit = text[n] != 0 ? strchr(units, text[n]) : NULL;
    unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    if (n == 0 || (text[n] != 0 && (unit == NULL || text[n + 1] != 0)) || value > UINT64_MAX >> shift)
        return false;
    *out = value << shift;
    return true;
}
