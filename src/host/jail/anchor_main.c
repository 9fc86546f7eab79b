/* anchor_main.c - the whole program of an anchor: it sets its name and waits without limit. No C
 * library: a page of code, a page or two of stack. It is embedded into the program that spawns it.
 * In a VM it is the first process of a pod (tree_open_pause): the kernel reaps the children that it
 * adopts. */
#include "base/bare.h"

#define PR_SET_NAME 15
#define SIGCHLD 17

BARE_START(anchor_main)

__attribute__((noreturn, used)) void anchor_main(const long *stack);

void anchor_main(const long *stack)
{
    const struct bare_action ignore = { .handler = BARE_SIG_IGN };

    bare_call(__NR_prctl, PR_SET_NAME, stack[1], 0, 0);
    bare_call(__NR_rt_sigaction, SIGCHLD, (long)&ignore, 0, BARE_SIGSET_BYTES);
    for (;;)
        bare_call(__NR_ppoll, 0, 0, 0, 0); /* no fds, no time limit: only a signal ends it */
}
