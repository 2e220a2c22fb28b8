/*
 * cachestore-admin DIR COMMAND: looks after a store, whether a process has it open or not. Built on
 * cachestore.h and inspect.h alone; the commands are in the files beside this one.
 *
 * Exit codes are in help_ends and stay as they are. Errors are one line on stderr. Only evict, pin, unpin,
 * quota with a limit, drain, rebuild, format and scrub --drop change a store.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/admin/admin.h"

static const char usage_line[] =
    "usage: cachestore-admin DIR "
    "status|stats|ls|show|explain|verify|scrub|evict|pin|unpin|quota|drain|rebuild|bench|format "
    "[--json] [--live|--offline]; "
    "--help says more";

static const char help_begins[] = "usage: cachestore-admin DIR COMMAND [--json] [--live|--offline]\n\n";
static const char help_ends[] =
    "\nKEY: a key as ls prints it or its beginning, a record id, or the key of any position. TENANT: "
    "'anonymous',\n"
    "hex digits or their beginning. MODEL: a fingerprint or its beginning. SIZE takes K, M, G, T.\n"
    "verify, scrub, evict, drain and rebuild say how far they are each second (--every SECONDS); these and\n"
    "bench can be stopped with SIGINT; a second one ends them at once.\n\n"
    "A store that a process has open is asked through that process (its user and root may), any other is\n"
    "read under its lock; one line on stderr says which (none with --json). --live and --offline insist.\n"
    "scrub --drop, rebuild, bench and format need a store that nobody has open.\n"
    "Exit codes: 0 fine, 1 damage found, 2 usage, not a store, or it failed, 3 in use and not to be asked,\n"
    "4 nothing like that is stored, 5 stopped.\n";

enum option {
    WORD = 1, /* takes one; needs one with NEEDS_WORD */
    NEEDS_WORD = 2,
    TENANT = 4,
    MODEL = 8,
    ALL = 16,
    DROP = 32,
    EVERY = 64,
    CHUNK = 128,
    FORCE = 256,
    SIZE = 512,
    WATCH = 1024,
    END = 2048,
    ALONE = 4096, /* not while a process has the store open */
    QUOTA = 8192,
};

static const struct command {
    const char *name;
    unsigned takes;
    int (*run)(struct cs_inspect *in, const struct options *o); /* one of the two */
    int (*run_alone)(const struct options *o);                  /* without an open store */
    const char *help;
} commands[] = {
    {"status", 0, run_status, NULL, "  status                  what the store holds\n"},
    {"stats", WATCH, run_stats, NULL,
     "  stats [--watch SECONDS] that by model and tenant, paths, space, age; of a store in use all its\n"
     "                          figures as well, with --watch those alone, again and again\n"},
    {"ls", 0, run_ls, NULL, "  ls                      one line a span or checkpoint, path by path\n"},
    {"show", WORD | NEEDS_WORD, run_show, NULL,
     "  show KEY                one record: ids, notes, chunks, what is above and below it\n"},
    {"explain", WORD | TENANT | MODEL, run_explain, NULL,
     "  explain [FILE]          how far the token ids in FILE (or stdin) are stored, and why no further\n"
     "          [--tenant TENANT] [--model MODEL]\n"},
    {"verify", EVERY, run_verify, NULL,
     "  verify                  read everything and check every checksum\n"},
    {"scrub", DROP | EVERY, run_scrub, NULL,
     "  scrub [--drop]          the same as verify; --drop deletes damaged records with nothing sound "
     "below\n"},
    {"evict", WORD | TENANT | ALL | EVERY, run_evict, NULL,
     "  evict KEY | --tenant TENANT | --all\n"
     "                          delete a record and what is stored below it, all of a tenant, everything;\n"
     "                          no rebuild brings it back\n"},
    {"pin", WORD | NEEDS_WORD, run_pin, NULL,
     "  pin KEY                 keep a record and what is above it on disk, whatever else wants the room\n"},
    {"unpin", WORD | NEEDS_WORD, run_unpin, NULL, "  unpin KEY               let go what pin keeps\n"},
    {"quota", WORD | QUOTA, run_quota, NULL,
     "  quota [TENANT [--device SIZE] [--host SIZE] [--disk SIZE] | --none]\n"
     "                          what each tenant has and may have; sets what one may have of each tier\n"
     "                          (0: as much as all others)\n"},
    {"drain", EVERY | END, run_drain, NULL,
     "  drain [--end]           of a store in use: write what is pending, and nothing new from then on; "
     "ends\n"
     "                          when nothing is pending; --end lets it write again\n"},
    {"rebuild", EVERY | ALONE, run_rebuild, NULL,
     "  rebuild                 make the catalogue again from record headers, with what of notes, times of\n"
     "                          use, pins and quotas the old one has\n"},
    {"bench", SIZE | ALONE, run_bench, NULL,
     "  bench [--size SIZE]     write and restore through a scratch store in DIR, beside what the disk can "
     "do\n"},
    {"format", CHUNK | FORCE | ALONE, NULL, run_format,
     "  format [--chunk SIZE] [--force]\n"
     "                          make an empty store; --force replaces the one that is there\n"},
};

static const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static bool parse_seconds(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == 0 && *out >= 0 && *out <= 86400;
}

/* Options that stand alone. */
static bool take_flag(struct options *o, const char *name, unsigned *seen)
{
    const struct {
        const char *name;
        unsigned option;
        bool *flag;
    } flags[] = {{"--json", 0, &o->json},       {"--all", ALL, &o->all},   {"--live", 0, &o->live},
                 {"--offline", 0, &o->offline}, {"--end", END, &o->end},   {"--none", QUOTA, &o->none},
                 {"--force", FORCE, &o->force}, {"--drop", DROP, &o->drop}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (strcmp(flags[i].name, name) != 0)
            continue;
        *flags[i].flag = true;
        *seen |= flags[i].option;
        return true;
    }
    return false;
}

/* Options with a value: 1 taken, 0 not one of them, -1 the value is bad. */
static int take_value(struct options *o, const char *name, const char *value, unsigned *seen)
{
    bool good = value != NULL;
    if (strcmp(name, "--tenant") == 0) {
        o->tenant = value;
        *seen |= TENANT;
    } else if (strcmp(name, "--model") == 0) {
        o->model = value;
        *seen |= MODEL;
    } else if (strcmp(name, "--every") == 0) {
        good = good && parse_seconds(value, &o->every_s);
        *seen |= EVERY;
    } else if (strcmp(name, "--device") == 0) {
        good = o->device_given = good && parse_size(value, &o->device_bytes);
        *seen |= QUOTA;
    } else if (strcmp(name, "--host") == 0) {
        good = o->host_given = good && parse_size(value, &o->host_bytes);
        *seen |= QUOTA;
    } else if (strcmp(name, "--disk") == 0) {
        good = o->disk_given = good && parse_size(value, &o->disk_bytes);
        *seen |= QUOTA;
    } else if (strcmp(name, "--watch") == 0) {
        good = good && parse_seconds(value, &o->watch_s) && o->watch_s > 0;
        *seen |= WATCH;
    } else if (strcmp(name, "--chunk") == 0) {
        good = good && parse_size(value, &o->chunk_bytes) && o->chunk_bytes > 0;
        *seen |= CHUNK;
    } else if (strcmp(name, "--size") == 0) {
        good = good && parse_size(value, &o->bytes) && o->bytes > 0;
        *seen |= SIZE;
    } else {
        return 0;
    }
    return good ? 1 : -1;
}

/* What an option with a value takes. */
static const char *value_text(const char *name)
{
    static const struct {
        const char *name, *takes;
    } values[] = {{"--tenant", "a tenant as ls prints it, or 'anonymous'"},
                  {"--model", "a fingerprint as ls prints it, or its beginning"},
                  {"--every", "seconds, 0 to 86400"},
                  {"--watch", "seconds, more than 0 and at most 86400"},
                  {"--device", "a size such as 512M (0: as much as all others)"},
                  {"--host", "a size such as 512M (0: as much as all others)"},
                  {"--disk", "a size such as 512M (0: as much as all others)"},
                  {"--chunk", "a size such as 256K"},
                  {"--size", "a size such as 512M"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (strcmp(values[i].name, name) == 0)
            return values[i].takes;
    }
    return "a value";
}

static bool needs_it_alone(const struct command *c, const struct options *o)
{
    return (c->takes & ALONE) != 0 || o->drop;
}

/* Words in their order, options anywhere. NULL: it has complained. */
static const struct command *parse(int argc, char **argv, struct options *o)
{
    const char *words[3] = {NULL};
    size_t n_words = 0;
    unsigned seen = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (arg[0] != '-' || strcmp(arg, "-") == 0) {
            if (n_words == 3) {
                complain("unexpected argument '%s'; %s", arg, usage_line);
                return NULL;
            }
            words[n_words++] = arg;
            continue;
        }
        if (take_flag(o, arg, &seen))
            continue;
        int taken = take_value(o, arg, i + 1 < argc ? argv[i + 1] : NULL, &seen);
        if (taken < 0 && i + 1 == argc)
            complain("option '%s' takes %s, and nothing follows it", arg, value_text(arg));
        else if (taken < 0)
            complain("option '%s' takes %s, not '%s'", arg, value_text(arg), argv[i + 1]);
        else if (taken == 0)
            complain("unexpected argument '%s'; %s", arg, usage_line);
        if (taken <= 0)
            return NULL;
        i++;
    }
    o->dir = words[0];
    o->word = words[2];
    if (n_words < 2) {
        fprintf(stderr, "%s\n", usage_line);
        return NULL;
    }
    const struct command *c = command_find(words[1]);
    if (c == NULL)
        complain("there is no command '%s'; %s", words[1], usage_line);
    else if (o->word != NULL && (c->takes & WORD) == 0)
        complain("'%s' takes no '%s'; %s", c->name, o->word, usage_line);
    else if (o->word == NULL && (c->takes & NEEDS_WORD) != 0)
        complain("'%s' needs a KEY; %s", c->name, usage_line);
    else if ((seen & ~c->takes) != 0)
        complain("'%s' does not take all of these options; %s", c->name, usage_line);
    else if (o->live && needs_it_alone(c, o))
        complain("'%s' needs the store for itself, and --live asks a process that has it open; %s", c->name,
                 usage_line);
    else if (o->live && o->offline)
        complain("--live and --offline exclude each other; %s", usage_line);
    else
        return c;
    return NULL;
}

bool is_live(const struct cs_inspect *in)
{
    return cs_inspect_process(in) != 0;
}

int complain_in_use(const char *command)
{
    complain("the store is in use by another process, and '%s' needs it alone: stop that process first",
             command);
    return EXIT_IN_USE;
}

/* Opens the store as what is given asks for. An exit code. */
static int store_open(const struct command *c, const struct options *o, struct cs_inspect **in)
{
    char err[256] = "", why_not[256] = "";
    int rc = o->live ? CS_EBUSY : cs_inspect_open(o->dir, in, err, sizeof err);
    if (rc == CS_OK) {
        if (!o->json)
            fprintf(stderr, "offline: no process has the store open\n");
        return EXIT_FINE;
    }
    if (rc != CS_EBUSY || o->offline) {
        complain("%s", err[0] != 0 ? err : cs_strerror(rc));
        return rc == CS_EBUSY ? EXIT_IN_USE : EXIT_USAGE;
    }
    if (needs_it_alone(c, o)) {
        return complain_in_use(o->drop ? "scrub --drop" : c->name);
    }
    rc = cs_inspect_connect(o->dir, in, why_not, sizeof why_not);
    if (rc != CS_OK && o->live) {
        complain("%s", why_not);
        rc = cs_inspect_open(o->dir, in, err, sizeof err); /* whether there is one, all the same */
        if (rc == CS_OK)
            cs_inspect_close(*in);
        return rc == CS_EBUSY ? EXIT_IN_USE : EXIT_USAGE;
    }
    if (rc != CS_OK) {
        complain("%s, which cannot be asked: %s", err, why_not);
        return EXIT_IN_USE;
    }
    if (!o->json)
        fprintf(stderr, "live: process %u has the store open and is asked\n", cs_inspect_process(*in));
    return EXIT_FINE;
}

/* --help anywhere: of the command that is named, with DIR before it or without, or of all. False: nobody asks
 * for it. */
static bool give_help(int argc, char **argv)
{
    const struct command *only = NULL;
    bool asked = false;
    for (int i = 1; i < argc; i++)
        asked = asked || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    for (int i = 1; asked && only == NULL && i < argc && i < 4; i++)
        only = command_find(argv[i]);
    if (!asked)
        return false;
    fputs(help_begins, stdout);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (only == NULL || only == &commands[i])
            fputs(commands[i].help, stdout);
    fputs(help_ends, stdout);
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {.every_s = 1};
    if (give_help(argc, argv))
        return fflush(stdout) == 0 ? EXIT_FINE : EXIT_USAGE;
    const struct command *c = parse(argc, argv, &o);
    if (c == NULL)
        return EXIT_USAGE;
    int code;
    if (c->run_alone != NULL) {
        code = c->run_alone(&o);
    } else {
        struct cs_inspect *in;
        code = store_open(c, &o, &in);
        if (code != EXIT_FINE)
            return code;
        code = c->run(in, &o);
        cs_inspect_close(in);
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && !(o.watch_s > 0 && stopped()))
        code = code == EXIT_FINE ? EXIT_USAGE : code;
    return code;
}
