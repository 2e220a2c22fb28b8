/*
 * The control socket of an open store: DIR/control, mode 0600, through which cachestore-admin asks.
 *
 * Threads: one thread of its own serves it from start to stop; start and stop are the opener's and closer's.
 */
#ifndef ISOTHERM_CACHESTORE_CONTROL_H
#define ISOTHERM_CACHESTORE_CONTROL_H

#include "cachestore/control_wire.h"

#define CONTROL_SOCKET_NAME "control"

struct control;

/* Opens the socket in the directory of the store's disk tier, in place of one that a killed process left (the
 * directory's lock is held), and serves it. NULL: there is none, and why has one line. */
struct control *control_start(struct cs_store *s, char *why, size_t why_len);
/* Ends it, and connections with it. NULL is allowed. */
void control_stop(struct control *c);

/* control_serve.c */
/* What a request is answered with: writes the reply's payload, returns its status. Takes the store's lock for
 * short pieces. */
int control_answer(struct cs_store *s, const struct control_request *q, struct wire_writer *w);

/* The address of the socket in a directory, whatever its path's length. */
struct sockaddr_un;
void control_address(int dir_fd, struct sockaddr_un *out);

#endif
