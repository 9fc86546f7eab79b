#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "guest/runtime/holder.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "oci/spec.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NETWORK "/proc/self/ns/net"

/* A file stands for the cgroup's. */
static int try_spawn(struct ctx *ctx, const char *dir, const char *linux_part, pid_t *ret,
                     struct err *err)
{
    AUTO_FREE char *procs = str_format("%s/cgroup.procs", dir);
    AUTO_FREE char *text =
        str_format("{\"process\":{\"args\":[\"/pause\"],\"cwd\":\"/\",\"oomScoreAdj\":500,"
                   "\"user\":{\"uid\":65535,\"gid\":65534}},\"root\":{\"path\":\"rootfs\"},"
                   "\"hostname\":\"pod-1\",\"linux\":{%s}}",
                   linux_part);
    AUTO(spec_free) struct spec *spec = NULL;
    const struct holder_opts o = { .cgroup = dir, .fds = (const int[]){ -1, -1, -1 } };
    struct holder_opts with = o;

    if (geteuid() != 0)
        tap_skip("namespaces need root");
    ASSERT_EQ(file_write(procs, "", 0, 0600), 0);
    ASSERT_OK(spec_parse(text, strlen(text), &spec, err), *err);
    with.spec = spec;
    return holder_spawn(ctx, &with, ret, err);
}

static pid_t spawn(struct ctx *ctx, const char *dir, const char *linux_part)
{
    struct err err = ERR_INIT;
    pid_t pid = -1;

    ASSERT_OK(try_spawn(ctx, dir, linux_part, &pid, &err), err);
    return pid;
}

static int end(pid_t pid, int signo)
{
    int status = 0;

    ASSERT_EQ(kill(pid, signo), 0);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

/* Of /proc/PID/status. Caller frees. */
static char *status_of(pid_t pid, const char *key)
{
    AUTO_FREE char *text = file_text(65536, "/proc/%d/status", pid);
    AUTO_FREE char *line = str_format("\n%s:", key);
    const char *at = text ? strstr(text, line) : NULL;

    ASSERT(at != NULL);
    at += strlen(line);
    at += strspn(at, " \t");
    return str_ndup(at, strcspn(at, "\n"));
}

static void await(struct ctx *ctx, pid_t pid, const char *key, const char *value)
{
    struct err err = ERR_INIT;

    for (;;) {
        AUTO_FREE char *now = status_of(pid, key);

        if (str_eq(now, value))
            return;
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    }
}

static char *in_namespaces(pid_t pid, const char *kinds, const char *command)
{
    AUTO_FREE char *line = str_format("nsenter -t %d %s sh -c '%s' 2>&1", pid, kinds, command);
    char text[256] = "";
    FILE *f = popen(line, "r");

    ASSERT(f != NULL);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    pclose(f);
    return str_ndup(text, n);
}

static bool same_namespace(pid_t pid, const char *kind)
{
    AUTO_FREE char *its = str_format("/proc/%d/ns/%s", pid, kind);
    AUTO_FREE char *ours = str_format("/proc/self/ns/%s", kind);
    char a[64] = "", b[64] = "";

    ASSERT(readlink(its, a, sizeof(a) - 1) > 0 && readlink(ours, b, sizeof(b) - 1) > 0);
    return str_eq(a, b);
}

TEST_FIBER(it_has_namespaces_of_its_own_and_the_network_that_the_spec_names)
{
    static const char *const own[] = { "pid", "ipc", "uts", "mnt" };
    TEMPDIR(p);
    pid_t pid = spawn(ctx, p.dir,
                      "\"namespaces\":[{\"type\":\"network\",\"path\":\"" NETWORK "\"}],"
                      "\"sysctl\":{\"kernel.shmmni\":\"123\"}");
    AUTO_FREE char *name = in_namespaces(pid, "-u", "uname -n");
    AUTO_FREE char *shm = in_namespaces(pid, "-i", "cat /proc/sys/kernel/shmmni");
    AUTO_FREE char *ids = status_of(pid, "NSpid");
    AUTO_FREE char *procs = file_text(64, "%s/cgroup.procs", p.dir);

    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        ASSERT(!same_namespace(pid, own[i]));
    ASSERT(same_namespace(pid, "net"));
    ASSERT_STR(name, "pod-1\n");
    ASSERT_STR(shm, "123\n");
    ASSERT_HAS(ids, "\t1");
    ASSERT_STR(procs, "0");
    ASSERT_EQ(end(pid, SIGTERM), 0);

    pid = spawn(ctx, p.dir, "\"namespaces\":[]");
    ASSERT(!same_namespace(pid, "net"));
    ASSERT_EQ(end(pid, SIGTERM), 0);
}

TEST_FIBER(it_has_no_rights_no_files_and_little_memory)
{
    static const struct {
        const char *key, *value;
    } expected[] = { { "Uid", "65535\t65535\t65535\t65535" },
                     { "Gid", "65534\t65534\t65534\t65534" },
                     { "Groups", "" },
                     { "CapInh", "0000000000000000" },
                     { "CapPrm", "0000000000000000" },
                     { "CapEff", "0000000000000000" },
                     { "CapBnd", "0000000000000000" },
                     { "CapAmb", "0000000000000000" },
                     { "NoNewPrivs", "1" },
                     { "Name", "pause" } };
    TEMPDIR(p);
    pid_t pid = spawn(ctx, p.dir, "\"namespaces\":[]");
    AUTO_FREE char *root = str_format("/proc/%d/root", pid);
    AUTO_FREE char *fds = str_format("/proc/%d/fd", pid);
    AUTO_FREE char *score = file_text(16, "/proc/%d/oom_score_adj", pid);
    struct dirent *e;
    unsigned n = 0;

    await(ctx, pid, "Seccomp", "2");
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        AUTO_FREE char *value = i + 1 < ARRAY_LEN(expected) ? status_of(pid, expected[i].key)
                                                            : file_text(32, "/proc/%d/comm", pid);

        value[strcspn(value, "\n")] = '\0';
        ASSERT_STR(value, expected[i].value);
    }
    ASSERT_STR(score, "500\n");

    AUTO(closedir) DIR *d = opendir(root);

    ASSERT(d != NULL);
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    ASSERT_EQ(n, 0);

    AUTO(closedir) DIR *open_files = opendir(fds);

    while (open_files && (e = readdir(open_files)))
        n += e->d_name[0] != '.';
    ASSERT_EQ(n, 3); /* stdin, stdout, stderr */

    AUTO_FREE char *memory = status_of(pid, "RssAnon");

    ASSERT(atoi(memory) <= 16);
    ASSERT_EQ(end(pid, SIGTERM), 0);
}

TEST_FIBER(it_ends_as_a_pause_program_does)
{
    TEMPDIR(p);
    pid_t pid = spawn(ctx, p.dir, "\"namespaces\":[]");

    ASSERT_EQ(kill(pid, SIGUSR1), 0);
    ASSERT_EQ(kill(pid, SIGHUP), 0);
    ASSERT_EQ(end(pid, SIGTERM), 0);
    ASSERT_EQ(end(spawn(ctx, p.dir, ""), SIGINT), 0);
    int status = end(spawn(ctx, p.dir, ""), SIGKILL);
    ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    pid = spawn(ctx, p.dir, "");
    ASSERT_EQ(kill(pid, SIGSTOP), 0);
    ASSERT_EQ(kill(pid, SIGCONT), 0);
    ASSERT_EQ(end(pid, SIGTERM), 0);
}

TEST_FIBER(orphans_in_its_pid_namespace_leave_no_zombies)
{
    TEMPDIR(p);
    struct err err = ERR_INIT;
    pid_t pid = spawn(ctx, p.dir, "");

    await(ctx, pid, "Seccomp", "2");
    AUTO_FREE char *out = in_namespaces(pid, "-p", "sleep 0.2 >/dev/null 2>&1 & echo started");

    ASSERT_STR(out, "started\n");
    for (bool seen = false;;) {
        AUTO_FREE char *children = file_text(256, "/proc/%d/task/%d/children", pid, pid);

        if (seen && !children[0])
            break;
        seen = seen || children[0];
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    }
    ASSERT_EQ(end(pid, SIGTERM), 0);
}

TEST_FIBER(a_setting_that_the_kernel_refuses_is_named_and_no_process_stays)
{
    TEMPDIR(p);
    struct err err = ERR_INIT;
    pid_t pid;

    ASSERT_FAIL(try_spawn(ctx, p.dir, "\"sysctl\":{\"net.no.such\":\"1\"}", &pid, &err), err,
                ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "write 1 to /proc/sys/net/no/such");
    err_clear(&err);
    while (waitpid(-1, NULL, WNOHANG) == 0) /* its end may take the kernel a moment */
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
}
