/* isotherm: one executable, three commands. */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "engine/cli.h"

/* What could not be written (a full disk) is a failure, though only the last flush may tell. */
static int exit_code_of_output(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    fprintf(stderr, "isotherm: standard output could not be written\n");
    return exit_code == CLI_OK ? CLI_FAILED : exit_code;
}

/* Memory that was given back stays with the process: the tables of a long prompt come and go with each
 * request, and taking them from the system again waits while memory is backed ahead elsewhere. */
static void keep_memory(void)
{
    enum { TABLES_BYTES = 32 << 20, KEPT_BYTES = 128 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, TABLES_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
}

int main(int argc, char **argv)
{
    struct cli_options options;
    int exit_code;
    keep_memory();
    if (!cli_parse(argc, argv, &options, &exit_code))
        return exit_code_of_output(exit_code);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes makes a write fail; it ends nobody */
    umask(077);               /* RocksDB makes files as open as it may */
    switch (options.command) {
    case CLI_SERVE:
        return cli_serve(&options);
    case CLI_RUN:
        return exit_code_of_output(cli_run(&options));
    case CLI_INFO:
        return exit_code_of_output(cli_info(&options));
    }
    return CLI_USAGE;
}
