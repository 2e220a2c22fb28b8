/* See log.h. */
#include "cachestore/log.h"

#include <stdio.h>

void log_line(void (*log)(void *ctx, enum cs_log_level level, const char *line), void *ctx,
              enum cs_log_level level, const char *format, va_list args)
{
    char line[512];
    if (log == NULL)
        return;
    vsnprintf(line, sizeof line, format, args);
    log(ctx, level, line);
}
