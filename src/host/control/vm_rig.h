/* vm_rig.h - for tests: a VM controller over the fake VMM, the real bridge and a scripted guest. */
#pragma once
#include "base/clock.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "harness/tap.h"
#include "host/bridge/bridge.h"
#include "host/bridge/fake_guest.h"
#include "host/bridge/guest.h"
#include "host/control/vm.h"
#include "host/control/vm_priv.h"
#include "host/vmm/fake/fake_vmm.h"

struct rig {
    struct loop *loop;
    struct fake_vmm_opts vmm_opts;
    struct fake_guest_opts guest_opts;
    struct timeline timeline;
    struct vmm *vmm;
    struct vm *vm;
    struct group clients;
    unsigned exits;
    struct vm_exit exit;
};

static const struct vm_doc rig_doc = { .id = "test@vm", .memory_mib = 256, .cpus = 1 };

static inline int rig_dial(void *arg, uint32_t port, struct stream **ret)
{
    return fake_vmm_dial(arg, port, ret);
}

static inline void rig_power_off(void *arg)
{
    fake_vmm_die(arg, FAKE_POWERED_OFF);
}

static inline void rig_power(void *arg, struct vmm *v, struct cancel *power)
{
    struct rig *r = arg;

    r->guest_opts.loop = r->loop;
    r->guest_opts.dial = rig_dial;
    r->guest_opts.dial_arg = v;
    r->guest_opts.power = power;
    r->guest_opts.power_off_arg = v;
    fake_guest_boot(&r->guest_opts);
}

static inline void rig_exit(void *arg, const struct vm_exit *e)
{
    struct rig *r = arg;

    r->exits++;
    r->exit = *e;
}

/* Before it: set vmm_opts and guest_opts as the test wants them. */
static inline void rig_build(struct rig *r, struct ctx *ctx)
{
    r->loop = ctx->loop;
    r->vmm_opts.loop = ctx->loop;
    r->vmm_opts.on_power = rig_power;
    r->vmm_opts.on_power_arg = r;
    if (r->vmm_opts.kill_ns == 0)
        r->vmm_opts.kill_ns = 5 * NS_PER_MS;
    r->vmm = fake_vmm_new(&r->vmm_opts);
    r->vmm->timeline = &r->timeline;
    r->vm = vm_new(ctx->loop, r->vmm, bridge_new(ctx->loop, r->vmm, &r->timeline));
    vm_on_exit(r->vm, rig_exit, r);
    group_init(&r->clients);
}

static inline void rig_create(struct rig *r, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    rig_build(r, ctx);
    ASSERT_OK(vm_create(ctx, r->vm, &rig_doc, &err), err);
}

static inline void rig_start(struct rig *r, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    rig_create(r, ctx);
    ASSERT_OK(vm_start(ctx, r->vm, &err), err);
}

/* Ends the VM, checks that the seam's rules were kept, and frees it. */
static inline void rig_finish(struct rig *r, struct ctx *ctx)
{
    struct ctx root = ctx_root(ctx->loop), limited = ctx_with_timeout(&root, 600 * NS_PER_S);
    struct fake_facts facts;
    struct err err = ERR_INIT;

    ASSERT_OK(vm_terminate(&limited, r->vm, &err), err);
    ASSERT_OK(group_wait(&limited, &r->clients, "clients", &err), err);
    fake_vmm_facts(r->vmm, &facts);
    ASSERT_STR(facts.violation, "");
    ASSERT_EQ(facts.things, 0);
    ASSERT_EQ(facts.listeners, 0);
    vm_free(TAKE_PTR(r->vm));
}

/* A client in a fiber of its own. */
struct rig_client {
    struct rig *rig;
    struct ctx *ctx;
    int r;
    struct err err;
    uint64_t began_ns, ended_ns;
    struct vm_exit exit;
    bool done;
};

static inline void rig_start_main(void *arg)
{
    struct rig_client *c = arg;

    c->began_ns = loop_now(c->rig->loop);
    c->r = vm_start(c->ctx, c->rig->vm, &c->err);
    c->ended_ns = loop_now(c->rig->loop);
    c->done = true;
}

static inline void rig_wait_main(void *arg)
{
    struct rig_client *c = arg;

    c->began_ns = loop_now(c->rig->loop);
    c->r = vm_wait(c->ctx, c->rig->vm, &c->exit, &c->err);
    c->ended_ns = loop_now(c->rig->loop);
    c->done = true;
}

static inline void rig_client_go(struct rig *r, struct rig_client *c, struct ctx *ctx,
                                 void (*fn)(void *arg), const char *name)
{
    *c = (struct rig_client){ .rig = r, .ctx = ctx };
    group_go(&r->clients, r->loop, fn, c, "%s", name);
}
