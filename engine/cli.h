/* The command line of `isotherm`: options of all commands, read from one table of flags. */
#ifndef ISOTHERM_ENGINE_CLI_H
#define ISOTHERM_ENGINE_CLI_H

#include "engine/runtime/runtime.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 }; /* exit codes */

enum cli_command { CLI_SERVE = 1, CLI_RUN = 2, CLI_INFO = 4 };

struct cli_options {
    const char *model;
    enum cli_command command;

    /* engine */
    uint32_t context, max_concurrency, max_queue, prefill_chunk, threads;
    uint64_t kv_cache_bytes, prefix_cache_bytes, disk_bytes, disk_bytes_a_day, tenant_memory_bytes,
        tenant_disk_bytes;
    uint32_t kv_limit, isa, kv_dtype, policy, restore, disk_io; /* enums */
    uint32_t restore_deadline_ms;                               /* 0: none */
    bool discrete;
    const char *disk_dir, *chat_template;

    /* serve */
    const char *host, *alias, *api_key_file;
    uint32_t port, log_json;
    bool debug;

    /* run */
    const char *prompt, *system;
    double temperature, top_p, min_p;
    uint32_t top_k, max_tokens;
    uint64_t seed;
    bool seed_given;
};

/* Fills *o from argv. CLI_OK: go on. Otherwise *exit_code is what the process ends with: 0 after --help, 2
 * with one line on stderr. Returned strings are argv's. */
bool cli_parse(int argc, char **argv, struct cli_options *o, int *exit_code);

struct eng_config cli_engine_config(const struct cli_options *o);
/* Does not come back where the disk keeps the engine from closing: the process ends, with CLI_FAILED. */
void cli_engine_close(struct eng_engine *e, uint32_t deadline_ms);
/* From here to cli_log_close lines wait in a queue for the thread that writes them (cli_lines.h). */
void cli_log_open(const struct cli_options *o);
/* Waits until all is written, a second at most; close ends the thread, too. */
void cli_log_flush(void);
void cli_log_close(void);
/* One line on stderr, plain or as a JSON object. ctx: the options. Any thread. */
void cli_log(void *ctx, enum cs_log_level level, const char *line);
/* A start-up step as one JSON object. Any thread. */
void cli_log_step(void *ctx, const char *step, double seconds, const char *text);
/* One line on stderr, never JSON: why a command ends. */
void cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

int cli_serve(const struct cli_options *o);
int cli_run(const struct cli_options *o);
int cli_info(const struct cli_options *o);

#endif
