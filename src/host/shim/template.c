/* template.c - starts a process that builds a template with low priority, and that outlives the
 * shim. The shim only logs its output and result. */
#include "host/template/template.h"
#include "base/child.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/config/config.h"
#include "host/control/template_build.h"
#include "host/jail/cgroup.h"
#include "host/shim/bootstrap.h"
#include "host/shim/shim_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOWEST_PRIORITY 19
#define WORDS_MAX 400
#define LINES_MAX 100 /* of its log */
#define LINE_MAX_BYTES 4096
#define MIB_ENV "LCOW_TEMPLATE_MIB" /* memory of the VM that needs the template */

/* The action `template-build`. Succeeds if another process is already building. */
int template_run(struct ctx *ctx, const struct shim_args *a, const struct shim_backend *backend,
                 struct err *err)
{
    AUTO(config_release) struct config config = { 0 };
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    AUTO(template_info_release) struct template_info info = { 0 };
    const char *mib = getenv(MIB_ENV);
    uint64_t memory_mib = 0; /* as configured */
    bool made;

    if (mib && str_to_u64(mib, UINT32_MAX, &memory_mib) < 0)
        return err_set(err, ERR_INVALID, MIB_ENV "=%s is not a number", mib);
    config_init(&config);
    if (shim_load_config(ctx, a, &config, &b, err) < 0)
        return -1;
    /* The shim that reads our output may exit before we do. */
    (void)signal(SIGPIPE, SIG_IGN);
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    const struct template_build t = {
        .loop = ctx->loop,
        .config = &config,
        .build = backend->template_build,
        .vmm_new = backend->vmm_new,
        .guest_new = backend->guest_new,
        .memory_mib = (uint32_t)memory_mib,
        /* The VM that needs it runs, so its accelerator is allowed. */
        .allow_emulation = true
    };
    if (template_build(ctx, &t, &info, &made, err) == 0 || err->code == ERR_EXISTS)
        return 0;
    return -1;
}

static int lower_priority(void *arg, struct err *err)
{
    return setpriority(PRIO_PROCESS, 0, LOWEST_PRIORITY) < 0
               ? err_sys(err, errno, "lower the priority")
               : 0;
}

/* The builder's output. */
struct words {
    struct sbuf line;
    char last[WORDS_MAX + 1]; /* the last line that is not of its log: why it failed */
    unsigned told;
};

/* The builder's log is part of the shim's log: it has warnings of the template's kernel, which
 * clones do not repeat. */
static void take_line(struct ctx *ctx, struct words *w)
{
    AUTO_FREE char *line = str_printable(w->line.len ? w->line.data : "");
    const char *said = strstr(line, " msg=");

    w->line.len = 0;
    if (!str_starts(line, "time="))
        snprintf(w->last, sizeof(w->last), "%s", line);
    else if (w->told++ < LINES_MAX)
        log_warn(ctx, "template builder", F_STR("text", said ? said + 1 : line));
}

static int listen_to(struct ctx *ctx, struct child *child, struct stream *from, struct words *w,
                     struct err *err)
{
    char data[512];
    size_t n = 1;
    int status = 0;

    while (n > 0) {
        if (stream_read(ctx, from, data, sizeof(data), &n, err) < 0)
            return -1;
        for (size_t i = 0; i < n; i++) {
            if (data[i] == '\n')
                take_line(ctx, w);
            else if (w->line.len < LINE_MAX_BYTES && data[i] != '\0')
                sbuf_addc(&w->line, data[i]);
        }
    }
    if (child_wait(ctx, child, &status, err) < 0)
        return -1;
    return status == 0 ? 0 : err_set(err, ERR_UNAVAILABLE, "status %d: %s", status, w->last);
}

/* Runs outside the pod's cgroup, which may be removed before, and should not be charged for it. */
static int go_home(void *arg, pid_t pid, struct err *err)
{
    return arg ? cgroup_join(arg, pid, err) : 0;
}

struct wanted {
    struct loop *loop;
    const struct shim_args *args;
    uint32_t memory_mib;
    struct cgroup *home;
};

/* containerd's input of `start` again, since its options may name another image or QEMU. -1: it was
 * empty. It is opened anew to have its own file position. */
static int open_stdin(void)
{
    struct stat st;

    if (fstat(STDIN_FILENO, &st) < 0 || !S_ISREG(st.st_mode))
        return -1;
    return open("/proc/self/fd/0", O_RDONLY | O_CLOEXEC);
}

static void build_main(void *arg)
{
    AUTO_FREE struct wanted *wanted = arg;
    struct loop *loop = wanted->loop;
    struct ctx ctx = ctx_root(loop);
    struct err err = ERR_INIT;
    struct child *child = NULL;
    const char *config = getenv(CONFIG_ENV), *path = getenv("PATH");
    AUTO_FREE char *config_var = str_format(CONFIG_ENV "=%s", config ? config : "");
    AUTO_FREE char *path_var = str_format("PATH=%s", path ? path : "/usr/sbin:/usr/bin:/sbin:/bin");
    AUTO_FREE char *mib_var = str_format(MIB_ENV "=%u", wanted->memory_mib);
    const char *const argv[] = { SHIM_NAME, "-namespace",     wanted->args->ns,
                                 "-id",     wanted->args->id, "template-build",
                                 NULL };
    const char *const env[] = { path_var, mib_var, config ? config_var : NULL, NULL };
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return;
    AUTO(stream_free) struct stream *from = stream_from_fd(loop, fds[0]);
    struct words words = { 0 };
    AUTO_FD int end = fds[1], in = open_stdin();
    const struct child_fd to[] = { { end, STDERR_FILENO }, { in, STDIN_FILENO } };
    int r = child_spawn(&ctx,
                        &(struct child_opts){ .path = "/proc/self/exe",
                                              .argv = argv,
                                              .envp = env,
                                              .fds = to,
                                              .n_fds = in < 0 ? 1 : 2,
                                              .new_session = true,
                                              .setup = lower_priority,
                                              .on_pid = go_home,
                                              .on_pid_arg = wanted->home },
                        &child, &err);
    fd_close(TAKE_FD(end));
    if (r == 0)
        r = listen_to(&ctx, child, from, &words, &err);
    sbuf_release(&words.line);
    if (r < 0)
        log_warn(&ctx, "could not build a template; VMs start cold", F_ERR(&err));
    else
        log_info(&ctx, "template built; VMs are cloned from now on");
    child_free(child);
}

void template_spawn(struct loop *loop, const struct shim_args *a, uint32_t memory_mib,
                    struct cgroup *home)
{
    struct wanted *wanted = mem_new(struct wanted);

    *wanted = (struct wanted){ loop, a, memory_mib, home };
    fiber_go(loop, build_main, wanted, "template build");
}
