/* registry_note.c - the file beside a VM's ledger that tells lcow(1) where its shim listens. */
#include "base/fd.h"
#include "base/json.h"
#include "host/control/registry_priv.h"
#include "host/own/ledger.h"
#include <stdlib.h>
#include <unistd.h>

static char *note_path(const struct box *b)
{
    return str_format("%s/shim", ledger_dir(b->ledger));
}

int box_write_note(struct box *b, struct err *err)
{
    AUTO_FREE char *path = NULL;
    int r;

    if (!b->r->o.address)
        return 0;

    AUTO(jsw_release) struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    path = note_path(b);
    jsw_obj(&w, NULL);
    jsw_str(&w, "address", b->r->o.address);
    jsw_i64(&w, "pid", getpid());
    jsw_str(&w, "version", LCOW_VERSION);
    jsw_end_obj(&w);
    if (ledger_note(b->ledger, LEDGER_FILE, path, &b->note, err) < 0)
        return -1;
    r = file_write(path, w.out.data, w.out.len, 0600);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

int box_drop_note(struct box *b, struct err *err)
{
    AUTO_FREE char *path = note_path(b);
    uint64_t id = b->note;

    if (!id)
        return 0;
    b->note = 0;
    (void)unlink(path); /* gone already is as good */
    return ledger_forget(b->ledger, id, err);
}
