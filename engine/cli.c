/*
 * Flags, from one table: name, value, range, where it goes, which commands take it, what --help says.
 * Whatever is wrong is one line on stderr and exit code 2.
 */
#include "engine/cli.h"
#include "engine/cli_line.h"
#include "kernels/kernels.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind {
    KIND_TEXT,
    KIND_FILE,
    KIND_U32,
    KIND_U64,
    KIND_SIZE,
    KIND_REAL,
    KIND_CHOICE,
    KIND_SWITCH,
};

struct flag {
    const char *name, *value;
    enum kind kind;
    unsigned commands;
    size_t offset;
    double low, high;
    const char *const *choices; /* NULL-terminated; the index is stored */
    const char *help;
};

static const char *const kv_limits[] = {"concurrency", "memory", NULL};
static const char *const policies[] = {"balanced", "prefill-first", "decode-first", NULL};
static const char *const restores[] = {"measured", "always", NULL};
static const char *const dtypes[] = {"f16", "bf16", "f32", NULL};
static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", NULL};
static const char *const disk_ios[] = {"auto", "uring", "pread", NULL};
static const char *const log_formats[] = {"text", "json", NULL};
_Static_assert(ENG_KV_CONCURRENCY == 0 && ENG_KV_MEMORY == 1, "kv_limits follow the enum");
_Static_assert(ENG_POLICY_BALANCED == 0 && ENG_POLICY_PREFILL_FIRST == 1 && ENG_POLICY_DECODE_FIRST == 2,
               "policies follow the enum");
_Static_assert(ENG_RESTORE_MEASURED == 0 && ENG_RESTORE_ALWAYS == 1, "restores follow the enum");
_Static_assert(KN_KV_F16 == 0 && KN_KV_BF16 == 1 && KN_KV_F32 == 2, "dtypes follow the enum");
_Static_assert(KN_ISA_AUTO == 0 && KN_ISA_SCALAR == 1 && KN_ISA_AVX2 == 2 && KN_ISA_AVX512 == 3,
               "isas follow the enum");
_Static_assert(CS_IO_AUTO == 0 && CS_IO_URING == 1 && CS_IO_PREAD == 2, "disk_ios follow the enum");

#define AT(field) offsetof(struct cli_options, field)
#define ALL       (CLI_SERVE | CLI_RUN | CLI_INFO)
#define ENGINE    (CLI_SERVE | CLI_RUN)
#define U32_MAX   4294967295.0

static const struct flag flags[] = {
    {"--model", "FILE", KIND_FILE, ALL, AT(model), 0, 0, NULL, "GGUF model file (required)"},
    {"--host", "ADDR", KIND_TEXT, CLI_SERVE, AT(host), 0, 0, NULL, "address to listen on (127.0.0.1)"},
    {"--port", "N", KIND_U32, CLI_SERVE, AT(port), 0, 65535, NULL, "port to listen on, 0: any (8080)"},
    {"--alias", "NAME", KIND_TEXT, CLI_SERVE, AT(alias), 0, 0, NULL, "model name in answers (file name)"},
    {"--api-key-file", "FILE", KIND_FILE, CLI_SERVE, AT(api_key_file), 0, 0, NULL,
     "one key a line, each a tenant; needed for a host that is not loopback"},
    {"--context", "N", KIND_U32, ALL, AT(context), 16, 16777216, NULL, "tokens a chat may hold (as trained)"},
    {"--max-concurrency", "N", KIND_U32, CLI_SERVE | CLI_INFO, AT(max_concurrency), 1, 1024, NULL,
     "sequences computed at once (16)"},
    {"--max-queue", "N", KIND_U32, CLI_SERVE, AT(max_queue), 1, 1000000, NULL,
     "requests that may wait; more get 429 (256)"},
    {"--kv-cache", "SIZE", KIND_SIZE, ALL, AT(kv_cache_bytes), 1, 0, NULL, "memory for KV pages"},
    {"--kv-cache-limit", "HOW", KIND_CHOICE, ALL, AT(kv_limit), 0, 0, kv_limits,
     "without --kv-cache: concurrency x context, or the memory there is"},
    {"--prefix-cache-memory", "SIZE", KIND_SIZE, ENGINE, AT(prefix_cache_bytes), 0, 0, NULL,
     "memory for the prefix cache, on top of --kv-cache (0)"},
    {"--prefix-cache-disk", "DIR", KIND_TEXT, ENGINE, AT(disk_dir), 0, 0, NULL,
     "keep the prefix cache in this directory, over restarts too"},
    {"--prefix-cache-disk-size", "SIZE", KIND_SIZE, ENGINE, AT(disk_bytes), 1, 0, NULL,
     "its budget (16G, at most half of what is free)"},
    {"--prefix-cache-disk-writes", "SIZE", KIND_SIZE, ENGINE, AT(disk_bytes_a_day), 1, 0, NULL,
     "most bytes written to it a day (any number)"},
    {"--tenant-quota-memory", "SIZE", KIND_SIZE, CLI_SERVE, AT(tenant_memory_bytes), 1, 0, NULL,
     "most that each key may keep in memory (any number)"},
    {"--tenant-quota-disk", "SIZE", KIND_SIZE, CLI_SERVE, AT(tenant_disk_bytes), 1, 0, NULL,
     "most that each key may keep on disk (any number)"},
    {"--prefix-cache-restore", "HOW", KIND_CHOICE, ENGINE, AT(restore), 0, 0, restores,
     "load from disk what is measured to be faster than computing it, or always (measured)"},
    {"--prefix-cache-restore-deadline", "MS", KIND_U32, ENGINE, AT(restore_deadline_ms), 0, 3600000, NULL,
     "least time a load gets before the rest is computed, 0: as long as it takes (250)"},
    {"--prefix-cache-io", "NAME", KIND_CHOICE, ENGINE, AT(disk_io), 0, 0, disk_ios,
     "auto, uring or pread: how it reads and writes (auto)"},
    {"--kv-cache-dtype", "NAME", KIND_CHOICE, ALL, AT(kv_dtype), 0, 0, dtypes, "f16, bf16 or f32 (f16)"},
    {"--prefill-chunk-size", "N", KIND_U32, ENGINE, AT(prefill_chunk), 1, 65536, NULL,
     "prompt tokens a step (by step time)"},
    {"--scheduler-policy", "NAME", KIND_CHOICE, CLI_SERVE, AT(policy), 0, 0, policies,
     "balanced, prefill-first or decode-first (balanced)"},
    {"--threads", "N", KIND_U32, ENGINE, AT(threads), 1, 1024, NULL, "compute threads (all CPUs)"},
    {"--cpu-isa", "NAME", KIND_CHOICE, ENGINE, AT(isa), 0, 0, isas, "auto, scalar, avx2 or avx512 (auto)"},
    {"--cpu-discrete", NULL, KIND_SWITCH, ENGINE, AT(discrete), 0, 0, NULL,
     "reach the KV cache by copies only, as on a GPU; --prefix-cache-memory is then below it (a test)"},
    {"--chat-template", "NAME", KIND_TEXT, ENGINE, AT(chat_template), 0, 0, NULL,
     "use this template instead of the file's"},
    {"--log-format", "NAME", KIND_CHOICE, CLI_SERVE, AT(log_json), 0, 0, log_formats, "text or json (text)"},
    {"--debug", NULL, KIND_SWITCH, CLI_SERVE, AT(debug), 0, 0, NULL,
     "answers carry a hash of the logits (x_isotherm.logits_hash)"},
    {"--prompt", "TEXT", KIND_TEXT, CLI_RUN, AT(prompt), 0, 0, NULL, "-p: answer this and end"},
    {"--system", "TEXT", KIND_TEXT, CLI_RUN, AT(system), 0, 0, NULL, "system message"},
    {"--max-tokens", "N", KIND_U32, CLI_RUN, AT(max_tokens), 1, U32_MAX, NULL, "longest reply (the context)"},
    {"--temperature", "X", KIND_REAL, CLI_RUN, AT(temperature), 0, 100, NULL, "0: greedy (0.7)"},
    {"--top-p", "X", KIND_REAL, CLI_RUN, AT(top_p), 0, 1, NULL, "1: off (0.95)"},
    {"--top-k", "N", KIND_U32, CLI_RUN, AT(top_k), 0, U32_MAX, NULL, "0: off (0)"},
    {"--min-p", "X", KIND_REAL, CLI_RUN, AT(min_p), 0, 1, NULL, "0: off (0)"},
    {"--seed", "N", KIND_U64, CLI_RUN, AT(seed), 0, 0, NULL, "repeat a chat (random)"},
};
#define N_FLAGS (sizeof flags / sizeof flags[0])

static const struct {
    const char *name, *what;
    enum cli_command command;
} commands[] = {
    {"serve", "answer the OpenAI HTTP API", CLI_SERVE},
    {"run", "chat in the terminal", CLI_RUN},
    {"info", "print a model's geometry and what fits in this machine", CLI_INFO},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const char *command_name(enum cli_command c)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].command == c)
            return commands[i].name;
    }
    return "";
}

static void help_all(FILE *to)
{
    fputs("usage: isotherm COMMAND [FLAGS]\n\n", to);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-6s %s\n", commands[i].name, commands[i].what);
    fputs("\nisotherm COMMAND --help lists the flags; isotherm --version prints the version.\n", to);
}

static void help_command(enum cli_command c)
{
    printf("usage: isotherm %s --model FILE [FLAGS]\n\n", command_name(c));
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (!(flags[i].commands & c))
            continue;
        char left[64];
        snprintf(left, sizeof left, "%s %s", flags[i].name, flags[i].value ? flags[i].value : "");
        printf("  %-34s %s\n", left, flags[i].help);
    }
    puts("\nSIZE takes K, M, G, T (powers of 1024).");
    if (c == CLI_RUN)
        puts("In the chat: /clear forgets what was said, /quit or Ctrl-D ends, Ctrl-C ends a reply.");
    if (c == CLI_RUN && cli_line_edits())
        puts("Lines can be edited and recalled as in a shell (libedit; ~/.editrc).");
}

static bool fail(enum cli_command c, int *exit_code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool fail(enum cli_command c, int *exit_code, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "isotherm%s%s: %s\n", c ? " " : "", command_name(c), text);
    *exit_code = CLI_USAGE;
    return false;
}

static bool parse_u64(const char *text, uint64_t *out)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static bool parse_real(const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && isfinite(*out);
}

/* "512M", "1.5G", "1000000". */
static bool parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno != 0 || strspn(text, "0123456789.") != (size_t)(end - text))
        return false;
    if (*end != '\0') {
        const char *unit = strchr(units, *end);
        if (!unit || end[1] != '\0')
            return false;
        for (const char *u = units; u <= unit; u++)
            v *= 1024;
    }
    if (!(v < 0x1p63))
        return false;
    *out = (uint64_t)v;
    return true;
}

static bool set_choice(const struct flag *f, const char *text, uint32_t *out, struct cli_options *o,
                       int *exit_code)
{
    char names[128] = "";
    for (uint32_t i = 0; f->choices[i]; i++) {
        if (strcmp(text, f->choices[i]) == 0) {
            *out = i;
            return true;
        }
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", f->choices[i]);
    }
    return fail(o->command, exit_code, "%s takes %s, not '%s'", f->name, names, text);
}

static bool set_file(const struct flag *f, const char *text, struct cli_options *o, int *exit_code)
{
    struct stat st;
    if (stat(text, &st) != 0 || access(text, R_OK) != 0)
        return fail(o->command, exit_code, "%s %s: %s", f->name, text, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(o->command, exit_code, "%s %s: not a file", f->name, text);
    return true;
}

static bool set_flag(const struct flag *f, const char *text, struct cli_options *o, int *exit_code)
{
    void *at = (char *)o + f->offset;
    uint64_t n;
    double x;
    switch (f->kind) {
    case KIND_FILE:
        if (!set_file(f, text, o, exit_code))
            return false;
        *(const char **)at = text;
        return true;
    case KIND_TEXT:
        if (*text == '\0' && f->offset != AT(prompt) && f->offset != AT(system))
            return fail(o->command, exit_code, "%s needs a value", f->name);
        *(const char **)at = text;
        return true;
    case KIND_U32:
        if (!parse_u64(text, &n) || (double)n < f->low || (double)n > f->high)
            return fail(o->command, exit_code, "%s takes a whole number from %.0f to %.0f, not '%s'", f->name,
                        f->low, f->high, text);
        *(uint32_t *)at = (uint32_t)n;
        return true;
    case KIND_U64:
        if (!parse_u64(text, &n))
            return fail(o->command, exit_code, "%s takes a whole number, not '%s'", f->name, text);
        *(uint64_t *)at = n;
        o->seed_given |= f->offset == AT(seed);
        return true;
    case KIND_SIZE:
        if (!parse_size(text, &n) || (double)n < f->low)
            return fail(o->command, exit_code, "%s takes a size such as 512M or 4G, not '%s'", f->name, text);
        *(uint64_t *)at = n;
        return true;
    case KIND_REAL:
        if (!parse_real(text, &x) || x < f->low || x > f->high)
            return fail(o->command, exit_code, "%s takes a number from %g to %g, not '%s'", f->name, f->low,
                        f->high, text);
        *(double *)at = x;
        return true;
    case KIND_CHOICE:
        return set_choice(f, text, at, o, exit_code);
    case KIND_SWITCH:
        *(bool *)at = true;
        return true;
    }
    return false;
}

static const struct flag *find_flag(const char *arg, size_t len, enum cli_command c)
{
    for (size_t i = 0; i < N_FLAGS; i++) {
        if ((flags[i].commands & c) && strlen(flags[i].name) == len && strncmp(flags[i].name, arg, len) == 0)
            return &flags[i];
    }
    return NULL;
}

static bool is_given(uint64_t given, size_t offset)
{
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (flags[i].offset == offset)
            return given >> i & 1;
    }
    return false;
}

/* Rules that span several flags. */
static bool check(const struct cli_options *o, uint64_t given, int *exit_code)
{
    bool kv = is_given(given, AT(kv_cache_bytes));
    bool limit = is_given(given, AT(kv_limit));
    if (!o->model)
        return fail(o->command, exit_code, "--model FILE is needed; isotherm %s --help lists the flags",
                    command_name(o->command));
    if (kv && limit)
        return fail(o->command, exit_code, "--kv-cache and --kv-cache-limit exclude each other");
    if (o->disk_bytes && !o->disk_dir)
        return fail(o->command, exit_code, "--prefix-cache-disk-size needs --prefix-cache-disk DIR");
    if (o->disk_bytes_a_day && !o->disk_dir)
        return fail(o->command, exit_code, "--prefix-cache-disk-writes needs --prefix-cache-disk DIR");
    if (o->tenant_memory_bytes && !o->api_key_file)
        return fail(o->command, exit_code, "--tenant-quota-memory needs --api-key-file FILE");
    if (o->tenant_disk_bytes && !o->api_key_file)
        return fail(o->command, exit_code, "--tenant-quota-disk needs --api-key-file FILE");
    if (o->tenant_disk_bytes && !o->disk_dir)
        return fail(o->command, exit_code, "--tenant-quota-disk needs --prefix-cache-disk DIR");
    if (is_given(given, AT(disk_io)) && !o->disk_dir)
        return fail(o->command, exit_code, "--prefix-cache-io needs --prefix-cache-disk DIR");
    if (is_given(given, AT(restore)) && !o->disk_dir)
        return fail(o->command, exit_code, "--prefix-cache-restore needs --prefix-cache-disk DIR");
    if (is_given(given, AT(restore_deadline_ms)) && !o->disk_dir)
        return fail(o->command, exit_code, "--prefix-cache-restore-deadline needs --prefix-cache-disk DIR");
    if (!kn_isa_available((enum kn_isa)o->isa))
        return fail(o->command, exit_code, "--cpu-isa %s: this processor does not have it", isas[o->isa]);
    if (o->chat_template && !eng_chat_by_name(o->chat_template))
        return fail(o->command, exit_code, "--chat-template takes %s, not '%s'", eng_chat_names(),
                    o->chat_template);
    return true;
}
_Static_assert(N_FLAGS <= 64, "given is a bit a flag");

static bool parse_command(int argc, char **argv, struct cli_options *o, int *exit_code)
{
    *exit_code = CLI_OK;
    if (argc < 2) {
        help_all(stderr);
        *exit_code = CLI_USAGE;
        return false;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        help_all(stdout);
        return false;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("isotherm " ISOTHERM_VERSION);
        return false;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            o->command = commands[i].command;
    }
    if (!o->command)
        return fail(0, exit_code, "unknown command '%s'; there are serve, run and info", argv[1]);
    return true;
}

bool cli_parse(int argc, char **argv, struct cli_options *o, int *exit_code)
{
    *o = (struct cli_options){.host = "127.0.0.1",
                              .port = 8080,
                              .temperature = 0.7,
                              .top_p = 0.95,
                              .restore_deadline_ms = ENG_RESTORE_DEADLINE_MS};
    if (!parse_command(argc, argv, o, exit_code))
        return false;
    uint64_t given = 0;
    for (int i = 2; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            help_command(o->command);
            return false;
        }
        if (strcmp(arg, "-p") == 0)
            arg = "--prompt";
        size_t len = strcspn(arg, "=");
        const struct flag *f = find_flag(arg, len, o->command);
        if (!f)
            return fail(o->command, exit_code, "unknown flag %s; isotherm %s --help lists them", argv[i],
                        command_name(o->command));
        const char *value = arg[len] == '=' ? arg + len + 1 : NULL;
        if (f->kind == KIND_SWITCH) {
            if (value)
                return fail(o->command, exit_code, "%s takes no value", f->name);
        } else if (!value) {
            if (i + 1 >= argc)
                return fail(o->command, exit_code, "%s needs a value", f->name);
            value = argv[++i];
        }
        if (!set_flag(f, value, o, exit_code))
            return false;
        given |= (uint64_t)1 << (f - flags);
    }
    return check(o, given, exit_code);
}

struct eng_config cli_engine_config(const struct cli_options *o)
{
    return (struct eng_config){
        .model_path = o->model,
        .isa = (enum kn_isa)o->isa,
        .threads = o->threads,
        .kv_dtype = (enum kn_kv_dtype)o->kv_dtype,
        .context = o->context,
        .max_concurrency = o->max_concurrency,
        .max_queue = o->max_queue,
        .prefill_chunk = o->prefill_chunk,
        .policy = (enum eng_policy)o->policy,
        .kv_cache_bytes = o->kv_cache_bytes,
        .kv_limit = (enum eng_kv_limit)o->kv_limit,
        .prefix_cache_bytes = o->prefix_cache_bytes,
        .discrete = o->discrete,
        .disk_dir = o->disk_dir,
        .disk_bytes = o->disk_bytes,
        .disk_bytes_a_day = o->disk_bytes_a_day,
        .tenant_memory_bytes = o->tenant_memory_bytes,
        .tenant_disk_bytes = o->tenant_disk_bytes,
        .restore = (enum eng_restore)o->restore,
        .disk_io = (enum cs_io_engine)o->disk_io,
        .restore_deadline_ms = o->restore_deadline_ms ? o->restore_deadline_ms : UINT32_MAX,
        .chat_template = o->chat_template,
    };
}

void cli_engine_close(struct eng_engine *e, uint32_t deadline_ms)
{
    if (eng_engine_close(e, deadline_ms) == ENG_OK)
        return;
    cli_log_close();
    (void)fflush(stdout);
    _exit(CLI_FAILED); /* threads are left that exit handlers would run beside */
}
