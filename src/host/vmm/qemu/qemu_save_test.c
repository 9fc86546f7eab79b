/* A VM with a peer in QEMU's place is saved while it runs, and read into another object on another
 * loop: QEMU notices nothing. */
#include "base/child.h"
#include "base/fiber.h"
#include "base/stream.h"
#include "fixture/qemu_fixture.h"
#define SAVED_TWO_PROGRAMS
#include "fixture/handover_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/stat.h>

#define AMPLE (30 * NS_PER_S)
#define EVENT_HEAD "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": "

/* QEMU's own ends. */
enum { ITS_ERRORS = 2, ITS_QMP = 3, ITS_CONSOLE = 4 };

struct world {
    struct qemu_fixture f; /* f.v: of the program that runs */
    struct vmm *old;
    char *dir, *jail; /* a share that follows the host; the same in the jail */
    int image, pidfd;
    struct saved *writer;
    void (*before)(struct world *w);
    int checked;
    struct err err;
};

static struct scsi_slot slot(uint8_t lun)
{
    return (struct scsi_slot){ 0, lun };
}

static int add(struct world *w, uint8_t lun, struct err *err)
{
    struct ctx limited = ctx_with_timeout(w->f.ctx, AMPLE);

    return w->f.v->ops->scsi_add(&limited, w->f.v, slot(lun), w->image, false, err);
}

static int take(struct world *w, uint8_t lun, struct err *err)
{
    struct ctx limited = ctx_with_timeout(w->f.ctx, AMPLE);

    return w->f.v->ops->scsi_remove(&limited, w->f.v, slot(lun), err);
}

/* As if QEMU said it. */
static void say(struct world *w, int its_fd, const char *text)
{
    AUTO_FD int fd = pidfd_getfd(w->pidfd, its_fd, 0);

    ASSERT(fd >= 0);
    ASSERT_EQ(write(fd, text, strlen(text)), strlen(text));
}

/* --- shares --- */

static bool sees(const struct world *w, const char *path)
{
    AUTO_FREE char *full = str_format("%s/%s", w->jail, path);

    return access(full, F_OK) == 0;
}

static void await(struct world *w, const char *path, bool there)
{
    struct ctx limited = ctx_with_timeout(w->f.ctx, AMPLE);
    struct err err = ERR_INIT;

    while (sees(w, path) != there)
        ASSERT_OK(fiber_sleep(&limited, NS_PER_MS, &err), err);
}

static void mount_on(struct world *w, const char *name)
{
    AUTO_FREE char *point = str_format("%s/%s", w->dir, name), *file = str_format("%s/x", point);

    ASSERT(mkdir(point, 0755) == 0 || errno == EEXIST);
    ASSERT_EQ(mount(name, point, "tmpfs", 0, "size=64k"), 0);
    ASSERT_EQ(file_write(file, name, strlen(name), 0644), 0);
}

static void unmount(struct world *w, const char *name)
{
    AUTO_FREE char *point = str_format("%s/%s", w->dir, name);

    ASSERT_EQ(umount2(point, UMOUNT_NOFOLLOW), 0);
}

static void follow(struct world *w)
{
    AUTO_FD int fd = open(w->dir, O_PATH | O_CLOEXEC),
                tree = open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    struct vmm *v = w->f.v;
    struct err err = ERR_INIT;
    struct statx x;

    ASSERT_EQ(statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &x), 0);
    const struct vmm_follow what = {
        w->dir, x.stx_mnt_id, true, { (char *)"0:100000:9", (char *)"0:200000:9" }
    };
    ASSERT_OK(v->ops->share_add(w->f.ctx, v, "1", tree, true, &err), err);
    ASSERT_OK(v->ops->share_follow(w->f.ctx, v, "1", &what, true, &err), err);
}

/* --- the two programs --- */

/* The waits at which settled.c lets this VM be saved. */
static bool list_waits(void *arg, const char *name, const char *why)
{
    sbuf_addf(arg, "%s: %s\n", name, why ? why : "(runs)");
    return true;
}

static void save(struct world *w)
{
    AUTO(sbuf_release) struct sbuf waits = { 0 };
    static const char *const want[] = { "link accept: link: a connection",
                                        "qmp read: read",
                                        "qmp write: qmp: commands to send",
                                        "qemu console: read",
                                        "qemu stderr: read",
                                        "qemu watch: child's end",
                                        "follow share 1: mounts of the host" };
    AUTO(sbuf_release) struct sbuf all = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        sbuf_addf(&all, "%s\n", want[i]);
    for (int i = 0; i < 200; i++) { /* what was said before has been read then */
        ASSERT_OK(fiber_sleep(w->f.ctx, NS_PER_MS, &w->err), w->err);
        waits.len = 0;
        loop_each_fiber(w->f.ctx->loop, list_waits, &waits);
        if (i >= 20 && str_eq(waits.data, all.data))
            break;
    }
    ASSERT_STR(waits.data, all.data);
    w->writer = saved_writer();
    w->f.v->ops->saved(w->f.v, w->writer, NULL);
    w->checked = saved_check(w->writer, &w->err);
}

static void first_half(struct ctx *ctx, void *arg)
{
    struct world *w = arg;
    struct err err = ERR_INIT;

    fixture_prepare(ctx, &w->f, "plain", "", 61900);
    w->f.doc.scsi_controllers = 1;
    fixture_start(&w->f);
    w->image = open(w->f.initrd, O_RDWR | O_CLOEXEC);
    w->pidfd = pidfd_open(child_pid(qemu_of(w->f.v)->proc->child), 0);
    w->dir = str_format("%s/dir", w->f.temp.dir);
    w->jail = str_format("/proc/%d/root/shares/1", child_pid(qemu_of(w->f.v)->proc->child));
    ASSERT(w->image >= 0 && w->pidfd >= 0);
    ASSERT_EQ(mkdir(w->dir, 0755), 0);
    ASSERT_EQ(mount("vol", w->dir, "tmpfs", 0, "size=64k"), 0);
    mount_on(w, "early"); /* not shown: late */
    follow(w);
    mount_on(w, "one");
    await(w, "one/x", true);
    ASSERT_OK(add(w, 3, &err), err);
    if (w->before)
        w->before(w);
    save(w);
    w->old = w->f.v;
}

static void begin(struct world *w, void (*before)(struct world *w))
{
    if (geteuid() != 0)
        tap_skip("jail and network namespace need root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun here");
    *w = (struct world){ .before = before };
    saved_first_half(false, first_half, w);
}

static void read_again(struct ctx *ctx, struct world *w)
{
    struct err err = ERR_INIT;

    ASSERT_OK(w->checked, w->err);
    w->f.ctx = ctx;
    w->f.v = qemu_vmm_new(ctx->loop);
    qemu_of(w->f.v)->test_env = &w->f.env;
    AUTO(saved_free) struct saved *reader = saved_fixture_read(w->writer);
    saved_hand_over(reader, NULL);
    w->f.v->ops->saved(w->f.v, reader, NULL);
    ASSERT_OK(saved_check(reader, &err), err);
    saved_free(TAKE_PTR(w->writer));
}

static void forget(struct world *w)
{
    ASSERT_EQ(umount2(w->dir, MNT_DETACH), 0);
    fd_close(w->image);
    fd_close(w->pidfd);
    free(w->dir);
    free(w->jail);
}

/* With the disk of before. Then nothing may be left: not in QEMU, not in the ledger. */
static void finish(struct world *w)
{
    struct err err = ERR_INIT;

    ASSERT_OK(w->f.v->ops->share_remove(w->f.ctx, w->f.v, "1", &err), err);
    ASSERT(!sees(w, ""));
    ASSERT_OK(take(w, 3, &err), err);
    forget(w);
    fixture_quit(&w->f);
}

TEST_FIBER(disks_of_before_can_be_removed_and_others_added)
{
    struct world w;
    struct err err = ERR_INIT;
    struct vmm_info info;

    begin(&w, NULL);
    read_again(ctx, &w);
    w.f.v->ops->info(w.f.v, &info);
    ASSERT_EQ(info.pid, child_pid(qemu_of(w.old)->proc->child));
    ASSERT_STR(info.version, "10.0.1");
    ASSERT_FAIL(add(&w, 3, &err), err, ERR_STATE); /* in use */
    ASSERT_OK(add(&w, 4, &err), err);
    ASSERT_OK(take(&w, 4, &err), err);
    finish(&w);
}

TEST_FIBER(mounts_that_came_and_went_meanwhile_show)
{
    struct world w;
    struct stat st;

    begin(&w, NULL);
    unmount(&w, "one");
    mount_on(&w, "two");
    read_again(ctx, &w);
    await(&w, "two/x", true);
    await(&w, "one/x", false);
    ASSERT(!sees(&w, "early/x"));
    mount_on(&w, "three");
    await(&w, "three/x", true);
    AUTO_FREE char *path = str_format("%s/three/x", w.jail);
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_uid, 100000);
    ASSERT_EQ(st.st_gid, 200000);
    ASSERT_EQ(open(path, O_WRONLY | O_CLOEXEC), -1);
    ASSERT_EQ(errno, EROFS);
    finish(&w);
}

TEST_FIBER(nothing_is_mounted_while_the_previous_program_may_have_to_go_on)
{
    struct world w;
    struct err err = ERR_INIT;

    begin(&w, NULL);
    mount_on(&w, "two");
    loop_hold_io(ctx->loop, true);
    read_again(ctx, &w);
    ASSERT_OK(fiber_sleep(ctx, 100 * NS_PER_MS, &err), err);
    ASSERT(!sees(&w, "two/x"));
    loop_hold_io(ctx->loop, false);
    await(&w, "two/x", true);
    finish(&w);
}

TEST_FIBER(mounts_of_before_are_hidden_when_they_go)
{
    struct world w;

    begin(&w, NULL);
    read_again(ctx, &w);
    await(&w, "one/x", true);
    unmount(&w, "one");
    await(&w, "one/x", false);
    finish(&w);
}

static void half_of_everything(struct world *w)
{
    say(w, ITS_QMP, EVENT_HEAD "\"GUEST_PAN");
    say(w, ITS_CONSOLE, "[    1.000000] lcow: sta");
    say(w, ITS_ERRORS, "qemu: first\nqemu: it is bro");
}

TEST_FIBER(half_an_event_half_a_line_and_half_of_last_words_are_completed)
{
    struct world w;
    struct vmm_exit e;
    struct err err = ERR_INIT;

    begin(&w, half_of_everything);
    ASSERT(!qemu_of(w.old)->proc->panicked);
    read_again(ctx, &w);
    struct qemu *q = qemu_of(w.f.v);
    ASSERT(q->stage == VM_STAGE_KERNEL);
    say(&w, ITS_QMP, "ICKED\"}\r\n");
    say(&w, ITS_CONSOLE, "ge init\r\n");
    say(&w, ITS_ERRORS, "ken\n");
    struct ctx limited = ctx_with_timeout(ctx, AMPLE);
    while (!q->proc->panicked || q->stage < VM_STAGE_INIT)
        ASSERT_OK(fiber_sleep(&limited, NS_PER_MS, &err), err);
    ASSERT_EQ(kill(child_pid(q->proc->child), SIGKILL), 0);
    ASSERT_OK(w.f.v->ops->wait(ctx, w.f.v, &e, &err), err);
    ASSERT_EQ(e.reason, REASON_QEMU_KILLED);
    ASSERT_HAS(e.why, ": qemu: first / qemu: it is broken");
    ASSERT_OK(w.f.v->ops->release(ctx, w.f.v, &err), err);
    forget(&w);
    fixture_free(&w.f);
}

TEST_FIBER(the_end_of_qemu_while_the_program_is_replaced_is_seen)
{
    struct world w;
    struct vmm_exit e;
    struct err err = ERR_INIT;

    begin(&w, NULL);
    ASSERT_EQ(kill(child_pid(qemu_of(w.old)->proc->child), SIGKILL), 0);
    read_again(ctx, &w);
    ASSERT_OK(w.f.v->ops->wait(ctx, w.f.v, &e, &err), err);
    ASSERT(WIFSIGNALED(e.status));
    ASSERT_EQ(WTERMSIG(e.status), SIGKILL);
    ASSERT(!e.requested);
    ASSERT_OK(w.f.v->ops->release(ctx, w.f.v, &err), err);
    forget(&w);
    fixture_free(&w.f);
}

/* Values that no VM of this test has. */
static void odd_values(struct world *w)
{
    struct qemu *q = qemu_of(w->f.v);
    struct qemu_proc *p = q->proc;

    q->doc.template_dir = "/templates";
    q->doc.template_draft = "/draft";
    q->doc.max_memory_mib = 501;
    q->doc.cpus = 502;
    q->doc.max_cpus = 503;
    q->doc.pci_ports = 504;
    q->doc.disk_mib = 505;
    q->doc.shape.disk_iops = 506;
    q->doc.shape.disk_bytes_per_s = 507;
    q->doc.vsock = true;
    q->tpl_doc = (struct vm_doc){ .memory_mib = 601,
                                  .max_memory_mib = 602,
                                  .cpus = 603,
                                  .max_cpus = 604,
                                  .scsi_controllers = 605 };
    q->n_controllers = 606;
    q->has_spare = q->has_iommu = q->has_throttle = true;
    snprintf(q->tpl_key, sizeof(q->tpl_key), "key");
    q->want_template = true;
    q->restored_at = 607;
    snprintf(q->cold_why, sizeof(q->cold_why), "cold");
    q->form = QEMU_CLONE;
    q->dialled = q->ready = true;
    q->grown_bytes = 608;
    q->cpu_ids = 609;
    q->greeted_at = 610;
    q->console.panicked = true;
    snprintf(q->console.trouble, sizeof(q->console.trouble), "trouble");
    snprintf(p->words.kvm_error, sizeof(p->words.kvm_error), "kvm");
    snprintf(p->shutdown_why, sizeof(p->shutdown_why), "shutdown");
    p->panicked = true;
    p->stops = 611;
    p->resumed = 612;
    snprintf(p->migration, sizeof(p->migration), "completed");
    free(p->oom.mount);
    free(p->oom.path);
    p->oom.mount = str_dup("/mount");
    p->oom.path = str_dup("/path");
    p->oom.v2 = true;
    for (unsigned i = 0; i < OOM_LEVELS; i++)
        p->oom.before[i] = (struct oom_count){ 700 + i, 800 + i, true };
    struct plug *plug = LIST_FIRST(&q->plugs, struct plug, node);
    plug->deserted = plug->deleted = true;
    say(w, ITS_ERRORS, "words\nof qem");
    say(w, ITS_CONSOLE, "a line\r\nand a ha");
}

static void compare_docs(const struct qemu *a, const struct qemu *b)
{
    ASSERT_STR(b->doc.id, a->doc.id);
    ASSERT_STR(b->doc.run_dir, a->doc.run_dir);
    ASSERT_STR(b->doc.template_dir, "/templates");
    ASSERT_STR(b->doc.template_draft, "/draft");
    ASSERT_EQ(b->doc.memory_mib, 256);
    ASSERT_EQ(b->doc.max_memory_mib, 501);
    ASSERT_EQ(b->doc.cpus, 502);
    ASSERT_EQ(b->doc.max_cpus, 503);
    ASSERT_EQ(b->doc.scsi_controllers, 1);
    ASSERT_EQ(b->doc.pci_ports, 504);
    ASSERT_EQ(b->doc.disk_mib, 505);
    ASSERT_EQ(b->doc.shape.disk_iops, 506);
    ASSERT_EQ(b->doc.shape.disk_bytes_per_s, 507);
    ASSERT(b->doc.vsock);
    ASSERT_EQ(b->tpl_doc.memory_mib, 601);
    ASSERT_EQ(b->tpl_doc.max_memory_mib, 602);
    ASSERT_EQ(b->tpl_doc.cpus, 603);
    ASSERT_EQ(b->tpl_doc.max_cpus, 604);
    ASSERT_EQ(b->tpl_doc.scsi_controllers, 605);
}

static void compare_vms(const struct qemu *a, const struct qemu *b)
{
    AUTO(sbuf_release) struct sbuf was = { 0 }, is = { 0 };

    ASSERT_EQ(b->state, QEMU_RUNNING);
    ASSERT_EQ(b->stage, VM_STAGE_KERNEL);
    ASSERT_EQ(b->n_controllers, 606);
    ASSERT(b->has_spare && b->has_iommu && b->has_throttle);
    ASSERT_STR(b->program, a->program);
    ASSERT_STR(b->jail_dir, a->jail_dir);
    ASSERT_STR(b->tsc_env.state_file, a->tsc_env.state_file);
    ASSERT(b->accel.emulated);
    ASSERT(a->jail_record && b->jail_record == a->jail_record);
    ASSERT(a->proc_record && b->proc_record == a->proc_record);
    ASSERT_EQ(b->uid.fd, a->uid.fd);
    ASSERT_EQ(b->uid.uid, a->uid.uid);
    ASSERT_STR(b->tpl_key, "key");
    ASSERT(b->want_template);
    ASSERT_EQ(b->restored_at, 607);
    ASSERT_STR(b->cold_why, "cold");
    ASSERT_EQ(b->form, QEMU_CLONE);
    ASSERT(b->dialled && b->ready);
    ASSERT_EQ(b->grown_bytes, 608);
    ASSERT_EQ(b->cpu_ids, 609);
    ASSERT_EQ(b->greeted_at, 610);
    ASSERT_STR(b->version, "10.0.1");
    console_tail(&a->console, 4096, &was);
    console_tail(&b->console, 4096, &is);
    ASSERT_STR(is.data, was.data);
    ASSERT_HAS(is.data, "and a ha");
    ASSERT_EQ(b->console.line_len, strlen("and a ha"));
    ASSERT_EQ(memcmp(b->console.line, "and a ha", b->console.line_len), 0);
    ASSERT_STR(b->console.trouble, "trouble");
    ASSERT(b->console.panicked);
}

static void compare_procs(const struct qemu_proc *a, const struct qemu_proc *b)
{
    ASSERT_EQ(child_pid(b->child), child_pid(a->child));
    ASSERT_EQ(b->console->fd, a->console->fd);
    ASSERT_EQ(b->errors->fd, a->errors->fd);
    ASSERT_STR(b->words.tail, a->words.tail);
    ASSERT_EQ(b->words.line_len, a->words.line_len);
    ASSERT_EQ(memcmp(b->words.line, a->words.line, a->words.line_len), 0);
    ASSERT_STR(b->words.kvm_error, "kvm");
    ASSERT_STR(b->shutdown_why, "shutdown");
    ASSERT(b->panicked);
    ASSERT_EQ(b->stops, 611);
    ASSERT_EQ(b->resumed, 612);
    ASSERT_STR(b->migration, "completed");
    ASSERT_STR(b->oom.mount, "/mount");
    ASSERT_STR(b->oom.path, "/path");
    ASSERT(b->oom.v2);
    for (unsigned i = 0; i < OOM_LEVELS; i++) {
        ASSERT_EQ(b->oom.before[i].kills, 700 + i);
        ASSERT_EQ(b->oom.before[i].local, 800 + i);
        ASSERT(b->oom.before[i].known);
    }
}

TEST_FIBER(every_field_is_read)
{
    struct world w;
    struct vmm_exit e;
    struct err err = ERR_INIT;

    begin(&w, odd_values);
    read_again(ctx, &w);
    struct qemu *a = qemu_of(w.old), *b = qemu_of(w.f.v);
    compare_docs(a, b);
    compare_vms(a, b);
    compare_procs(a->proc, b->proc);
    const struct plug *p = LIST_FIRST(&a->plugs, struct plug, node),
                      *r = LIST_FIRST(&b->plugs, struct plug, node);
    ASSERT(r && r->kind == p->kind && r->attached && r->deserted && r->deleted && !r->inside);
    ASSERT_STR(r->id, "0-3");
    ASSERT_STR(r->label, "0:3");
    ASSERT_EQ(r->number, 3);
    ASSERT(p->parts && r->parts == p->parts);
    b->restored_at = 0; /* there are no templates */
    w.f.v->ops->terminate(w.f.v);
    ASSERT_OK(w.f.v->ops->wait(ctx, w.f.v, &e, &err), err);
    ASSERT_OK(w.f.v->ops->release(ctx, w.f.v, &err), err);
    forget(&w);
    fixture_free(&w.f);
}

/* --- what is refused --- */

static void work_on_a_disk(struct world *w)
{
    LIST_FIRST(&qemu_of(w->f.v)->plugs, struct plug, node)->inside = true;
}

static void work(struct world *w)
{
    static struct qemu_op op;

    (void)qemu_op_begin(w->f.ctx, qemu_of(w->f.v), &op);
}

static void quit_soon(struct world *w)
{
    qemu_of(w->f.v)->quitting = true;
}

static void stop(struct world *w)
{
    qemu_of(w->f.v)->proc->looking = true;
}

static void give_up(struct world *w)
{
    snprintf(qemu_of(w->f.v)->proc->stopped, 24, "internal-error");
}

static void build(struct world *w)
{
    qemu_of(w->f.v)->form = QEMU_TEMPLATE;
}

TEST_FIBER(a_vm_that_is_being_changed_is_not_saved)
{
    static const struct {
        void (*before)(struct world *w);
        const char *why;
    } cases[] = { { work_on_a_disk, "disk 0:3 is being changed" },
                  { work, "the VM is being changed" },
                  { quit_soon, "the VM is not running, or is being ended" },
                  { stop, "why is not known yet" },
                  { give_up, "QEMU was killed: internal-error" },
                  { build, "a template is being built" } };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;

        begin(&w, cases[i].before);
        ASSERT_EQ(w.checked, -1);
        ASSERT_EQ(w.err.code, ERR_STATE);
        ASSERT_HAS(w.err.msg, cases[i].why);
        ASSERT_EQ(kill(child_pid(qemu_of(w.old)->proc->child), SIGKILL), 0);
        ASSERT_EQ(umount2(w.dir, MNT_DETACH), 0);
        ASSERT_EQ(dir_remove(w.f.temp.dir), 0);
        saved_free(w.writer);
    }
}
