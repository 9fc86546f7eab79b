/* qemu_proc.c - one QEMU process: spawned into its jail, its channels read, its end awaited. */
#include "base/bucket.h"
#include "base/child.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/jail/jail.h"
#include "host/ledger/ledger.h"
#include "host/vmm/qemu/qemu_priv.h"
#include "proto/qmp.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_FDS 4096
#define MAX_THREADS 512
#define CONSOLE_READS_BURST 4096
#define CONSOLE_READS_PER_S 500

/* --- what it says --- */

static void read_console(void *arg)
{
    struct qemu_proc *p = arg;
    struct bucket reads = { .burst = CONSOLE_READS_BURST, .per_s = CONSOLE_READS_PER_S };
    struct err err = ERR_INIT;
    char buf[1024];
    uint64_t pause = 0;
    size_t n;

    /* Never left unread for long: a full console blocks the guest. But QEMU passes on each byte by
     * itself, so a guest that writes without end would wake us for each. */
    while ((pause == 0 || stream_pause(&p->ctx, p->console, pause, &err) == 0) &&
           stream_read(&p->ctx, p->console, buf, sizeof(buf), &n, &err) == 0 && n > 0) {
        pause = bucket_take(&reads, 1, loop_now(p->vm->loop));
        enum console_news news = console_feed(&p->vm->console, buf, n);
        if (news >= CONSOLE_KERNEL)
            qemu_raise_stage(p->vm, VM_STAGE_KERNEL);
        if (news >= CONSOLE_INIT)
            qemu_raise_stage(p->vm, VM_STAGE_INIT);
        if (news == CONSOLE_READY) {
            p->vm->ready = true;
            waitq_wake_all(&p->vm->stage_q);
        }
    }
}

static void read_errors(void *arg)
{
    struct qemu_proc *p = arg;
    struct err err = ERR_INIT;
    char buf[512];
    size_t n;

    while (stream_read(&p->ctx, p->errors, buf, sizeof(buf), &n, &err) == 0 && n > 0)
        qemu_words_feed(&p->ctx, &p->words, buf, n);
}

/* "" if the event does not say. */
static const char *text_of(const struct qmp_message *m, const char *key)
{
    const char *text = json_string_value(json_object_get(m->data, key));

    return text ? text : "";
}

/* The guest gets the error too and continues (werror=report). The guest decides how often it writes
 * to a full disk. "disk-0-7" is controller 0, LUN 7. ("nospace" is true only for a VM that is
 * stopped by it.) */
static void on_io_error(struct qemu_proc *p, const struct qmp_message *m)
{
    const char *why = text_of(m, "reason"); /* as strerror() has it */
    enum reason reason =
        str_eq(why, strerrordesc_np(ENOSPC)) ? REASON_DISK_FULL : REASON_DISK_IO_ERROR;

    if (log_rate_ok(&p->io_errors, loop_now(p->vm->loop)))
        log_warn(&p->ctx, "disk I/O error on the host", F_STR("disk", text_of(m, "node-name")),
                 F_STR("during", text_of(m, "operation")), F_STR("why", why),
                 F_U("lost", p->io_errors.lost), F_REASON(reason));
}

static void on_event(void *arg, const struct qmp_message *m)
{
    struct qemu_proc *p = arg;

    if (str_eq(m->event, "SHUTDOWN")) {
        AUTO_FREE char *why = str_printable(text_of(m, "reason"));
        snprintf(p->shutdown_why, sizeof(p->shutdown_why), "%s", why);
    } else if (str_eq(m->event, "GUEST_PANICKED")) {
        p->panicked = true;
    } else if (str_eq(m->event, "STOP") || str_eq(m->event, "SUSPEND")) {
        qemu_stopped(p);
    } else if (str_eq(m->event, "RESUME")) {
        p->resumed++;
    } else if (str_eq(m->event, "DEVICE_DELETED")) { /* a part of a device has no name */
        qemu_plug_deleted(p->vm, text_of(m, "device"));
        qemu_cpu_deleted(p->vm, text_of(m, "device"));
    } else if (str_eq(m->event, "MIGRATION")) {
        snprintf(p->migration, sizeof(p->migration), "%s", text_of(m, "status"));
        waitq_wake_all(&p->vm->stage_q);
    } else if (str_eq(m->event, "MEMORY_DEVICE_SIZE_CHANGE")) {
        struct err ignored = ERR_INIT;
        (void)js_u64(m->data, "size", &p->vm->grown_bytes, &ignored);
        waitq_wake_all(&p->vm->stage_q);
    } else if (str_eq(m->event, "BLOCK_IO_ERROR")) {
        on_io_error(p, m);
    }
}

/* --- its end --- */

static void watch(void *arg)
{
    struct qemu_proc *p = arg;
    struct ctx life = p->vm->life;
    struct err err = ERR_INIT;
    int status = 0;

    life.cancel = NULL; /* nothing but its end ends this */
    if (child_wait(&life, p->child, &status, &err) < 0)
        log_error(&life, "cannot watch QEMU", F_ERR(&err));
    /* Its last words are in the sockets already; then their ends follow. */
    struct ctx drain = ctx_with_timeout(&life, QEMU_DRAIN_NS);
    if (fibers_wait(&drain, &p->readers, "qemu's last words", &err) < 0 ||
        qmp_client_join(&drain, p->qmp, &err) < 0)
        log_warn(&life, "QEMU exited but its channels are still open", F_ERR(&err));
    cancel_fire(&p->cancel, ERR_UNAVAILABLE, "qemu is gone");
    qmp_client_close(p->qmp, "qemu is gone");
    qemu_exit_fill(p, status);
    latch_set(&p->gone);
    qemu_proc_ended(p->vm, p);
}

void qemu_proc_kill(struct qemu_proc *p)
{
    (void)child_kill(p->child, SIGKILL); /* gone already: fine */
}

int qemu_proc_drop(struct ctx *ctx, struct qemu_proc *p, struct err *err)
{
    if (fibers_wait(ctx, &p->watcher, "qemu's end", err) < 0 ||
        fibers_wait(ctx, &p->readers, "qemu's channels", err) < 0 ||
        qmp_client_join(ctx, p->qmp, err) < 0 || qemu_follow_drop(ctx, p, err) < 0)
        return -1;
    qmp_client_free(p->qmp);
    stream_free(p->console);
    stream_free(p->errors);
    child_free(p->child);
    oom_watch_release(&p->oom);
    cancel_release(&p->cancel);
    free(p);
    return 0;
}

/* --- its beginning --- */

/* Both ends of everything QEMU inherits; [0] is ours. Nothing but descriptors. */
struct wiring {
    int qmp[2], console[2], errors[2], kernel, initrd;
    int ram, devices; /* of a clone: read-only mounts; of a template: ram is the file */
};

static void wiring_release_auto(struct wiring *w)
{
    for (int *fd = (int *)w; fd < (int *)(w + 1); fd++)
        fd_close(*fd);
}

/* Through a read-only mount no process in the jail can open it for writing, whatever its
 * capabilities are. */
static int wire_tree(int fd, const char *what, int *ret, struct err *err)
{
    *ret = jail_tree(fd);
    return *ret < 0 ? err_sys(err, -*ret, "prepare %s for the jail", what) : 0;
}

static int wire(struct qemu *q, struct wiring *w, struct err *err)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w->qmp) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w->console) < 0 ||
        pipe2(w->errors, O_CLOEXEC) < 0)
        return err_sys(err, errno, "make qemu's channels");
    if (wire_tree(q->kernel_fd, "the kernel", &w->kernel, err) < 0 ||
        wire_tree(q->initrd_fd, "the initrd", &w->initrd, err) < 0)
        return -1;
    if (q->form == QEMU_COLD)
        return 0;
    if (q->form == QEMU_CLONE)
        return wire_tree(q->tpl.ram_fd, "the template's memory", &w->ram, err) < 0
                   ? -1
                   : wire_tree(q->tpl.state_fd, "the template's devices", &w->devices, err);
    w->ram = fcntl(q->draft->ram_fd, F_DUPFD_CLOEXEC, 3);
    w->devices = fcntl(q->draft->state_fd, F_DUPFD_CLOEXEC, 3);
    return w->ram < 0 || w->devices < 0 ? err_sys(err, errno, "copy a descriptor") : 0;
}

static int make_jail(struct qemu *q, struct jail **ret, struct err *err)
{
    static const char *const dirs[] = { QEMU_JAIL_SHARES, NULL };
    const char *const devices[] = { "/dev/null", "/dev/urandom",
                                    q->accel.emulated ? NULL : q->accel_env.kvm, NULL };
    const struct jail_file files[] = { { QEMU_FD_KERNEL, QEMU_JAIL_KERNEL },
                                       { QEMU_FD_INITRD, QEMU_JAIL_INITRD },
                                       { QEMU_FD_RAM, QEMU_JAIL_RAM },
                                       { QEMU_FD_STATE, QEMU_JAIL_STATE } };
    uint8_t boot[LINK_BOOT_BYTES];

    q->boot.wall_ns = loop_wall(q->loop);
    /* A template's has no token, so its agent waits. */
    link_boot_encode(q->form == QEMU_TEMPLATE ? &(struct link_boot){ .wall_ns = q->boot.wall_ns }
                                              : &q->boot,
                     boot);
    const struct jail_blob blobs[] = {
        { QEMU_JAIL_FW_CFG, boot, sizeof(boot) },
        /* QEMU asks whether memory need not be reserved. If the
         * host forbids that, the kernel says so when it is mapped. */
        { "/proc/sys/vm/overcommit_memory", "0\n", 2 }
    };
    int r =
        jail_new(&(struct jail_opts){ .mount_point = q->jail_dir,
                                      .program = q->program,
                                      .uid = q->uid.uid,
                                      .caps = JAIL_CAPS_SHARES,
                                      .dirs = dirs,
                                      .devices = devices,
                                      .device_dir = q->doc.pci_ports ? QEMU_JAIL_VFIO : NULL,
                                      .fd_links = true,
                                      .files = files,
                                      .n_files = q->form == QEMU_CLONE ? 4 : 2,
                                      .blobs = blobs,
                                      .n_blobs = ARRAY_LEN(blobs),
                                      .max_fds = MAX_FDS,
                                      .max_threads = MAX_THREADS,
                                      .small_pages = q->form == QEMU_CLONE && q->accel.emulated },
                 ret, err);
    mem_wipe(boot, sizeof(boot));
    return r;
}

static int record_pid(void *arg, pid_t pid, struct err *err)
{
    struct qemu *q = arg;

    if (qemu_forget(q, &q->proc_record, err) < 0 ||
        ledger_add_process(q->ledger, pid, &q->proc_record, err) < 0)
        return -1;
    return q->doc.on_pid ? q->doc.on_pid(q->doc.on_pid_arg, pid, err) : 0;
}

static int spawn(struct ctx *ctx, struct qemu *q, const struct wiring *w, struct child **ret,
                 struct err *err)
{
    AUTO(jail_free) struct jail *jail = NULL;
    AUTO(strv_release) struct strv args = { 0 };
    const struct qemu_host host = qemu_host_of(q);
    const struct child_fd fds[] = { { w->errors[1], 2 },
                                    { w->qmp[1], QEMU_FD_QMP },
                                    { w->console[1], QEMU_FD_CONSOLE },
                                    { qlink_device(q->link), QEMU_FD_LINK },
                                    { w->kernel, QEMU_FD_KERNEL },
                                    { w->initrd, QEMU_FD_INITRD },
                                    { w->ram, QEMU_FD_RAM },
                                    { w->devices, QEMU_FD_STATE } };
    /* Its threads allocate little: one heap for all is smaller than one for each. */
    static const char *const env[] = { "MALLOC_ARENA_MAX=1", NULL };

    qemu_cmdline(qemu_base_doc(q), q->program, &host, &args);
    if (make_jail(q, &jail, err) < 0)
        return -1;
    return child_spawn(
        ctx,
        &(struct child_opts){ .path = q->program,
                              .argv = (const char *const *)args.v,
                              .envp = env,
                              .fds = fds,
                              .n_fds = ARRAY_LEN(fds) - (q->form == QEMU_COLD ? 2 : 0),
                              .clone_flags = JAIL_CLONE_FLAGS,
                              .new_session = true,
                              .die_with_us = true,
                              .setup = jail_setup,
                              .setup_arg = jail,
                              .on_pid = record_pid,
                              .on_pid_arg = q },
        ret, err);
}

struct qmp_client_opts qemu_qmp_opts(struct qemu_proc *p)
{
    return (struct qmp_client_opts){ .life = &p->vm->life, .on_event = on_event, .arg = p };
}

struct qemu_proc *qemu_proc_new(struct qemu *q)
{
    struct qemu_proc *p = mem_new(struct qemu_proc);

    p->vm = q;
    p->io_errors.burst = 5;
    cancel_init(&p->cancel, NULL);
    p->ctx = ctx_with_cancel(&q->life, &p->cancel);
    latch_init(&p->gone);
    fibers_init(&p->readers);
    fibers_init(&p->watcher);
    list_init(&p->followers);
    return p;
}

void qemu_proc_watch(struct qemu_proc *p)
{
    fibers_go(&p->readers, p->vm->loop, read_console, p, FIBER_QEMU_CONSOLE);
    fibers_go(&p->readers, p->vm->loop, read_errors, p, FIBER_QEMU_ERRORS);
    fibers_go(&p->watcher, p->vm->loop, watch, p, FIBER_QEMU_WATCH);
}

static struct qemu_proc *proc_begin(struct qemu *q, struct child *child, struct wiring *w)
{
    struct qemu_proc *p = qemu_proc_new(q);
    struct qmp_client_opts qmp = qemu_qmp_opts(p);

    p->child = child;
    oom_watch_begin(&p->oom, child_pid(child));
    p->console = stream_from_fd(q->loop, TAKE_FD(w->console[0]));
    p->errors = stream_from_fd(q->loop, TAKE_FD(w->errors[0]));
    qmp.stream = stream_from_fd(q->loop, TAKE_FD(w->qmp[0]));
    p->qmp = qmp_client_new(&qmp);
    qemu_proc_watch(p);
    return p;
}

int qemu_proc_spawn(struct ctx *ctx, struct qemu *q, struct qemu_proc **ret, struct err *err)
{
    AUTO(wiring_release) struct wiring w;
    struct child *child = NULL;

    memset(&w, -1, sizeof(w));
    SPAN(step, ctx, q->vmm.timeline, TRACK_HOST, "spawn (jail)", err);
    if (qlink_arm(step.ctx, q->link, err) < 0)
        return -1;
    q->boot.cid = qlink_cid(q->link);
    q->boot.vsock_port = qlink_port(q->link);
    if (wire(q, &w, err) < 0 || spawn(step.ctx, q, &w, &child, err) < 0)
        return err_wrap_because(err, REASON_QEMU_UNUSABLE, "start %s", q->program);
    *ret = proc_begin(q, child, &w);
    q->has_spare = qemu_base_doc(q)->scsi_controllers > 0 && q->doc.disk_mib > 0;
    return 0;
}
