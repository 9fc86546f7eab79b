/* net_rig.h - for tests: a "host" that is the test's own network namespace, away from the
 * machine's, and pods whose namespaces are those of sleeping children. */
#pragma once
#include "base/child.h"
#include "base/str.h"
#include "harness/tap.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A new one for each test; the machine's own namespace is not seen any more. */
static inline void rig_host(void)
{
    if (geteuid() != 0)
        tap_skip("network namespaces need root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun");
    ASSERT(unshare(CLONE_NEWNET) == 0);
}

__attribute__((format(printf, 1, 2))) static inline void rig_sh(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *cmd = str_vformat(fmt, ap);
    va_end(ap);
    if (system(cmd) != 0)
        tap_fail(__FILE__, __LINE__, "failed: %s", cmd);
}

/* Output of a command. Caller frees. */
__attribute__((format(printf, 1, 2))) static inline char *rig_out(const char *fmt, ...)
{
    struct sbuf b = { 0 };
    char part[4096];
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *cmd = str_vformat(fmt, ap);
    va_end(ap);
    FILE *f = popen(cmd, "r");
    ASSERT(f);
    for (size_t n; (n = fread(part, 1, sizeof(part), f)) > 0;)
        sbuf_add(&b, part, n);
    pclose(f);
    return sbuf_take(&b);
}

struct rig_pod {
    struct child *child;
    char path[64]; /* of its namespace */
};

static inline void rig_pod_end(struct rig_pod *p)
{
    child_free(TAKE_PTR(p->child));
}
static inline void rig_pod_end_auto(struct rig_pod *p)
{
    rig_pod_end(p);
}

static inline struct rig_pod rig_pod(struct ctx *ctx)
{
    const char *const argv[] = { "sleep", "1000", NULL };
    const struct child_opts o = { .argv = argv, .clone_flags = CLONE_NEWNET, .die_with_us = true };
    struct rig_pod p = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(child_spawn(ctx, &o, &p.child, &err), err);
    snprintf(p.path, sizeof(p.path), "/proc/%d/ns/net", child_pid(p.child));
    return p;
}

/* "nsenter …" for a command in the pod. */
#define IN_POD "nsenter -t %d -n "
#define POD(p) child_pid((p)->child)

/* The kernel tells of a carrier, and makes an address of it, in its own time. */
static inline void rig_settle(const struct rig_pod *p, const char *device)
{
    rig_sh("nsenter -t %d -n timeout 60 sh -c 'until ip link show %s | grep -q \"state UP\" && { ! "
           "test -e /proc/net/if_inet6 || ip -6 addr show dev %s | grep -q fe80; }; do sleep 0.02; "
           "done'",
           POD(p), device, device);
}

/* All that can be seen of the pod's namespace, but for what the kernel does by itself meanwhile
 * (whether an address is still being asked about, and its route once it is not). Caller frees. */
static inline char *rig_look(const struct rig_pod *p)
{
    return rig_out("nsenter -t %d -n sh -c 'ip addr | sed s/.tentative//; ip -4 route show table "
                   "all; ip -6 route show table all | grep -v \"^local fe80\"; ip neigh show nud "
                   "permanent; tc qdisc; for d in $(ls "
                   "/proc/sys/net/ipv4/conf); do tc filter show dev $d ingress 2>/dev/null; done'",
                   POD(p));
}
