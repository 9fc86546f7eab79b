/* dev_main.c - the program; cli.c says how it is called. */
#include "dev.h"

int main(int argc, char **argv)
{
    const struct cli_program program = { .name = "sim_devices",
                                         .n_classes = DEV_FAULT_COUNT,
                                         .classes = dev_fault_names,
                                         .figures = { [DEV_FIG_CALLS] = "calls",
                                                      [DEV_FIG_FAILED] = "of them failed",
                                                      [DEV_FIG_MAPPED] = "mapped" },
                                         .run = dev_run };

    return cli_main(argc, argv, &program);
}
