/* svc.h - one simulated life of the whole shim but its process: clients that speak ttrpc frames,
 * the rpc server, the Task service, the registry and all below it, the publisher with a containerd
 * that is there, away, slow or breaks off. */
#pragma once
#include "cli.h"

/* The class of a schedule is seed % SVC_FAULT_COUNT. */
enum svc_fault {
    SVC_NONE,
    SVC_ALONE, /* one client, nothing wrong: every answer is known beforehand */
    SVC_BOOT,
    SVC_DEATH,
    SVC_REFUSING_GUEST,
    SVC_SILENT_GUEST,
    SVC_LATE_GUEST,
    SVC_HOSTILE_GUEST,
    SVC_HOST,
    SVC_DEVICES,
    SVC_READER,
    SVC_DISK,        /* the disk is full for a while */
    SVC_CLOCK,       /* the host's clock is set */
    SVC_GONE,        /* clients hang up in the middle of a request, and may repeat it */
    SVC_FRAMES,      /* frames come in halves, late, or are invalid; answers are read slowly */
    SVC_DEADLINE,    /* requests with little time left, or none */
    SVC_EVENTS_SLOW, /* containerd takes events late, or breaks off */
    SVC_EVENTS_AWAY, /* it is not there for a while, and back before an event is given up */
    SVC_EVENTS_LOST, /* the same for so long that events are */
    SVC_RESTART,     /* containerd ends with all its connections, and comes back */
    SVC_TERM,        /* the shim gets SIGTERM while it works */
    SVC_EVERYTHING,
    SVC_FAULT_COUNT
};
extern const char *const svc_fault_names[];

enum { SVC_FIG_VMS, SVC_FIG_CALLS, SVC_FIG_FAILED, SVC_FIG_LOST, SVC_FIG_EVENTS, SVC_FIG_UPGRADES };

/* dir: of ours alone; holds the bundle's config.json. */
void svc_run(uint64_t seed, const char *dir, struct cli_result *ret);
