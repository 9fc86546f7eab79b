/* qemu_create.c - everything a VM needs before a process runs: QEMU, kernel and initrd, link, uid,
 * jail; and its undoing. */
#include "base/child.h"
#include "base/offload.h"
#include "base/stream.h"
#include "host/ledger/ledger.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- which QEMU --- */

/* The program: a path is checked, a name (NULL: QEMU_PROGRAM) is looked for in PATH. Caller frees.
 * ERR_NOT_FOUND has the remedy. */
static int find_program(const char *name, char **ret_path, struct err *err)
{
    if (!name)
        name = QEMU_PROGRAM;
    if (strchr(name, '/') && name[0] != '/')
        return err_set(err, ERR_INVALID, "%s: a program's path must be absolute", name);
    *ret_path = child_find(name);
    if (*ret_path)
        return 0;
    return name[0] == '/'
               ? err_because(err, REASON_QEMU_UNUSABLE, ERR_NOT_FOUND,
                             "%s cannot be run (%s); " QEMU_REMEDY, name, strerrordesc_np(errno))
               : err_because(err, REASON_QEMU_MISSING, ERR_NOT_FOUND,
                             "%s is not in PATH; " QEMU_REMEDY, name);
}

bool qemu_version_is(const char *version, unsigned major, unsigned minor)
{
    unsigned has_major = 0, has_minor = 0;

    sscanf(version, "%u.%u", &has_major, &has_minor);
    return has_major > major || (has_major == major && has_minor >= minor);
}

int qemu_check_version(const char *program, const char *version, struct err *err)
{
    if (qemu_version_is(version, QEMU_VERSION_MIN_MAJOR, QEMU_VERSION_MIN_MINOR))
        return 0;
    return err_because(err, REASON_QEMU_TOO_OLD, ERR_STATE,
                       "%s is QEMU %s, which is too old (needed: %d.%d); " QEMU_REMEDY, program,
                       version, QEMU_VERSION_MIN_MAJOR, QEMU_VERSION_MIN_MINOR);
}

static int check_text(const char *path, const char *text, char ret[64], struct err *err)
{
    const char *at = strstr(text, "version ");
    unsigned major, minor, micro = 0;

    if (!at || sscanf(at, "version %u.%u.%u", &major, &minor, &micro) < 2)
        return err_because(err, REASON_QEMU_UNUSABLE, ERR_STATE,
                           "%s does not print its version; " QEMU_REMEDY, path);
    snprintf(ret, 64, "%u.%u.%u", major, minor, micro);
    return qemu_check_version(path, ret, err);
}

int qemu_version(struct ctx *ctx, const char *path, char ret[64], struct err *err)
{
    const char *const argv[] = { path, "-version", NULL };
    struct ctx limited = ctx_with_timeout(ctx, 10 * NS_PER_S);
    AUTO(child_free) struct child *child = NULL;
    char text[512];
    size_t len = 0, n = 1;
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    AUTO(stream_free) struct stream *out = stream_from_fd(ctx->loop, fds[0]);
    AUTO_FD int write_end = fds[1];
    const struct child_fd to = { write_end, 1 };
    if (child_spawn(&limited,
                    &(struct child_opts){
                        .path = path, .argv = argv, .fds = &to, .n_fds = 1, .die_with_us = true },
                    &child, err) < 0)
        return -1;
    fd_close(TAKE_FD(write_end));
    while (n > 0 && len < sizeof(text) - 1) {
        if (stream_read(&limited, out, text + len, sizeof(text) - 1 - len, &n, err) < 0)
            return err_wrap_because(err, REASON_QEMU_UNUSABLE, "run %s -version", path);
        len += n;
    }
    text[len] = '\0';
    return check_text(path, text, ret, err);
}

/* --- kernel and initrd --- */

struct images {
    const char *kernel, *initrd;
    int kernel_fd, initrd_fd;
};

static void images_close(void *job)
{
    struct images *i = job;

    fd_close(i->kernel_fd);
    fd_close(i->initrd_fd);
}

/* The first bytes go to head; fewer are ERR_DATA_LOSS. */
static int open_image(const char *what, const char *path, void *head, size_t len, int *ret,
                      struct err *err)
{
    struct stat st;
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT)
        return err_because(err, REASON_IMAGE_MISSING, ERR_NOT_FOUND,
                           "%s %s does not exist; " IMAGE_REMEDY, what, path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, errno, "open %s %s", what, path);
    if (!S_ISREG(st.st_mode))
        return err_because(err, REASON_IMAGE_DAMAGED, ERR_INVALID, "%s %s is not a regular file",
                           what, path);
    ssize_t n = fd_read_full(fd, head, len);
    if (n < 0)
        return err_sys(err, (int)-n, "read %s %s", what, path);
    if ((size_t)n < len)
        return err_because(err, REASON_IMAGE_DAMAGED, ERR_DATA_LOSS,
                           "%s %s is damaged (%zd bytes); " IMAGE_REMEDY, what, path, n);
    *ret = TAKE_FD(fd);
    return 0;
}

/* In a thread: the paths may be of a dead NFS. Looks at the first bytes, too. */
static int open_images(void *job, struct err *err)
{
    struct images *j = job;
    Elf64_Ehdr elf;
    char magic[6];

    if (open_image("kernel", j->kernel, &elf, sizeof(elf), &j->kernel_fd, err) < 0)
        return -1;
    if (memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
        elf.e_machine != EM_X86_64 || elf.e_phnum == 0)
        return err_because(
            err, REASON_IMAGE_DAMAGED, ERR_DATA_LOSS,
            "kernel %s is damaged or not a vmlinux (an ELF file for x86-64); " IMAGE_REMEDY,
            j->kernel);
    if (open_image("initrd", j->initrd, magic, sizeof(magic), &j->initrd_fd, err) < 0)
        return -1;
    /* Ours is never compressed: the guest would take longer to unpack it than to read it. */
    if (memcmp(magic, "070701", 6) != 0)
        return err_because(err, REASON_IMAGE_DAMAGED, ERR_DATA_LOSS,
                           "initrd %s is damaged or not a cpio archive; " IMAGE_REMEDY, j->initrd);
    return 0;
}

/* --- the document --- */

const char *qemu_keep(struct qemu *q, const char *text)
{
    if (!text)
        return NULL;
    strv_add(&q->texts, text);
    return q->texts.v[q->texts.n - 1];
}

static const char *keep_path(struct qemu *q, const char *dir, const char *name)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);

    return qemu_keep(q, path);
}

int qemu_places(struct qemu *q, struct err *err)
{
    /* <run root>/<namespace>/<id> */
    AUTO_FREE char *copy = str_dup(q->doc.run_dir);
    const char *root = dirname(dirname(copy));

    q->life = ctx_with_id(&q->root, LK_UVM_ID, q->doc.id);
    q->life.cancel = &q->life_cancel;
    if (str_eq(root, "/"))
        return err_set(err, ERR_INVALID, "runtime directory %s is not two levels below a root",
                       q->doc.run_dir);
    q->jail_dir = keep_path(q, q->doc.run_dir, "jail");
    q->uid_dir = keep_path(q, root, "uids");
    q->accel_env = accel_env_of_host(keep_path(q, root, "accel"));
    q->tsc_env = tsc_env_of_host(keep_path(q, root, "tsc"));
    if (q->test_env) {
        q->accel_env.cpuinfo = q->test_env->cpuinfo;
        q->accel_env.kvm = q->test_env->kvm;
    }
    return 0;
}

static int copy_doc(struct qemu *q, const struct vm_doc *doc, struct err *err)
{
    const char **const strings[] = { &q->doc.id,
                                     &q->doc.uuid,
                                     &q->doc.run_dir,
                                     &q->doc.kernel,
                                     &q->doc.initrd,
                                     &q->doc.template_dir,
                                     &q->doc.template_draft,
                                     &q->doc.shape.kernel_args,
                                     &q->doc.agent_log_level };

    q->doc = *doc;
    qemu_cap_doc(&q->doc);
    q->doc.vmm_path = NULL;
    for (size_t i = 0; i < ARRAY_LEN(strings); i++)
        *strings[i] = qemu_keep(q, *strings[i]);
    return qemu_places(q, err);
}

static void dialled(void *arg, uint32_t port)
{
    struct qemu *q = arg;

    q->dialled = true;
    waitq_wake_all(&q->stage_q);
    if (port == PORT_BRIDGE)
        qemu_raise_stage(q, VM_STAGE_AGENT);
}

struct qlink_opts qemu_link_opts(struct qemu *q)
{
    return (struct qlink_opts){ .life = &q->life,
                                .token = q->boot.token,
                                .vsock = q->doc.vsock,
                                .on_dial = dialled,
                                .arg = q };
}

static int make_link(struct ctx *ctx, struct qemu *q, struct err *err)
{
    SPAN(step, ctx, q->vmm.timeline, TRACK_HOST, q->doc.vsock ? "vsock" : "netns+tap", err);

    loop_rand(q->loop, q->boot.token, sizeof(q->boot.token));
    loop_rand(q->loop, q->boot.seed, sizeof(q->boot.seed));
    q->boot.repeat = q->doc.template_draft != NULL;
    enum log_level level;
    if (q->doc.agent_log_level && log_level_parse(q->doc.agent_log_level, &level) == 0)
        q->boot.log_level = (uint8_t)(level + 1);
    const struct qlink_opts opts = qemu_link_opts(q);
    return qlink_new(step.ctx, &opts, &q->link, err);
}

/* The record first, then the thing. */
static int make_owned(struct qemu *q, struct err *err)
{
    q->ledger = q->doc.ledger;
    if (!q->ledger && ledger_create(q->doc.run_dir, &q->ledger, err) < 0)
        return -1;
    if (uid_slot_take(q->uid_dir, q->doc.uid_base, q->doc.uid_count, &q->uid, err) < 0)
        return -1;
    if (ledger_add(q->ledger, LEDGER_DIR, q->jail_dir, &q->jail_record, err) < 0)
        return -1;
    int r = dir_make(q->jail_dir, 0700);
    return r < 0 ? err_sys(err, -r, "make directory %s", q->jail_dir) : 0;
}

static int create_parts(struct ctx *ctx, struct qemu *q, const struct vm_doc *doc, struct err *err)
{
    AUTO_FREE char *program = NULL;

    if (qemu_doc_check(doc, err) < 0 || copy_doc(q, doc, err) < 0 ||
        find_program(doc->vmm_path, &program, err) < 0)
        return -1;
    q->program = qemu_keep(q, program);
    if (accel_choose(&q->accel_env, doc->accel, doc->allow_emulation, &q->accel, err) < 0)
        return -1;
    struct images images = { q->doc.kernel, q->doc.initrd, -1, -1 };
    if (OFFLOAD(ctx, open_images, &images, 2, images_close, "open the guest image", err) < 0)
        return -1;
    q->kernel_fd = images.kernel_fd;
    q->initrd_fd = images.initrd_fd;
    if (doc->template_draft && qemu_draft_open(q, err) < 0)
        return -1;
    if (doc->template_dir && !doc->template_draft)
        qemu_template_look(q);
    if (make_owned(q, err) < 0)
        return -1;
    return make_link(ctx, q, err);
}

int qemu_create(struct ctx *ctx, struct vmm *v, const struct vm_doc *doc, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (fsm_check(&qemu_fsm, q->state, QEMU_EV_CREATED, err) < 0)
        return -1;
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = q->dying ? err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "the VM was terminated")
                     : create_parts(&inner, q, doc, err);
    if (r == 0)
        r = ctx_check(&inner, err);
    if (r == 0) {
        fsm_step(&qemu_fsm, &q->state, QEMU_EV_CREATED);
    } else {
        /* Not the caller's deadline: what was made must go. Its fibers end at once. */
        struct ctx undo = ctx_with_timeout(&q->root, UINT64_C(5000000000));
        struct err lost = ERR_INIT;
        if (qemu_uncreate(&undo, q, &lost) < 0)
            err_wrap(err, "%s; and before that", lost.msg);
    }
    return r;
}

static int drop_link(struct ctx *ctx, struct qemu *q, struct err *err)
{
    if (!q->link)
        return 0;
    qlink_close(q->link, "the VM is gone");
    if (qlink_join(ctx, q->link, err) < 0)
        return -1;
    qlink_free(TAKE_PTR(q->link));
    return 0;
}

int qemu_forget(struct qemu *q, uint64_t *record, struct err *err)
{
    if (*record && ledger_forget(q->ledger, *record, err) < 0)
        return -1;
    *record = 0;
    return 0;
}

static int drop_owned(struct qemu *q, struct err *err)
{
    if (!q->ledger)
        return 0;
    int r = q->jail_record ? dir_remove(q->jail_dir) : 0;
    if (r < 0)
        return err_sys(err, -r, "remove directory %s", q->jail_dir);
    if (qemu_forget(q, &q->proc_record, err) < 0 || qemu_forget(q, &q->jail_record, err) < 0)
        return -1;
    if (!q->doc.ledger) { /* ours alone */
        if (ledger_finish(q->ledger, err) < 0)
            return -1;
        ledger_close(q->ledger);
    }
    q->ledger = NULL;
    return 0;
}

void qemu_forget_doc(struct qemu *q)
{
    fd_close(TAKE_FD(q->kernel_fd));
    fd_close(TAKE_FD(q->initrd_fd));
    template_close(&q->tpl);
    uid_slot_release(&q->uid);
    mem_wipe(&q->boot, sizeof(q->boot));
}

int qemu_uncreate(struct ctx *ctx, struct qemu *q, struct err *err)
{
    if (drop_link(ctx, q, err) < 0)
        return -1;
    if (drop_owned(q, err) < 0)
        return -1;
    qemu_forget_doc(q);
    if (q->state == QEMU_NEW) { /* it may be tried again */
        strv_release(&q->texts);
        q->doc = (struct vm_doc){ 0 };
        q->life = q->root;
    }
    return 0;
}
