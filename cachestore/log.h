/* One line to the log function of a configuration; NULL: nobody listens. */
#ifndef ISOTHERM_CACHESTORE_LOG_H
#define ISOTHERM_CACHESTORE_LOG_H

#include <stdarg.h>

#include "cachestore/cachestore.h"

void log_line(void (*log)(void *ctx, enum cs_log_level level, const char *line), void *ctx,
              enum cs_log_level level, const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));

#endif
