/* Numbers of a benchmark: read from a command line, and the middle of many. */
#ifndef ISOTHERM_BENCH_NUMBERS_H
#define ISOTHERM_BENCH_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* A decimal number in [low, high] and nothing else; false leaves *out alone. */
static inline bool parse_number(const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || v < low || v > high)
        return false;
    *out = (uint32_t)v;
    return true;
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v. */
static inline double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, compare_doubles);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

#endif
