/*
 * HTTP front end with the OpenAI API on libmicrohttpd: one epoll thread, responses suspended and resumed as
 * the engine reports, a watcher that notices at once when a client has gone. docs/http-api.md is its
 * contract.
 *
 * The server starts before the engine is there (so that /health can say 503 while loading) and is handed it
 * when ready.
 */
#ifndef ISOTHERM_ENGINE_SERVE_H
#define ISOTHERM_ENGINE_SERVE_H

#include "engine/runtime/runtime.h"

struct eng_server;

struct eng_server_config {
    const char *host;  /* a numeric address; without keys only loopback is accepted */
    uint16_t port;     /* 0: any; eng_server_port tells */
    const char *alias; /* model name in answers; NULL: file name without .gguf */
    const char *model_path;
    const char *api_key_file; /* as keys.h has it; NULL: open, loopback only */
    uint64_t max_body_bytes;  /* 0: 32 MiB */
    unsigned max_connections; /* 0: 1,024, fewer where the process may have few descriptors */
    bool debug;               /* x_isotherm carries logits_hash */
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void *log_ctx;
};

int eng_server_start(const struct eng_server_config *c, struct eng_server **out, char *err, size_t err_len);
void eng_server_ready(struct eng_server *s, struct eng_engine *e); /* e outlives the server's stop */
uint16_t eng_server_port(const struct eng_server *s);
/* Refuses new requests and those whose reply has not begun; replies that have begun get up to grace_ms to
 * end, then they end with an error. Joins the threads. */
void eng_server_stop(struct eng_server *s, uint32_t grace_ms);

#endif
