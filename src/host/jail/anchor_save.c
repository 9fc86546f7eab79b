/* anchor_save.c - an anchor in saved state. Not saved: what it was started with. */
#include "base/child.h"
#include "base/saved.h"
#include "host/jail/anchor_priv.h"

void anchor_saved(struct saved *s, uint32_t field, struct loop *loop, struct ledger *ledger,
                  struct anchor **anchor)
{
    bool reads = saved_reads(s);
    struct anchor *a = reads ? NULL : *anchor;

    if (reads)
        *anchor = NULL;
    if ((!reads && !a) || !saved_open(s, field))
        return;
    if (reads)
        *anchor = a = mem_new(struct anchor);
    child_saved(s, 1, loop, &a->child);
    saved_u64(s, 2, &a->record);
    saved_bool(s, 3, &a->by_us);
    saved_close(s);
    if (reads)
        a->ledger = ledger;
    if (!a->child)
        saved_fail(s, "an anchor without a process");
}
