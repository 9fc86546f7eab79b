#include "guest/runtime/holder.h"
#include "base/child.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "guest/runtime/standing.h"
#include "oci/spec.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OOM_FILE "/proc/self/oom_score_adj"

/* What is written where, by the new process: made before it, because it may not allocate. */
struct write {
    char *path, *text;
};

struct launch {
    const char *netns, *hostname;
    uint32_t uid, gid;
    struct write *writes;
    size_t n_writes;
};

static void launch_release(struct launch *l)
{
    for (size_t i = 0; i < l->n_writes; i++) {
        free(l->writes[i].path);
        free(l->writes[i].text);
    }
    free(l->writes);
}
AUTO_VALUE(struct launch, launch_release);

/* --- in the new process --- */

static int join_network(const struct launch *l, struct err *err)
{
    if (!l->netns[0])
        return 0;

    int fd = open(l->netns, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -1 : setns(fd, CLONE_NEWNET);

    if (r < 0)
        err_sys(err, errno, "join network namespace %s", l->netns);
    if (fd >= 0)
        close(fd);
    return r;
}

static int put_one(const struct write *w, struct err *err)
{
    int fd = open(w->path, O_WRONLY | O_CLOEXEC);
    size_t len = strlen(w->text);
    bool done = fd >= 0 && write(fd, w->text, len) == (ssize_t)len;

    if (!done)
        err_sys(err, errno, "write %s to %s", w->text, w->path);
    if (fd >= 0)
        close(fd);
    return done ? 0 : -1;
}

static int leave_files(struct err *err)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", "/proc", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k") <
            0 ||
        chdir("/proc") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
        return err_sys(err, errno, "make an empty root");
    return 0;
}

static int leave_rights(const struct launch *l, struct err *err)
{
    struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[2] = { 0 };

    for (int cap = 0; prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0; cap++)
        ;
    /* Not by the C library, which would look for the parent's threads. */
    if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, l->gid, l->gid, l->gid) < 0 ||
        syscall(SYS_setresuid, l->uid, l->uid, l->uid) < 0)
        return err_sys(err, errno, "become user %u:%u", l->uid, l->gid);
    if (syscall(SYS_capset, &head, none) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(err, errno, "give up all rights");
    return 0;
}

static int enter(void *arg, struct err *err)
{
    const struct launch *l = arg;
    sigset_t ends;

    /* Blocked, a signal that comes before its program waits is not lost. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL);
    standing_drop();
    if (join_network(l, err) < 0)
        return -1;
    if (sethostname(l->hostname, strlen(l->hostname)) < 0)
        return err_sys(err, errno, "set host name %s", l->hostname);
    for (size_t i = 0; i < l->n_writes; i++)
        if (put_one(&l->writes[i], err) < 0)
            return -1;
    return leave_files(err) < 0 ? -1 : leave_rights(l, err);
}

/* --- before it --- */

static void add(struct launch *l, char *path, char *text)
{
    l->writes[l->n_writes++] = (struct write){ path, text };
}

/* "net.ipv4.ping_group_range" is below /proc/sys/net, which shows the reader's own namespace. */
static char *sysctl_path(const char *name)
{
    char *path = str_format("/proc/sys/%s", name);

    for (char *c = path + strlen("/proc/sys/"); *c; c++)
        if (*c == '.')
            *c = '/';
    return path;
}

static int prepare(const struct holder_opts *o, struct launch *l, struct err *err)
{
    const json_t *root = spec_json(o->spec), *user = js_get(js_get(root, "process"), "user"),
                 *value;
    json_t *sysctls = js_get(js_get(root, "linux"), "sysctl");
    const char *name;
    bool set;
    int adj = spec_oom_score_adj(o->spec, &set);

    if (!spec_namespace(o->spec, "network", &l->netns))
        l->netns = "";
    l->hostname = spec_text(root, "hostname");
    if (js_u32(user, "uid", &l->uid, err) < 0 || js_u32(user, "gid", &l->gid, err) < 0)
        return err_wrap(err, "process.user");
    l->writes = mem_zalloc((json_object_size(sysctls) + 2) * sizeof(*l->writes));
    add(l, str_format("%s/cgroup.procs", o->cgroup), str_dup("0"));
    if (set)
        add(l, str_dup(OOM_FILE), str_format("%d", adj));
    json_object_foreach(sysctls, name, value)
    {
        if (!json_is_string(value))
            return err_set(err, ERR_INVALID, "invalid sysctl %.128s: not a string", name);
        add(l, sysctl_path(name), str_dup(json_string_value(value)));
    }
    return 0;
}

/* Who may only execute it can neither trace nor dump its process. */
static int make_program(int *ret, struct err *err)
{
    AUTO_FD int fd = memfd_create("holder", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int r = fd < 0 ? -errno : fd_write_full(fd, holder_blob, holder_blob_len);

    if (r == 0 &&
        (fchmod(fd, 0111) < 0 ||
         fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0))
        r = -errno;
    if (r < 0)
        return err_sys(err, -r, "make the holder's program");
    *ret = TAKE_FD(fd);
    return 0;
}

int holder_spawn(struct ctx *ctx, const struct holder_opts *o, pid_t *ret, struct err *err)
{
    static const char *const argv[] = { "/pause", NULL }, *const no_env[] = { NULL };
    AUTO(launch_release) struct launch l = { 0 };
    AUTO_FD int program = -1;
    struct child_fd fds[3];
    struct child *child;
    size_t n = 0;

    if (prepare(o, &l, err) < 0 || make_program(&program, err) < 0)
        return -1;
    for (int i = 0; i < 3; i++)
        if (o->fds[i] >= 0)
            fds[n++] = (struct child_fd){ o->fds[i], i };
    const struct child_opts opts = { .exec_fd = program,
                                     .argv = argv,
                                     .envp = no_env,
                                     .cwd = "/",
                                     .fds = fds,
                                     .n_fds = n,
                                     .clone_flags = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                                                    CLONE_NEWNS | (l.netns[0] ? 0 : CLONE_NEWNET),
                                     .new_session = true,
                                     .setup = enter,
                                     .setup_arg = &l };
    if (child_spawn(ctx, &opts, &child, err) < 0)
        return err_wrap(err, "start the pod's first process");
    *ret = child_pid(child);
    child_leave(child);
    return 0;
}
