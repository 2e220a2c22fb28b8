/* The I/O engine that tests of the disk tier ask for, so that the same suites run on each of them. */
#ifndef ISOTHERM_TESTS_SUPPORT_IO_ENGINE_H
#define ISOTHERM_TESTS_SUPPORT_IO_ENGINE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/cachestore.h"

/* $ISOTHERM_TEST_IO: auto (also where it is not set), uring or pread. Nothing but tests reads it. */
static inline enum cs_io_engine test_io_engine(void)
{
    const char *name = getenv("ISOTHERM_TEST_IO");
    if (name == NULL || strcmp(name, "auto") == 0)
        return CS_IO_AUTO;
    if (strcmp(name, "uring") == 0)
        return CS_IO_URING;
    if (strcmp(name, "pread") == 0)
        return CS_IO_PREAD;
    fprintf(stderr, "ISOTHERM_TEST_IO=%s: there are auto, uring and pread\n", name);
    exit(1);
}

#endif
