/* anchor_save.c - TO WRITE */
#include "base/saved.h"
#include "host/jail/anchor.h"

void anchor_saved(struct saved *s, uint32_t field, struct loop *loop, struct ledger *ledger,
                  struct anchor **a)
{
    saved_fail(s, "an anchor cannot be saved");
}
