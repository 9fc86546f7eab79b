/* settled.c - the waits at which a fiber can be saved: the fiber that the new program starts
 * instead comes to the same wait. Names and waits are the constants of base/waits.h, which the
 * fibers use too. A wait that has no row makes upgrades fail after 30 s: the simulations and
 * tests/e2e/test_upgrade.py notice. */
#include "host/control/settled.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/waits.h"

static const struct {
    const char *fiber; /* the beginning of its name */
    const char *wait;  /* what it waits for */
} waits[] = {
    /* host/shim, host/rpc */
    { "serve", WAIT_SERVE }, /* an action of the command line */
    { "resume", WAIT_SERVE },
    { FIBER_RPC_LISTENER, WAIT_ACCEPT },
    { FIBER_RPC_LISTENER, WAIT_FEWER_CONNECTIONS },
    { FIBER_RPC_CONNECTION, WAIT_READ },
    { FIBER_RPC_CONNECTION, WAIT_UPGRADE_END },
    { FIBER_RPC_WATCHDOG, WAIT_REQUESTS },
    { FIBER_RPC_CALL "Wait", WAIT_PROCESS_END },
    { FIBER_RPC_CALL "WaitSandbox", WAIT_SANDBOX_END },
    { FIBER_RPC_CLIENT, WAIT_READ },
    { FIBER_PUBLISHER, WAIT_EVENT },
    { FIBER_PUBLISHER, WAIT_SLEEP },
    { FIBER_STATE, WAIT_SLEEP },  /* the upgrade keeps the state */
    { FIBER_TRACER, WAIT_SLEEP }, /* until a batch is sent, or sent again */
    { FIBER_TRACER, WAIT_SPANS },
    { FIBER_WATCH, WAIT_IDLE },
    { FIBER_LAYERS, WAIT_READ }, /* the builder of layer images is left */

    /* host/io */
    { FIBER_IO_FIFO, WAIT_FIFO_READER },
    { FIBER_IO_FILE, WAIT_FILE_PIPE },
    { FIBER_IO "stderr", WAIT_READ },
    { FIBER_IO "stderr", WAIT_WRITE },
    { FIBER_IO "stdin", WAIT_READ },
    { FIBER_IO "stdin", WAIT_WRITE },
    { FIBER_IO "stdout", WAIT_READ },
    { FIBER_IO "stdout", WAIT_WRITE },

    /* host/control */
    { FIBER_ANCHOR, WAIT_CHILD_END },
    { FIBER_FORSAKEN, WAIT_PROCESS_END },
    { FIBER_FORSAKEN, WAIT_FORSAKEN },
    { FIBER_KILLED, WAIT_KILLED },
    { FIBER_OOM, WAIT_GUEST_OOM },
    { FIBER_SANDBOX_WATCH, WAIT_PROCESS_END },
    { FIBER_VM_CHECK_CLOCK, WAIT_CLOCK_CHECK },
    { FIBER_VM_CLOCK, WAIT_CLOCK_SET },
    { FIBER_VM_LOST, WAIT_BRIDGE_CLOSE },
    { FIBER_VM_REAP, WAIT_VMM_END },
    { FIBER_PROCESS_WATCH, WAIT_GUEST_PROCESS },

    /* host/bridge, host/vmm/qemu */
    { FIBER_BRIDGE_ENTROPY, WAIT_GUEST_DIAL },
    { FIBER_BRIDGE_LOG, WAIT_READ },
    { FIBER_BRIDGE_LOG, WAIT_SLEEP }, /* the guest wrote too fast: the bucket knows */
    { FIBER_BRIDGE_LOG, WAIT_GUEST_DIAL },
    { FIBER_BRIDGE_READ, WAIT_READ },
    { FIBER_BRIDGE_READ, WAIT_SLEEP },
    { FIBER_BRIDGE_WRITE, WAIT_FRAME },
    { FIBER_SHARE, WAIT_HOST_MOUNTS },
    { FIBER_LINK, WAIT_LINK },
    { FIBER_QEMU_CONSOLE, WAIT_READ },
    { FIBER_QEMU_CONSOLE, WAIT_SLEEP },
    { FIBER_QEMU_ERRORS, WAIT_READ },
    { FIBER_QEMU_WATCH, WAIT_CHILD_END },
    { FIBER_QMP_READ, WAIT_READ },
    { FIBER_QMP_WRITE, WAIT_QMP_COMMANDS },

    /* host/device */
    { FIBER_PORT, WAIT_BOTH_WAYS },
    { FIBER_PORT, WAIT_READ },
    { FIBER_PORT, WAIT_WRITE },
    { FIBER_PORTS, WAIT_PORT_END },
    { FIBER_PORTS, WAIT_PORTS },
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
