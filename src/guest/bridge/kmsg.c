#include "guest/bridge/kmsg.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORD_MAX 8192 /* the kernel's own limit */
#define BURST 500       /* lines per second */
#define OURS "lcow: "   /* PID 1, where it has no console */

struct reader {
    struct loop *loop;
    unsigned max_priority;
    struct log_rate rate;
};

/* A decimal number and the comma behind it; moves on. (sscanf would bring 90 KB of the C library
 * into the agent.) */
static bool take_number(const char **at, uint64_t *ret)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    *ret = strtoull(*at, &end, 10);
    *at = end + 1;
    return *end == ',';
}

int kmsg_parse(const char *raw, struct kmsg_record *ret)
{
    const char *at = raw;
    uint64_t prio;

    if (!take_number(&at, &prio) || !take_number(&at, &ret->seq) || !take_number(&at, &ret->usec) ||
        *at == '\0' || *at == ';' || !strchr(at, ';'))
        return -EBADMSG;
    ret->flags = *at;
    ret->priority = prio & 7;
    ret->facility = (unsigned)(prio >> 3);
    at = strchr(at, ';') + 1;
    snprintf(ret->text, sizeof(ret->text), "%.*s", (int)strcspn(at, "\n"), at);
    return 0;
}

static enum log_level level_of(unsigned priority)
{
    static const enum log_level levels[8] = { LOG_ERROR, LOG_ERROR, LOG_ERROR, LOG_ERROR,
                                              LOG_WARN,  LOG_INFO,  LOG_INFO,  LOG_DEBUG };

    return levels[priority & 7];
}

static void log_record(struct reader *r, const struct kmsg_record *rec)
{
    const char flags[2] = { rec->flags, '\0' };

    if (rec->priority > r->max_priority || str_starts(rec->text, OURS) ||
        !log_rate_ok(&r->rate, loop_now(r->loop)))
        return;
    LOG_AT(NULL, level_of(rec->priority), "kernel message", F_STR("message", rec->text),
           F_U("priority", rec->priority), F_U("facility", rec->facility), F_U("seq", rec->seq),
           F_U("timesincebootmicro", rec->usec), F_STR("flags", flags));
}

/* Logs all pending records. -1: the device can no longer be read. */
static int read_some(struct reader *r, int fd)
{
    AUTO_FREE char *raw = mem_alloc(RECORD_MAX + 1);
    AUTO_FREE struct kmsg_record *rec = mem_new(struct kmsg_record);

    for (;;) {
        ssize_t n = read(fd, raw, RECORD_MAX);
        if (n > 0) {
            raw[n] = '\0';
            if (kmsg_parse(raw, rec) == 0)
                log_record(r, rec);
        } else if (n == 0) {
            return -1;
        } else if (errno == EAGAIN) {
            return 0;
        } else if (errno != EPIPE && errno != EINTR && errno != EINVAL) {
            return -1; /* EPIPE: the kernel has overwritten records that were not read yet */
        }
    }
}

static void reader_main(void *arg)
{
    struct reader *r = arg;
    struct ctx ctx = ctx_root(r->loop);
    struct err err = ERR_INIT;
    AUTO_FD int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        err_sys(&err, errno, "open /dev/kmsg");
    while (fd >= 0 && loop_wait_fd(&ctx, fd, POLLIN, "kernel message", &err) == 0)
        if (read_some(r, fd) < 0)
            break;
    log_warn(&ctx, "cannot read kernel messages; the log lacks them", F_ERR(&err));
    free(r);
}

void kmsg_start(struct loop *loop, unsigned max_priority)
{
    struct reader *r = mem_new(struct reader);

    *r = (struct reader){ .loop = loop, .max_priority = max_priority, .rate.burst = BURST };
    fiber_go(loop, reader_main, r, "kmsg");
}
