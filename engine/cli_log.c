/* Log lines on stderr, as text or as one JSON object a line. Any thread: a line is one write. */
#include "engine/cli.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void cli_log(void *ctx, enum cs_log_level level, const char *line)
{
    const struct cli_options *o = ctx;
    if (!o->log_json) {
        fprintf(stderr, "%s%s\n", level == CS_LOG_WARN ? "warning: " : "", line);
        return;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    json_t *text = json_string_nocheck(line);
    char *quoted = text ? json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    if (quoted)
        fprintf(stderr, "{\"time\":%lld.%03ld,\"level\":\"%s\",\"message\":%s}\n", (long long)now.tv_sec,
                now.tv_nsec / 1000000, level == CS_LOG_WARN ? "warn" : "info", quoted);
    free(quoted);
    json_decref(text);
}
