#include "guest/bridge/agent.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "guest/bridge/fw_cfg.h"
#include "guest/bridge/handlers.h"
#include "guest/bridge/hotplug.h"
#include "guest/bridge/kmsg.h"
#include "guest/bridge/logport.h"
#include "guest/bridge/seed.h"
#include "guest/bridge/server.h"
#include "guest/net/nets.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/reaper.h"
#include "guest/runtime/standing.h"
#include "guest/runtime/vm_process.h"
#include "guest/storage/scsi.h"
#include "guest/storage/storage.h"
#include "proto/link.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/sysinfo.h>

#define KMSG_PRIORITY 4      /* warnings and worse, as the real guest */
#define KLOG_CONSOLE_LEVEL 8 /* syslog(2) */
#define KLOG_WARNINGS 5      /* and worse are printed */
#define ENTROPY_MAX (64 * 1024)
#define ENTROPY_NS (10 * NS_PER_S)
#define DISK_NS (3 * NS_PER_S)
#define DISK_LOOK_NS (20 * NS_PER_MS)
#define CMDLINE_MAX 8192

static int take_word(const char *word, struct bootargs *a, struct err *err)
{
    const char *value = strchr(word, '=');

    if (!value++)
        return 0;
    if (str_starts(word, "lcow.host=")) {
        if (!str_eq(value, "tcp") && !str_eq(value, "vsock"))
            return err_set(err, ERR_INVALID, "invalid lcow.host=%s: must be tcp or vsock", value);
        a->transport = str_eq(value, "tcp") ? LINK_TCP : LINK_VSOCK;
    } else if (str_starts(word, "lcow.loglevel=") && log_level_parse(value, &a->level) < 0) {
        return err_set(err, ERR_INVALID,
                       "invalid lcow.loglevel=%s: must be trace, debug, info, warn, error or off",
                       value);
    }
    return 0;
}

int bootargs_parse(const char *cmdline, struct bootargs *ret, struct err *err)
{
    AUTO_FREE char *copy = str_dup(cmdline);
    struct bootargs a = { .transport = LINK_TCP, .level = LOG_INFO };
    char *save = NULL;

    for (char *word = strtok_r(copy, " \t\n", &save); word && !str_eq(word, "--");
         word = strtok_r(NULL, " \t\n", &save))
        if (take_word(word, &a, err) < 0)
            return -1;
    *ret = a;
    return 0;
}

int bootargs_load(struct bootargs *ret, struct err *err)
{
    AUTO_FREE char *text = NULL;

    if (file_load("/proc/cmdline", CMDLINE_MAX, &text, err) < 0)
        return -1;
    return bootargs_parse(text, ret, err);
}

void stages_add(struct stages *s, const char *name, uint64_t start_ns, uint64_t end_ns)
{
    if (s->n == STAGES_MAX)
        return;
    snprintf(s->v[s->n].name, STAGES_NAME, "%s", name);
    s->v[s->n].start_ns = start_ns;
    s->v[s->n].end_ns = end_ns;
    s->n++;
}

/* Parses name=start-end. Writes NUL bytes into the text. */
static int parse_one(char *item, struct stages *s)
{
    char *start = strchr(item, '='), *end = start ? strchr(start, '-') : NULL;
    uint64_t from, to;

    if (!end || start == item || start - item >= STAGES_NAME ||
        strspn(item, "abcdefghijklmnopqrstuvwxyz") != (size_t)(start - item))
        return -1;
    *start++ = *end++ = '\0';
    if (str_to_u64(start, UINT64_MAX, &from) < 0 || str_to_u64(end, UINT64_MAX, &to) < 0)
        return -1;
    stages_add(s, item, from, to);
    return 0;
}

int stages_parse(struct stages *s, const char *text, struct err *err)
{
    AUTO_FREE char *copy = str_dup(text);
    struct stages found = *s;
    char *save = NULL;

    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
        if (parse_one(item, &found) < 0)
            return err_set(err, ERR_INVALID, "invalid boot stage in \"%.100s\"", text);
    *s = found;
    return 0;
}

void stages_line(const struct stages *s, size_t i, uint64_t wall_ns, uint64_t now_ns,
                 struct sbuf *out)
{
    char time[CLOCK_RFC3339_SIZE];

    clock_rfc3339(wall_ns, time);
    sbuf_addf(out,
              "{\"time\":\"%s\",\"level\":\"info\",\"msg\":\"boot stage\",\"stage\":\"%s\","
              "\"start_ns\":%lu,\"end_ns\":%lu,\"boottime_ns\":%lu}\n",
              time, s->v[i].name, s->v[i].start_ns, s->v[i].end_ns, now_ns);
}

struct agent {
    const struct agent_opts *opts;
    struct loop *loop;
    struct logport *log;
    struct link *link;
    struct handlers handlers;
    struct reaper *reaper;
    struct nets *nets;
    struct crun *crun; /* made ahead in a template: its clones share that memory */
    struct stages stages;
    size_t stages_told;
    int boot_fd; /* of fw_cfg_read() */
    bool negotiated, stopping;
    bool told_host; /* entropy and log are under way */
    bool template;  /* started as a template; token and seed came with the boot block */
};

/* --- small duties --- */

static void connect_host(void *arg);

static void tell_stages(struct agent *a)
{
    for (; a->stages_told < a->stages.n; a->stages_told++) {
        AUTO(sbuf_release) struct sbuf line = { 0 };
        stages_line(&a->stages, a->stages_told, loop_wall(a->loop), loop_now(a->loop), &line);
        logport_line(a->log, line.data, line.len);
    }
}

static void on_connected(void *arg)
{
    struct agent *a = CONTAINER_OF(arg, struct agent, handlers);

    logport_retry(a->log);
    if (a->told_host)
        return;
    a->told_host = true;
    fiber_go(a->loop, connect_host, a, "entropy and log");
}

static void on_idle(void *arg)
{
    struct agent *a = CONTAINER_OF(arg, struct agent, handlers);

    containers_trim(a->handlers.containers);
}

static void on_negotiated(void *arg)
{
    struct agent *a = CONTAINER_OF(arg, struct agent, handlers);

    if (a->negotiated)
        return;
    a->negotiated = true;
    stages_add(&a->stages, "agent", a->opts->started_ns, loop_now(a->loop));
    tell_stages(a);
}

/* On the console, because the log cannot reach the host either. */
static void on_unreachable(void *arg, const struct err *why)
{
    fprintf(stderr, "lcow: cannot connect to the host; retrying: %s\n", why->msg);
}

static void on_usr1(void *arg, const struct signalfd_siginfo *info)
{
    stacks_log(((struct agent *)arg)->loop);
}

static void stop_fiber(void *arg)
{
    struct agent *a = arg;
    struct ctx ctx = ctx_root(a->loop);
    struct err err = ERR_INIT;

    if (handlers_shutdown(&ctx, &a->handlers, false, &err) < 0)
        log_error(&ctx, "cannot power off", F_ERR(&err));
    a->stopping = false;
}

static void on_term(void *arg, const struct signalfd_siginfo *info)
{
    struct agent *a = arg;

    if (a->stopping)
        return;
    a->stopping = true;
    fiber_go(a->loop, stop_fiber, a, "shutdown");
}

static void protect_self(struct ctx *ctx)
{
    struct sysinfo si = { 0 };
    struct err err = ERR_INIT;

    (void)sysinfo(&si); /* cannot fail */
    if (cgroup_setup(CGROUP_ROOT, (uint64_t)si.totalram * si.mem_unit, &err) < 0)
        log_warn(ctx, "cannot create cgroups; containers run without limits", F_ERR(&err));
    standing_raise(ctx);
}

/* --- the boot --- */

static int read_boot(void *arg, void *buf, size_t len, struct err *err)
{
    struct agent *a = arg;

    return fw_cfg_read(FW_CFG_FILES, LINK_BOOT_FILE, &a->boot_fd, buf, len, err);
}

static int bring_up(struct ctx *ctx, struct agent *a, struct err *err)
{
    static const char *const vsock_modules[] = { "qemu_fw_cfg", "vmw_vsock_virtio_transport",
                                                 "hv_sock" };

    if (a->opts->boot.transport == LINK_TCP)
        return a->opts->load_module("qemu_fw_cfg", err) < 0 ? -1 : link_up(ctx, err);
    /* The agent cannot tell QEMU from Hyper-V, so it loads what either needs. */
    for (size_t i = 0; i < ARRAY_LEN(vsock_modules); i++) {
        struct err why = ERR_INIT;
        if (a->opts->load_module(vsock_modules[i], &why) < 0)
            log_debug(ctx, "cannot load a vsock module; continuing without it", F_ERR(&why));
    }
    return 0;
}

/* The host sends random bytes and closes. A failure is only logged, because from lcow's host the
 * seed already came with the boot block. */
static int read_entropy(struct ctx *ctx, struct dialer *d, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, ENTROPY_NS);
    size_t total = 0, n = 0;
    int fd;

    if (dialer_dial(&bounded, d, PORT_ENTROPY, &fd, err) < 0)
        return -1;
    AUTO(stream_free) struct stream *s = stream_from_fd(ctx->loop, fd);
    AUTO_FREE char *buf = mem_alloc(SEED_CHUNK);
    do {
        if (stream_read(&bounded, s, buf, SEED_CHUNK, &n, err) < 0)
            return -1;
        if (n > 0 && seed_entropy(buf, n, err) < 0)
            return -1;
        total += n;
    } while (n > 0 && total < ENTROPY_MAX);
    mem_wipe(buf, SEED_CHUNK);
    return total > 0 ? seed_reseed(err) : err_set(err, ERR_DATA_LOSS, "the host sent no entropy");
}

static void watch_hotplug(struct ctx *ctx, struct agent *a)
{
    struct err err = ERR_INIT;

    if (hotplug_has_memory("/sys/bus/virtio/devices") &&
        a->opts->load_module("virtio_mem", &err) < 0)
        log_warn(ctx, "cannot load virtio_mem; the VM's memory cannot grow", F_ERR(&err));
    if (hotplug_start(a->loop, &err) < 0)
        log_warn(ctx, "cannot watch hot-plug events; added vCPUs and memory stay unused",
                 F_ERR(&err));
}

static void fetch_entropy(struct ctx *ctx, struct agent *a)
{
    uint64_t began = loop_now(a->loop);
    struct err err = ERR_INIT;

    if (read_entropy(ctx, link_dialer(a->link), &err) < 0)
        log_warn(ctx, "cannot get entropy from the host; continuing without it", F_ERR(&err));
    stages_add(&a->stages, "entropy", began, loop_now(a->loop));
}

/* A clone watches hot-plug events since its template and has just got its seed. Under emulation,
 * each step that it skips also saves translating its code. */
static void connect_host(void *arg)
{
    struct agent *a = arg;
    struct ctx root = ctx_root(a->loop), *ctx = &root;
    struct err err = ERR_INIT;

    if (!a->template) {
        watch_hotplug(ctx, a);
        fetch_entropy(ctx, a);
    }
    if (logport_connect(ctx, a->log, link_dialer(a->link), PORT_LOG, &err) < 0)
        log_warn(ctx, "cannot connect to the host's log port; retrying when the bridge connects",
                 F_ERR(&err));
    tell_stages(a);
}

/* The kernel's stage ends when PID 1 starts. */
static void take_stages(struct ctx *ctx, struct agent *a)
{
    struct err err = ERR_INIT;

    if (!a->opts->stages)
        return;
    struct stages from_init = { 0 };
    if (stages_parse(&from_init, a->opts->stages, &err) < 0) {
        log_warn(ctx, "cannot read the boot stages of init; the timeline lacks them", F_ERR(&err));
        return;
    }
    if (from_init.n > 0)
        stages_add(&a->stages, "kernel", 0, from_init.v[0].start_ns);
    for (size_t i = 0; i < from_init.n; i++)
        stages_add(&a->stages, from_init.v[i].name, from_init.v[i].start_ns, from_init.v[i].end_ns);
}

static bool disk_found(void)
{
    AUTO_FREE char *name = NULL;
    unsigned host;

    return scsi_host("/sys", 0, &host) == 0 && scsi_block("/sys", host, 0, 0, &name) == 0;
}

/* The kernel probes the disk in the background. If the template is saved before that is done, every
 * clone repeats it. There may be no disk: then the wait just ends. */
static void await_disk(struct ctx *ctx)
{
    struct ctx bounded = ctx_with_timeout(ctx, DISK_NS);
    struct err ignored = ERR_INIT;

    while (!disk_found() && fiber_sleep(&bounded, DISK_LOOK_NS, &ignored) == 0)
        ;
}

/* Loads and creates in the template what most containers need, so that clones need not. */
static void be_template(void *arg)
{
    static const char *const modules[] = { "virtio_mem", "virtio_scsi",  "sd_mod",
                                           "ext4",       "quota_v2",     "overlay",
                                           "9p",         "9pnet_virtio", "veth" };
    struct agent *a = arg;
    struct ctx ctx = ctx_root(a->loop);

    a->template = true;
    for (size_t i = 0; i < ARRAY_LEN(modules); i++) {
        struct err err = ERR_INIT;
        if (a->opts->load_module(modules[i], &err) < 0)
            log_warn(&ctx, "cannot preload a kernel module; it is loaded on first use",
                     F_ERR(&err));
    }
    struct err err = ERR_INIT;
    if (crun_new(&a->crun, &err) < 0)
        log_warn(&ctx, "cannot copy crun ahead; it is copied for the first container", F_ERR(&err));
    if (nets_prepare(&ctx, a->nets, &err) < 0)
        log_warn(&ctx, "cannot create a network namespace ahead; it is created on first use",
                 F_ERR(&err));
    watch_hotplug(&ctx, a);
    /* Each character on the console costs an emulated machine several exits; the kernel's message
     * about a new disk is not worth that in every clone. */
    (void)klogctl(KLOG_CONSOLE_LEVEL, NULL, KLOG_WARNINGS);
    await_disk(&ctx);
    (void)file_write("/proc/sys/vm/drop_caches", "3", 1, 0); /* makes the template smaller */
    fprintf(stderr, "lcow: stage ready\n");
}

static void set_level(void *arg, unsigned level)
{
    struct agent *a = arg;

    if (level < LOG_LEVEL_COUNT)
        logport_level(a->log, (enum log_level)level);
}

/* The template's builder has logged these lines already. */
static void forget_log(void *arg)
{
    logport_forget(((struct agent *)arg)->log);
}

static int boot(struct ctx *ctx, struct agent *a, struct err *err)
{
    const struct link_opts link = { .transport = a->opts->boot.transport,
                                    .read_boot = read_boot,
                                    .on_waiting = be_template,
                                    .on_level = set_level,
                                    .on_clone = forget_log,
                                    .arg = a };

    take_stages(ctx, a);
    if (reaper_new(a->loop, &a->reaper, err) < 0)
        return -1;
    protect_self(ctx);
    kmsg_start(a->loop, KMSG_PRIORITY);
    uint64_t began = loop_now(a->loop);
    if (bring_up(ctx, a, err) < 0)
        return err_wrap(err, "link");
    stages_add(&a->stages, "link", began, loop_now(a->loop));
    a->link = link_new(&link);
    if (link_await_token(ctx, a->link, err) < 0)
        return -1;
    /* The seed has come with the token, so nothing waits for more entropy or for the log. */
    if (link_is_foreign(a->link)) {
        a->told_host = true;
        connect_host(a);
    }
    return 0;
}

static int serve(struct ctx *ctx, struct agent *a, struct err *err)
{
    AUTO(server_free)
    struct server *server = server_new(&(struct server_opts){
        .dialer = link_dialer(a->link),
        .port = PORT_BRIDGE,
        .table = handlers_table,
        .n_entries = handlers_table_len,
        .arg = &a->handlers,
        .on_connected = on_connected,
        .on_idle = on_idle,
        .on_negotiated = on_negotiated,
        .on_unreachable = on_unreachable,
    });
    const struct containers_opts containers = {
        .loop = ctx->loop,
        .dialer = link_dialer(a->link),
        .nets = a->nets,
        .crun = TAKE_PTR(a->crun),
        .notify = handlers_notify,
        .arg = &a->handlers,
    };

    a->handlers.server = server;
    a->handlers.processes = vm_processes_new(ctx->loop, link_dialer(a->link));
    a->handlers.storage = storage_new(a->opts->load_module);
    a->handlers.dialer = link_dialer(a->link);
    a->handlers.nets = containers.nets;
    a->handlers.containers = containers_new(&containers);
    (void)loop_on_signal(ctx->loop, SIGUSR1, on_usr1, a);
    (void)loop_on_signal(ctx->loop, SIGTERM, on_term, a);
    int r = server_run(ctx, server, err);
    containers_free(a->handlers.containers);
    storage_free(a->handlers.storage);
    vm_processes_free(a->handlers.processes);
    return r;
}

int agent_run(struct ctx *ctx, const struct agent_opts *opts, struct err *err)
{
    struct agent a = { .opts = opts, .loop = ctx->loop, .nets = nets_new(), .boot_fd = -1 };
    int r = logport_new(ctx->loop, opts->boot.level, &a.log, err);

    a.handlers.power_off = opts->power_off;
    if (r == 0)
        r = boot(ctx, &a, err);
    if (r == 0)
        r = serve(ctx, &a, err);
    nets_free(a.nets);
    crun_free(a.crun);
    reaper_free(a.reaper);
    link_free(a.link);
    fd_close(a.boot_fd);
    logport_free(a.log);
    return r;
}
