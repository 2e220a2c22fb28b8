/*
 * Lines for stderr, written by a thread of their own: whoever has something to say never waits for who reads
 * it. A reader that stalls (a full pipe, a terminal that is held) stops that one thread; what does not fit
 * into the queue meanwhile is dropped, and a line in its place says how many were.
 *
 * Threads: open, flush and close on the main one; put on any.
 */
#ifndef ISOTHERM_ENGINE_CLI_LINES_H
#define ISOTHERM_ENGINE_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CLI_LINES_BYTES = 256 << 10, /* that may wait */
    CLI_LINE_BYTES = 8 << 10,    /* a longer line is cut */
};

/* Lines go to fd from now on; it stays open until after cli_lines_close. lost(): fills text (len bytes) with
 * a line, without its newline, saying that n lines are missing here. Without memory for a thread lines are
 * written as they come, as they are before this call. */
void cli_lines_open(int fd, void (*lost)(char *text, size_t len, uint64_t n));
/* One line, without its newline. Keeps the order in which calls come. Holds a lock for one copy. */
void cli_lines_put(const char *text);
/* Waits until all is written, at most timeout_ms; whether it is. */
bool cli_lines_flush(uint32_t timeout_ms);
/* The same, and ends the thread. What comes later, and what could not be written in time, is dropped. */
void cli_lines_close(uint32_t timeout_ms);

#endif
