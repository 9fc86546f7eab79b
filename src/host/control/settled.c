/* settled.c - the waits at which a fiber can be saved: the fiber that the new program starts
 * instead comes to the same wait. A text that has changed makes upgrades wait for 30 s: the
 * simulations and tests/e2e/test_upgrade.py notice. */
#include "host/control/settled.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/str.h"

static const struct {
    const char *fiber; /* the beginning of its name */
    const char *wait;  /* what it waits for */
} waits[] = {
    /* host/shim, host/rpc */
    { "serve", "something to serve" },
    { "resume", "something to serve" },
    { "rpc listener", "accept" },
    { "rpc listener", "fewer connections" },
    { "rpc connection", "read" },
    { "rpc connection", "the end of an upgrade" },
    { "rpc watchdog", "requests" },
    { "rpc Wait", "the process to end" },
    { "rpc WaitSandbox", "the sandbox to end" },
    { "rpc client", "read" },
    { "publisher", "the next event" },
    { "publisher", "sleep" },
    { "state", "sleep" },  /* the upgrade keeps the state */
    { "tracer", "sleep" }, /* until a batch is sent, or sent again */
    { "tracer", "spans" },
    { "watch", "nothing left to serve" },

    /* host/io */
    { "io fifo", "a reader of the remaining output" },
    { "io file", "a pipe to a file" },
    { "io stderr", "read" },
    { "io stderr", "write" },
    { "io stdin", "read" },
    { "io stdin", "write" },
    { "io stdout", "read" },
    { "io stdout", "write" },

    /* host/control */
    { "anchor ", "child's end" },
    { "forsaken ", "the process to end" },
    { "forsaken ", "to delete a forsaken container" },
    { "killed ", "a killed process to end" },
    { "oom ", "out of memory in the guest" },
    { "sandbox.watch ", "the process to end" },
    { "vm.check-clock ", "the next look at the guest's clock" },
    { "vm.clock ", "the wall clock to be set" },
    { "vm.lost ", "the bridge to close" },
    { "vm.reap ", "qemu's end" },
    { "watch ", "a process to end" },

    /* host/bridge, host/vmm/qemu */
    { "bridge.entropy", "the guest to dial" },
    { "bridge.log", "read" },
    { "bridge.log", "sleep" }, /* the guest wrote too fast: the bucket knows */
    { "bridge.log", "the guest to dial" },
    { "bridge.read", "read" },
    { "bridge.read", "sleep" },
    { "bridge.write", "a frame to send" },
    { "follow share", "mounts of the host" },
    { "link accept", "link: a connection" },
    { "qemu console", "read" },
    { "qemu console", "sleep" },
    { "qemu stderr", "read" },
    { "qemu watch", "child's end" },
    { "qmp read", "read" },
    { "qmp write", "qmp: commands to send" },

    /* host/device */
    { "port ", "both ways of a connection" },
    { "port ", "read" },
    { "port ", "write" },
    { "ports ", "a connection to end" },
    { "ports ", "connections to the pod's ports" },
};

bool settled_at(const char *name, const char *why)
{
    for (size_t i = 0; why && i < ARRAY_LEN(waits); i++)
        if (str_starts(name, waits[i].fiber) && str_eq(why, waits[i].wait))
            return true;
    return false;
}

static bool look(void *arg, const char *name, const char *why)
{
    if (settled_at(name, why))
        return true;
    (void)err_because(arg, REASON_UPGRADE_REFUSED, ERR_STATE,
                      "a change is under way: %s waits for %s", name, why ? why : "its turn");
    return false;
}

int settled_check(struct loop *loop, struct err *err)
{
    err_clear(err);
    loop_each_fiber(loop, look, err);
    return err->code == ERR_NONE ? 0 : -1;
}
