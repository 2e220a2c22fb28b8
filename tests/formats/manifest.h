/* The made models and the manifest of broken ones (tests/data/README.md). For cmocka tests only: they fail,
 * not return. */
#ifndef ISOTHERM_TESTS_FORMATS_MANIFEST_H
#define ISOTHERM_TESTS_FORMATS_MANIFEST_H

#include <stddef.h>

/* $ISOTHERM_TEST_MODELS/NAME. */
void test_model_path(char *out, size_t size, const char *name);
/* Calls fn for every line of the manifest, path being the whole one; returns the number of lines. */
unsigned test_each_broken(void (*fn)(const char *path, const char *name, const char *stage,
                                     const char *words));

#endif
