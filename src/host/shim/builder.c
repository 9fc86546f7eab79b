/* builder.c - starts a process that builds something with low priority (a template, images of
 * layers), and that outlives the shim. The shim only logs its output and result. */
#include "base/child.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/config/config.h"
#include "host/jail/cgroup.h"
#include "host/shim/shim_priv.h"
#include <errno.h>
#include <fcntl.h>
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
    const char *what;
};

/* The builder's log is part of the shim's log: for a template it has warnings of its
 * kernel, which clones do not repeat. */
static void take_line(struct ctx *ctx, struct words *w)
{
    AUTO_FREE char *line = str_printable(w->line.len ? w->line.data : "");
    const char *said = strstr(line, " msg=");
    enum log_level level = strstr(line, " level=info ") ? LOG_INFO : LOG_WARN;

    w->line.len = 0;
    if (!str_starts(line, "time="))
        snprintf(w->last, sizeof(w->last), "%s", line);
    else if (w->told++ < LINES_MAX)
        LOG_AT(ctx, level, "message of a builder", F_STR("builder", w->what),
               F_STR("text", said ? said + 1 : line));
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

/* containerd's input of `start` again, since its options may name another image or QEMU. -1: it was
 * empty. It is opened anew to have its own file position. */
static int open_stdin(void)
{
    struct stat st;

    if (fstat(STDIN_FILENO, &st) < 0 || !S_ISREG(st.st_mode))
        return -1;
    return open("/proc/self/fd/0", O_RDONLY | O_CLOEXEC);
}

int builder_run(struct ctx *ctx, const struct builder *b, struct err *err)
{
    const char *config = getenv(CONFIG_ENV), *path = getenv("PATH");
    AUTO_FREE char *config_var = str_format(CONFIG_ENV "=%s", config ? config : "");
    AUTO_FREE char *path_var = str_format("PATH=%s", path ? path : "/usr/sbin:/usr/bin:/sbin:/bin");
    const char *const argv[] = { SHIM_NAME,   "-namespace", b->args->ns, "-id",
                                 b->args->id, b->action,    NULL };
    const char *env[4] = { path_var };
    size_t n_env = 1, n_fds = 1;
    struct child *child = NULL;
    struct words words = { .what = b->what };
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "make a pipe");
    AUTO(stream_free) struct stream *from = stream_from_fd(ctx->loop, fds[0]);
    AUTO_FD int end = fds[1], in = open_stdin();
    struct child_fd to[3] = { { end, STDERR_FILENO } };

    if (in >= 0)
        to[n_fds++] = (struct child_fd){ in, STDIN_FILENO };
    if (b->list_fd >= 0)
        to[n_fds++] = (struct child_fd){ b->list_fd, SHIM_FD_LIST };
    if (b->env)
        env[n_env++] = b->env;
    if (config)
        env[n_env++] = config_var;
    int r = child_spawn(ctx,
                        &(struct child_opts){ .path = "/proc/self/exe",
                                              .argv = argv,
                                              .envp = env,
                                              .fds = to,
                                              .n_fds = n_fds,
                                              .new_session = true,
                                              .setup = b->urgent ? NULL : lower_priority,
                                              .on_pid = go_home,
                                              .on_pid_arg = b->home },
                        &child, err);
    fd_close(TAKE_FD(end));
    if (r == 0)
        r = listen_to(ctx, child, from, &words, err);
    sbuf_release(&words.line);
    if (r < 0 && child && !child_done(child, NULL))
        child_leave(child); /* ctx has ended; it continues */
    else
        child_free(child);
    return r;
}
