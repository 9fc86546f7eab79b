/* io_save.c - the stdio of a process as saved state. Relays, lingering FIFOs and pumps continue at
 * the wait where they were: for bytes, for room, or for a reader.
 *
 * Not saved: what io_new makes of the spec (id, contexts, cancels); the number of outputs, which
 * the fibers count again; times, ledger and counter of a log driver, which are in the spec; which
 * relay ended, which shows in its missing streams. */
#include "base/child.h"
#include "base/err.h"
#include "base/saved.h"
#include "base/stream.h"
#include "host/io/io_hub.h"
#include "host/io/io_priv.h"

static void port_saved(struct saved *s, uint32_t field, struct io_hub *hub, struct io_port **port)
{
    bool reads = saved_reads(s);
    AUTO_FREE char *id = !reads && *port ? str_dup((*port)->id) : NULL;
    struct io_port read = { .fd = -1 }, *p = reads ? &read : *port;

    if (!p || !saved_open(s, field))
        return;
    saved_str(s, 1, &id);
    saved_bool(s, 2, &p->input);
    saved_fd(s, 3, "the pipe of a stream", &p->fd);
    saved_close(s);
    if (!reads || saved_check(s, &(struct err)ERR_INIT) < 0)
        return;
    if (!id || !hub) {
        saved_fail(s, "a stream without a port");
        return;
    }
    p = io_port_of(hub, id);
    p->refs++;
    p->opened = true;
    p->input = read.input;
    p->fd = read.fd;
    *port = p;
}

static void relay_saved(struct saved *s, uint32_t field, const struct io_spec *spec,
                        struct relay *r)
{
    struct loop *loop = r->io->loop;

    if (!saved_open(s, field))
        return;
    saved_stream(s, 1, "the client's side of stdio", loop, &r->up.stream);
    saved_fd(s, 2, "the held end of a FIFO", &r->up.held);
    port_saved(s, 3, spec->hub, &r->up.port);
    saved_stream(s, 4, "the guest's side of stdio", loop, &r->guest);
    saved_sbuf(s, 5, &r->pending);
    saved_bool(s, 6, &r->running);
    saved_bool(s, 7, &r->dropping);
    saved_u64(s, 8, &r->dropped);
    saved_close(s);
    if (r->running && (!r->guest || (r->which == 0 && !r->up.stream)))
        saved_fail(s, "the relay of %s has only one side", io_names[r->which]);
}

static void leftover_saved(struct saved *s, uint32_t field, struct io *io, struct io_leftover **l)
{
    if ((!saved_reads(s) && !*l) || !saved_open(s, field))
        return;
    if (saved_reads(s)) {
        *l = mem_new(struct io_leftover);
        **l = (struct io_leftover){ .io = io, .read_end = -1, .write_end = -1, .watch = -1 };
    }
    saved_fd(s, 1, "the reading end of a FIFO", &(*l)->read_end);
    saved_fd(s, 2, "the writing end of a FIFO", &(*l)->write_end);
    saved_fd(s, 3, "the watch on a FIFO", &(*l)->watch);
    saved_close(s);
    if ((*l)->read_end < 0 && (*l)->write_end < 0)
        saved_fail(s, "a FIFO without an open end");
}

static void pump_saved(struct saved *s, uint32_t field, struct io *io, int which)
{
    struct io_pump *p = io->pumps[which];

    if ((!saved_reads(s) && !p) || !saved_open(s, field))
        return;
    if (saved_reads(s)) {
        p = io->pumps[which] = mem_new(struct io_pump);
        *p = (struct io_pump){ .io = io, .which = which, .from = -1, .to = -1 };
    }
    saved_fd(s, 1, "where a file of stdio is copied from", &p->from);
    saved_fd(s, 2, "where a file of stdio is copied to", &p->to);
    saved_u64(s, 3, &p->lost);
    saved_int(s, 4, &p->failed);
    saved_close(s);
    if (p->from < 0 || p->to < 0)
        saved_fail(s, "a file of stdio without its pipe");
}

static void driver_saved(struct saved *s, uint32_t field, struct loop *loop,
                         const struct io_spec *spec, struct io_driver **d)
{
    if ((!saved_reads(s) && !*d) || !saved_open(s, field))
        return;
    if (saved_reads(s))
        *d = io_driver_new(loop, spec);
    if ((*d)->ending)
        saved_fail(s, "log driver %s is finishing", (*d)->name);
    saved_str(s, 1, &(*d)->name);
    child_saved(s, 2, loop, &(*d)->child);
    saved_u64(s, 3, &(*d)->record);
    saved_close(s);
    if (!(*d)->child)
        saved_fail(s, "a log driver without its process");
}

static void resume(struct io *io, bool over)
{
    if (over)
        cancel_fire(&io->over, ERR_CANCELLED, "the process has exited");
    if (io->closed)
        cancel_fire(&io->cut, ERR_CANCELLED, "stdio is closed");
    for (int i = 0; i < 3; i++) {
        if (io->pumps[i])
            io_pump_go(io->pumps[i]);
        if (io->relays[i].running)
            io_relay_go(&io->relays[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(io->leftovers); i++)
        if (io->leftovers[i])
            io_leftover_go(io->leftovers[i]);
}

void io_saved(struct saved *s, uint32_t field, struct loop *loop, const struct io_spec *spec,
              struct io **io)
{
    bool reads = saved_reads(s);

    if ((!reads && !*io) || !saved_open(s, field))
        return;

    struct io *x = reads ? io_new(loop, spec) : *io;
    bool over = x->over.fired;

    saved_bool(s, 1, &x->attached);
    saved_bool(s, 2, &x->closed);
    saved_bool(s, 3, &over);
    saved_u64(s, 4, &x->lost);
    relay_saved(s, 5, spec, &x->relays[0]);
    relay_saved(s, 6, spec, &x->relays[1]);
    relay_saved(s, 7, spec, &x->relays[2]);
    driver_saved(s, 8, loop, spec, &x->drivers[0]);
    driver_saved(s, 9, loop, spec, &x->drivers[1]);
    pump_saved(s, 10, x, 0);
    pump_saved(s, 11, x, 1);
    pump_saved(s, 12, x, 2);
    leftover_saved(s, 13, x, &x->leftovers[0]);
    leftover_saved(s, 14, x, &x->leftovers[1]);
    saved_close(s);
    if (!reads || saved_check(s, &(struct err)ERR_INIT) < 0)
        return; /* what was read keeps its descriptors open: the old program needs them */
    resume(x, over);
    *io = x;
}
