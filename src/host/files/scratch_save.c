/* scratch_save.c - a scratch disk in saved state. Not saved: `making`, since no thread survives an
 * exec. */
#include "base/saved.h"
#include "host/files/scratch_priv.h"

void scratch_saved(struct saved *s, uint32_t field, struct ledger *ledger, struct scratch **scratch)
{
    bool reads = saved_reads(s);
    struct scratch *c = reads ? NULL : *scratch;

    if (reads)
        *scratch = NULL;
    if ((!reads && !c) || !saved_open(s, field))
        return;
    if (reads) {
        *scratch = c = mem_new(struct scratch);
        c->ledger = ledger;
        c->fd = c->lock = c->making = -1;
    }
    saved_str(s, 1, &c->ns_dir);
    saved_str(s, 2, &c->dir);
    saved_str(s, 3, &c->path);
    saved_fd(s, 4, "the scratch disk", &c->fd);
    saved_fd(s, 5, "the scratch disk's lock", &c->lock);
    saved_u64(s, 6, &c->record);
    saved_close(s);
}
