/* scratch_save.c - TO WRITE */
#include "base/saved.h"
#include "host/files/scratch.h"

void scratch_saved(struct saved *s, uint32_t field, struct ledger *ledger, struct scratch **scratch)
{
    saved_fail(s, "a scratch disk cannot be saved");
}
