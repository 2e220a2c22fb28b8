/*
 * What the store says of itself while it runs: noted under the lock by who sees it, said by the keeper
 * without it, so that nobody who serves requests waits for the log. Each kind of event is said when it begins
 * and when it has ended, with how often it came (episode.h).
 *
 * Threads: noted by any, with the store's lock held; said by the keeper, and at last by who closes.
 */
#include "cachestore/store.h"

#include <stdio.h>

#define NS_PER_MS 1000000ull

void events_note_locked(struct cs_store *s, enum store_event kind, const struct cs_tenant *tenant, uint64_t a,
                        uint64_t b)
{
    struct event *e = &s->events[kind];
    if (!episode_note(&e->episode, store_now_ns() / NS_PER_MS))
        return;
    e->begins = true;
    e->tenant = *tenant;
    e->a = a;
    e->b = b;
    pthread_cond_signal(&s->keeper_wake);
}

static void say_begins(const struct cs_store *s, enum store_event kind, const struct event *e)
{
    unsigned long long a = e->a, b = e->b;
    char tenant[EVENTS_TENANT_TEXT];
    switch (kind) {
    case EVENT_LATE:
        store_log(s, CS_LOG_WARN,
                  "prefix cache: a restore of %llu tokens had not come after %llu ms, its deadline: what is "
                  "there is used, the rest computed",
                  a, b);
        break;
    case EVENT_QUOTA:
        store_log(s, CS_LOG_INFO,
                  "prefix cache: the quota of tenant %s has no room for a record: it is not kept",
                  events_tenant_text(&e->tenant, tenant));
        break;
    case EVENT_NO_ROOM:
        store_log(
            s, CS_LOG_WARN,
            "prefix cache on disk: no room for a record of %llu bytes, and nothing that can go: it is not "
            "written",
            a);
        break;
    case EVENT_ENDURANCE:
        store_log(
            s, CS_LOG_INFO,
            "prefix cache on disk: of the %llu bytes that a day may have none are left: what comes is not "
            "written",
            a);
        break;
    case EVENT_HOST_DAMAGED:
        store_log(
            s, CS_LOG_WARN,
            "prefix cache: what host memory has at token %llu of a path is not what was put there: it is "
            "dropped",
            a);
        break;
    case EVENT_COPY_FAILED:
        store_log(s, CS_LOG_WARN, "prefix cache: a copy between device and host failed");
        break;
    case STORE_EVENTS:
        break;
    }
}

static void say_ended(const struct cs_store *s, enum store_event kind, uint64_t n)
{
    static const char *const lines[STORE_EVENTS] = {
        [EVENT_LATE] = "no restore has been late lately; late were",
        [EVENT_QUOTA] = "no quota has refused a record lately; refused were",
        [EVENT_NO_ROOM] = "every record has found room on disk lately; none was there for",
        [EVENT_ENDURANCE] = "what comes is written to disk again; left out were",
        [EVENT_HOST_DAMAGED] = "host memory has been right lately; wrong were",
        [EVENT_COPY_FAILED] = "no copy with the device has failed lately; failed had",
    };
    store_log(s, CS_LOG_INFO, "prefix cache: %s %llu", lines[kind], (unsigned long long)n);
}

/* True: the lock was given up for it. */
static bool say_locked(struct cs_store *s, enum store_event kind, uint64_t now_ms)
{
    struct event *e = &s->events[kind], was = *e;
    e->begins = false;
    uint64_t n = episode_end(&e->episode, now_ms);
    if (!was.begins && n == 0)
        return false;
    pthread_mutex_unlock(&s->lock);
    if (was.begins)
        say_begins(s, kind, &was);
    if (n > 0)
        say_ended(s, kind, n);
    pthread_mutex_lock(&s->lock);
    return true;
}

bool events_say_locked(struct cs_store *s, bool last)
{
    uint64_t now_ms = last ? UINT64_MAX : store_now_ns() / NS_PER_MS;
    bool said = false;
    for (int kind = 0; kind < STORE_EVENTS; kind++)
        said = say_locked(s, (enum store_event)kind, now_ms) || said;
    return said;
}

uint64_t events_due_ns_locked(const struct cs_store *s)
{
    uint64_t first = UINT64_MAX;
    for (int kind = 0; kind < STORE_EVENTS; kind++) {
        uint64_t due = episode_due_ms(&s->events[kind].episode);
        first = due < first ? due : first;
    }
    return first == UINT64_MAX ? 0 : first * NS_PER_MS;
}

const char *events_tenant_text(const struct cs_tenant *tenant, char out[EVENTS_TENANT_TEXT])
{
    for (size_t i = 0; i < sizeof tenant->id; i++)
        snprintf(out + 2 * i, 3, "%02x", tenant->id[i]);
    return out;
}
