/* Lines of a chat from standard input; from a terminal they can be edited and recalled, where libedit was
 * there to build with. Main thread. */
#ifndef ISOTHERM_ENGINE_CLI_LINE_H
#define ISOTHERM_ENGINE_CLI_LINE_H

#include <stdbool.h>
#include <stddef.h>

enum { CLI_LINE_END = -1, CLI_LINE_INTERRUPTED = -2 };

struct cli_line;

/* terminal: with a prompt on stderr. interrupt_fd: an eventfd that does not block, the caller's; a line from
 * a terminal that is waited for ends as interrupted once it has been written to, whichever thread a signal
 * came to. NULL: no memory. */
struct cli_line *cli_line_open(bool terminal, int interrupt_fd);
/* Bytes of the next line, without its end, which *text has until the next call; or CLI_LINE_*. From elsewhere
 * a line is interrupted by a signal to this thread whose handler is set without SA_RESTART. */
long cli_line_read(struct cli_line *l, const char **text);
void cli_line_close(struct cli_line *l);

/* Whether cli_line_open(true) edits. */
bool cli_line_edits(void);

#endif
