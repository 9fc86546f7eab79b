/* settled.c - the waits at which a fiber can be saved: the fiber that the new program starts
 * instead comes to the same wait. A test of each room holds that its texts are still these. */
#include "host/control/settled.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/str.h"

static const struct {
    const char *fiber; /* the beginning of its name */
    const char *why;   /* what it waits for */
} waits[] = {
    { "serve", "something to serve" },
    { "resume", "something to serve" },
    { "rpc listener", "accept" },
    { "rpc connection", "read" },
    { "rpc connection", "the end of an upgrade" },
    { "rpc watchdog", "requests" },
    { "rpc Wait", "the process to end" },
    { "rpc WaitSandbox", "the sandbox to end" },
    { "rpc client", "read" },
    { "publisher", "the next event" },
    { "publisher", "sleep" },
    { "tracer", "spans" },
    { "watch", "nothing left to serve" },
};

static bool is_listed(const char *name, const char *why)
{
    for (size_t i = 0; why && i < ARRAY_LEN(waits); i++)
        if (str_starts(name, waits[i].fiber) && str_eq(why, waits[i].why))
            return true;
    return false;
}

static bool look(void *arg, const char *name, const char *why)
{
    if (is_listed(name, why))
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
