#include "guest/init/init.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "guest/init/modules.h"
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <net/if.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGS_MAX 32
#define NOFILE_SOFT 1024
#define NOFILE_HARD 1048576
#define SAFE (MS_NODEV | MS_NOSUID | MS_NOEXEC)
/* The kernel's log only reaches a quiet console with an urgent priority. */
#define KMSG_PREFIX "<1>"

/* What the link to the host needs; all else is loaded when it is first used. */
static const char *const boot_modules[] = { "virtio_pci", "virtio_net" };

/* When each part of the boot began and ended, CLOCK_MONOTONIC ns. The serving role reports them to
 * the host. */
struct stamps {
    uint64_t init_start, mounts_start, mounts_end, modules_start, modules_end, init_end;
};

/* --- file systems (docs/reference/gcs-protocol.md §1.3) --- */

struct entry {
    const char *where, *type;
    unsigned long flags;
    const char *data;
};

static const struct entry dev_entry = { "/dev", "devtmpfs", MS_NOSUID | MS_NOEXEC, NULL };

static const struct entry entries[] = {
    { "/proc", "proc", SAFE, NULL },
    { "/sys", "sysfs", SAFE, NULL },
    { "/run", "tmpfs", SAFE, "mode=0755" },
    { "/tmp", "tmpfs", SAFE, "mode=1777" },
    { "/mnt", "tmpfs", MS_NODEV | MS_NOSUID, "mode=0755" }, /* shared directories, tools */
    { "/dev/shm", "tmpfs", SAFE, "mode=1777" },
    { "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=0620,ptmxmode=0666" },
    { "/sys/fs/cgroup", "cgroup2", SAFE, NULL },
};

static const struct {
    const char *path, *target;
} symlinks[] = {
    { "/dev/fd", "/proc/self/fd" },
    { "/dev/stdin", "/proc/self/fd/0" },
    { "/dev/stdout", "/proc/self/fd/1" },
    { "/dev/stderr", "/proc/self/fd/2" },
};

static int mount_entry(const struct entry *e, struct err *err)
{
    if (mkdir(e->where, 0755) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make %s", e->where);
    /* EBUSY: the kernel mounted it already (CONFIG_DEVTMPFS_MOUNT). */
    if (mount(e->type, e->where, e->type, e->flags, e->data) < 0 && errno != EBUSY)
        return err_sys(err, errno, "mount %s on %s", e->type, e->where);
    return 0;
}

/* Makes the initramfs root one that pivot_root accepts, by moving a bind mount of it over "/". */
static int mounts_root(struct err *err)
{
    if (mkdir("/sysroot", 0755) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make /sysroot");
    if (mount("/", "/sysroot", NULL, MS_BIND | MS_REC, NULL) < 0)
        return err_sys(err, errno, "bind / on /sysroot");
    if (chdir("/sysroot") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0)
        return err_sys(err, errno, "move /sysroot to /");
    if (chroot(".") < 0 || chdir("/") < 0)
        return err_sys(err, errno, "chroot to the moved root");
    return 0;
}

/* devtmpfs on /dev and its symlinks: from here on there is a console. */
static int mounts_dev(struct err *err)
{
    if (mount_entry(&dev_entry, err) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(symlinks); i++)
        if (symlink(symlinks[i].target, symlinks[i].path) < 0 && errno != EEXIST)
            return err_sys(err, errno, "make symlink %s", symlinks[i].path);
    return 0;
}

/* A process that is misled to write into the VM's own files, by a symlink in a container's root for
 * example, fails. The kernel itself still makes nodes in /dev: it does not go through this mount,
 * and a device can be opened for writing on a read-only one. */
static int seal(struct err *err)
{
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
        return err_sys(err, errno, "make / read-only");
    if (mount(NULL, dev_entry.where, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | dev_entry.flags,
              NULL) < 0)
        return err_sys(err, errno, "make %s read-only", dev_entry.where);
    return 0;
}

/* The rest is read-only from here on. */
static int mounts_all(struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(entries); i++)
        if (mount_entry(&entries[i], err) < 0)
            return -1;
    return seal(err);
}

/* --- the boot --- */

/* A line on the console, where the host reads how far the boot has come: one write(2) of at most
 * 512 bytes. A missing console falls back to the kernel's log. */
__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
    char text[480], line[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);

    size_t used = (size_t)snprintf(line, sizeof(line), KMSG_PREFIX "lcow: %s\n", text);
    const char *plain = line + strlen(KMSG_PREFIX);
    AUTO_FD int console = open("/dev/console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (console >= 0 && fd_write_full(console, plain, used - strlen(KMSG_PREFIX)) >= 0)
        return;
    AUTO_FD int kmsg = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (kmsg >= 0)
        (void)fd_write_full(kmsg, line, used); /* nothing else can be done with the message */
}

static int loopback_up(struct err *err)
{
    struct ifreq req = { .ifr_name = "lo" };
    AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return err_sys(err, errno, "socket for lo");
    int r = ioctl(fd, SIOCGIFFLAGS, &req);
    req.ifr_flags |= IFF_UP;
    if (r < 0 || ioctl(fd, SIOCSIFFLAGS, &req) < 0)
        return err_sys(err, errno, "bring up lo");
    return 0;
}

static int boot(struct stamps *t, struct err *err)
{
    const struct rlimit nofile = { NOFILE_SOFT, NOFILE_HARD };

    t->init_start = clock_mono();
    if (mounts_root(err) < 0 || mounts_dev(err) < 0)
        return -1;
    say("stage init");
    t->mounts_start = clock_mono();
    if (mounts_all(err) < 0)
        return -1;
    t->mounts_end = t->modules_start = clock_mono();
    for (size_t i = 0; i < ARRAY_LEN(boot_modules); i++)
        if (modules_load(boot_modules[i], err) < 0)
            return -1;
    t->modules_end = clock_mono();
    if (setrlimit(RLIMIT_NOFILE, &nofile) < 0)
        return err_sys(err, errno, "set RLIMIT_NOFILE");
    if (loopback_up(err) < 0)
        return -1;
    t->init_end = clock_mono();
    return 0;
}

/* The child starts with no blocked signals, a session of its own, /dev/null as stdin, and the
 * console as stderr. */
static int spawn_agent(const char *exe, const char *const *args, const struct stamps *t,
                       pid_t *ret_pid, struct err *err)
{
    static char *const env[] = { (char *)"PATH=/sbin:/usr/sbin:/bin:/usr/bin", NULL };
    char stages[256];
    const char *argv[ARGS_MAX] = { "gcs", "serve", "-stages", stages };
    size_t n = 4;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    sigset_t none;

    snprintf(stages, sizeof(stages), "init=%lu-%lu,mounts=%lu-%lu,modules=%lu-%lu", t->init_start,
             t->init_end, t->mounts_start, t->mounts_end, t->modules_start, t->modules_end);
    for (; *args && n < ARGS_MAX - 1; args++)
        argv[n++] = *args;
    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    int r = posix_spawn(ret_pid, exe, &files, &attr, (char *const *)argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return r ? err_sys(err, r, "start the agent %s", exe) : 0;
}

/* Reaps all that has ended; true when the agent was among it. */
static bool reap(pid_t agent, int *ret_status)
{
    bool gone = false;
    int status;

    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == agent) {
            *ret_status = status;
            gone = true;
        }
    }
    return gone;
}

/* Runs until the agent has exited. Forwards a request to stop to the agent, which stops its
 * processes first. */
static int watch(const sigset_t *signals, pid_t agent)
{
    int status = 0;

    while (!reap(agent, &status)) {
        siginfo_t info;
        int signo = sigwaitinfo(signals, &info);
        if (signo == SIGTERM || signo == SIGINT || signo == SIGPWR)
            kill(agent, SIGTERM);
    }
    return status;
}

int init_power_off(struct err *err)
{
    reboot(RB_POWER_OFF);
    return err_sys(err, errno, "power off");
}

/* No sync: it could hang on a dead disk, and after the agent's death nothing on the disks is used
 * again. */
static int end_vm(void)
{
    struct err err = ERR_INIT;

    (void)init_power_off(&err);
    say("%s", err.msg);
    return 1; /* when PID 1 exits the kernel panics, which also ends the VM */
}

int init_run(const char *exe, const char *const *args)
{
    struct err err = ERR_INIT;
    struct stamps stamps = { 0 };
    sigset_t signals;
    pid_t agent;

    sigfillset(&signals);
    sigprocmask(SIG_SETMASK, &signals, NULL);
    if (boot(&stamps, &err) < 0 || spawn_agent(exe, args, &stamps, &agent, &err) < 0) {
        say("init failed: %s", err.msg);
        return end_vm();
    }
    say("stage agent");
    malloc_trim(0);
    mem_drop_program(); /* booting has mapped most pages, and PID 1 only reaps from now on */

    int status = watch(&signals, agent);
    if (WIFSIGNALED(status))
        say("agent died: killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        say("agent died: exit status %d", WEXITSTATUS(status));
    return end_vm();
}
