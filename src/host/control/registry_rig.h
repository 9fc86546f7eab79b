/* registry_rig.h - for tests: the registry over the fake VMM, the real bridge, a scripted guest and
 * a host without an OS. What the host gave and did not get back is counted. */
#pragma once
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "harness/place.h"
#include "harness/tap.h"
#include "host/bridge/bridge.h"
#include "host/bridge/fake_guest.h"
#include "host/bridge/guest.h"
#include "host/control/config.h"
#include "host/control/registry_fake.h"
#include "host/control/registry_priv.h"
#include "host/control/vm.h"
#include "host/vmm/fake/fake_vmm.h"
#include "proto/bridge.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct rig {
    struct loop *loop;
    struct registry *registry;
    struct events *events;
    struct config config;
    bool rootfs_auto; /* else the longer way: scratch */
    struct fake_vmm_opts vmm_opts;
    struct fake_guest_opts guest_opts;
    struct fake_guest_facts guest;
    struct timeline timeline;
    struct vmm *vmm; /* the last one made */
    unsigned vms;
    struct place place;
    const char *dir;     /* of place */
    const char *address; /* of the shim; NULL: none */
    struct group clients;
    struct fake_host host;
    const struct registry_host *host_ops; /* NULL: the fake's */
    struct cgroup *home;                  /* registry_opts.home */
    struct sbuf told;                     /* events so far, one a line */
};

/* --- VM and guest --- */

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
    r->guest_opts.power_off = rig_power_off;
    r->guest_opts.power_off_arg = v;
    r->guest_opts.facts = &r->guest;
    fake_guest_boot(&r->guest_opts);
}

static inline struct vmm *rig_make_vmm(void *arg)
{
    struct rig *r = arg;

    r->vmm_opts.loop = r->loop;
    r->vmm_opts.on_power = rig_power;
    r->vmm_opts.on_power_arg = r;
    if (r->vmm_opts.kill_ns == 0)
        r->vmm_opts.kill_ns = 5 * NS_PER_MS;
    r->vmm = fake_vmm_new(&r->vmm_opts);
    r->vmm->timeline = &r->timeline;
    r->vms++;
    return r->vmm;
}

static inline struct guest *rig_make_guest(void *arg, struct vmm *vmm)
{
    struct rig *r = arg;

    return bridge_new(r->loop, vmm, &r->timeline);
}

/* --- life --- */

#define RIG_SPEC                                                                                   \
    "{\"ociVersion\":\"1.0.2\",\"process\":{\"args\":[\"/bin/true\"],\"cwd\":\"/\"},"              \
    "\"root\":{\"path\":\"rootfs\"},\"linux\":{\"namespaces\":[{\"type\":\"pid\"}]}%s}"

static inline void rig_write_spec(struct rig *r, const char *id, const char *more)
{
    AUTO_FREE char *dir = str_format("%s/%s", r->dir, id);
    AUTO_FREE char *path = str_format("%s/config.json", dir);
    AUTO_FREE char *text = str_format(RIG_SPEC, more);

    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

static inline void rig_open(struct rig *r, struct ctx *ctx)
{
    r->loop = ctx->loop;
    fake_host_init(&r->host, ctx->loop);
    place_init(&r->place, "/tmp");
    r->dir = r->place.dir;
    config_init(&r->config);
    free(r->config.allow_annotations);
    r->config.allow_annotations = str_dup("io.lcow.*");
    free(r->config.run_root);
    r->config.run_root = str_format("%s/run", r->dir);
    r->config.rootfs = r->rootfs_auto ? CONFIG_ROOTFS_AUTO : CONFIG_ROOTFS_SCRATCH;
    r->events = events_new();
    group_init(&r->clients);
    if (r->guest_opts.process_ns == 0)
        r->guest_opts.process_ns = NS_PER_S;
    r->registry =
        registry_new(&(struct registry_opts){ .loop = ctx->loop,
                                              .ns = "test",
                                              .id = "box",
                                              .config = &r->config,
                                              .events = r->events,
                                              .make_vmm = rig_make_vmm,
                                              .make_guest = rig_make_guest,
                                              .arg = r,
                                              .address = r->address,
                                              .home = r->home,
                                              .host = r->host_ops ? r->host_ops : &fake_host_ops });
}

/* All that was told up to now: "create a;start a;exit a/e 7". */
static inline const char *rig_told(struct rig *r, struct ctx *ctx)
{
    const struct event *e;
    struct err err = ERR_INIT;

    while (events_pending(r->events) > 0) {
        ASSERT_OK(events_next(ctx, r->events, &e, &err), err);
        sbuf_addf(&r->told, "%s%s %s%s%s", r->told.len ? ";" : "", event_name(e->kind),
                  e->container_id, e->exec_id[0] ? "/" : "", e->exec_id);
        if (e->kind == EVENT_EXIT || e->kind == EVENT_DELETE)
            sbuf_addf(&r->told, " %u", e->exit_status);
        if (e->kind == EVENT_EXIT)
            ASSERT(e->exited_wall_ns > 0);
        events_done(r->events);
    }
    return r->told.len ? r->told.data : "";
}

static inline unsigned rig_entries(const char *path)
{
    DIR *d = opendir(path);
    unsigned n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Ends all there is, and looks for what was left. */
static inline void rig_close(struct rig *r, struct ctx *ctx)
{
    struct ctx root = ctx_root(ctx->loop), limited = ctx_with_timeout(&root, 900 * NS_PER_S);
    struct err err = ERR_INIT;

    ASSERT_OK(group_wait(&limited, &r->clients, "clients", &err), err);
    ASSERT_OK(registry_close(&limited, r->registry, &err), err);
    ASSERT(registry_idle(r->registry));
    (void)rig_told(r, &limited);
    registry_free(r->registry);
    events_free(r->events);
    ASSERT(!r->host.violation);
    ASSERT_EQ(r->host.anchors, 0);
    ASSERT_EQ(r->host.ios, 0);
    ASSERT_EQ(r->host.scratches, 0);
    ASSERT_EQ(r->guest.containers, 0);
    ASSERT_EQ(r->guest.layers, 0);
    ASSERT_EQ(r->guest.shares, 0);

    AUTO_FREE char *run = str_format("%s/run", r->dir);

    ASSERT_EQ(rig_entries(run), 0);
    config_release(&r->config);
    sbuf_release(&r->told);
    ASSERT_EQ(dir_remove(r->dir), 0);
}

/* --- calls --- */

static inline int rig_try_create(struct rig *r, struct ctx *ctx, const char *id, struct err *err)
{
    AUTO_FREE char *bundle = str_format("%s/%s", r->dir, id);
    const struct registry_create c = { .id = id, .bundle = bundle, .out = "/fifo/out" };
    uint32_t pid;

    return registry_create(ctx, r->registry, &c, &pid, err);
}

static inline void rig_create(struct rig *r, struct ctx *ctx, const char *id)
{
    struct err err = ERR_INIT;

    rig_write_spec(r, id, "");
    ASSERT_OK(rig_try_create(r, ctx, id, &err), err);
}

static inline struct container *rig_find(struct rig *r, const char *id)
{
    struct err err = ERR_INIT;
    struct container *c = registry_find(r->registry, id, &err);

    ASSERT(c != NULL);
    return c;
}

static inline int rig_try_start(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                                struct err *err)
{
    struct container *c = registry_find(r->registry, id, err);
    uint32_t pid;

    return c ? container_start(ctx, c, exec, &pid, err) : -1;
}

static inline void rig_start(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_start(r, ctx, id, exec, &err), err);
}

static inline int rig_try_exec(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                               struct err *err)
{
    static const char process[] = "{\"args\":[\"/bin/sh\"],\"cwd\":\"/\"}";
    const struct container_exec e = { .exec_id = exec,
                                      .out = "/fifo/out",
                                      .process_json = process,
                                      .process_len = sizeof(process) - 1 };
    struct container *c = registry_find(r->registry, id, err);

    return c ? container_exec(ctx, c, &e, err) : -1;
}

static inline void rig_exec(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_exec(r, ctx, id, exec, &err), err);
}

static inline int rig_try_kill(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                               uint32_t signo, bool all, struct err *err)
{
    struct container *c = registry_find(r->registry, id, err);

    return c ? container_kill(ctx, c, exec, signo, all, err) : -1;
}

static inline int rig_try_wait(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                               struct process_view *ret, struct err *err)
{
    struct container *c = registry_find(r->registry, id, err);
    struct process *p = c ? container_process(c, exec, err) : NULL;

    return p ? process_wait(ctx, p, ret, err) : -1;
}

static inline uint32_t rig_wait(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct process_view v;
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_wait(r, ctx, id, exec, &v, &err), err);
    return v.exit_status;
}

static inline int rig_try_delete(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                                 struct err *err)
{
    struct registry_deleted d;

    return registry_delete(ctx, r->registry, id, exec, &d, err);
}

static inline void rig_delete(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_delete(r, ctx, id, exec, &err), err);
}
