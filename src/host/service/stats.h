/* stats.h - the guest's numbers (LCOWMetrics: cgroup v1 names as JSON) as containerd's messages.
 * The guest is hostile: what is no number is refused, what is missing is zero; messages that ctr
 * and CRI look into without asking are always there. Never waits. */
#pragma once
#include <jansson.h>
#include <stdbool.h>

struct err;
typedef struct Any Any;

/* Caller owns *ret. */
int stats_from_guest(const json_t *metrics, bool v2, Any **ret, struct err *err);
