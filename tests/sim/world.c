/* world.c - VMM, guest and host of a schedule. */
#include "world.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "fixture/fake_host.h"
#include "fixture/ids_fixture.h"
#include "fixture/loop_fixture.h"
#include "host/bridge/bridge.h"
#include "host/bridge/guest.h"
#include "host/control/registry.h"
#include "host/ledger/ledger.h"
#include "proto/bridge.h"
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define FOR_EVER (100000 * NS_PER_S)

static struct fake_host the_host;
static struct world *current;

void world_say(struct world *w, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_trace(loop_now(w->loop), fmt, ap);
    va_end(ap);
}

void world_broken(struct world *w, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_broken(w->result, loop_now(w->loop), fmt, ap);
    va_end(ap);
}

bool world_chance(struct world *w, unsigned of_thousand)
{
    return rng_below(&w->rng, 1000) < of_thousand;
}

unsigned world_below(struct world *w, unsigned n)
{
    return (unsigned)rng_below(&w->rng, n);
}

uint64_t world_some_ns(struct world *w, uint64_t max)
{
    uint64_t pick = rng_below(&w->rng, 10);

    if (pick < 2)
        return 0;
    return rng_below(&w->rng, pick < 7 ? max / 50 + 1 : max + 1);
}

bool world_status_ok(uint32_t status)
{
    /* By itself; by a signal of a client; with its VM; a start that failed. */
    static const uint32_t possible[] = { WORLD_CODE, 128 + 9, 128 + 15, 255, 1 };

    for (size_t i = 0; i < ARRAY_LEN(possible); i++) {
        if (status == possible[i])
            return true;
    }
    return false;
}

/* --- guest --- */

static struct fake_answer decide(void *arg, const struct bridge_request *q)
{
    struct world *w = arg;

    if (cli_has_twin())
        return (struct fake_answer){ FAKE_ANSWER };

    struct fake_answer a = { FAKE_ANSWER, world_some_ns(w, w->answer_ns), BRIDGE_HR_FAIL };

    /* Boots have a simulation of their own. */
    if (w->calm || q->type == BRIDGE_NEGOTIATE_PROTOCOL)
        return (struct fake_answer){ FAKE_ANSWER };
    if (world_chance(w, w->refused))
        a.how = FAKE_REFUSE;
    else if (world_chance(w, w->silent))
        a.how = FAKE_SILENT;
    else if (world_chance(w, w->poisoned))
        a.how = FAKE_FIRST_HOSTILE +
                (enum fake_answer_how)world_below(w, FAKE_ANSWER_COUNT - FAKE_FIRST_HOSTILE);
    if (world_chance(w, w->late))
        a.delay_ns = rng_below(&w->rng, 30 * NS_PER_S);
    if (a.how != FAKE_ANSWER || a.delay_ns)
        world_say(w, "guest: %s, answer %d in %llu us", bridge_message_name(q->type), a.how,
                  (unsigned long long)(a.delay_ns / NS_PER_US));
    return a;
}

static int dial(void *arg, uint32_t port, struct stream **ret)
{
    return fake_vmm_dial(arg, port, ret);
}

static void power_off(void *arg)
{
    fake_vmm_die(arg, FAKE_POWERED_OFF);
}

static void on_power(void *arg, struct vmm *v, struct cancel *power)
{
    struct world *w = arg;

    w->guest_opts.loop = w->loop;
    w->guest_opts.dial = dial;
    w->guest_opts.dial_arg = v;
    w->guest_opts.power = power;
    w->guest_opts.power_off = power_off;
    w->guest_opts.power_off_arg = v;
    w->guest_opts.decide_request = decide;
    w->guest_opts.decide_arg = w;
    w->guest_opts.facts = &w->guest;
    w->guest_opts.own_ids = true;
    fake_guest_boot(&w->guest_opts);
}

/* --- VMM --- */

/* The seam's rules are looked at when a VM goes. */
static struct vmm_ops watched;
static void (*real_free)(struct vmm *v);

static void watched_free(struct vmm *v)
{
    struct fake_facts facts;

    fake_vmm_facts(v, &facts);
    if (facts.violation[0])
        world_broken(current, "VMM: %s", facts.violation);
    if (facts.created && !facts.released)
        world_broken(current, "a VM was freed and not released");
    if (current->vmm == v)
        current->vmm = NULL;
    real_free(v);
}

static void vmm_trace(void *arg, const char *what)
{
    world_say(arg, "vmm: %s", what);
}

static struct vmm *make_vmm(void *arg)
{
    struct world *w = arg;

    if (w->resumes)
        return w->vmm;
    w->vmm = fake_vmm_new(&w->vmm_opts);
    w->vmm->timeline = &w->timeline;
    watched = *w->vmm->ops;
    real_free = watched.free;
    watched.free = watched_free;
    w->vmm->ops = &watched;
    w->vms++;
    return w->vmm;
}

static struct guest *make_guest(void *arg, struct vmm *vmm)
{
    struct world *w = arg;

    return bridge_new(w->loop, vmm, &w->timeline);
}

/* --- host --- */

static int host_step(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    struct world *w = arg;

    if (w->calm || w->host_fails == 0)
        return 0;
    if (fiber_sleep(ctx, world_some_ns(w, 3 * NS_PER_S), err) < 0)
        return -1;
    if (world_chance(w, w->host_fails / 10)) {
        world_say(w, "host: %s hangs", op);
        return fiber_sleep(ctx, FOR_EVER, err);
    }
    if (!world_chance(w, w->host_fails))
        return 0;
    world_say(w, "host: %s fails", op);
    return err_set(err, ERR_EXHAUSTED, "%s fails by the dice", op);
}

/* The limit holds for every file of the process, and gives an errno like a full disk's. */
void world_fill_disk(struct world *w, bool full)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_FSIZE, &l) < 0)
        return;
    l.rlim_cur = full ? 0 : l.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)setrlimit(RLIMIT_FSIZE, &l);
    w->disk_was_full |= full;
}

void world_set_clock(struct world *w, int64_t by_ns)
{
    loop_set_wall(w->loop, by_ns);
    waitq_wake_all(&w->host->clock_q);
}

/* --- the plan --- */

static struct fake_step maybe_fail(struct world *w, unsigned of_thousand)
{
    return (struct fake_step){ world_chance(w, of_thousand) ? FAKE_FAIL : FAKE_OK,
                               world_some_ns(w, NS_PER_S) };
}

static void plan_devices(struct world *w, bool rare)
{
    w->vmm_opts.scsi_add = maybe_fail(w, rare ? 50 : 200);
    w->vmm_opts.set_memory = w->vmm_opts.scsi_add; /* no other luck than before */
    w->vmm_opts.share_add = maybe_fail(w, rare ? 50 : 300);
    w->vmm_opts.share_remove = maybe_fail(w, rare ? 50 : 300);
    if (world_chance(w, rare ? 20 : 100)) /* QMP does not answer */
        w->vmm_opts.share_add.how = FAKE_HANG;
}

void world_plan(struct world *w, unsigned faults, bool rare)
{
    w->faults = faults;
    w->answer_ns = world_chance(w, 500) ? 0 : 200 * NS_PER_MS;
    w->vmm_opts.kill_ns = world_some_ns(w, 50 * NS_PER_MS);
    w->guest_opts.process_ns = world_some_ns(w, 5 * NS_PER_S) + 1;
    w->guest_opts.container_ns = world_some_ns(w, 20 * NS_PER_S) + 1;
    w->guest_opts.exit_code = WORLD_CODE;
    w->guest_opts.output_bytes = rng_below(&w->rng, 3000);
    w->guest_opts.oom_ns = world_chance(w, 200) ? world_some_ns(w, 10 * NS_PER_S) + 1 : 0;
    w->guest_opts.oom_late = w->guest_opts.oom_ns % 2;
    if (faults & WORLD_BOOT) {
        w->vmm_opts.start = maybe_fail(w, rare ? 50 : 400);
        w->guest_opts.agent_hangs = world_chance(w, rare ? 20 : 200);
        w->guest_opts.agent_ns = world_some_ns(w, 10 * NS_PER_S);
    }
    if (faults & WORLD_DEATH && world_chance(w, rare ? 300 : 1000)) {
        w->vmm_opts.dies_after_ns = world_some_ns(w, 20 * NS_PER_S) + 1;
        w->vmm_opts.death = (enum fake_death)world_below(w, 4);
    }
    w->refused = faults & WORLD_REFUSING ? (rare ? 20 : 100) : 0;
    w->silent = faults & WORLD_SILENT ? (rare ? 5 : 30) : 0;
    w->late = faults & WORLD_LATE ? (rare ? 20 : 150) : 0;
    w->poisoned = faults & WORLD_HOSTILE ? (rare ? 5 : 30) : 0;
    w->host_fails = faults & WORLD_HOST ? (rare ? 20 : 100) : 0;
    if (faults & WORLD_DEVICES)
        plan_devices(w, rare);
    w->host->io_stuck = faults & WORLD_READER && world_chance(w, rare ? 100 : 700);
}

/* --- life --- */

void world_open(struct world *w, uint64_t seed, const char *dir, struct cli_result *result)
{
    *w = (struct world){ .result = result };
    current = w;
    rng_seed(&w->rng, seed);
    snprintf(w->dir, sizeof(w->dir), "%s", dir);
    w->loop = loop_new(
        &(struct loop_opts){ .virtual_time = true, .seed = seed, .by_name = cli_has_twin() });
    the_host = (struct fake_host){ 0 };
    w->host = &the_host;
    fake_host_init(w->host, w->loop);
    w->host->step = host_step;
    w->host->step_arg = w;
    config_init(&w->config);
    free(w->config.run_root);
    w->config.run_root = str_format("%s/run", w->dir);
    /* Not by the generator, and not in step with the classes: both ways meet each fault. */
    w->config.rootfs = seed / 64 % 2 ? CONFIG_ROOTFS_AUTO : CONFIG_ROOTFS_SCRATCH;
    w->vmm_opts.loop = w->loop;
    w->vmm_opts.on_power = on_power;
    w->vmm_opts.on_power_arg = w;
    w->vmm_opts.own_ids = true;
    w->vmm_opts.trace = vmm_trace;
    w->vmm_opts.trace_arg = w;
}

struct registry *world_registry(struct world *w, struct events *events)
{
    return registry_new(&(struct registry_opts){ .loop = w->loop,
                                                 .ns = "sim",
                                                 .id = "box",
                                                 .guest_id = ids_in_guest,
                                                 .config = &w->config,
                                                 .events = events,
                                                 .address = "/sim",
                                                 .make_vmm = make_vmm,
                                                 .make_guest = make_guest,
                                                 .arg = w });
}

void world_calm(struct world *w)
{
    w->calm = true;
    if (w->disk_was_full)
        world_fill_disk(w, false);
    w->vmm_opts.dies_after_ns = 0;
    if (w->vmm) {
        struct fake_vmm_opts *o = fake_vmm_tune(w->vmm);

        o->scsi_add = o->share_add = o->set_memory = (struct fake_step){ 0 };
        o->scsi_remove = o->share_remove = (struct fake_step){ 0 };
    }
}

/* What a full disk kept from being cleaned up is on record: `gc` finds it and nothing else. */
static void gc(struct world *w, const char *dir)
{
    struct ctx ctx = ctx_root(w->loop);
    struct err err = ERR_INIT;
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        AUTO_FREE char *box = str_format("%s/%s", dir, e->d_name);

        if (e->d_name[0] != '.' && ledger_reclaim(&ctx, box, false, NULL, NULL, &err) < 0)
            world_broken(w, "what the full disk left cannot be reclaimed: %s", err.msg);
    }
    if (d)
        closedir(d);
}

void world_check(struct world *w)
{
    AUTO_FREE char *run = str_format("%s/run/sim", w->dir);
    DIR *d;

    if (w->host->anchors || w->host->ios || w->host->scratches)
        world_broken(w, "left: %u anchors, %u stdios, %u scratch disks", w->host->anchors,
                     w->host->ios, w->host->scratches);
    if (w->host->violation)
        world_broken(w, "host: %s", w->host->violation);
    if (w->disk_was_full)
        gc(w, run);
    d = opendir(run);
    if (d) {
        world_broken(w, "left: %s", run);
        closedir(d);
        (void)dir_remove(run);
    }
}

bool world_run(struct world *w)
{
    AUTO(sbuf_release) struct sbuf dump = { 0 };
    size_t left = loop_run(w->loop);

    if (left == 0)
        return true;
    loop_dump(w->loop, &dump);
    world_broken(w, "%zu fibers hang:\n%.500s", left, dump.data);
    return false;
}

void world_close(struct world *w)
{
    config_release(&w->config);
    loop_free(w->loop);
}

static int write_bundle(const char *dir, const char *name, const char *kind, const char *pod)
{
    static const char text[] =
        "{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},"
        "\"linux\":{\"namespaces\":[{\"type\":\"pid\"}]},\"mounts\":["
        "{\"destination\":\"/d\",\"type\":\"bind\",\"source\":\"/tmp\","
        "\"options\":[\"ro\"]},{\"destination\":\"/disk\",\"type\":"
        "\"virtual-disk\",\"source\":\"/disk.img\",\"options\":[\"ro\"]}]%s}";
    static const char pause[] =
        "{\"process\":{\"args\":[\"/pause\"],\"cwd\":\"/\"},\"root\":{},"
        "\"linux\":{\"namespaces\":[{\"type\":\"pid\"},{\"type\":\"ipc\"},{\"type\":"
        "\"uts\"},{\"type\":\"mount\"},{\"type\":\"network\"}]}%s}";
    static const char of_pod[] = ",\"annotations\":{\"io.kubernetes.cri.sandbox-id\":\"%s\","
                                 "\"io.kubernetes.cri.container-type\":\"%s\"}";
    AUTO_FREE char *bundle = str_format("%s/%s", dir, name),
                   *path = str_format("%s/config.json", bundle),
                   *member = kind ? str_format(of_pod, pod, kind) : str_dup(""),
                   *spec = str_format(str_eq(name, "c") ? pause : text, member);
    int r = dir_make(bundle, 0700);

    return r < 0 ? r : file_write(path, spec, strlen(spec), 0600);
}

int world_prepare(const char *dir)
{
    static const char *const bundles[][3] = { { "" },
                                              { "pod", "container", "s" },
                                              { "a", "sandbox", "a" },
                                              { "b", "container", "a" },
                                              { "c", "sandbox", "c" },
                                              { "d", "container", "c" } };
    int r = 0;

    for (size_t i = 0; r >= 0 && i < ARRAY_LEN(bundles); i++)
        r = write_bundle(dir, bundles[i][0], bundles[i][1], bundles[i][2]);
    return r < 0 ? r : 0;
}
