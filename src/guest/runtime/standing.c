#include "guest/runtime/standing.h"
#include "base/fd.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define OOM_FILE "/proc/self/oom_score_adj"
#define FILES_USUAL 1024
#define FILES_AGENT 65536
#define NICE_AGENT (-15)

static int raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    limit.rlim_cur = limit.rlim_max < FILES_AGENT ? limit.rlim_max : FILES_AGENT;
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}

void standing_raise(struct ctx *ctx)
{
    int r = file_write(OOM_FILE, "-1000", 5, 0644);

    if (r < 0)
        log_warn(ctx, "could not protect the agent from the OOM killer",
                 F_STR(LK_ERROR, strerror(-r)));
    r = raise_files();
    if (r < 0)
        log_warn(ctx, "could not raise the agent's open-file limit", F_STR(LK_ERROR, strerror(-r)));
    if (setpriority(PRIO_PROCESS, 0, NICE_AGENT) < 0)
        log_warn(ctx, "could not raise the agent's scheduling priority",
                 F_STR(LK_ERROR, strerror(errno)));
}

void standing_drop(void)
{
    struct rlimit limit;
    int fd = open(OOM_FILE, O_WRONLY | O_CLOEXEC);

    if (fd >= 0) {
        (void)!write(fd, "0", 1); /* fails only where the value was raised on purpose */
        close(fd);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > FILES_USUAL) {
        limit.rlim_cur = FILES_USUAL;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* lowering is always allowed */
    }
    if (getpriority(PRIO_PROCESS, 0) < 0)
        (void)setpriority(PRIO_PROCESS, 0, 0); /* always allowed, too */
}
