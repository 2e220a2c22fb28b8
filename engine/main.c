/* isotherm: one executable, three commands. */
#include <signal.h>
#include <sys/stat.h>

#include "engine/cli.h"

int main(int argc, char **argv)
{
    struct cli_options options;
    int exit_code;
    if (!cli_parse(argc, argv, &options, &exit_code))
        return exit_code;
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes makes a write fail; it ends nobody */
    umask(077);               /* RocksDB makes files as open as it may */
    switch (options.command) {
    case CLI_SERVE:
        return cli_serve(&options);
    case CLI_RUN:
        return cli_run(&options);
    case CLI_INFO:
        return cli_info(&options);
    }
    return CLI_USAGE;
}
