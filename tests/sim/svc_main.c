/* svc_main.c - the program; cli.c says how it is called. */
#include "svc.h"
#include "world.h"

int main(int argc, char **argv)
{
    const struct cli_program program = { .name = "sim_service",
                                         .n_classes = SVC_FAULT_COUNT,
                                         .classes = svc_fault_names,
                                         .figures = { [SVC_FIG_VMS] = "VMs",
                                                      [SVC_FIG_CALLS] = "calls",
                                                      [SVC_FIG_FAILED] = "failed",
                                                      [SVC_FIG_LOST] = "lost",
                                                      [SVC_FIG_EVENTS] = "events",
                                                      [SVC_FIG_UPGRADES] = "upgrades" },
                                         .prepare = world_prepare,
                                         .run = svc_run,
                                         .timeless = SVC_ALONE };

    return cli_main(argc, argv, &program);
}
