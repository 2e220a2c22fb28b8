/* isotherm: one executable, three commands. */
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

int main(int argc, char **argv)
{
    struct cli_options options;
    int exit_code;
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
