/* sim.h - one simulated life of a VM: VM controller and bridge as they are, over a fake VMM and a
 * scripted guest, on virtual time, everything decided by one seed. Afterwards the laws are
 * checked; a broken one is a text that names it. */
#pragma once
#include "base/rand.h"
#include "cli.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What goes wrong in a schedule. The class is seed % SIM_FAULT_COUNT, so that every thousand
 * schedules hold all of them. */
enum sim_fault {
    SIM_NONE,
    SIM_CREATE,       /* create fails or hangs */
    SIM_START,        /* the VMM's start fails or hangs */
    SIM_LISTEN,       /* a port cannot be opened */
    SIM_BOOT_HANGS,   /* the agent never dials */
    SIM_BOOT_DEATH,   /* the VMM dies on the way up */
    SIM_VERSION,      /* the agent is of another version or does not negotiate */
    SIM_DEATH,        /* the VMM dies while it runs */
    SIM_SILENT_GUEST, /* some calls are never answered */
    SIM_LATE_GUEST,   /* some are answered when nobody waits any more */
    SIM_REFUSING_GUEST,
    SIM_HOSTILE_GUEST, /* poisonous frames */
    SIM_NO_STDIO,      /* streams are not dialled */
    SIM_RELEASE,       /* clean-up fails or hangs */
    SIM_STUBBORN_VMM,  /* survives its kill for a while */
    SIM_QUIT,          /* quit fails or hangs, the guest does not power off */
    SIM_LOG,           /* the log lingers or is rubbish */
    SIM_CANCELLED,     /* clients give up early */
    SIM_EVERYTHING,    /* any of them, together */
    SIM_FAULT_COUNT
};
extern const char *const sim_fault_names[];

enum { SIM_RAN, SIM_CALLS, SIM_FAILED }; /* the figures of a result */

/* dir: of ours alone, for ledgers. */
void sim_run(uint64_t seed, const char *dir, struct cli_result *ret);
