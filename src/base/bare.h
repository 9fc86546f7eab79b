/* bare.h - for programs of a few hundred bytes that have no C library: their first instruction, and
 * system calls. Such a program is compiled by hand (src/base/meson.build) and embedded, as an
 * array, into the program that executes it. */
#pragma once
#include <asm/unistd.h>

/* As the kernel has it; SIG_DFL and SIG_IGN need no restorer. */
struct bare_action {
    long handler;
    unsigned long flags, restorer, mask;
};
#define BARE_SIG_IGN 1L
#define BARE_SIGSET_BYTES sizeof(((struct bare_action *)0)->mask)

#if defined(__x86_64__)
static inline long bare_call(long nr, long a, long b, long c, long d)
{
    register long r10 __asm__("r10") = d;
    long ret;

    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return ret;
}
/* The stack begins with argc, then argv; main gets its address. */
#define BARE_START(main)                                                                           \
    __asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tandq $-16, %rsp\n"      \
            "\tcall " #main "\n\thlt\n");
#elif defined(__aarch64__)
static inline long bare_call(long nr, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                     x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = 0;

    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#define BARE_START(main)                                                                           \
    __asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x0, sp\n\tbl " #main "\n\tbrk #0\n");
#else
#error "this processor is missing: its first instructions and its system calls"
#endif
