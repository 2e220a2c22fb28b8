/* One line to the log function of a configuration; NULL: nobody listens. */
#ifndef ISOTHERM_CACHESTORE_LOG_H
#define ISOTHERM_CACHESTORE_LOG_H

#include <stdarg.h>
#include <stdio.h>

#include "cachestore/cachestore.h"

static inline void log_line(void (*log)(void *ctx, enum cs_log_level level, const char *line), void *ctx,
                            enum cs_log_level level, const char *format, va_list args)
{
    char line[512];
    if (log == NULL)
        return;
    vsnprintf(line, sizeof line, format, args);
    log(ctx, level, line);
}

#endif
