/* Log lines on stderr, as text or as one JSON object a line. Any thread, none waits for who reads them. */
#include "engine/cli.h"
#include "engine/cli_lines.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CLOSE_DEADLINE_MS 1000

/* fields: {"message": ...} and what else there is; taken over. */
static void write_json(const char *level, json_t *fields)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char *text =
        fields ? json_dumps(fields, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6)) : NULL;
    char line[CLI_LINE_BYTES];
    if (text) { /* the fields stand in braces: what is the same on every line comes first */
        snprintf(line, sizeof line, "{\"time\":%lld.%03ld,\"level\":\"%s\",%s", (long long)now.tv_sec,
                 now.tv_nsec / 1000000, level, text + 1);
        cli_lines_put(line);
    }
    free(text);
    json_decref(fields);
}

void cli_log(void *ctx, enum cs_log_level level, const char *text)
{
    const struct cli_options *o = ctx;
    char line[CLI_LINE_BYTES];
    if (o->log_json) {
        write_json(level == CS_LOG_WARN ? "warn" : "info",
                   json_pack("{s:o}", "message", json_string_nocheck(text)));
        return;
    }
    snprintf(line, sizeof line, "%s%s", level == CS_LOG_WARN ? "warning: " : "", text);
    cli_lines_put(line);
}

void cli_log_step(void *ctx, const char *step, double seconds, const char *text)
{
    (void)ctx;
    write_json("info", json_pack("{s:s, s:f, s:o}", "step", step, "seconds", seconds, "message",
                                 json_string_nocheck(text)));
}

void cli_complain(const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    cli_lines_put(line);
}

static void lost_text(char *text, size_t len, uint64_t n)
{
    snprintf(text, len, "warning: %" PRIu64 " lines were lost here: stderr is read too slowly", n);
}

static void lost_json(char *text, size_t len, uint64_t n)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(text, len,
             "{\"time\":%lld.%03ld,\"level\":\"warn\",\"message\":\"%" PRIu64
             " lines were lost here: stderr is read too slowly\"}",
             (long long)now.tv_sec, now.tv_nsec / 1000000, n);
}

void cli_log_open(const struct cli_options *o)
{
    cli_lines_open(STDERR_FILENO, o->log_json ? lost_json : lost_text);
}

void cli_log_flush(void)
{
    (void)cli_lines_flush(CLOSE_DEADLINE_MS);
}

void cli_log_close(void)
{
    cli_lines_close(CLOSE_DEADLINE_MS);
}
