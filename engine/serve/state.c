/* What the server tells about itself: /health, /metrics, /cache, /v1/models and the page. HTTP thread; every
 * source is a short copy under a lock of its owner. */
#include "engine/serve/call.h"
#include "engine/serve/page.h"

#include <stdlib.h>
#include <string.h>

#define TENANTS_SHOWN 1000

/* ---- models and health ------------------------------------------------------------------------------- */

bool eng_state_is_model(const struct eng_server *s, const char *name)
{
    size_t len = strlen(s->file_name);
    if (strcmp(name, s->model_name) == 0 || strcmp(name, s->file_name) == 0 || strcmp(name, "default") == 0)
        return true;
    return len > 5 && strcmp(s->file_name + len - 5, ".gguf") == 0 && strlen(name) == len - 5 &&
           strncmp(name, s->file_name, len - 5) == 0;
}

void eng_state_health(struct eng_call *c, const char *url)
{
    bool ready = atomic_load(&c->server->engine) != NULL;
    (void)url;
    c->status = ready ? 200 : 503;
    eng_bytes_add_str(&c->answer, ready ? "{\"status\":\"ok\"}" : "{\"status\":\"loading\"}");
}

static json_t *model_object(const struct eng_server *s)
{
    const struct eng_engine *e = atomic_load(&s->engine);
    json_t *object = json_object();
    json_object_set_new(object, "id", eng_json_text(s->model_name, strlen(s->model_name)));
    json_object_set_new(object, "object", json_string("model"));
    json_object_set_new(object, "created", json_integer(s->started_unix));
    json_object_set_new(object, "owned_by", json_string("isotherm"));
    json_object_set_new(object, "context_length", json_integer(eng_engine_context(e)));
    return object;
}

void eng_state_models(struct eng_call *c, const char *url)
{
    const char *name = url + strlen("/v1/models");
    if (*name == '/') {
        if (eng_state_is_model(c->server, name + 1))
            eng_bytes_add_json(&c->answer, model_object(c->server));
        else
            eng_api_fail_as(&c->failure, 404, "invalid_request_error", "model_not_found",
                            "The model '%.200s' does not exist here.", name + 1);
        return;
    }
    json_t *list = json_array(), *object = json_object();
    json_array_append_new(list, model_object(c->server));
    json_object_set_new(object, "object", json_string("list"));
    json_object_set_new(object, "data", list);
    eng_bytes_add_json(&c->answer, object);
}

void eng_state_page(struct eng_call *c, const char *url)
{
    (void)url;
    eng_bytes_add(&c->answer, eng_page_html, eng_page_html_len);
}

/* ---- /cache ------------------------------------------------------------------------------------------ */

static void set_number(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

static json_t *device_json(const struct cs_stats *st)
{
    json_t *object = json_object();
    set_number(object, "budget_bytes", st->arena_bytes);
    set_number(object, "used_bytes", (st->pages_live + st->pages_cached) * st->page_stride);
    set_number(object, "page_stride_bytes", st->page_stride);
    set_number(object, "pages_total", st->pages_total);
    set_number(object, "pages_free", st->pages_free);
    set_number(object, "pages_live", st->pages_live);
    set_number(object, "pages_cached", st->pages_cached);
    set_number(object, "evicted_spans", st->evicted_device_spans);
    return object;
}

static json_t *host_json(const struct cs_stats *st)
{
    json_t *object = json_object();
    set_number(object, "budget_bytes", st->host_bytes);
    set_number(object, "used_bytes", st->host_used_bytes);
    set_number(object, "evicted_spans", st->evicted_host_spans);
    set_number(object, "copies", st->copies);
    set_number(object, "bytes_to_host", st->bytes_to_host);
    set_number(object, "bytes_to_device", st->bytes_to_device);
    return object;
}

static json_t *disk_json(const struct cs_stats *st)
{
    json_t *object = json_object();
    json_object_set_new(object, "on", json_boolean(st->disk_on));
    json_object_set_new(object, "engine", json_string(st->disk_engine ? st->disk_engine : "off"));
    set_number(object, "budget_bytes", st->disk_budget);
    set_number(object, "used_bytes", st->disk_bytes);
    set_number(object, "pending_bytes", st->pending_bytes);
    set_number(object, "spans", st->disk_spans);
    set_number(object, "evicted_spans", st->evicted_disk_spans);
    set_number(object, "records_foreign", st->records_foreign);
    set_number(object, "bytes_written", st->bytes_written);
    set_number(object, "bytes_read", st->bytes_read);
    return object;
}

static json_t *checkpoints_json(const struct cs_stats *st)
{
    json_t *object = json_object();
    set_number(object, "count", st->checkpoints);
    set_number(object, "blocks", st->checkpoint_blocks);
    set_number(object, "captured", st->captures);
    set_number(object, "published", st->publish_checkpoints);
    set_number(object, "thinned", st->thinned_checkpoints);
    set_number(object, "dropped", st->dropped_checkpoints);
    set_number(object, "evicted_device", st->evicted_device_checkpoints);
    set_number(object, "on_disk", st->disk_checkpoints);
    set_number(object, "written", st->checkpoints_written);
    set_number(object, "read", st->checkpoints_read);
    set_number(object, "evicted_host", st->evicted_host_checkpoints);
    set_number(object, "evicted_disk", st->evicted_disk_checkpoints);
    return object;
}

static json_t *index_json(const struct cs_stats *st)
{
    json_t *object = json_object();
    set_number(object, "budget_bytes", st->index_budget);
    set_number(object, "used_bytes", st->index_bytes);
    set_number(object, "spans", st->spans);
    set_number(object, "notes", st->notes);
    return object;
}

static json_t *reuse_json(const struct cs_stats *st)
{
    json_t *object = json_object();
    set_number(object, "lookups", st->lookups);
    set_number(object, "hits_full", st->hits_full);
    set_number(object, "hits_partial", st->hits_partial);
    set_number(object, "tokens_looked_up", st->tokens_looked_up);
    set_number(object, "tokens_device", st->tokens_device);
    set_number(object, "tokens_host", st->tokens_host);
    set_number(object, "tokens_disk", st->tokens_disk);
    return object;
}

static json_t *faults_json(const struct cs_stats *st)
{
    json_t *object = json_object();
    set_number(object, "corrupt_header", st->corrupt_header);
    set_number(object, "corrupt_tokens", st->corrupt_tokens);
    set_number(object, "corrupt_payload", st->corrupt_payload);
    set_number(object, "corrupt_host", st->corrupt_host);
    set_number(object, "io_errors", st->io_errors);
    set_number(object, "copy_errors", st->copy_errors);
    set_number(object, "quarantined", st->quarantined);
    set_number(object, "dropped_undurable", st->dropped_undurable);
    set_number(object, "dropped_queue_full", st->dropped_queue_full);
    set_number(object, "dropped_index_full", st->dropped_index_full);
    set_number(object, "dropped_disk_full", st->dropped_disk_full);
    set_number(object, "dropped_endurance", st->dropped_endurance);
    set_number(object, "dropped_quota", st->dropped_quota);
    set_number(object, "dropped_notes", st->dropped_notes);
    return object;
}

static json_t *kept_json(const struct cs_kept *k)
{
    json_t *object = json_object();
    set_number(object, "stored", k->stored);
    set_number(object, "alive", k->alive);
    for (int g = 0; g < CS_GONE_COUNT; g++)
        set_number(object, cs_gone_name((enum cs_gone)g), k->gone[g]);
    return object;
}

static json_t *quota_json(const struct cs_quota *q)
{
    json_t *object = json_object();
    const struct {
        const char *name;
        uint64_t bytes;
    } tiers[] = {{"device", q->device_bytes}, {"host", q->host_bytes}, {"disk", q->disk_bytes}};
    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++)
        if (tiers[i].bytes == CS_QUOTA_NONE)
            json_object_set_new(object, tiers[i].name, json_null());
        else
            set_number(object, tiers[i].name, tiers[i].bytes);
    return object;
}

/* By the ids that cachestore-admin takes; of very many only the first ones. */
static json_t *tenants_json(struct cs_store *s)
{
    json_t *list = json_array();
    struct cs_tenant_use use;
    uint64_t cursor = 0;
    while (json_array_size(list) < TENANTS_SHOWN && cs_tenants_next(s, &cursor, &use)) {
        json_t *one = json_object();
        json_object_set_new(one, "tenant", eng_json_hex(use.tenant.id, sizeof use.tenant.id));
        json_object_set_new(one, "used_bytes", quota_json(&use.used));
        json_object_set_new(one, "limit_bytes", quota_json(&use.limit));
        set_number(one, "records", use.records);
        set_number(one, "evicted", use.evicted);
        set_number(one, "dropped", use.dropped);
        json_array_append_new(list, one);
    }
    return list;
}

void eng_state_cache(struct eng_call *c, const char *url)
{
    struct eng_engine *e = atomic_load(&c->server->engine);
    struct cs_stats st;
    struct eng_engine_stats es;
    (void)url;
    cs_stats_get(eng_engine_store(e), &st);
    eng_engine_stats(e, &es);
    json_t *object = json_object(), *misses = json_object(), *requests = json_object(),
           *missed = json_object(), *kept = json_object();
    for (int i = 0; i < CS_MISS_COUNT; i++) {
        if (i != CS_MISS_NONE)
            set_number(misses, cs_miss_name((enum cs_miss)i), st.misses[i]);
        set_number(missed, cs_miss_name((enum cs_miss)i), st.tokens_missed[i]);
    }
    json_object_set_new(kept, "device", kept_json(&st.kept_device));
    json_object_set_new(kept, "host", kept_json(&st.kept_host));
    json_object_set_new(kept, "disk_spans", kept_json(&st.kept_disk_spans));
    json_object_set_new(kept, "disk_checkpoints", kept_json(&st.kept_disk_checkpoints));
    set_number(requests, "running", es.running);
    set_number(requests, "waiting", es.waiting);
    set_number(requests, "preemptions", es.preemptions);
    json_object_set_new(object, "device", device_json(&st));
    json_object_set_new(object, "host", host_json(&st));
    json_object_set_new(object, "disk", disk_json(&st));
    set_number(object, "pending_bytes", st.pending_bytes);
    json_object_set_new(object, "draining", json_boolean(st.draining));
    json_object_set_new(object, "checkpoints", checkpoints_json(&st));
    json_object_set_new(object, "index", index_json(&st));
    json_object_set_new(object, "reuse", reuse_json(&st));
    json_object_set_new(object, "misses", misses);
    json_object_set_new(object, "tokens_missed", missed);
    json_object_set_new(object, "kept", kept);
    set_number(object, "tenants_known", st.tenants);
    json_object_set_new(object, "tenants", tenants_json(eng_engine_store(e)));
    json_object_set_new(object, "faults", faults_json(&st));
    json_object_set_new(object, "requests", requests);
    eng_bytes_add_json(&c->answer, object);
}

/* ---- /metrics ---------------------------------------------------------------------------------------- */

enum metric_type { COUNTER, GAUGE };

static void metric_head(struct eng_bytes *out, const char *name, enum metric_type type, const char *help)
{
    eng_bytes_printf(out, "# HELP isotherm_%s %s\n# TYPE isotherm_%s %s\n", name, help, name,
                     type == COUNTER ? "counter" : "gauge");
}

static void metric(struct eng_bytes *out, const char *name, enum metric_type type, const char *help,
                   uint64_t value)
{
    metric_head(out, name, type, help);
    eng_bytes_printf(out, "isotherm_%s %llu\n", name, (unsigned long long)value);
}

static void metric_seconds(struct eng_bytes *out, const char *name, const char *help, double value)
{
    metric_head(out, name, COUNTER, help);
    eng_bytes_printf(out, "isotherm_%s %.6f\n", name, value);
}

static void metric_labelled(struct eng_bytes *out, const char *name, const char *label, const char *value,
                            uint64_t number)
{
    eng_bytes_printf(out, "isotherm_%s{%s=\"%s\"} %llu\n", name, label, value, (unsigned long long)number);
}

static void metric_histogram(struct eng_bytes *out, const char *name, const char *help,
                             const struct cs_histogram *h)
{
    uint64_t n = 0;
    eng_bytes_printf(out, "# HELP isotherm_%s %s\n# TYPE isotherm_%s histogram\n", name, help, name);
    for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++) {
        n += h->count[i];
        if (i + 1 < CS_HISTOGRAM_BUCKETS)
            eng_bytes_printf(out, "isotherm_%s_bucket{le=\"%g\"} %llu\n", name, (double)(1u << i) * 1e-6,
                             (unsigned long long)n);
    }
    eng_bytes_printf(
        out, "isotherm_%s_bucket{le=\"+Inf\"} %llu\nisotherm_%s_sum %.6f\nisotherm_%s_count %llu\n", name,
        (unsigned long long)n, name, (double)h->sum_us * 1e-6, name, (unsigned long long)n);
}

static void http_metrics(struct eng_bytes *out, const struct eng_server *s)
{
    static const char *const classes[] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
    metric(out, "ready", GAUGE, "1 once the model is loaded.", atomic_load(&s->engine) != NULL);
    metric_head(out, "http_responses_total", COUNTER, "HTTP requests by status; none: closed without one.");
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        metric_labelled(out, "http_responses_total", "status", classes[i], atomic_load(&s->responses[i]));
    metric(out, "http_connections", GAUGE, "Open connections.", atomic_load(&s->n_conns));
    metric(out, "http_streams", GAUGE, "Open event streams.", atomic_load(&s->n_streams));
    metric(out, "http_clients_gone_total", COUNTER, "Clients that left before their answer was complete.",
           atomic_load(&s->clients_gone));
    metric(out, "http_slow_readers_total", COUNTER, "Streams cancelled because their reader was too slow.",
           atomic_load(&s->slow_readers));
}

static void engine_metrics(struct eng_bytes *out, const struct eng_engine_stats *es)
{
    metric(out, "requests_total", COUNTER, "Requests taken.", es->requests);
    metric(out, "requests_finished_total", COUNTER,
           "Requests that have ended, cancelled and failed ones included.", es->finished);
    metric(out, "requests_cancelled_total", COUNTER, "Requests cancelled.", es->cancelled);
    metric(out, "requests_failed_total", COUNTER, "Requests that failed.", es->failed);
    metric(out, "requests_rejected_total", COUNTER, "Requests refused because the queue was full.",
           es->rejected_full);
    metric(out, "requests_running", GAUGE,
           "Sequences that are prefilling or decoding; a request has one a choice.", es->running);
    metric(out, "requests_waiting", GAUGE, "Requests in the queue.", es->waiting);
    metric(out, "preemptions_total", COUNTER, "Sequences put back because the arena was full.",
           es->preemptions);
    metric(out, "prompt_tokens_total", COUNTER, "Tokens of prompts.", es->prompt_tokens);
    metric(out, "reused_tokens_total", COUNTER, "Tokens of prompts that came from the cache.",
           es->reused_tokens);
    metric(out, "prefilled_tokens_total", COUNTER, "Tokens of prompts that were computed.",
           es->prefilled_tokens);
    metric(out, "decoded_tokens_total", COUNTER, "Tokens computed one by one behind a prompt.",
           es->decoded_tokens);
    metric(out, "forwards_total", COUNTER, "Forward passes.", es->forwards);
    metric_head(out, "state_copies_total", COUNTER,
                "Recurrent states written inside a forward, saved at the end of a turn, loaded.");
    metric_labelled(out, "state_copies_total", "kind", "capture", es->state_captures);
    metric_labelled(out, "state_copies_total", "kind", "save", es->state_saves);
    metric_labelled(out, "state_copies_total", "kind", "load", es->state_loads);
    metric(out, "state_copied_bytes_total", COUNTER, "Bytes of recurrent state copied in all of them.",
           es->state_bytes);
    metric_seconds(out, "prefill_seconds_total", "Time in prefill.", es->prefill_seconds);
    metric_seconds(out, "decode_seconds_total", "Time in decode.", es->decode_seconds);
}

static void cache_metrics(struct eng_bytes *out, const struct cs_stats *st)
{
    metric(out, "cache_device_budget_bytes", GAUGE, "Bytes of the KV arena.", st->arena_bytes);
    metric_head(out, "cache_device_pages", GAUGE, "Pages of the arena by use.");
    metric_labelled(out, "cache_device_pages", "use", "free", st->pages_free);
    metric_labelled(out, "cache_device_pages", "use", "live", st->pages_live);
    metric_labelled(out, "cache_device_pages", "use", "cached", st->pages_cached);
    metric(out, "cache_index_bytes", GAUGE, "Bytes of the index.", st->index_bytes);
    metric(out, "cache_index_budget_bytes", GAUGE, "Most bytes that the index may take.", st->index_budget);
    metric(out, "cache_spans", GAUGE, "Spans known.", st->spans);
    metric(out, "cache_notes", GAUGE, "Notes known: what messages were tokenised to.", st->notes);
    metric(out, "cache_checkpoints", GAUGE, "Checkpoints known.", st->checkpoints);
    metric(out, "cache_checkpoint_blocks", GAUGE, "Blocks of the arena that checkpoints hold.",
           st->checkpoint_blocks);
    metric(out, "cache_host_bytes", GAUGE, "Bytes of the host tier that are in use.", st->host_used_bytes);
    metric(out, "cache_host_budget_bytes", GAUGE,
           "Bytes of the host tier: host memory below a device that is not host memory.", st->host_bytes);
    metric(out, "cache_disk_on", GAUGE, "1 where there is a disk tier.", st->disk_on);
    metric(out, "cache_disk_bytes", GAUGE, "Bytes on disk, catalogue included.", st->disk_bytes);
    metric(out, "cache_disk_budget_bytes", GAUGE, "Most bytes that the disk tier may take.", st->disk_budget);
    metric(out, "cache_disk_spans", GAUGE, "Spans on disk.", st->disk_spans);
    metric(out, "cache_disk_checkpoints", GAUGE, "Checkpoints on disk.", st->disk_checkpoints);
    metric(out, "cache_disk_foreign_records", GAUGE, "Records of other models on disk, never served.",
           st->records_foreign);
    metric(out, "cache_disk_pending_bytes", GAUGE, "Published bytes that are not durable yet.",
           st->pending_bytes);
    metric(out, "cache_disk_draining", GAUGE,
           "1 while nothing new is written to disk (cachestore-admin drain).", st->draining);
    metric(out, "cache_lookups_total", COUNTER, "Prompts looked up.", st->lookups);
    metric_head(out, "cache_hits_total", COUNTER, "Look-ups that reused every full page, or some.");
    metric_labelled(out, "cache_hits_total", "kind", "full", st->hits_full);
    metric_labelled(out, "cache_hits_total", "kind", "partial", st->hits_partial);
    metric(out, "cache_tokens_looked_up_total", COUNTER, "Tokens of the prompts looked up.",
           st->tokens_looked_up);
    metric_head(out, "cache_misses_total", COUNTER, "Look-ups that did not reuse every full page, by why.");
    for (int i = 0; i < CS_MISS_COUNT; i++)
        if (i != CS_MISS_NONE)
            metric_labelled(out, "cache_misses_total", "reason", cs_miss_name((enum cs_miss)i),
                            st->misses[i]);
    metric_head(out, "cache_tokens_total", COUNTER, "Tokens reused, by the tier they came from.");
    metric_labelled(out, "cache_tokens_total", "tier", "device", st->tokens_device);
    metric_labelled(out, "cache_tokens_total", "tier", "host", st->tokens_host);
    metric_labelled(out, "cache_tokens_total", "tier", "disk", st->tokens_disk);
    metric_head(out, "cache_tokens_missed_total", COUNTER,
                "Tokens looked up and not reused, by the miss of their look-up; none: computed at any rate.");
    for (int i = 0; i < CS_MISS_COUNT; i++)
        metric_labelled(out, "cache_tokens_missed_total", "reason", cs_miss_name((enum cs_miss)i),
                        st->tokens_missed[i]);
    metric(out, "cache_publishes_total", COUNTER, "Publishes.", st->publishes);
    metric(out, "cache_publish_pages_total", COUNTER, "Pages published.", st->publish_pages);
    metric(out, "cache_publish_duplicate_pages_total", COUNTER, "Pages computed that were stored already.",
           st->publish_duplicate_pages);
    metric(out, "cache_publish_spans_total", COUNTER, "Spans published.", st->publish_spans);
    metric(out, "cache_publish_checkpoints_total", COUNTER, "Checkpoints published.",
           st->publish_checkpoints);
    metric(out, "cache_captures_total", COUNTER, "Checkpoints captured.", st->captures);
    metric(out, "cache_thinned_checkpoints_total", COUNTER,
           "Checkpoints dropped because their path has enough of them.", st->thinned_checkpoints);
    metric(out, "cache_dropped_checkpoints_total", COUNTER,
           "Checkpoints not kept because there was no memory for them.", st->dropped_checkpoints);
    metric(out, "cache_catalog_batches_total", COUNTER, "Batches written to the catalogue.",
           st->catalog_batches);
    metric(out, "cache_catalog_rows_total", COUNTER, "Rows written to the catalogue.", st->catalog_rows);
    metric(out, "cache_syncs_total", COUNTER, "Syncs of the volumes.", st->syncs);
    metric(out, "cache_submissions_total", COUNTER, "Calls that submitted disk I/O.", st->submissions);
    metric(out, "cache_sqes_total", COUNTER, "Disk reads, writes and syncs submitted.", st->sqes);
    metric_head(out, "cache_records_written_total", COUNTER, "Records written to disk, by kind.");
    metric_labelled(out, "cache_records_written_total", "kind", "span", st->spans_written);
    metric_labelled(out, "cache_records_written_total", "kind", "checkpoint", st->checkpoints_written);
    metric_head(out, "cache_records_read_total", COUNTER, "Records read from disk and verified, by kind.");
    metric_labelled(out, "cache_records_read_total", "kind", "span", st->spans_read);
    metric_labelled(out, "cache_records_read_total", "kind", "checkpoint", st->checkpoints_read);
    metric(out, "cache_bytes_written_total", COUNTER, "Bytes written to disk.", st->bytes_written);
    metric(out, "cache_bytes_read_total", COUNTER, "Bytes read from disk.", st->bytes_read);
    metric(out, "cache_copies_total", COUNTER, "Batches of copies between device and host.", st->copies);
    metric_head(out, "cache_copied_bytes_total", COUNTER, "Bytes copied between device and host.");
    metric_labelled(out, "cache_copied_bytes_total", "to", "host", st->bytes_to_host);
    metric_labelled(out, "cache_copied_bytes_total", "to", "device", st->bytes_to_device);
    metric_head(out, "cache_evicted_spans_total", COUNTER, "Spans evicted, by tier.");
    metric_labelled(out, "cache_evicted_spans_total", "tier", "device", st->evicted_device_spans);
    metric_labelled(out, "cache_evicted_spans_total", "tier", "host", st->evicted_host_spans);
    metric_labelled(out, "cache_evicted_spans_total", "tier", "disk", st->evicted_disk_spans);
    metric_head(out, "cache_evicted_checkpoints_total", COUNTER, "Checkpoints evicted, by tier.");
    metric_labelled(out, "cache_evicted_checkpoints_total", "tier", "device", st->evicted_device_checkpoints);
    metric_labelled(out, "cache_evicted_checkpoints_total", "tier", "host", st->evicted_host_checkpoints);
    metric_labelled(out, "cache_evicted_checkpoints_total", "tier", "disk", st->evicted_disk_checkpoints);
    metric_head(out, "cache_dropped_total", COUNTER,
                "Spans, checkpoints and notes that were not kept or never became durable, by why.");
    metric_labelled(out, "cache_dropped_total", "reason", "undurable", st->dropped_undurable);
    metric_labelled(out, "cache_dropped_total", "reason", "queue_full", st->dropped_queue_full);
    metric_labelled(out, "cache_dropped_total", "reason", "index_full", st->dropped_index_full);
    metric_labelled(out, "cache_dropped_total", "reason", "disk_full", st->dropped_disk_full);
    metric_labelled(out, "cache_dropped_total", "reason", "endurance", st->dropped_endurance);
    metric_labelled(out, "cache_dropped_total", "reason", "quota", st->dropped_quota);
    metric(out, "cache_evicted_for_quotas_total", COUNTER, "Spans and checkpoints evicted for a quota.",
           st->evicted_quota);
    metric(out, "cache_tenants", GAUGE,
           "Tenants that have something stored, a request or a quota of their own.", st->tenants);
    metric(out, "cache_dropped_notes_total", COUNTER,
           "Notes kept in memory only: the catalogue's share is full.", st->dropped_notes);
    metric_head(out, "cache_faults_total", COUNTER, "Faults of stored bytes, each served as a miss.");
    metric_labelled(out, "cache_faults_total", "kind", "corrupt_header", st->corrupt_header);
    metric_labelled(out, "cache_faults_total", "kind", "corrupt_tokens", st->corrupt_tokens);
    metric_labelled(out, "cache_faults_total", "kind", "corrupt_payload", st->corrupt_payload);
    metric_labelled(out, "cache_faults_total", "kind", "corrupt_host", st->corrupt_host);
    metric_labelled(out, "cache_faults_total", "kind", "io_error", st->io_errors);
    metric_labelled(out, "cache_faults_total", "kind", "copy_error", st->copy_errors);
    metric(out, "cache_quarantined_total", COUNTER, "Spans quarantined.", st->quarantined);
}

/* stored = alive + gone, each tier for itself. */
static void kept_metrics(struct eng_bytes *out, const struct cs_stats *st)
{
    static const char *const tiers[] = {"device", "host", "disk_spans", "disk_checkpoints"};
    const struct cs_kept *kept[] = {&st->kept_device, &st->kept_host, &st->kept_disk_spans,
                                    &st->kept_disk_checkpoints};
    enum { N = sizeof tiers / sizeof tiers[0] };
    metric_head(out, "cache_stored_total", COUNTER,
                "Pages and blocks (device, host) and records (disk) that a tier got, what was on disk at the "
                "start included.");
    for (int i = 0; i < N; i++)
        metric_labelled(out, "cache_stored_total", "tier", tiers[i], kept[i]->stored);
    metric_head(out, "cache_alive", GAUGE, "Those of them that it still has.");
    for (int i = 0; i < N; i++)
        metric_labelled(out, "cache_alive", "tier", tiers[i], kept[i]->alive);
    metric_head(out, "cache_gone_total", COUNTER, "Those of them that it has no more, by why.");
    for (int i = 0; i < N; i++)
        for (int g = 0; g < CS_GONE_COUNT; g++)
            eng_bytes_printf(out, "isotherm_cache_gone_total{tier=\"%s\",reason=\"%s\"} %llu\n", tiers[i],
                             cs_gone_name((enum cs_gone)g), (unsigned long long)kept[i]->gone[g]);
}

static void latency_metrics(struct eng_bytes *out, const struct cs_latencies *l)
{
    metric_histogram(out, "cache_publish_seconds", "Time of a publish on the device.", &l->publish);
    metric_histogram(out, "cache_restore_seconds",
                     "From look-up to the last landed byte, where something was loaded.", &l->restore);
    metric_histogram(out, "cache_disk_read_seconds", "Disk reads.", &l->read);
    metric_histogram(out, "cache_disk_write_seconds", "Disk writes.", &l->write);
    metric_histogram(out, "cache_disk_sync_seconds", "Syncs of a volume.", &l->sync);
}

/* What was predicted of restores from disk, and what came. */
static void restore_metrics(struct eng_bytes *out, const struct cs_stats *st)
{
    uint64_t n = 0;
    metric(out, "cache_restores_disk_total", COUNTER, "Restores that waited for the disk, ended or not.",
           st->restores_disk);
    metric_head(out, "cache_restores_ended_total", COUNTER, "Those of them that have ended, by how.");
    metric_labelled(out, "cache_restores_ended_total", "how", "in_time", st->restores_in_time);
    metric_labelled(out, "cache_restores_ended_total", "how", "unpredicted", st->restores_unpredicted);
    metric_labelled(out, "cache_restores_ended_total", "how", "deadline", st->restores_deadline);
    metric_labelled(out, "cache_restores_ended_total", "how", "failed", st->restores_failed);
    metric_labelled(out, "cache_restores_ended_total", "how", "abandoned", st->restores_abandoned);
    metric_seconds(out, "cache_restores_predicted_seconds_total",
                   "Time that those in time were predicted to take.",
                   (double)st->restores_predicted_us * 1e-6);
    metric_seconds(out, "cache_restores_taken_seconds_total", "Time that the same ones took.",
                   (double)st->restores_taken_us * 1e-6);
    static const char name[] = "isotherm_cache_restores_taken_over_predicted";
    eng_bytes_printf(out, "# HELP %s Ratio of the two for each of them.\n# TYPE %s histogram\n", name, name);
    for (unsigned i = 0; i < CS_RATIO_BUCKETS; i++) {
        n += st->restores_ratio[i];
        if (i + 1 < CS_RATIO_BUCKETS)
            eng_bytes_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, cs_ratio_percent(i) / 100.0,
                             (unsigned long long)n);
    }
    eng_bytes_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.2f\n%s_count %llu\n", name,
                     (unsigned long long)n, name, (double)st->restores_ratio_percent * 0.01, name,
                     (unsigned long long)n);
}

void eng_state_metrics(struct eng_call *c, const char *url)
{
    struct eng_engine *e = atomic_load(&c->server->engine);
    (void)url;
    http_metrics(&c->answer, c->server);
    if (!e)
        return;
    struct eng_engine_stats es;
    struct cs_stats st;
    struct cs_latencies latencies;
    eng_engine_stats(e, &es);
    cs_stats_get(eng_engine_store(e), &st);
    engine_metrics(&c->answer, &es);
    cache_metrics(&c->answer, &st);
    kept_metrics(&c->answer, &st);
    restore_metrics(&c->answer, &st);
    cs_latencies_get(eng_engine_store(e), &latencies);
    latency_metrics(&c->answer, &latencies);
}
