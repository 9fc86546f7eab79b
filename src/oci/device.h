/* device.h - what our host adds to an entry of linux.devices for our guest
 * (docs/decisions/0003). Pure. */
#pragma once
#include "base/json.h"

/* No client may say what only we say. */
void device_clear(json_t *device);
/* It is left out if the VM has none of that name. */
void device_set_optional(json_t *device);
bool device_is_optional(const json_t *device);
/* A disk of the VM: link is the guest's path that leads to its node. */
void device_set_link(json_t *device, const char *link, bool read_only);
const char *device_link(const json_t *device, bool *ret_read_only); /* NULL: none */
