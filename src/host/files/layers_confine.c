/* layers_confine.c - system calls that mkfs.erofs has no use for. It needs CAP_SYS_ADMIN to read
 * trusted attributes (overlay's marks), with which a program could otherwise leave its jail. */
#include "base/err.h"
#include "base/mem.h"
#include "host/files/layers_priv.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifdef __x86_64__
#define NATIVE AUDIT_ARCH_X86_64
#else
#define NATIVE AUDIT_ARCH_AARCH64
#endif
#define X32_FROM 0x40000000 /* the same calls by other numbers */

static const uint32_t refused[] = {
    /* mounts, namespaces, other roots */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_move_mount, SYS_fsopen,
    SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr, SYS_unshare, SYS_setns,
    /* files by other means than their path, and what an ioctl can do to a file system */
    SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_ioctl, SYS_quotactl, SYS_quotactl_fd,
    SYS_swapon, SYS_swapoff, SYS_fanotify_init, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr,
    /* other processes, the network, the kernel itself */
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_getfd, SYS_socket,
    SYS_io_uring_setup, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key,
    SYS_keyctl, SYS_syslog, SYS_acct, SYS_init_module, SYS_finit_module, SYS_delete_module,
    SYS_kexec_load, SYS_reboot, SYS_sethostname, SYS_setdomainname
};
_Static_assert(ARRAY_LEN(refused) < 250, "a jump is a byte");

static const struct sock_filter head[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_FROM, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

int layers_confine(struct err *err)
{
    struct sock_filter all[ARRAY_LEN(head) + ARRAY_LEN(refused) + 2];
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(head); i++)
        all[n++] = head[i];
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        all[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i],
                                                (uint8_t)(ARRAY_LEN(refused) - i), 0);
    all[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    all[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    const struct sock_fprog filter = { (unsigned short)n, all };
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0
               ? err_sys(err, errno, "filter system calls")
               : 0;
}
