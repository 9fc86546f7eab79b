/* fake_things.c - what the fake VMM owns: files, each on record in a real ledger before it is
 * made and until it is gone. */
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "host/own/ledger.h"
#include "host/vmm/fake/fake_priv.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *thing_path(const struct fake *f, unsigned number)
{
    return str_format("%s/thing-%u", f->dir, number);
}

int fake_thing_make(struct fake *f, struct err *err)
{
    if (!f->dir) {
        f->things[f->n_things++] = ++f->made;
        return 0;
    }
    if (!f->ledger && ledger_create(f->dir, &f->ledger, err) < 0)
        return -1;

    AUTO_FREE char *path = thing_path(f, f->n_things);
    uint64_t id;

    if (ledger_note(f->ledger, LEDGER_FILE, path, &id, err) < 0)
        return -1;
    f->things[f->n_things++] = id;

    int r = file_write(path, "", 0, 0600);

    return r < 0 ? err_sys(err, -r, "make %s", path) : 0;
}

int fake_thing_unmake(struct fake *f, struct err *err)
{
    if (f->n_things == 0)
        return 0;
    if (!f->dir) {
        f->n_things--;
        return 0;
    }

    AUTO_FREE char *path = thing_path(f, f->n_things - 1);

    if (unlink(path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", path);
    if (ledger_forget(f->ledger, f->things[f->n_things - 1], err) < 0)
        return -1;
    f->n_things--;
    return 0;
}

int fake_things_done(struct fake *f, struct err *err)
{
    if (!f->ledger)
        return 0;
    if (ledger_finish(f->ledger, err) < 0)
        return -1;
    ledger_close(TAKE_PTR(f->ledger));
    return 0;
}

/* Collects the names on record, each between line breaks. */
static int note_name(void *arg, const struct ledger_record *r)
{
    sbuf_addf(arg, "%s\n", r->what);
    return 0;
}

unsigned fake_vmm_audit(const char *dir, struct sbuf *out)
{
    AUTO(sbuf_release) struct sbuf names = { 0 };
    struct err err = ERR_INIT;
    unsigned n = 0;
    DIR *d = opendir(dir);

    if (!d)
        return 0; /* nothing there */
    sbuf_addc(&names, '\n');
    if (ledger_read(dir, note_name, &names, &err) < 0) {
        sbuf_addf(out, "%s\n", err.msg);
        n++;
    }
    for (struct dirent *e; (e = readdir(d));) {
        AUTO_FREE char *line = str_format("\n%s/%s\n", dir, e->d_name);

        if (e->d_name[0] == '.' || str_eq(e->d_name, "ledger") || strstr(names.data, line))
            continue;
        sbuf_addf(out, "%s/%s exists but is not on record\n", dir, e->d_name);
        n++;
    }
    closedir(d);
    return n;
}
