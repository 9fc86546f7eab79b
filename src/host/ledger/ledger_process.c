/* ledger_process.c - a process by its name in a ledger or a note, "pid start-time boot-id": another
 * process that got the same pid later is never taken for it. */
#include "base/child.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "host/ledger/ledger_priv.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>

char *ledger_boot_id(void)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    if (file_read_all("/proc/sys/kernel/random/boot_id", 64, &text, &len) < 0)
        return str_dup("");
    return str_ndup(text, strcspn(text, "\n"));
}

char *ledger_process_name(pid_t pid)
{
    uint64_t start = proc_start_time(pid);

    if (start == 0)
        return NULL;

    AUTO_FREE char *boot = ledger_boot_id();

    return str_format("%d %llu %s", pid, (unsigned long long)start, boot);
}

int ledger_note_process(struct ledger *l, pid_t pid, uint64_t *ret_id, struct err *err)
{
    AUTO_FREE char *what = ledger_process_name(pid);

    if (!what)
        return err_set(err, ERR_NOT_FOUND, "process %d is gone", pid);
    return ledger_note(l, LEDGER_PROCESS, what, ret_id, err);
}

int ledger_process_open(const char *what, pid_t *ret_pid, int *ret_pidfd, struct err *err)
{
    AUTO_FREE char *now = ledger_boot_id();
    const char *boot;
    uint64_t start;
    pid_t pid;

    if (ledger_process_parse(what, &pid, &start, &boot) < 0)
        return err_set(err, ERR_DATA_LOSS, "process record \"%s\" is not understood", what);
    /* Pids and start times begin anew with every boot: whoever has them now is a stranger. */
    if (!str_eq(boot, now))
        return 0;

    AUTO_FD int pidfd = pidfd_open(pid, 0);

    if (pidfd < 0)
        return errno == ESRCH ? 0 : err_sys(err, errno, "open process %d", pid);
    /* The pidfd pins the process; if the start time still fits, it is the one we noted. */
    if (proc_start_time(pid) != start)
        return 0;
    *ret_pid = pid;
    *ret_pidfd = TAKE_FD(pidfd);
    return 1;
}

int ledger_process_kill(struct ctx *ctx, pid_t pid, int pidfd, struct err *err)
{
    if (pidfd_send_signal(pidfd, SIGKILL, NULL, 0) < 0)
        return errno == ESRCH ? 0 : err_sys(err, errno, "kill process %d", pid);
    if (loop_wait_fd(ctx, pidfd, POLLIN, "end of a killed process", err) < 0)
        return err_wrap(err, "wait for the end of killed process %d", pid);
    return 0;
}
