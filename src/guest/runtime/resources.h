/* resources.h - limits of a container: OCI LinuxResources. Pure. */
#pragma once
#include <jansson.h>

struct err;

/* The types and ranges of what can be changed while a container runs; crun itself takes a limit
 * that is no number for none. ERR_INVALID names the field. */
int resources_check(const json_t *resources, struct err *err);
