/* container_network.c - the network of a pod, which hangs on its first container: attached when
 * that one is started (CNI may come between Create and Start), taken back when it is deleted. The
 * pod's other containers live in the same namespace of the guest. */
#include "base/str.h"
#include "host/control/registry_priv.h"
#include "host/control/sandbox_priv.h"
#include "host/device/network.h"
#include <stdlib.h>

void container_note_netns(struct container *c, const struct spec *spec)
{
    const char *path = "";
    bool entry = spec_namespace(spec, "network", &path);

    if (c->kind == SPEC_WORKLOAD || !entry)
        return;
    free(c->netns);
    /* One that was made for it is its anchor's: that is where CNI puts things, if it does. */
    c->netns = path[0] ? str_dup(path) : str_format("/proc/%u/ns/net", c->pid);
}

static int enter(void *arg, const char *what, struct err *err)
{
    return vm_enter(arg, what, err) ? 0 : -1;
}

static void leave(void *arg)
{
    vm_leave(vm_parts(arg));
}

int container_attach_network(struct ctx *ctx, struct container *c, struct err *err)
{
    const struct sandbox *s = c->hidden ? c->r->sandbox : NULL;
    const struct vm_parts *vm = vm_parts(c->r->vm);
    struct network_dns dns = { 0 };
    int span, r;

    if (c->kind == SPEC_WORKLOAD)
        return 0;
    if (!c->network)
        c->network = network_new(&(struct network_opts){ .loop = c->r->o.loop,
                                                         .vmm = vm->vmm,
                                                         .guest = vm->guest,
                                                         .ledger = vm->ledger,
                                                         .guest_ns = c->pod_id,
                                                         .enter = enter,
                                                         .leave = leave,
                                                         .arg = c->r->vm });
    if (s) {
        dns.servers = (const char *const *)s->dns_servers.v;
        dns.search = (const char *const *)s->dns_search.v;
    }
    span = vm_span_begin(c->r->vm, "attach network");
    r = network_attach(ctx, c->network, c->netns, s ? &dns : NULL, err);
    vm_span_end(c->r->vm, span);
    return r < 0 ? err_wrap(err, "network of pod %s", c->pod_id) : 0;
}

int container_detach_network(struct ctx *ctx, struct container *c, struct err *err)
{
    if (!c->network)
        return 0;
    if (network_detach(ctx, c->network, err) < 0)
        return err_wrap(err, "take back the network of pod %s", c->pod_id);
    network_free(TAKE_PTR(c->network));
    return 0;
}
