/* Log lines on stderr, as text or as one JSON object a line. Any thread: a line is one write. */
#include "engine/cli.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* fields: {"message": ...} and what else there is; taken over. */
static void write_json(const char *level, json_t *fields)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char *text =
        fields ? json_dumps(fields, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6)) : NULL;
    if (text) /* the fields stand in braces: what is the same on every line comes first */
        fprintf(stderr, "{\"time\":%lld.%03ld,\"level\":\"%s\",%s\n", (long long)now.tv_sec,
                now.tv_nsec / 1000000, level, text + 1);
    free(text);
    json_decref(fields);
}

void cli_log(void *ctx, enum cs_log_level level, const char *line)
{
    const struct cli_options *o = ctx;
    if (!o->log_json)
        fprintf(stderr, "%s%s\n", level == CS_LOG_WARN ? "warning: " : "", line);
    else
        write_json(level == CS_LOG_WARN ? "warn" : "info",
                   json_pack("{s:o}", "message", json_string_nocheck(line)));
}

void cli_log_step(void *ctx, const char *step, double seconds, const char *text)
{
    (void)ctx;
    write_json("info", json_pack("{s:s, s:f, s:o}", "step", step, "seconds", seconds, "message",
                                 json_string_nocheck(text)));
}
