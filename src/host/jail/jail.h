/* jail.h - the surroundings of a VMM: an own root of read-only system libraries and what is named
 * here, own mount, pid, network, ipc and uts namespaces, a user id of its own, no capabilities
 * but the named ones, no_new_privs. Everything is laid out by jail_new(); jail_setup() runs in the
 * child, makes the system calls and allocates nothing. What it mounts lives and dies with the
 * child's mount namespace.
 *
 *     struct child_opts o = { …, .clone_flags = JAIL_CLONE_FLAGS,
 *                             .setup = jail_setup, .setup_arg = jail, .new_session = true }; */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ctx;
struct err;
struct jail;

/* CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS */
#define JAIL_CLONE_FLAGS UINT64_C(0x6c020000)

/* What sharing files with their owners needs, and no more: CHOWN, DAC_OVERRIDE, FOWNER, FSETID. */
#define JAIL_CAPS_SHARES UINT64_C(0x1b)

/* A read-only mount of the plain file behind fd that is in no namespace yet; for jail_file. It can
 * be moved into one jail only. The fd, or -errno. */
int jail_tree(int fd);

/* Opens the device behind fd (O_PATH will do) anew, with open's flags. Through the descriptor the
 * device can be used, but not given another owner or mode, nor opened with other rights. A process
 * in a jail could do these things otherwise, by its capabilities (JAIL_CAPS_SHARES) and fd_links.
 * The fd, or -errno. */
int jail_device(int fd, int flags);
/* /dev/net/tun in that way, to make a tap of it in the network namespace of the calling thread.
 * ERR_STATE has the remedy. */
int jail_tun(int *ret_fd, struct err *err);
/* /dev/vhost-net, /dev/vhost-vsock in that way. It loads the kernel's module, if there is one. */
int jail_vhost_net(int *ret_fd, struct err *err);
int jail_vsock(int *ret_fd, struct err *err);

/* A mount made by jail_tree, by the number its fd has in the child, and where it is moved to: onto
 * one of `dirs` if it is a directory's. The fd itself is closed at exec. */
struct jail_file {
    int child_fd;
    const char *to;
};

/* Bytes that become a file only the jailed user reads. */
struct jail_blob {
    const char *to;
    const void *data;
    size_t len;
};

struct jail_opts {
    const char *mount_point;    /* an empty directory of ours; stays empty outside the jail */
    const char *program;        /* absolute; shown at the same path */
    uint32_t uid;               /* and gid; not 0 */
    uint64_t caps;              /* a mask */
    const char *const *dirs;    /* empty directories, NULL-terminated; may be NULL */
    const char *const *devices; /* nodes of the host, NULL-terminated: "/dev/null" …; may be NULL */
    /* A directory in which device nodes work: empty, and read-only for the program; may be NULL. */
    const char *device_dir;
    bool fd_links; /* /proc/self/fd of the program itself, and nothing else of /proc: what QEMU
                      needs to change the mode of a shared file. An fd can be opened anew through
                      it, so one that may only read must come from a read-only mount (jail_tree). */
    const struct jail_file *files;
    size_t n_files;
    const struct jail_blob *blobs;
    size_t n_blobs;
    uint64_t max_fds, max_threads; /* 0: as ours; never raised */
    bool small_pages;              /* no transparent huge pages, even if it asks for them */
};

/* Looks at the host's file system (libraries, symbolic links); copies opts. Caller frees. */
int jail_new(const struct jail_opts *opts, struct jail **ret, struct err *err);
void jail_free(struct jail *j);
AUTO_DEFINE(struct jail *, jail_free);
/* For child_opts.setup; arg is the struct jail. */
int jail_setup(void *arg, struct err *err);

/* A network namespace, by a path that is a client's. Waits until it is open or ctx ends.
 * ERR_INVALID if it is something else, which is not opened: to open a device may do something. */
int jail_netns(struct ctx *ctx, const char *path, int *ret_fd, struct err *err);
#define JAIL_OOM_SCORE_MAX 1000
/* Who goes first when the host runs out of memory: -1000 (never) … 1000 (first). For a process of
 * ours that is not reaped yet. ERR_INVALID outside that range. Lowering it below what we have
 * ourselves needs a right that we may lack: that is a warning in the log, not an error. */
int jail_oom_score(const struct ctx *ctx, pid_t pid, int adj, struct err *err);
