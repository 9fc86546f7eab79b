/* sim_client.c - what clients do to a VM. */
#include "base/loop.h"
#include "base/stream.h"
#include "sim_priv.h"
#include <signal.h>
#include <stdlib.h>

static const char *const argv_sh[] = { "/bin/sh", "-c", "true", NULL };
static const struct vm_doc doc = { .id = "sim@vm", .memory_mib = 128, .cpus = 1 };

static int do_stacks(struct ctx *ctx, struct sim *s, struct err *err)
{
    AUTO_FREE char *text = NULL;

    return vm_dump_stacks(ctx, s->vm, &text, err);
}

static int do_stats(struct ctx *ctx, struct sim *s, struct err *err)
{
    struct vmm_stats stats;

    return vm_stats(ctx, s->vm, &stats, err);
}

static int do_wait(struct ctx *ctx, struct sim *s, struct err *err)
{
    struct vm_exit x = { 0 };

    if (vm_wait(ctx, s->vm, &x, err) < 0)
        return -1;
    if (vm_state(s->vm) != VM_GONE)
        sim_broken(s, "wait answered in state %s", vm_state_name(vm_state(s->vm)));
    if (s->exited && (x.code != s->exit.code || x.requested != s->exit.requested))
        sim_broken(s, "wait answered code %u, but another answer was %u", x.code, s->exit.code);
    return 0;
}

/* Reads a process's output to its end, as every client must. */
static void read_output(struct ctx *ctx, struct vm_process *p)
{
    AUTO(stream_free) struct stream *out = vm_process_take_stream(p, 1);
    struct err err = ERR_INIT;
    char buf[256];
    size_t n = 1;

    while (out && n > 0 && stream_read(ctx, out, buf, sizeof(buf), &n, &err) == 0)
        ;
}

static int await_process(struct ctx *ctx, struct sim *s, unsigned client, bool limited,
                         struct vm_process *p, int signo)
{
    struct sim_call c = { s, client, ACT_EXEC, "process wait", .limited = limited, .guest = true };
    uint32_t code = 0, want = signo ? 128 + (uint32_t)signo : s->plan.guest.exit_code;
    struct err err = ERR_INIT;
    int r;

    sim_call_begin(&c);
    r = vm_process_wait(ctx, p, &code, &err);
    if (r == 0 && code != want && code != s->plan.guest.exit_code)
        sim_broken(s, "a process ended with %u, not %u", code, want);
    /* A guest that refuses the wait has said so; the process is lost, not zero. */
    sim_call_end(&c, r, &err);
    return r;
}

static int do_exec(struct ctx *ctx, struct sim *s, unsigned client, bool limited, bool signal,
                   struct err *err)
{
    struct vm_exec e = { .argv = argv_sh,
                         .want_stdin = rng_below(&s->rng, 2),
                         .want_stdout = rng_below(&s->rng, 3) > 0,
                         .want_stderr = rng_below(&s->rng, 3) == 0 };
    struct sim_call c = { s, client, ACT_EXEC, "exec", .limited = limited, .guest = true };
    AUTO(vm_process_free) struct vm_process *p = NULL;
    int r, signo = 0;

    sim_call_begin(&c);
    r = vm_exec(ctx, s->vm, &e, &p, err);
    sim_call_end(&c, r, err);
    if (r < 0)
        return -1;
    stream_free(vm_process_take_stream(p, 2));
    if (signal) {
        struct sim_call k = {
            s, client, ACT_EXEC_SIGNAL, "signal", .limited = true, .guest = true
        };
        struct err ignored = ERR_INIT;

        signo = SIGKILL;
        sim_call_begin(&k);
        r = vm_process_signal(ctx, p, signo, &ignored);
        sim_call_end(&k, r, &ignored);
    }
    read_output(ctx, p);
    return await_process(ctx, s, client, limited, p, signo);
}

static void do_step(struct ctx *ctx, struct sim *s, unsigned client, const struct sim_step *step)
{
    bool limited = step->limit_ns || ctx->cancel;
    struct ctx with_limit = ctx_with_timeout(ctx, step->limit_ns);
    struct ctx *c = step->limit_ns ? &with_limit : ctx;
    struct sim_call call = { s,
                             client,
                             step->action,
                             sim_action_name(step->action),
                             .limited = limited,
                             .guest = step->action == ACT_STACKS,
                             .grace_ns = step->grace_ns };
    struct err err = ERR_INIT;
    int r = 0;

    if (step->action == ACT_EXEC || step->action == ACT_EXEC_SIGNAL) {
        (void)do_exec(c, s, client, limited, step->action == ACT_EXEC_SIGNAL, &err);
        return;
    }
    sim_call_begin(&call);
    switch (step->action) {
    case ACT_START:
        r = vm_start(c, s->vm, &doc, &err);
        break;
    case ACT_WAIT:
        r = do_wait(c, s, &err);
        break;
    case ACT_TERMINATE:
        vm_kill(s->vm, VM_END_KILL, "the VM was terminated");
        r = vm_wait(c, s->vm, NULL, &err);
        break;
    case ACT_SHUTDOWN:
        r = vm_stop(c, s->vm, step->grace_ns, &err);
        break;
    case ACT_STACKS:
        r = do_stacks(c, s, &err);
        break;
    default:
        r = do_stats(c, s, &err);
        break;
    }
    sim_call_end(&call, r, &err);
}

void sim_client_main(void *arg)
{
    struct sim_fiber *f = arg;
    struct sim *s = f->sim;
    const struct sim_client *plan = &s->plan.clients[f->client];
    struct ctx root = ctx_root(s->loop), mine = ctx_with_cancel(&root, &s->cancels[f->client]);
    struct ctx *ctx = plan->cancel_ns ? &mine : &root;
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < plan->n_steps; i++) {
        if (fiber_sleep(ctx, plan->steps[i].pause_ns, &err) < 0)
            break;
        do_step(ctx, s, f->client, &plan->steps[i]);
    }
}

void sim_canceller_main(void *arg)
{
    struct sim_fiber *f = arg;
    struct ctx root = ctx_root(f->sim->loop);
    struct err err = ERR_INIT;

    (void)fiber_sleep(&root, f->sim->plan.clients[f->client].cancel_ns, &err);
    sim_say(f->sim, "client %u goes away", f->client);
    cancel_fire(&f->sim->cancels[f->client], ERR_CANCELLED, "the client went away");
}
