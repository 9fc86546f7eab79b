/* bootargs.h - the agent's words on the kernel command line: lcow.host=tcp|vsock (tcp) and
 * lcow.loglevel=LEVEL (info). Words behind " -- " are PID 1's arguments and do not count. */
#pragma once
#include "base/log.h"
#include "guest/bridge/link.h"

struct err;

struct bootargs {
    enum link_transport transport;
    enum log_level level;
};

/* Unknown words are the kernel's business; a bad value of ours is ERR_INVALID naming it. */
int bootargs_parse(const char *cmdline, struct bootargs *ret, struct err *err);
/* From /proc/cmdline. */
int bootargs_load(struct bootargs *ret, struct err *err);
