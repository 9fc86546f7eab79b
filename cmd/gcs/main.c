/* gcs - the guest agent. As PID 1 it boots the VM and keeps it (guest/init); its child, "gcs
 * serve", talks to the host (guest/bridge). */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "guest/bridge/agent.h"
#include "guest/init/init.h"
#include "guest/init/modules.h"
#include "guest/storage/in_root.h"
#include "guest/storage/storage.h"
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char usage[] =
    "usage: as PID 1 of a utility VM: init [WORD …]\n"
    "       gcs serve [-loglevel LEVEL] [-stages NAME=START-END,…]   (started by PID 1)\n"
    "       gcs in-root ROOT PROGRAM NAME [ARG …]   (for lcow cp)\n"
    "       gcs grow PATH   (for lcow volume resize)\n"
    "       gcs --version\n";

struct serving {
    struct agent_opts opts;
    struct loop *loop;
    struct err err;
};

static void serve_fiber(void *arg)
{
    struct serving *s = arg;
    struct ctx ctx = ctx_root(s->loop);

    (void)agent_run(&ctx, &s->opts, &s->err); /* always fails; serve() reports it */
    loop_stop(s->loop);
}

/* The kernel passes every word that it does not know to PID 1, so unknown words are ignored. */
static int parse_words(char **words, struct agent_opts *opts, struct err *err)
{
    if (bootargs_load(&opts->boot, err) < 0)
        return -1;
    for (; *words; words++) {
        if (str_eq(*words, "-stages") && words[1]) {
            opts->stages = *++words;
        } else if (str_eq(*words, "-loglevel") && words[1]) {
            if (log_level_parse(*++words, &opts->boot.level) < 0)
                return err_set(
                    err, ERR_INVALID,
                    "invalid -loglevel %s: must be trace, debug, info, warn, error or off", *words);
        }
    }
    return 0;
}

/* Sets up the whole process before the first fiber, because each fiber keeps the signal mask it
 * starts with. */
static void set_up_process(void)
{
    sigset_t handled;

    prctl(PR_SET_NAME, "gcs");
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&handled);
    sigaddset(&handled, SIGUSR1);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    /* Returns the memory of a burst of requests to the VM. */
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_TRIM_THRESHOLD, 32 * 1024);
    mallopt(M_MMAP_THRESHOLD, 64 * 1024);
    mallopt(M_TOP_PAD, 4096);
}

static int serve(char **words)
{
    struct serving s = { .err = ERR_INIT };

    s.opts.started_ns = clock_mono();
    s.opts.load_module = modules_load;
    s.opts.power_off = init_power_off;
    set_up_process();
    if (parse_words(words, &s.opts, &s.err) == 0) {
        s.loop = loop_new(NULL);
        if (s.loop) {
            fiber_go(s.loop, serve_fiber, &s, "agent");
            loop_run(s.loop);
            loop_free(s.loop);
        } else {
            (void)err_sys(&s.err, errno, "make an event loop");
        }
    }
    fprintf(stderr, "lcow: agent failed: %s\n", s.err.msg);
    return 1;
}

int main(int argc, char **argv)
{
    if (getpid() == 1)
        return init_run("/proc/self/exe", (const char *const *)argv + (argc > 0));
    if (argc >= 2 && str_eq(argv[1], "serve"))
        return serve(argv + 2);
    if (argc >= 5 && str_eq(argv[1], "in-root"))
        return in_root_exec(argv[2], argv[3], argv + 4);
    if (argc == 3 && str_eq(argv[1], "grow"))
        return storage_grow_main(argv[2]);
    if (argc == 2 && str_eq(argv[1], "--version")) {
        puts("gcs " LCOW_VERSION);
        return 0;
    }
    fputs(usage, stderr);
    return 2;
}
