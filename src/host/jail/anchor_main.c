/* anchor_main.c - the whole program of an anchor: it sets its name and waits without limit. No C
 * library: a page of code, a page or two of stack. It is embedded into the program that spawns it.
 * In a VM it is the first process of a pod (tree_open_pause): the kernel reaps the children that it
 * adopts. */
#include <asm/unistd.h>

#define PR_SET_NAME 15
#define SIGCHLD 17
#define SIG_IGN 1L

/* As the kernel has it. */
struct action {
    long handler;
    unsigned long flags, restorer, mask;
};

#if defined(__x86_64__)
static long call(long nr, long a, long b, long d)
{
    register long r10 __asm__("r10") = d;
    long ret;

    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(0L), "r"(r10)
                     : "rcx", "r11", "memory");
    return ret;
}
/* The stack begins with argc, then argv. */
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tandq $-16, %rsp\n"
        "\tcall anchor_main\n\thlt\n");
#elif defined(__aarch64__)
static long call(long nr, long a, long b, long d)
{
    register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                     x2 __asm__("x2") = 0, x3 __asm__("x3") = d, x4 __asm__("x4") = 0;

    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x0, sp\n\tbl anchor_main\n\tbrk #0\n");
#else
#error "an anchor for this processor is missing: two functions"
#endif

__attribute__((noreturn, used)) void anchor_main(const long *stack);

void anchor_main(const long *stack)
{
    const struct action ignore = { .handler = SIG_IGN };

    call(__NR_prctl, PR_SET_NAME, stack[1], 0);
    call(__NR_rt_sigaction, SIGCHLD, (long)&ignore, sizeof(ignore.mask));
    for (;;)
        call(__NR_ppoll, 0, 0, 0); /* no fds, no time limit: only a signal ends it */
}
