/* stacks.h - what the agent is doing, for DumpStacks and SIGUSR1: every fiber with what it waits
 * for, every thread with where it is in the kernel. */
#pragma once

struct loop;

/* Caller frees. Never waits. */
char *stacks_dump(struct loop *loop);
/* The same into the log, one line each. */
void stacks_log(struct loop *loop);
