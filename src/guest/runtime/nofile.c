#include "guest/runtime/nofile.h"
#include <errno.h>
#include <sys/resource.h>

#define USUAL 1024
#define AGENT_MAX 65536

int nofile_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    limit.rlim_cur = limit.rlim_max < AGENT_MAX ? limit.rlim_max : AGENT_MAX;
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}

void nofile_restore(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur <= USUAL)
        return;
    limit.rlim_cur = USUAL;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* lowering is always allowed */
}
