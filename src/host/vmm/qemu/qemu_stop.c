/* qemu_stop.c - QEMU stopped the VM. If lcow did not ask for it, the VM has failed: its vCPUs do
 * not run again, so everything that waits for the guest would wait for ever. */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu_priv.h"
#include "proto/qmp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS_NS (5 * NS_PER_S)

static bool is_one_of(const char *status, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(status, names[i]))
            return true;
    return false;
}

/* A pause that was asked for, the end of a template's save, the beginning of a clone; or it runs
 * again already. Any other status is a failure, also one that a newer QEMU has and we do not know.
 */
static bool is_expected(const struct qemu_proc *p, const char *status)
{
    static const char *const saving[] = { "finish-migrate", "postmigrate", "save-vm" };
    static const char *const restoring[] = { "inmigrate", "prelaunch", "restore-vm" };

    return str_eq(status, "running") || (p->pause_asked && str_eq(status, "paused")) ||
           (p->vm->form == QEMU_TEMPLATE && is_one_of(status, saving, ARRAY_LEN(saving))) ||
           (p->vm->form == QEMU_CLONE && is_one_of(status, restoring, ARRAY_LEN(restoring)));
}

/* False: it has exited, and its end tells why. */
static bool look_once(struct qemu_proc *p)
{
    struct ctx limited = ctx_with_timeout(&p->ctx, STATUS_NS);
    AUTO(qmp_message_release) struct qmp_message m = { 0 };
    struct err err = ERR_INIT;
    const char *status = NULL;
    unsigned resumed = p->resumed;

    if (qmp_client_call(&limited, p->qmp, "query-status", NULL, &m, &err) == 0)
        (void)js_str(m.data, "status", &status, &err); /* missing: unknown */
    else if (err.code == ERR_UNAVAILABLE)
        return false;
    /* A client that ends the VM has asked for this stop, too. */
    if (p->resumed != resumed || p->vm->dying || p->vm->quitting ||
        (status && is_expected(p, status)))
        return true;

    AUTO_FREE char *plain = str_printable(status ? status : "unknown");

    log_debug(&p->ctx, "QEMU stopped the VM, killing it", F_STR("status", plain), F_ERR(&err));
    snprintf(p->stopped, sizeof(p->stopped), "%s", plain);
    qemu_proc_kill(p);
    return false;
}

static void look(void *arg)
{
    struct qemu_proc *p = arg;
    unsigned seen;

    do
        seen = p->stops;
    while (look_once(p) && p->stops != seen);
    p->looking = false;
}

void qemu_stopped(struct qemu_proc *p)
{
    p->stops++;
    if (p->looking)
        return; /* it looks again */
    p->looking = true;
    group_go(&p->readers, p->vm->loop, look, p, "qemu stopped");
}
