/* pod_network.c - the network of a pod. All of its containers live in one namespace of the guest.
 */
#include "base/err.h"
#include "base/json.h"
#include "host/control/pod_priv.h"
#include "host/control/registry.h"
#include "host/control/vm.h"
#include "host/net/net.h"
#include <stdio.h>
#include <stdlib.h>

void pod_set_netns(struct pod *pod, const struct spec *spec, uint32_t pid)
{
    const char *path = "";

    if (!spec_namespace(spec, "network", &path))
        return;
    free(pod->netns);
    /* One that was made for it is its anchor's: that is where CNI puts things, if it does. */
    pod->netns = path[0] ? str_dup(path) : str_format("/proc/%u/ns/net", pid);
}

static int enter(void *arg, const char *what, struct err *err)
{
    return vm_enter(arg, what, err) ? 0 : -1;
}

static void leave(void *arg)
{
    vm_leave(vm_parts(arg));
}

struct network_opts pod_network_opts(struct pod *pod)
{
    const struct vm_parts *vm = vm_parts(pod->vm);

    return (struct network_opts){ .loop = pod->r->o.loop,
                                  .vmm = vm->vmm,
                                  .guest = vm->guest,
                                  .ledger = vm->ledger,
                                  .guest_ns = pod->guest_id,
                                  .queues = vm->size.cpus,
                                  .vhost = pod->r->o.config->vhost_net,
                                  .enter = enter,
                                  .leave = leave,
                                  .arg = pod->vm };
}

int pod_attach_network(struct ctx *ctx, struct pod *pod, struct err *err)
{
    const struct network_opts o = pod_network_opts(pod);
    SPAN(step, ctx, o.vmm->timeline, TRACK_HOST, "attach network", err);

    if (!pod->network)
        pod->network = network_new(&o);
    span_attr(step.ctx, "netns", pod->netns);
    if (network_attach(step.ctx, pod->network, pod->netns, pod->dns, err) < 0)
        return err_wrap_because(err, REASON_NETWORK_FAILED, "network of pod %s", pod->id);
    return 0;
}

int pod_detach_network(struct ctx *ctx, struct pod *pod, struct err *err)
{
    if (!pod->network)
        return 0;
    if (network_detach(ctx, pod->network, err) < 0)
        return err_wrap_because(err, REASON_NETWORK_FAILED, "release the network of pod %s",
                                pod->id);
    network_free(TAKE_PTR(pod->network));
    return 0;
}

void pod_describe_network(const struct pod *pod, struct jsw *w)
{
    const struct network *n = pod->network;

    if (!n || network_state(n) != NETWORK_ATTACHED)
        return;
    jsw_arr(w, "interfaces");
    for (size_t i = 0; i < network_count(n); i++) {
        const struct net_iface *f = network_iface(n, i);
        char mac[18];

        snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", f->mac[0], f->mac[1], f->mac[2],
                 f->mac[3], f->mac[4], f->mac[5]);
        jsw_obj(w, NULL);
        jsw_str(w, "name", f->name);
        jsw_str(w, "mac", mac);
        jsw_u64(w, "mtu", f->mtu);
        jsw_arr(w, "addresses");
        for (size_t k = 0; k < f->n_addresses; k++) {
            AUTO_FREE char *text =
                str_format("%s/%u", f->addresses[k].text, f->addresses[k].prefix);
            jsw_str(w, NULL, text);
        }
        jsw_end_arr(w);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
}
