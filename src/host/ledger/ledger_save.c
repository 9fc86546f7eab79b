/* ledger_save.c - the ledger in saved state: its descriptor, which has the lock. The open records
 * are not saved: the file has them. */
#include "base/err.h"
#include "base/saved.h"
#include "host/ledger/ledger_priv.h"
#include <errno.h>
#include <string.h>

void ledger_saved(struct saved *s, uint32_t field, struct ledger **ledger)
{
    bool reads = saved_reads(s);
    struct ledger *l = reads ? NULL : *ledger;
    struct err err = ERR_INIT;
    int r = 0;

    if (reads)
        *ledger = NULL;
    if ((!reads && !l) || !saved_open(s, field))
        return;
    if (reads) {
        *ledger = l = mem_new(struct ledger);
        l->fd = -1;
    }
    saved_str(s, 1, &l->dir);
    saved_fd(s, 2, "the ledger", &l->fd);
    saved_u64(s, 3, &l->last_id); /* a compacted file does not have those of released records */
    saved_close(s);
    if (reads && saved_check(s, &err) == 0)
        r = l->dir && l->fd >= 0 ? ledger_resume(l) : -EBADMSG;
    if (r < 0)
        saved_fail(s, "the ledger %s: %s", l->dir ? l->dir : "", strerror(-r));
}
