/* Which engine moves the bytes: the one that was asked for, or the first that can be had here. */
#include "cachestore/io/io.h"

#include <stdio.h>

int io_engine_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len)
{
    int rc = kind == CS_IO_PREAD ? io_pread_engine_open(out, reason, reason_len)
                                 : io_uring_engine_open(out, reason, reason_len);
    if (rc == 0)
        snprintf(reason, reason_len, "%s", kind == CS_IO_AUTO ? "io_uring can be had" : "as configured");
    else if (kind == CS_IO_AUTO) /* the reason stays what io_uring said */
        rc = io_pread_engine_open(out, reason, reason_len);
    return rc;
}
