/* stats.h - the guest's numbers (LCOWMetrics: cgroup v1 names as JSON) as containerd's messages.
 * The guest is hostile: what is no number is refused, what is missing is zero; messages that ctr
 * and CRI look into without asking are always there. Never waits. */
#pragma once
#include <stdbool.h>

struct err;
typedef struct Any Any;

#define STATS_MAX_BYTES (1u << 20)

/* json: the metrics object, or one that has it as "LCOWMetrics". Caller owns *ret. */
int stats_from_guest(const char *json, bool v2, Any **ret, struct err *err);
