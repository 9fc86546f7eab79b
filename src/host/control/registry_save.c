/* registry_save.c - TO WRITE */
#include "base/saved.h"
#include "host/control/registry.h"

void registry_saved(struct saved *s, struct registry *r)
{
    saved_fail(s, "a registry cannot be saved");
}
