/* The page at /, made from page.html by embed.py at build time. */
#ifndef ISOTHERM_ENGINE_SERVE_PAGE_H
#define ISOTHERM_ENGINE_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char eng_page_html[];
extern const size_t eng_page_html_len;

#endif
