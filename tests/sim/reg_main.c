/* reg_main.c - the program; cli.c says how it is called. */
#include "reg.h"
#include "world.h"

int main(int argc, char **argv)
{
    const struct cli_program program = { .name = "sim_registry",
                                         .n_classes = REG_FAULT_COUNT,
                                         .classes = reg_fault_names,
                                         .figures = { [REG_FIG_VMS] = "VMs",
                                                      [REG_FIG_EXITS] = "exits",
                                                      [REG_FIG_CALLS] = "calls",
                                                      [REG_FIG_FAILED] = "of them failed",
                                                      [REG_FIG_UPGRADES] = "upgrades" },
                                         .prepare = world_prepare,
                                         .run = reg_run };

    return cli_main(argc, argv, &program);
}
