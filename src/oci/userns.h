/* userns.h - the user namespace of a pod and the ids of mounts, as an OCI spec names them. Pure. */
#pragma once
#include "base/idmap.h"
#include "oci/spec.h"

struct err;

/* The container's ids; empty: it has no user namespace. ERR_INVALID names what is wrong: a
 * namespace without mappings or the reverse, a line (idmap_check), root without an id. Caller
 * releases. */
int userns_read(const struct spec *s, struct idmap *ret, struct err *err);
/* Those of an entry of mounts: its own, or with the option idmap or ridmap the container's. Empty:
 * it is not mapped. Removes its keys and options. Caller releases. */
int userns_take_mount(json_t *mount, const struct idmap *container, struct idmap *ret,
                      struct err *err);
