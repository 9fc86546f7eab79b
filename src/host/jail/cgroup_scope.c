#include "host/jail/cgroup_scope.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/saved.h"
#include "base/str.h"
#include "host/ledger/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_NS (60 * NS_PER_S) /* PID 1 answers no call while it reloads its units */
#define SAID_MAX 300
#define UNIT_NAME_MAX 255
#define PROPERTIES_MAX 4

struct scope {
    char *unit;
    struct ledger *ledger;
    struct child *keeper; /* NULL after scope_settle */
    uint64_t record;      /* of the keeper; 0: none */
    int keep;             /* its stdin: with us it ends, too */
};

/* As systemd's own unit_name_is_valid(). Other characters would be escaped, and the directory would
 * have another name than ours. */
static int check_name(const char *name, struct err *err)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                ":-_.\\@";

    if (strlen(name) > UNIT_NAME_MAX || name[strspn(name, valid)])
        return err_set(err, ERR_INVALID,
                       "\"%.64s\" is not a valid unit name: at most %d letters, digits and "
                       "\":-_.\\@\"",
                       name, UNIT_NAME_MAX);
    return 0;
}

/* What a program wrote, on one line. */
static int judge(const char *program, int status, int said, struct err *err)
{
    char text[SAID_MAX + 1] = "";
    ssize_t n = pread(said, text, SAID_MAX, 0);

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';

    AUTO_FREE char *plain = str_printable(text);

    return err_set(err, ERR_STATE, "%s: %s %d: %s", program,
                   WIFSIGNALED(status) ? "killed by signal" : "exit status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), plain);
}

static int record_pid(void *arg, pid_t pid, struct err *err)
{
    struct scope *s = arg;

    return s->ledger ? ledger_add_process(s->ledger, pid, &s->record, err) : 0;
}

/* systemd-run puts itself into the scope and becomes cat when the scope is active. So cat's first
 * byte says that it is, and the end of its output that systemd refused. */
static int run_keeper(struct ctx *ctx, struct scope *s, const char *program,
                      const char *const *argv, int said, struct err *err)
{
    int in[2] = { -1, -1 }, out[2] = { -1, -1 }, status = 0;
    char byte = 0;
    int r = -1;

    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0 || write(in[1], "\n", 1) != 1) {
        (void)err_sys(err, errno, "make a pipe");
        goto out;
    }

    const struct child_fd fds[] = { { in[0], 0 }, { out[1], 1 }, { said, 2 } };

    if (child_spawn(ctx,
                    &(struct child_opts){ .path = program,
                                          .argv = argv,
                                          .cwd = "/",
                                          .fds = fds,
                                          .n_fds = ARRAY_LEN(fds),
                                          .new_session = true,
                                          .die_with_us = true,
                                          .on_pid = record_pid,
                                          .on_pid_arg = s },
                    &s->keeper, err) < 0)
        goto out;
    fd_close(TAKE_FD(out[1]));
    if (loop_wait_fd(ctx, out[0], POLLIN, "systemd to start a scope", err) < 0)
        goto out;
    if (read(out[0], &byte, 1) == 1) {
        s->keep = TAKE_FD(in[1]);
        r = 0;
    } else if (child_wait(ctx, s->keeper, &status, err) == 0 &&
               judge("systemd-run", status, said, err) == 0) {
        (void)err_set(err, ERR_STATE, "systemd-run exited without starting the scope");
    }
out:
    for (int i = 0; i < 2; i++) {
        fd_close(in[i]);
        fd_close(out[i]);
    }
    return r;
}

/* TasksMax: the pod's slice has its limit; systemd's default would be one of ours. Without default
 * dependencies the scope does not end before containerd at a shutdown, as runc's do not. */
static int start(struct ctx *ctx, struct scope *s, const char *program, const char *slice,
                 struct err *err)
{
    AUTO_FREE char *of_unit = str_format("--unit=%s", s->unit),
                   *of_slice = str_format("--slice=%s", slice),
                   *text = str_format("--description=lcow pod or container (%s)", s->unit);
    const char *const argv[] = { "systemd-run",
                                 "--quiet",
                                 "--no-ask-password",
                                 "--collect",
                                 "--scope",
                                 of_unit,
                                 of_slice,
                                 text,
                                 "--property=Delegate=yes",
                                 "--property=DefaultDependencies=no",
                                 "--property=TasksMax=infinity",
                                 "--",
                                 "cat",
                                 NULL };
    AUTO_FD int said = memfd_create("systemd-run", MFD_CLOEXEC);

    if (said < 0)
        return err_sys(err, errno, "make a file in memory");
    return run_keeper(ctx, s, program, argv, said, err);
}

int scope_start(struct ctx *ctx, const struct scope_opts *o, struct scope **ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, LIMIT_NS);
    AUTO_FREE char *program = child_find("systemd-run");

    *ret = NULL;
    if (check_name(o->unit, err) < 0)
        return -1;
    if (!program) {
        log_warn(ctx, "systemd-run is not in PATH: making a cgroup that systemd does not know",
                 F_STR("unit", o->unit));
        return 0;
    }

    struct scope *s = mem_new(struct scope);

    s->unit = str_dup(o->unit);
    s->ledger = o->ledger;
    s->keep = -1;
    if (start(&limited, s, program, o->slice, err) < 0) {
        scope_free(s);
        return err_wrap(err, "ask systemd for unit %s", o->unit);
    }
    *ret = s;
    return 0;
}

void scope_settle(struct scope *s)
{
    struct err err = ERR_INIT;

    /* Without a keeper, too: its record is older than the process. */
    child_free(TAKE_PTR(s->keeper));
    fd_close(TAKE_FD(s->keep));
    if (s->record && ledger_forget(s->ledger, s->record, &err) < 0)
        log_warn(NULL, "could not remove the ledger record of a scope's keeper", F_ERR(&err));
    s->record = 0;
}

int scope_set(struct ctx *ctx, const struct scope *s, const char *const *properties,
              struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, LIMIT_NS);
    /* The VM may end during the call, and the scope with it. */
    AUTO_FREE char *program = child_find("systemctl"), *unit = str_dup(s->unit);
    const char *argv[5 + PROPERTIES_MAX] = { "systemctl", "set-property", "--runtime", unit };
    AUTO_FD int said = memfd_create("systemctl", MFD_CLOEXEC);
    const struct child_fd fds[] = { { said, 2 } };
    AUTO(child_free) struct child *c = NULL;
    int status = 0;

    for (size_t i = 0; properties[i] && i < PROPERTIES_MAX; i++)
        argv[4 + i] = properties[i];
    if (said < 0)
        return err_sys(err, errno, "make a file in memory");
    if (!program)
        return 0; /* as in scope_start: systemd then keeps the values it has */
    if (child_spawn(&limited,
                    &(struct child_opts){ .path = program,
                                          .argv = argv,
                                          .cwd = "/",
                                          .fds = fds,
                                          .n_fds = ARRAY_LEN(fds),
                                          .new_session = true,
                                          .die_with_us = true },
                    &c, err) < 0 ||
        child_wait(&limited, c, &status, err) < 0 || judge("systemctl", status, said, err) < 0)
        return err_wrap(err, "set properties of unit %s", unit);
    return 0;
}

void scope_free(struct scope *s)
{
    if (!s)
        return;
    scope_settle(s);
    free(s->unit);
    free(s);
}

void scope_saved(struct saved *s, uint32_t field, struct ledger *ledger, struct scope **scope)
{
    bool reads = saved_reads(s);
    struct scope *c = reads ? NULL : *scope;

    if (reads)
        *scope = NULL;
    if ((!reads && !c) || !saved_open(s, field))
        return;
    if (reads) {
        *scope = c = mem_new(struct scope);
        c->ledger = ledger;
        c->keep = -1;
    }
    if (c->keeper)
        saved_fail(s, "systemd unit %s is being started", c->unit);
    saved_str(s, 1, &c->unit);
    saved_close(s);
}
