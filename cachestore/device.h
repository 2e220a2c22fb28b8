/*
 * A device whose memory is not host memory, as the store sees it: where the arena's pages come from, and
 * copies between them and host memory on a queue.
 *
 * Addresses of the device are names: base + offset, compared and handed on, never followed. Only the device's
 * own copies and kernels reach what they stand for.
 *
 * Copies. A batch is copied by the device, in whatever order, while whoever submitted it goes on; batches may
 * overtake one another. Memory that a batch names stays as it is, and the batch itself valid, until done().
 * Every batch gets exactly one done(), on a thread of the device's, with no lock of the device held; it may
 * submit more. submit() is called with locks of the store held and neither waits nor calls back.
 *
 * Threads: submit from any; reserve, release, populate, pin and unpin from one at a time each.
 */
#ifndef ISOTHERM_CACHESTORE_DEVICE_H
#define ISOTHERM_CACHESTORE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CS_COPY_PIECE 16384u

struct cs_copy {
    void *device; /* within what reserve gave */
    void *host;
    uint64_t bytes;
};

struct cs_copies {
    const struct cs_copy *copy;
    size_t n;
    bool to_device; /* the direction of all of them */
    /* On a thread of the device, for each copy in turn, for all of it or piece by piece from its beginning to
     * its end (pieces of CS_COPY_PIECE bytes, the last may be shorter): to the device at any time before
     * done(), to the host once the piece has landed. So a device whose copies are made by a processor has the
     * bytes looked at while they are in cache. False: they are not what they should be; the batch fails, and
     * what has not begun need not. */
    bool (*piece)(void *ctx, size_t i, uint64_t offset, uint64_t bytes);
    void (*done)(void *ctx, bool ok); /* not ok: what the destinations hold is undefined */
    void *ctx;
    struct cs_copies *device_next; /* the device's, while queued */
};

struct cs_device {
    void *ctx;
    /* Names for so many bytes of device memory, 4096-aligned; NULL: there is no room. */
    void *(*reserve)(void *ctx, uint64_t bytes);
    void (*release)(void *ctx, void *memory, uint64_t bytes); /* no copy is in flight */
    /* Backs a piece of it ahead of use; contents stay. NULL: nothing has to be done. */
    void (*populate)(void *ctx, void *memory, uint64_t bytes);
    /* Makes host memory ready for fast copies, piece by piece, ahead of use. Copies from and to memory that
     * is not pinned yet must work, too. Both NULL: nothing has to be done. unpin gets all pieces at once. */
    void (*pin)(void *ctx, void *host, uint64_t bytes);
    void (*unpin)(void *ctx, void *host, uint64_t bytes);
    /* Queues n batches with one wake-up. */
    void (*submit)(void *ctx, struct cs_copies *const *batches, size_t n);
};

#endif
