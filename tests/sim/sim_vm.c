/* sim_vm.c - the program; cli.c says how it is called. */
#include "sim.h"

int main(int argc, char **argv)
{
    const struct cli_program program = { .name = "sim_vm",
                                         .n_classes = SIM_FAULT_COUNT,
                                         .classes = sim_fault_names,
                                         .figures = { [SIM_RAN] = "VMs ran",
                                                      [SIM_CALLS] = "calls",
                                                      [SIM_FAILED] = "of them failed" },
                                         .run = sim_run };

    return cli_main(argc, argv, &program);
}
