/* child_priv.h - between child_linux.c and child_save_linux.c. */
#pragma once
#include "base/child.h"
#include "base/loop_priv.h"

struct child {
    struct loop *loop;
    pid_t pid;
    int pidfd;
    struct source source;
    struct latch done;
    int status;
};

/* Takes pidfd, which may be -1. */
struct child *child_new(struct loop *loop, pid_t pid, int pidfd);
/* From now on its end is noticed. 0 or -errno. */
int child_watch(struct child *c);
