/* cgroup_save.c - TO WRITE */
#include "base/saved.h"
#include "host/jail/cgroup.h"

void cgroup_saved(struct saved *s, uint32_t field, struct ledger *ledger, struct cgroup **c)
{
    saved_fail(s, "a cgroup cannot be saved");
}
