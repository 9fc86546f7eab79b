/* reg.h - one simulated life of a shim's registry: containers and processes of several clients at
 * once, over the VM controller and the bridge as they are, a fake VMM, a scripted guest and a host
 * without an OS, on virtual time, everything decided by one seed. */
#pragma once
#include "cli.h"
#include <stdbool.h>
#include <stdint.h>

/* The class of a schedule is seed % REG_FAULT_COUNT. */
enum reg_fault {
    REG_NONE,
    REG_BOOT,           /* the VM does not come up, or late */
    REG_DEATH,          /* the VMM dies at some moment */
    REG_REFUSING_GUEST, /* some requests fail … */
    REG_SILENT_GUEST,   /* … or are never answered */
    REG_LATE_GUEST,
    REG_HOSTILE_GUEST,
    REG_HOST,    /* files, anchors, stdio fail or are late */
    REG_DEVICES, /* the VMM refuses disks and shares */
    REG_READER,  /* nobody reads the output */
    REG_CANCELLED,
    REG_EVERYTHING,
    REG_FAULT_COUNT
};
extern const char *const reg_fault_names[];

enum {
    REG_FIG_VMS,
    REG_FIG_EXITS,
    REG_FIG_CALLS,
    REG_FIG_FAILED,
    REG_FIG_UPGRADES
}; /* of a result */

/* dir: of ours alone; holds the bundle's config.json. */
void reg_run(uint64_t seed, const char *dir, struct cli_result *ret);
