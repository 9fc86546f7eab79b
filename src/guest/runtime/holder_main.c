/* holder_main.c - the whole program of a holder (holder.h), as a pause image has it: SIGTERM and
 * SIGINT end it with 0, and the kernel reaps the children that it adopts. The two signals are
 * blocked when it begins. Beyond waiting for them and exiting it may do nothing. */
#include "base/bare.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define PR_SET_NAME 15
#define SIGCHLD 17
#define ENDS (1UL << (2 - 1) | 1UL << (15 - 1)) /* SIGINT, SIGTERM */
#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define SKIP_IF(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, n, 0)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)

BARE_START(holder_main)

static __attribute__((noreturn)) void leave(long code)
{
    for (;;)
        bare_call(__NR_exit_group, code, 0, 0, 0);
}

__attribute__((noreturn, used)) void holder_main(void);

void holder_main(void)
{
    static const struct bare_action ignore = { .handler = BARE_SIG_IGN };
    static const unsigned long ends = ENDS;
    static const struct sock_filter filter[] = {
        LOAD(arch),
        SKIP_IF(ARCH, 1),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        SKIP_IF(__NR_rt_sigtimedwait, 2),
        SKIP_IF(__NR_exit_group, 1),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        RETURN(SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog prog = { sizeof(filter) / sizeof(filter[0]),
                                     (struct sock_filter *)filter };

    bare_call(__NR_prctl, PR_SET_NAME, (long)"pause", 0, 0);
    bare_call(__NR_rt_sigaction, SIGCHLD, (long)&ignore, 0, BARE_SIGSET_BYTES);
    if (bare_call(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&prog, 0) != 0)
        leave(1);
    while (bare_call(__NR_rt_sigtimedwait, (long)&ends, 0, 0, BARE_SIGSET_BYTES) < 0)
        ; /* it was stopped and continued */
    leave(0);
}
