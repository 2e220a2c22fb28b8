/*
 * What the disk tier says of its troubles: one line when something begins and one when it has ended, or one a
 * record that cannot be read, but of a whole disk that is bad only the first few and how many more there
 * were (episode.h). On the I/O thread, which holds no lock then.
 */
#include <errno.h>
#include <string.h>

#include "cachestore/tier_disk_impl.h"

enum { LINES_AT_ONCE = 8 };

void tier_say_unreadable(struct tier_disk *t, struct disk_record *rec, const struct tier_read *r,
                         enum tier_result result, int error)
{
    if (rec->said)
        return;
    rec->said = true;
    (void)episode_note(&t->unreadable, tier_now_ms());
    if (t->unreadable.n > LINES_AT_ONCE)
        return;
    tier_log(t, CS_LOG_WARN, "disk cache: record %016llx-%016llx (%s at token %u, volume %u chunk %u) %s%s",
             (unsigned long long)rec->id.nonce, (unsigned long long)rec->id.sequence,
             rec->kind == FMT_RECORD_CHECKPOINT ? "checkpoint" : "pages", r->record.first_position,
             rec->runs[0].volume, rec->runs[0].first_chunk,
             result == TIER_CORRUPT_HEADER    ? "has not the header that was written"
             : result == TIER_CORRUPT_TOKENS  ? "is of other tokens"
             : result == TIER_CORRUPT_PAYLOAD ? "is damaged"
                                              : "cannot be read: ",
             result == TIER_EIO ? strerror(-error) : "");
}

void tier_say_write_failed(struct tier_disk *t, int error)
{
    if (error == -ENOSPC) {
        if (episode_note(&t->full, tier_now_ms()))
            tier_log(
                t, CS_LOG_WARN,
                "disk cache: the file system has no room for what the budget allows; what is stored makes "
                "room for what comes");
        return;
    }
    if (episode_note(&t->failed_writes, tier_now_ms()))
        tier_log(t, CS_LOG_WARN, "disk cache: a write failed: %s", strerror(-error));
}

void tier_say_sync_failed(struct tier_disk *t)
{
    if (episode_note(&t->failed_syncs, tier_now_ms()))
        tier_log(t, CS_LOG_WARN,
                 "disk cache: fdatasync failed; everything since the last good one counts as lost");
}

void tier_say_due(struct tier_disk *t, bool last)
{
    uint64_t now = last ? UINT64_MAX : tier_now_ms();
    unsigned long long n = episode_end(&t->unreadable, now);
    if (n > LINES_AT_ONCE)
        tier_log(t, CS_LOG_WARN, "disk cache: %llu more records were damaged or could not be read",
                 n - LINES_AT_ONCE);
    if ((n = episode_end(&t->failed_writes, now)) > 0)
        tier_log(t, CS_LOG_INFO, "disk cache: no write has failed lately; %llu did", n);
    if ((n = episode_end(&t->failed_syncs, now)) > 0)
        tier_log(t, CS_LOG_INFO, "disk cache: no fdatasync has failed lately; %llu did", n);
    if ((n = episode_end(&t->full, now)) > 0)
        tier_log(t, CS_LOG_INFO,
                 "disk cache: the file system has refused nothing lately; %llu records found no room", n);
    if (!t->notes_dropped_said && atomic_load(&t->stats.dropped_notes) > 0) {
        t->notes_dropped_said = true;
        tier_log(
            t, CS_LOG_WARN,
            "disk cache: the catalogue has outgrown its share of the budget: notes are not written until "
            "it shrinks");
    }
}

uint64_t tier_say_due_ms(const struct tier_disk *t)
{
    enum { N = 4 };
    const struct episode *const all[N] = {&t->unreadable, &t->failed_writes, &t->failed_syncs, &t->full};
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < N; i++) {
        uint64_t due = episode_due_ms(all[i]);
        if (due < first)
            first = due;
    }
    return first;
}
