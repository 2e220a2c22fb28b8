/*
 * What a process under torture tells whoever will kill it, and the steps at which it can be made to kill
 * itself.
 *
 * The log lies in a file that is mapped shared, so that every entry is there to be read after a kill -9: an
 * entry is either whole or not in the log. It is a row of 64-bit words: kind << 32 | number of words behind,
 * then those. Entries that permit something (a record is about to be deleted) are written before it happens,
 * entries that promise something (a record is durable) after.
 *
 * Steps are calls between files of the store and calls of the system that change files. The linker puts
 * witness.c between caller and callee (--wrap, and for the system's calls by having the symbol first), so the
 * store itself has no hooks.
 */
#ifndef ISOTHERM_TESTS_TORTURE_WITNESS_H
#define ISOTHERM_TESTS_TORTURE_WITNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum witness_kind {
    W_OPENING = 1, /* cs_open is about to be called */
    W_OPENED,      /* code (as unsigned), disk_on */
    W_RESTART,     /* what was loaded so far is void */
    W_LOADED,     /* nonce, sequence, kind, first position, key of the page before (2 words), n keys, keys: of
                     its pages; of a checkpoint the page before */
    W_WRITE,      /* the same: handed to the disk tier */
    W_RUNS,       /* nonce, sequence, then volume, first chunk, chunks of each run: about to be written */
    W_DURABLE,    /* nonce, sequence, result */
    W_DELETE,     /* nonce, sequence: the store is about to delete it */
    W_ROW_DELETE, /* nonce, sequence: its row is about to be deleted */
    W_PATH,       /* path, n keys, keys of its pages: about to be published */
    W_LOOKUP,     /* path, tokens reused, tokens matched, miss */
    W_VERIFIED,   /* monotonic microseconds: every path has been looked up; nothing is in use */
    W_FLUSHED,    /* code of cs_flush */
    W_STATS,      /* every counter, in the order of `describe` */
    W_CLOSING,    /* deadline_ms of cs_close */
    W_CLOSED,
    W_DONE,       /* all operations */
    W_LOG,        /* level, text: bytes, padded with zeros */
    W_FAILED,     /* text: what is wrong; the process ends */
    W_FULL_ARENA, /* a sequence found no room */
    W_KEYS,       /* path, n keys, keys of all its pages, published or not */
    W_PURGE,      /* nonce, sequence: it, and what lies below it, is about to be deleted for good */
    W_PURGED,     /* code, n: it has been, but for the last n at most */
};

/* renameat2 refuses, as on file systems that cannot exchange names. */
extern bool witness_no_exchange;

/* Maps the log; empties it. die: name of a step, NULL: none; at its nth time. False: it cannot be done. */
bool witness_open(const char *path, const char *die, uint32_t nth);
void witness_say(enum witness_kind kind, const uint64_t *words, size_t n);
void witness_text(enum witness_kind kind, uint64_t level, const char *text);
void witness_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* So full that one should stop. */
bool witness_nearly_full(void);
/* Prints "step NAME" for each. */
void witness_describe(void);

#endif
