/* ledger_save.c - TO WRITE */
#include "base/saved.h"
#include "host/ledger/ledger.h"

void ledger_saved(struct saved *s, uint32_t field, struct ledger **l)
{
    saved_fail(s, "a ledger cannot be saved");
}
