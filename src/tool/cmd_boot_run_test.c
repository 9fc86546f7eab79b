/* A session of `lcow boot` over a fake VMM, the real bridge and a scripted guest. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/str.h"
#include "fixture/fake_guest.h"
#include "fixture/fake_vmm.h"
#include "harness/tap.h"
#include "host/bridge/bridge.h"
#include "proto/bridge.h"
#include "tool/cmd_boot.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The backend gets only a loop, so the options of the fakes are global. */
static struct fake_vmm_opts vmm_opts;
static struct vm_doc asked; /* the requested settings of the last VM */
static const struct vmm_ops *fake_ops;
static struct fake_guest_opts guest_opts;

static int dial(void *arg, uint32_t port, struct stream **ret)
{
    return fake_vmm_dial(arg, port, ret);
}

static void on_power(void *arg, struct vmm *v, struct cancel *power)
{
    guest_opts.dial = dial;
    guest_opts.dial_arg = v;
    guest_opts.power = power;
    fake_guest_boot(&guest_opts);
}

static int note_doc(struct ctx *ctx, struct vmm *v, const struct vm_doc *doc, struct err *err)
{
    asked = *doc;
    return fake_ops->create(ctx, v, doc, err);
}

static struct vmm *vmm_new(struct loop *loop)
{
    static struct vmm_ops ops;
    struct vmm *v;

    vmm_opts.loop = guest_opts.loop = loop;
    vmm_opts.on_power = on_power;
    vmm_opts.kill_ns = NS_PER_MS;
    v = fake_vmm_new(&vmm_opts);
    fake_ops = v->ops;
    ops = *fake_ops;
    ops.create = note_doc;
    v->ops = &ops;
    return v;
}

static const struct tool_backend backend = { .vmm_new = vmm_new, .guest_new = bridge_new };

struct fixture {
    struct tool tool;
    struct tool_opts opts;
    struct image image;
    struct boot_session session;
    struct boot_result result;
    int saved[3]; /* the test's own stdio */
    int out;      /* receives our stdout */
};

/* stdin is empty, stdout and stderr go to a file in memory. */
static void begin(struct fixture *r, struct ctx *ctx)
{
    static char *const argv[] = { "cmd", NULL };
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    fflush(stdout);
    *r = (struct fixture){ 0 };
    r->tool.backend = &backend;
    r->tool.loop = ctx->loop;
    config_init(&r->tool.config);
    r->opts = (struct tool_opts){ .memory_mib = 256, .cpus = 1, .allow_emulation = true };
    r->image.kernel = "/k";
    r->image.initrd = "/i";
    r->session = (struct boot_session){
        .tool = &r->tool, .opts = &r->opts, .image = &r->image, .argv = argv
    };
    r->out = memfd_create("out", MFD_CLOEXEC);
    for (int fd = 0; fd <= 2; fd++) {
        r->saved[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
        dup2(fd == 0 ? null : r->out, fd);
    }
    fd_close(null);
}

static void end(struct fixture *r)
{
    for (int fd = 0; fd <= 2; fd++) {
        dup2(r->saved[fd], fd);
        fd_close(r->saved[fd]);
    }
    fd_close(r->out);
    config_release(&r->tool.config);
    boot_result_release(&r->result);
    vmm_opts = (struct fake_vmm_opts){ 0 };
    guest_opts = (struct fake_guest_opts){ 0 };
}

static void run(struct fixture *r, struct ctx *ctx)
{
    begin(r, ctx);
    boot_session_run(ctx, &r->session, &r->result);
}

TEST_FIBER(the_exit_code_is_the_commands_and_its_output_is_written)
{
    struct fixture r;

    guest_opts.exit_code = 7;
    guest_opts.output_bytes = 300000;
    run(&r, ctx);
    off_t size = lseek(r.out, 0, SEEK_END);

    end(&r);
    ASSERT_EQ(r.result.code, 7);
    ASSERT(r.result.ran);
    ASSERT_EQ(r.result.err.code, ERR_NONE);
    ASSERT_EQ(r.result.stage, VM_STAGE_NEGOTIATED);
    ASSERT(r.result.out.bytes > 0);
    ASSERT(size >= (off_t)r.result.out.bytes);
}

/* They are part of a template's key: with other values, pods' templates could not be used. */
TEST_FIBER(a_vm_has_the_disk_and_pci_ports_of_pods)
{
    struct fixture r;

    begin(&r, ctx);
    free(r.tool.config.allow_devices);
    r.tool.config.allow_devices = str_dup("8086:1234");
    r.tool.config.device_slots = 3;
    boot_session_run(ctx, &r.session, &r.result);
    ASSERT_EQ(asked.disk_mib, r.tool.config.scratch_mib);
    end(&r);
    ASSERT_EQ(r.result.err.code, ERR_NONE);
    ASSERT_EQ(asked.pci_ports, 3);
}

TEST_FIBER(a_vm_that_stops_while_the_command_runs_is_an_error)
{
    struct fixture r;

    guest_opts.process_ns = 60 * NS_PER_S;
    vmm_opts.dies_after_ns = NS_PER_S;
    vmm_opts.death = FAKE_KILLED;
    run(&r, ctx);
    end(&r);
    ASSERT_EQ(r.result.code, TOOL_BOOT_FAILED);
    ASSERT(!r.result.ran);
    ASSERT_HAS(r.result.err.msg, "the VM stopped while it was in use: ");
}

TEST_FIBER(a_vm_that_does_not_start_has_advice)
{
    struct fixture r;

    vmm_opts.start.how = FAKE_FAIL;
    vmm_opts.start_fails_early = true;
    run(&r, ctx);
    end(&r);
    ASSERT_EQ(r.result.code, TOOL_BOOT_FAILED);
    ASSERT(r.result.failed_at > r.result.origin);
    ASSERT_HAS(r.result.next, "lcow doctor");
}

TEST_FIBER(a_boot_without_an_agent_fails_after_the_configured_time)
{
    struct fixture r;

    guest_opts.agent_hangs = true;
    begin(&r, ctx);
    r.tool.config.boot_timeout_s = 1;
    boot_session_run(ctx, &r.session, &r.result);
    end(&r);
    ASSERT_EQ(r.result.code, TOOL_BOOT_FAILED);
    ASSERT_EQ(r.result.err.code, ERR_DEADLINE);
    ASSERT(r.result.failed_at - r.result.origin < 30 * NS_PER_S);
    ASSERT(r.result.stage < VM_STAGE_AGENT);
}

/* Sends the signal once or several times when the session has reached a stage. */
struct sender {
    struct fixture *fixture;
    bool booting;
    int signo, times;
};

static void send_signals(void *arg)
{
    struct sender *s = arg;
    struct ctx root = ctx_root(s->fixture->tool.loop), ctx = ctx_with_timeout(&root, 50 * NS_PER_S);
    struct err err = ERR_INIT;

    while (!s->booting && !s->fixture->session.process && fiber_sleep(&ctx, NS_PER_MS, &err) == 0)
        continue;
    for (int i = 0; i < s->times && fiber_sleep(&ctx, 30 * NS_PER_MS, &err) == 0; i++)
        boot_session_signal(&s->fixture->session, s->signo);
}

static void run_with_signals(struct fixture *r, struct ctx *ctx, struct sender *s)
{
    begin(r, ctx);
    s->fixture = r;
    fiber_go(ctx->loop, send_signals, s, "signals");
    boot_session_run(ctx, &r->session, &r->result);
    end(r);
}

TEST_FIBER(the_first_signal_is_forwarded_to_the_command)
{
    struct fixture r;
    struct sender s = { .signo = SIGTERM, .times = 1 };

    guest_opts.process_ns = 60 * NS_PER_S; /* the scripted guest ends a process by any signal */
    run_with_signals(&r, ctx, &s);
    ASSERT(r.result.ran);
    ASSERT_EQ(r.result.code, 128 + SIGTERM);
    ASSERT_EQ(r.result.err.code, ERR_NONE);
}

static struct fake_answer refuse_signals(void *arg, uint32_t type)
{
    return (struct fake_answer){ .how = type == BRIDGE_SIGNAL_PROCESS ? FAKE_SILENT : FAKE_ANSWER };
}

TEST_FIBER(the_second_signal_stops_an_unresponsive_vm)
{
    struct fixture r;
    struct sender s = { .signo = SIGTERM, .times = 2 };

    guest_opts.process_ns = 60 * NS_PER_S;
    guest_opts.decide = refuse_signals;
    run_with_signals(&r, ctx, &s);
    ASSERT(!r.result.ran);
    ASSERT_EQ(r.result.code, 128 + SIGTERM);
    ASSERT_MSG_HAS(r.result.err.msg, "SIGTERM");
}

TEST_FIBER(a_signal_during_the_boot_stops_it)
{
    struct fixture r;
    struct sender s = { .booting = true, .signo = SIGINT, .times = 1 };

    guest_opts.agent_hangs = true;
    run_with_signals(&r, ctx, &s);
    ASSERT_EQ(r.result.code, 128 + SIGINT);
    ASSERT(r.result.ended - r.result.origin < 30 * NS_PER_S);
    ASSERT(!r.result.console);
}

TEST_FIBER(a_resized_window_does_not_stop_the_session)
{
    struct fixture r;
    struct sender s = { .signo = SIGWINCH, .times = 3 };

    guest_opts.process_ns = 2 * NS_PER_S;
    run_with_signals(&r, ctx, &s);
    ASSERT(r.result.ran);
    ASSERT_EQ(r.result.code, 0);
}
