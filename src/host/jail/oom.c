#include "host/jail/oom.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>

#define OOM_ADJ_MAX 1000

int oom_score_adj_set(const struct ctx *ctx, pid_t pid, int adj, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/%d/oom_score_adj", (int)pid);
    char text[16];
    int len = snprintf(text, sizeof(text), "%d", adj), r;

    if (adj < -OOM_ADJ_MAX || adj > OOM_ADJ_MAX)
        return err_set(err, ERR_INVALID, "oom_score_adj %d is not within -%d and %d", adj,
                       OOM_ADJ_MAX, OOM_ADJ_MAX);
    r = file_write(path, text, (size_t)len, 0644);
    if (r == -EACCES || r == -EPERM) {
        log_warn(ctx, "oom_score_adj is left as it is: no right to lower it", F_I("pid", pid),
                 F_I("oom-score-adj", adj));
        return 0;
    }
    return r < 0 ? err_sys(err, -r, "set %s", path) : 0;
}
