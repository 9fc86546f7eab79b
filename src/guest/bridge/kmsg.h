/* kmsg.h - the kernel's messages, from /dev/kmsg into the log. */
#pragma once
#include <stdint.h>

struct loop;

#define KMSG_TEXT_MAX 1024

struct kmsg_record {
    unsigned priority, facility; /* priority 0 (emergency) … 7 (debug) */
    uint64_t seq, usec;          /* since boot */
    char flags;
    char text[KMSG_TEXT_MAX];
};

/* "prio,seq,usec,flags[,…];text\n KEY=value…". 0 or -EBADMSG. Longer texts are cut. */
int kmsg_parse(const char *raw, struct kmsg_record *ret);
/* A fiber that logs every record of at most this priority, from the oldest the kernel still has,
 * for the life of the loop. Logs a warning if the kernel has no /dev/kmsg. */
void kmsg_start(struct loop *loop, unsigned max_priority);
