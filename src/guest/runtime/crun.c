#include "guest/runtime/crun.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/span.h"
#include "guest/runtime/standing.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORK "/run/gcs/crun"
#define LOG_MAX (1u << 20)
#define ENTRY_MAX (64 * 1024)
/* Usually 0.1 s under emulation, but more when a whole pod starts at once on a busy host. */
#define CALL_NS (120 * NS_PER_S)

struct crun {
    int program;
    unsigned running;
    struct waitq slots;
};

static int copy_program(int from, int to)
{
    struct stat st;

    if (fstat(from, &st) < 0)
        return -errno;
    for (off_t left = st.st_size; left > 0;) {
        ssize_t n = sendfile(to, from, NULL, (size_t)left);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        left -= n;
    }
    return fcntl(to, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0
               ? -errno
               : 0;
}

int crun_new(struct crun **ret, struct err *err)
{
    AUTO_FD int from = open(CRUN_PROGRAM, O_RDONLY | O_CLOEXEC);
    AUTO_FD int to = memfd_create("crun", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (from < 0)
        return err_sys(err, errno, "open " CRUN_PROGRAM);
    if (to < 0)
        return err_sys(err, errno, "memory for " CRUN_PROGRAM);
    int r = copy_program(from, to);
    if (r < 0)
        return err_sys(err, -r, "copy " CRUN_PROGRAM);
    *ret = mem_new(struct crun);
    (*ret)->program = TAKE_FD(to);
    waitq_init(&(*ret)->slots);
    return 0;
}

void crun_free(struct crun *crun)
{
    if (crun)
        fd_close(crun->program);
    free(crun);
}

/* --- what crun's words mean (docs/reference/gcs-protocol.md §2.5) --- */

static const struct {
    const char *part;
    enum err_code code;
    enum reason reason;
} known[] = {
    { "does not exist", ERR_NOT_FOUND, REASON_CONTAINER_LOST },
    { "already exists", ERR_EXISTS, REASON_ALREADY_EXISTS },
    { "invalid container ID", ERR_INVALID, REASON_INVALID_ID },
    { "invalid character", ERR_INVALID, REASON_INVALID_ID },
    { "is not in `created` or `stopped` state", ERR_STATE, REASON_WRONG_STATE },
    { "not stopped", ERR_STATE, REASON_WRONG_STATE },
    { "still running", ERR_STATE, REASON_WRONG_STATE },
    { "is not running", ERR_UNAVAILABLE, REASON_WRONG_STATE },
    { "container not running", ERR_UNAVAILABLE, REASON_WRONG_STATE },
    { "container process not found", ERR_UNAVAILABLE, REASON_WRONG_STATE },
    { "seccomp", ERR_INTERNAL, REASON_SECCOMP_PROFILE },
    { "apparmor", ERR_INTERNAL, REASON_APPARMOR_PROFILE },
};

/* The name between the first pair of back quotes. */
static char *quoted(const char *text)
{
    const char *from = strchr(text, '`'), *end = from ? strchr(from + 1, '`') : NULL;

    return end ? str_ndup(from + 1, (size_t)(end - from - 1)) : str_dup("");
}

int crun_error(const char *text, struct err *err)
{
    AUTO_FREE char *name = quoted(text);

    if (strstr(text, "not found in $PATH"))
        return err_because(err, REASON_COMMAND_NOT_FOUND, ERR_NOT_FOUND,
                           "exec: \"%s\": executable file not found in $PATH", name);
    if (str_starts(text, "exec container process") && strstr(text, "No such file"))
        return err_because(err, REASON_COMMAND_NOT_FOUND, ERR_NOT_FOUND,
                           "exec: \"%s\": no such file or directory", name);
    if (str_starts(text, "open executable") ||
        (strstr(text, "exec container process") && strstr(text, "ermission denied")))
        return err_because(err, REASON_COMMAND_NOT_EXECUTABLE, ERR_PERMISSION,
                           "exec: permission denied (%s)", text);
    if (strstr(text, "/status`: No such file or directory"))
        return err_because(err, REASON_CONTAINER_LOST, ERR_NOT_FOUND,
                           "container does not exist: %s", text);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strstr(text, known[i].part))
            return err_because(err, known[i].reason, known[i].code, "%s", text);
    return err_because(err, REASON_CRUN_FAILED, ERR_INTERNAL, "%s", text);
}

char *crun_log_error(const char *log)
{
    char *found = NULL;

    for (const char *line = log; *line;) {
        const char *end = strchrnul(line, '\n');
        AUTO(json_decref) json_t *entry = NULL;
        struct err ignored = ERR_INIT;

        if (js_parse(line, (size_t)(end - line), ENTRY_MAX, &entry, &ignored) == 0 &&
            str_eq(json_string_value(js_get(entry, "level")), "error") &&
            json_is_string(js_get(entry, "msg"))) {
            free(found);
            found = str_dup(json_string_value(js_get(entry, "msg")));
        }
        line = *end ? end + 1 : end;
    }
    return found;
}

/* --- calls --- */

/* One call: its directory and its arguments. */
struct call {
    const char *command; /* static text: "crun create" */
    char dir[40];
    struct strv argv;
    struct child_fd fds[3];
    size_t n_fds;
};

static int call_begin(struct call *c, const char *command, struct err *err)
{
    int r = dir_make(WORK, 0700);

    *c = (struct call){ .command = command, .dir = WORK "/XXXXXX" };
    if (r < 0)
        return err_sys(err, -r, "make " WORK);
    if (!mkdtemp(c->dir))
        return err_sys(err, errno, "make a directory in " WORK);
    strv_add(&c->argv, "crun");
    strv_add(&c->argv, "--root=" CRUN_STATE);
    strv_add(&c->argv, "--cgroup-manager=cgroupfs");
    strv_addf(&c->argv, "--log=%s/log", c->dir);
    strv_add(&c->argv, "--log-format=json");
    strv_add(&c->argv, command + strlen("crun "));
    return 0;
}

/* --NAME=FILE with this text in the file. */
static int call_add_file(struct call *c, const char *name, const char *text, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", c->dir, name);
    int r = file_write(path, text, strlen(text), 0600);

    if (r < 0)
        return err_sys(err, -r, "write %s", path);
    strv_addf(&c->argv, "--%s=%s", name, path);
    return 0;
}

static void call_release(struct call *c)
{
    if (c->argv.n)
        (void)dir_remove(c->dir); /* on failure the directory stays on a tmpfs until the VM ends */
    strv_release(&c->argv);
}

static int failure(const struct call *c, int status, struct err *err)
{
    AUTO_FREE char *log = file_text(LOG_MAX, "%s/log", c->dir);
    AUTO_FREE char *text = log ? crun_log_error(log) : NULL;

    if (text)
        return crun_error(text, err);
    if (WIFSIGNALED(status))
        return err_because(err, REASON_CRUN_FAILED, ERR_INTERNAL, "crun was killed by signal %d",
                           WTERMSIG(status));
    return err_because(err, REASON_CRUN_FAILED, ERR_INTERNAL,
                       "crun exited with status %d and logged no error", WEXITSTATUS(status));
}

static int child_setup(void *arg, struct err *err)
{
    standing_drop();
    return 0;
}

static int run_child(struct ctx *ctx, const struct crun *crun, struct call *c, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, CALL_NS);
    const struct child_opts opts = {
        .exec_fd = crun->program,
        .argv = (const char *const *)c->argv.v,
        .fds = c->fds,
        .n_fds = c->n_fds,
        .setup = child_setup,
        .new_session = true,
    };
    AUTO(child_free) struct child *child = NULL;
    int status = 0;

    if (child_spawn(&bounded, &opts, &child, err) < 0 ||
        child_wait(&bounded, child, &status, err) < 0)
        return err_wrap(err, "%s", c->command);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : failure(c, status, err);
}

static int call_run(struct ctx *ctx, struct crun *crun, struct call *c, struct err *err)
{
    SPAN(step, ctx, NULL, TRACK_GUEST, c->command, err);

    while (crun->running >= CRUN_SLOTS)
        if (waitq_wait(ctx, &crun->slots, "a turn for crun", err) < 0)
            return -1;
    crun->running++;
    int r = run_child(ctx, crun, c, err);
    crun->running--;
    waitq_wake_all(&crun->slots); /* a waiter that is being cancelled must pass the turn on */
    return r;
}

/* --- create and exec --- */

static int console_listen(struct call *c, int *ret_fd, struct err *err)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    AUTO_FREE char *path = str_format("%s/console", c->dir);
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(addr.sun_path, path, strlen(path) + 1); /* call.dir is short */
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 1) < 0)
        return err_sys(err, errno, "console socket %s", path);
    strv_addf(&c->argv, "--console-socket=%s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* crun has exited, so its connection and the terminal are in the socket already: no wait. */
static int console_take(int listener, int *ret_master, struct err *err)
{
    AUTO_FD int conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int fd = conn < 0 ? -errno : fd_recv(conn);

    if (fd < 0)
        return err_sys(err, -fd, "receive the terminal from crun");
    *ret_master = fd;
    return 0;
}

static int read_pid(const struct call *c, pid_t *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/pid", c->dir), *text = NULL;
    uint64_t pid = 0;
    size_t len;
    int r = file_read_all(path, 32, &text, &len);

    if (r < 0)
        return err_sys(err, -r, "pid of the process");
    text[strcspn(text, "\n")] = '\0';
    if (str_to_u64(text, INT32_MAX, &pid) < 0 || pid == 0)
        return err_set(err, ERR_INTERNAL, "invalid pid \"%.16s\" in crun's pid file", text);
    *ret = (pid_t)pid;
    return 0;
}

static int prepare(struct call *c, const struct crun_start *s, int *ret_console, struct err *err)
{
    if (s->process) {
        strv_add(&c->argv, "--detach");
        if (call_add_file(c, "process", s->process, err) < 0)
            return -1;
    } else {
        strv_addf(&c->argv, "--bundle=%s", s->bundle);
    }
    strv_addf(&c->argv, "--pid-file=%s/pid", c->dir);
    if (s->terminal && console_listen(c, ret_console, err) < 0)
        return -1;
    for (int i = 0; i < 3 && !s->terminal; i++)
        if (s->fds.fd[i] >= 0)
            c->fds[c->n_fds++] = (struct child_fd){ s->fds.fd[i], i };
    strv_add(&c->argv, s->id);
    return 0;
}

int crun_start_process(struct ctx *ctx, struct crun *crun, const struct crun_start *s,
                       pid_t *ret_pid, int *ret_master, struct err *err)
{
    AUTO_FD int console = -1, master = -1;
    struct call c = { 0 };
    pid_t pid = 0;
    int r = call_begin(&c, s->process ? "crun exec" : "crun create", err);

    if (r == 0)
        r = prepare(&c, s, &console, err);
    if (r == 0)
        r = call_run(ctx, crun, &c, err);
    if (r == 0)
        r = read_pid(&c, &pid, err);
    if (r == 0 && s->terminal)
        r = console_take(console, &master, err);
    call_release(&c);
    if (r < 0)
        return -1;
    *ret_pid = pid;
    *ret_master = TAKE_FD(master);
    return 0;
}

/* --- the rest --- */

static int simple(struct ctx *ctx, struct crun *crun, const char *command, const char *option,
                  const char *id, struct err *err)
{
    struct call c = { 0 };
    int r = call_begin(&c, command, err);

    if (r == 0) {
        if (option)
            strv_add(&c.argv, option);
        strv_add(&c.argv, id);
        r = call_run(ctx, crun, &c, err);
    }
    call_release(&c);
    return r;
}

int crun_start(struct ctx *ctx, struct crun *crun, const char *id, struct err *err)
{
    return simple(ctx, crun, "crun start", NULL, id, err);
}

/* Without waiting for a reader: init has had the other end open since crun created it. */
int crun_release(const char *root, const char *id, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s/exec.fifo", root, id);
    AUTO_FD int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ENXIO)
        return err_because(err, REASON_WRONG_STATE, ERR_UNAVAILABLE,
                           "container `%s` is not running", id);
    /* crun, too, calls a container started that has no FIFO. */
    if (fd < 0 || unlink(path) < 0 || write(fd, "", 1) < 0)
        return err_sys(err, errno, "start init by %s", path);
    return 0;
}

int crun_forget(const char *root, const char *id, struct err *err)
{
    AUTO_FREE char *state = str_format("%s/%s", root, id);
    int r = dir_remove(state);

    return r < 0 ? err_sys(err, -r, "remove %s", state) : 0;
}

int crun_delete(struct ctx *ctx, struct crun *crun, const char *id, bool force, struct err *err)
{
    AUTO_FREE char *state = str_format(CRUN_STATE "/%s", id);

    if (access(state, F_OK) < 0 && errno == ENOENT)
        return 0;
    return simple(ctx, crun, "crun delete", force ? "--force" : NULL, id, err);
}

int crun_update(struct ctx *ctx, struct crun *crun, const char *id, const char *resources,
                struct err *err)
{
    struct call c = { 0 };
    int r = call_begin(&c, "crun update", err);

    if (r == 0)
        r = call_add_file(&c, "resources", resources, err);
    if (r == 0) {
        strv_add(&c.argv, id);
        r = call_run(ctx, crun, &c, err);
    }
    call_release(&c);
    return r;
}
