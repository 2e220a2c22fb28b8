/* XXH3, over whole pages with the widest registers that the processor has: the library's plain functions are
 * compiled for the oldest one, and those that look first are declared in a header of their own. */
#ifndef ISOTHERM_FORMATS_HASH_H
#define ISOTHERM_FORMATS_HASH_H

#ifdef ISOTHERM_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#endif
