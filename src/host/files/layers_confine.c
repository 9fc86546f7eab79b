/* layers_confine.c - the system calls that mkfs.erofs (1.5 to 1.8) and the C library make to read a
 * tree and to write a file, with threads. Every other one fails as if the kernel did not have it,
 * for which libraries have a second way. It needs CAP_SYS_ADMIN to read trusted attributes
 * (overlay's marks), with which a program could otherwise leave its jail. */
#include "base/err.h"
#include "base/mem.h"
#include "host/files/layers_priv.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifdef __x86_64__
#define NATIVE AUDIT_ARCH_X86_64
/* Those that newer architectures do without. */
#define OLD                                                                                        \
    SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_getdents, SYS_dup2, SYS_pipe,     \
        SYS_poll, SYS_time, SYS_arch_prctl,
#else
#define NATIVE AUDIT_ARCH_AARCH64
#define OLD
#endif

static const uint32_t allowed[] = {
    OLD
        /* files and directories by their path: the jail bounds it */
        SYS_openat,
    SYS_close, SYS_newfstatat, SYS_fstat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_faccessat,
    SYS_faccessat2, SYS_readlinkat, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_umask,
    SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr,
    /* their data */
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_lseek, SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_fsync, SYS_fdatasync,
    SYS_sync_file_range, SYS_copy_file_range, SYS_sendfile, SYS_fcntl, SYS_dup, SYS_dup3, SYS_pipe2,
    SYS_ppoll,
    /* memory */
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_mincore, SYS_brk,
    /* threads and signals; clone is below, and clone3's flags cannot be seen by a filter */
    SYS_futex, SYS_set_robust_list, SYS_set_tid_address, SYS_rseq, SYS_gettid, SYS_getpid,
    SYS_getppid, SYS_tgkill, SYS_sched_yield, SYS_sched_getaffinity, SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_restart_syscall, SYS_execve,
    SYS_exit, SYS_exit_group,
    /* what it is, and the time */
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_uname, SYS_sysinfo, SYS_prlimit64,
    SYS_getrlimit, SYS_getrusage, SYS_getrandom, SYS_clock_gettime, SYS_clock_getres,
    SYS_gettimeofday, SYS_nanosleep, SYS_clock_nanosleep
};
_Static_assert(ARRAY_LEN(allowed) < 250, "a jump is a byte");

#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)

#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS)
#define FIRST_ARG                                                                                  \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, /* both machines are little-endian */                       \
             offsetof(struct seccomp_data, args))

/* The x32 calls, which have numbers of their own, are in no list. */
static const struct sock_filter head[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
    FIRST_ARG,
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 1, 0),
    ALLOW,
    REFUSE,
    /* What base/child sets behind this filter. */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 4),
    FIRST_ARG,
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_PDEATHSIG, 0, 1),
    ALLOW,
    REFUSE,
};

int layers_confine(struct err *err)
{
    struct sock_filter all[ARRAY_LEN(head) + ARRAY_LEN(allowed) + 2];
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(head); i++)
        all[n++] = head[i];
    for (size_t i = 0; i < ARRAY_LEN(allowed); i++)
        all[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
                                                (uint8_t)(ARRAY_LEN(allowed) - i), 0);
    all[n++] = (struct sock_filter)REFUSE;
    all[n++] = (struct sock_filter)ALLOW;
    const struct sock_fprog filter = { (unsigned short)n, all };
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0
               ? err_sys(err, errno, "filter system calls")
               : 0;
}
