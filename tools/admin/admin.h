/*
 * cachestore-admin: what its files share. A command is one function; it prints to stdout, complains in one
 * line on stderr and returns the exit code. Built on cachestore.h and inspect.h alone.
 *
 * Threads: one.
 */
#ifndef ISOTHERM_TOOLS_ADMIN_H
#define ISOTHERM_TOOLS_ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cachestore/inspect.h"

enum {
    EXIT_FINE = 0,
    EXIT_DAMAGE = 1,
    EXIT_USAGE = 2, /* or not a readable store, or the command failed */
    EXIT_IN_USE = 3,
    EXIT_NOT_FOUND = 4,
    EXIT_STOPPED = 5, /* by SIGINT */
};

struct options {
    const char *dir;
    const char *word; /* the command's own argument, or NULL */
    bool json;
    bool all, force, drop, end;
    bool live, offline;                            /* only this way */
    const char *tenant, *model;                    /* hex, or the beginning of one that is stored */
    uint64_t chunk_bytes;                          /* 0: not given */
    uint64_t bytes;                                /* 0: not given */
    uint64_t device_bytes, host_bytes, disk_bytes; /* of a quota; 0: no limit of its own */
    bool device_given, host_given, disk_given, none;
    double every_s; /* between two lines of progress */
    double watch_s; /* 0: not given */
};

/* main.c */
/* A process has the store open, and is asked. */
bool is_live(const struct cs_inspect *in);
/* Says that the command needs a store that is in use for itself; returns EXIT_IN_USE. */
int complain_in_use(const char *command);
/* list.c */
int run_status(struct cs_inspect *in, const struct options *o);
int run_ls(struct cs_inspect *in, const struct options *o);
int run_stats(struct cs_inspect *in, const struct options *o);
/* find.c */
int run_show(struct cs_inspect *in, const struct options *o);
int run_explain(struct cs_inspect *in, const struct options *o);
/* The one record that text names: its id as ls prints it, its key or the beginning of it, or any key of a
 * position in it. *position: tokens before the place. EXIT_FINE, or it has complained. */
int find_record(struct cs_inspect *in, const char *text, struct cs_span_info *span, uint32_t *position);
/* The tenant that text names: 32 hex digits, or the beginning of one that has something stored or limits of
 * its own, or "anonymous". The same. */
int find_tenant(struct cs_inspect *in, const char *text, struct cs_tenant *tenant);
/* check.c */
int run_verify(struct cs_inspect *in, const struct options *o);
int run_scrub(struct cs_inspect *in, const struct options *o);
/* change.c */
int run_evict(struct cs_inspect *in, const struct options *o);
int run_pin(struct cs_inspect *in, const struct options *o);
int run_unpin(struct cs_inspect *in, const struct options *o);
int run_rebuild(struct cs_inspect *in, const struct options *o);
int run_format(const struct options *o);
/* quota.c */
int run_quota(struct cs_inspect *in, const struct options *o);
/* live.c */
int run_drain(struct cs_inspect *in, const struct options *o);
/* Says that the process that has the store open could not be asked on; rc: what the call returned. An exit
 * code. */
int process_lost(int rc);
/* One number of a process by its figure's name; 0 where there is none of this name. CS_OK, CS_EIO, CS_ENOMEM.
 */
int read_figure(struct cs_inspect *in, const char *name, uint64_t *out);
/* All figures of a process: lines, or one JSON object. An exit code. */
int print_figures(struct cs_inspect *in, bool json);
/* ... again and again until it is stopped. */
int watch_figures(struct cs_inspect *in, const struct options *o);
/* bench.c */
int run_bench(struct cs_inspect *in, const struct options *o);

/* text.c */
/* Text of outside origin: control characters and, in JSON, quotes are escaped. */
void print_escaped(FILE *f, const char *text, bool json);
const char *bytes_text(uint64_t bytes, char out[32]);
const char *plural(uint64_t n); /* "s", or "" for one */
const char *age_text(int64_t then, char out[32]);
const char *hex_text(const uint8_t *bytes, size_t n, char *out); /* out: 2 n + 1 */
const char *key_text(struct cs_key key, char out[33]);
/* "sequence-nonce", the order in which records were made. */
const char *record_text(const uint64_t id[2], char out[34]);
/* What a checkpoint serves; NULL: it is a span. */
const char *boundary_text(const struct cs_span_info *s);
/* "40..60" for a span, "@60 turn" for a checkpoint. */
const char *place_text(const struct cs_span_info *s, char out[48]);
/* The members of a span's or checkpoint's JSON object, without braces; live: with the tiers it is in. */
void print_span_fields(const struct cs_span_info *s, bool live);
/* One line on stderr; returns EXIT_USAGE. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* All of text is hex digits, n_min to n_max of them. */
bool is_hex(const char *text, size_t n_min, size_t n_max);
/* Whether lower-case hex begins with digits in any case. */
bool hex_begins(const char *hex, const char *beginning);
/* Of 2 n digits. */
void hex_bytes(const char *hex, uint8_t *out, size_t n);
/* Digits and one of K M G T, powers of 1024. */
bool parse_size(const char *text, uint64_t *out);

/* progress.c */
/* From here on the first SIGINT stops what asks stopped(), instead of ending the process. */
void stop_on_signals(void);
/* The same, and what waits, such as for somebody to read what is printed, waits no longer. */
void stop_at_once_on_signals(void);
bool stopped(void);
/* Whether a line of progress is due (every_s after the last one, the first one after every_s). */
bool progress_due(double every_s);
/* One on stderr, over the one before where it is a terminal. */
void progress_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_end(void);

#endif
