/* The backend with a peer in QEMU's place: everything is real but the program in the jail. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/qemu_fixture.h"
#include "harness/fsm_table.h"
#include "host/jail/cgroup.h"
#include "host/jail/jail.h"
#include "host/vmm/qemu/qemu_priv.h"
#include "proto/link.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    struct qemu_fixture fixture;
    struct timeline timeline;
    char stages[128];
    struct fibers calls;
};

static void on_stage(void *arg, enum vm_stage stage)
{
    struct fixture *f = arg;

    strcat(f->stages, vm_stage_name(stage));
    strcat(f->stages, " ");
}

static void start_fixture(struct ctx *ctx, struct fixture *f, const char *part, const char *flags)
{
    *f = (struct fixture){ 0 };
    fixture_prepare(ctx, &f->fixture, part, flags, 61000);
    f->fixture.v = qemu_vmm_new(ctx->loop);
    qemu_of(f->fixture.v)->test_env = &f->fixture.env;
    f->fixture.v->on_stage = on_stage;
    f->fixture.v->on_stage_arg = f;
    f->fixture.v->timeline = &f->timeline;
    fibers_init(&f->calls);
}

static void create(struct fixture *f)
{
    struct err err = ERR_INIT;

    ASSERT_OK(f->fixture.v->ops->create(f->fixture.ctx, f->fixture.v, &f->fixture.doc, &err), err);
}

static void boot(struct fixture *f)
{
    struct err err = ERR_INIT;

    create(f);
    ASSERT_OK(f->fixture.v->ops->start(f->fixture.ctx, f->fixture.v, &err), err);
}

static void await_stage(struct fixture *f, enum vm_stage stage)
{
    struct err err = ERR_INIT;

    while (qemu_of(f->fixture.v)->stage < stage)
        ASSERT_OK(fiber_sleep(f->fixture.ctx, NS_PER_MS, &err), err);
}

static struct vmm_exit ended(struct fixture *f)
{
    struct vmm_exit e;
    struct err err = ERR_INIT;

    ASSERT_OK(f->fixture.v->ops->wait(f->fixture.ctx, f->fixture.v, &e, &err), err);
    return e;
}

/* Takes everything back and looks that nothing is left. */
static void finish(struct fixture *f)
{
    struct err err = ERR_INIT;

    ASSERT_OK(f->fixture.v->ops->release(f->fixture.ctx, f->fixture.v, &err), err);
    ASSERT_OK(f->fixture.v->ops->release(f->fixture.ctx, f->fixture.v, &err), err);
    ASSERT_OK(fibers_wait(f->fixture.ctx, &f->calls, "calls", &err), err);
    ASSERT_EQ(access(f->fixture.run_dir, F_OK), -1);
    fixture_free(&f->fixture);
}

static int pid_of(struct fixture *f)
{
    struct vmm_info info;

    f->fixture.v->ops->info(f->fixture.v, &info);
    return info.pid;
}

TEST(every_pair_of_state_and_event_steps_as_listed_or_is_refused)
{
    fsm_table_check(&qemu_fsm);
}

TEST_FIBER(a_vm_boots_and_quits)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct vmm_stats stats;
    struct vmm_info info;
    struct sbuf tail = { 0 };

    start_fixture(ctx, &f, "boots", "tsc");
    boot(&f);
    f.fixture.v->ops->info(f.fixture.v, &info);
    ASSERT(info.pid > 0 && info.emulated);
    ASSERT_STR(info.version, "10.0.1");
    ASSERT_STR(info.backend, "qemu");
    await_stage(&f, VM_STAGE_INIT);
    ASSERT_STR(f.stages, "spawned kernel init ");
    f.fixture.v->ops->console_tail(f.fixture.v, 100, &tail);
    ASSERT_HAS(tail.data, "?[31mred\n");
    sbuf_release(&tail);
    ASSERT_OK(f.fixture.v->ops->stats(ctx, f.fixture.v, &stats, &err), err);
    ASSERT(stats.rss_bytes > 0);
    ASSERT_EQ(stats.memory_bytes, 256 << 20);
    ASSERT_FAIL(f.fixture.v->ops->release(ctx, f.fixture.v, &err), err, ERR_STATE);
    ASSERT_OK(f.fixture.v->ops->quit(ctx, f.fixture.v, &err), err);
    struct vmm_exit e = ended(&f);
    ASSERT(e.requested && !e.powered_off && e.status == 0);
    ASSERT_STR(e.why, "");
    ASSERT_FAIL(f.fixture.v->ops->stats(ctx, f.fixture.v, &stats, &err), err, ERR_STATE);
    ASSERT_EQ(pid_of(&f), 0);
    ASSERT(f.timeline.n >= 3);
    finish(&f);
}

static int join_cgroup(void *arg, int pid, struct err *err)
{
    if (cgroup_join(arg, pid, err) < 0)
        return -1;
    return jail_oom_score(NULL, pid, 321, err);
}

TEST_FIBER(the_process_joins_its_cgroup_and_takes_its_oom_score_before_it_runs)
{
    struct fixture f;
    struct err err = ERR_INIT;
    AUTO(cgroup_free) struct cgroup *c = NULL;
    AUTO_FREE char *path = str_format("/lcow-test-qemu-%d", (int)getpid()), *of = NULL,
                   *file = NULL, *score_file = NULL, *score = NULL;
    size_t len;

    start_fixture(ctx, &f, "boots", "tsc");
    ASSERT_OK(cgroup_make(ctx, path, NULL, &c, &err), err);
    f.fixture.doc.on_pid = join_cgroup;
    f.fixture.doc.on_pid_arg = c;
    boot(&f);
    file = str_format("/proc/%d/cgroup", pid_of(&f));
    score_file = str_format("/proc/%d/oom_score_adj", pid_of(&f));
    ASSERT_EQ(file_read_all(file, 65536, &of, &len), 0);
    ASSERT_HAS(of, path);
    ASSERT_EQ(file_read_all(score_file, 64, &score, &len), 0);
    ASSERT_STR(score, "321\n");
    ASSERT_FAIL(cgroup_remove(c, &err), err, ERR_STATE);
    f.fixture.v->ops->terminate(f.fixture.v);
    ended(&f);
    finish(&f);
    ASSERT_OK(cgroup_remove(c, &err), err);
}

static int refuse_to_enter(void *arg, int pid, struct err *err)
{
    (void)arg;
    (void)pid;
    return err_set(err, ERR_PERMISSION, "no way in");
}

TEST_FIBER(a_process_that_cannot_enter_does_not_run)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start_fixture(ctx, &f, "boots", "tsc");
    f.fixture.doc.on_pid = refuse_to_enter;
    create(&f);
    ASSERT_FAIL(f.fixture.v->ops->start(ctx, f.fixture.v, &err), err, ERR_PERMISSION);
    ASSERT_MSG_HAS(err.msg, "no way in");
    finish(&f);
}

/* What the ledger says while it runs. */
TEST_FIBER(the_process_is_on_record_and_has_a_user_of_its_own)
{
    struct fixture f, g;
    char status[64];

    start_fixture(ctx, &f, "boots", "tsc");
    boot(&f);
    AUTO_FREE char *path = str_format("%s/ledger", f.fixture.run_dir), *text = NULL,
                   *proc = str_format("/proc/%d/status", pid_of(&f)), *of = NULL;
    size_t len;
    ASSERT_EQ(file_read_all(path, 65536, &text, &len), 0);
    snprintf(status, sizeof(status), "process %d ", pid_of(&f));
    ASSERT_HAS(text, status);
    ASSERT_EQ(file_read_all(proc, 65536, &of, &len), 0);
    ASSERT_HAS(of, "\nUid:\t61000\t61000\t61000\t61000\n");
    ASSERT_HAS(of, "\nNoNewPrivs:\t1\n");
    ASSERT_HAS(of, "\nCapEff:\t000000000000001b\n");
    start_fixture(ctx, &g, "boots", "tsc"); /* other root, other locks: the same number */
    boot(&g);
    f.fixture.v->ops->terminate(f.fixture.v);
    g.fixture.v->ops->terminate(g.fixture.v);
    ASSERT(ended(&f).requested && ended(&g).requested);
    finish(&f);
    finish(&g);
}

TEST_FIBER(a_killed_qemu_is_reported_and_ends_calls_that_wait_for_the_guest)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct vmm_stats stats;
    struct vmm_listener *l;
    struct stream *s;

    start_fixture(ctx, &f, "boots", "tsc");
    boot(&f);
    ASSERT_OK(f.fixture.v->ops->listen(f.fixture.v, PORT_BRIDGE, &l, &err), err);
    ASSERT_EQ(kill(pid_of(&f), SIGKILL), 0);
    ASSERT_FAIL(f.fixture.v->ops->accept(ctx, l, &s, &err), err, ERR_UNAVAILABLE);
    struct vmm_exit e = ended(&f);
    ASSERT(!e.requested && !e.powered_off && !e.oom);
    ASSERT_EQ(e.status, SIGKILL);
    ASSERT_MSG(e.why, "qemu was killed by signal 9 (SIGKILL)");
    ASSERT_EQ(e.reason, REASON_QEMU_KILLED);
    ASSERT_FAIL(f.fixture.v->ops->stats(ctx, f.fixture.v, &stats, &err), err, ERR_STATE);
    finish(&f);
}

TEST_FIBER(a_qemu_that_its_seccomp_filter_killed_is_reported_so)
{
    struct fixture f;

    start_fixture(ctx, &f, "boots", "tsc");
    boot(&f);

    struct qemu_proc *p = qemu_of(f.fixture.v)->proc;

    qemu_exit_fill(p, SIGSYS); /* PID 1 of its namespace: nobody can send it that signal */
    ASSERT_EQ(p->exit.reason, REASON_QEMU_SECCOMP);
    f.fixture.v->ops->terminate(f.fixture.v);
    ASSERT(ended(&f).requested);
    finish(&f);
}

TEST_FIBER(a_stopped_qemu_can_be_terminated)
{
    struct fixture f;

    start_fixture(ctx, &f, "boots", "tsc");
    boot(&f);
    ASSERT_EQ(kill(pid_of(&f), SIGSTOP), 0);
    f.fixture.v->ops->terminate(f.fixture.v);
    f.fixture.v->ops->terminate(f.fixture.v);
    ASSERT(ended(&f).requested);
    finish(&f);
}

TEST_FIBER(an_orderly_power_off_is_distinguished_from_a_reboot)
{
    struct fixture f;

    start_fixture(ctx, &f, "poweroff", "tsc");
    boot(&f);
    struct vmm_exit e = ended(&f);
    ASSERT(e.powered_off && !e.requested && !e.panicked);
    finish(&f);
    start_fixture(ctx, &f, "reset", "tsc");
    boot(&f);
    e = ended(&f);
    ASSERT(!e.powered_off && !e.requested && !e.panicked);
    ASSERT_EQ(e.reason, REASON_GUEST_RESET);
    ASSERT_MSG_HAS(e.why, "the guest reset its VM without a kernel panic");
    ASSERT(!strstr(e.why, "console")); /* there is nothing to see */
    finish(&f);
}

TEST_FIBER(a_reset_after_a_panic_on_the_console_is_a_panic)
{
    struct fixture f;

    start_fixture(ctx, &f, "panic-reset", "tsc");
    boot(&f);

    struct vmm_exit e = ended(&f);

    ASSERT(e.panicked && !e.powered_off && !e.requested);
    ASSERT_EQ(e.reason, REASON_GUEST_PANIC);
    ASSERT_MSG(e.why, "the guest kernel panicked");
    finish(&f);
}

TEST_FIBER(a_panic_that_qemu_reports_is_a_panic)
{
    struct fixture f;

    start_fixture(ctx, &f, "panic", "tsc");
    boot(&f);

    struct vmm_exit e = ended(&f);

    ASSERT(e.panicked && !e.powered_off && !e.requested);
    ASSERT_EQ(e.reason, REASON_GUEST_PANIC);
    finish(&f);
}

static unsigned count(const char *text, const char *word)
{
    unsigned n = 0;

    for (const char *p = text; (p = strstr(p, word)); p++)
        n++;
    return n;
}

TEST_FIBER(what_a_guest_or_qemu_can_cause_does_not_fill_the_log_nor_reach_a_terminal)
{
    struct fixture f;
    AUTO_FREE char *text = NULL;
    size_t len;

    start_fixture(ctx, &f, "flood", "tsc");
    AUTO_FREE char *path = str_format("%s/log", f.fixture.temp.dir);
    AUTO_FD int log = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    log_init(log, LOG_WARN, LOG_LOGFMT);
    boot(&f);
    struct vmm_exit e = ended(&f);
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    ASSERT_EQ(file_read_all(path, 1 << 20, &text, &len), 0);
    unlink(path);
    finish(&f);
    ASSERT_HAS(e.why, "?[2Jgone");
    ASSERT_EQ(e.reason, REASON_QEMU_FAILED);
    ASSERT(count(text, "reason=DISK_IO_ERROR") > 0);
    ASSERT(count(text, "reason=DISK_IO_ERROR") < 50);
}

/* Start fails with the code, its error and the exit say why, nothing is left. */
static void fails_to_start(struct ctx *ctx, const char *part, uint64_t limit, enum err_code code,
                           const char *why)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct ctx limited = ctx_with_timeout(ctx, limit);

    start_fixture(ctx, &f, part, "tsc");
    create(&f);
    ASSERT_FAIL(f.fixture.v->ops->start(&limited, f.fixture.v, &err), err, code);
    ASSERT_MSG_HAS(err.msg, why);
    struct vmm_exit e = ended(&f);
    ASSERT(!e.requested);
    ASSERT_MSG_HAS(e.why, why);
    ASSERT_FAIL(f.fixture.v->ops->start(ctx, f.fixture.v, &err), err, ERR_STATE);
    finish(&f);
}

TEST_FIBER(a_qemu_that_exits_at_once_is_quoted)
{
    fails_to_start(ctx, "exits", NS_PER_S * 30, ERR_UNAVAILABLE,
                   "qemu exited with status 1: peer: first line / peer: ?[1mcannot go on");
}

TEST_FIBER(an_old_qemu_is_named_with_the_remedy)
{
    fails_to_start(ctx, "old", NS_PER_S * 30, ERR_STATE, "is QEMU 5.2.1, which is too old");
}

TEST_FIBER(a_silent_monitor_ends_with_the_deadline)
{
    fails_to_start(ctx, "silent", 3 * NS_PER_S, ERR_DEADLINE, "did not greet");
}

TEST_FIBER(a_monitor_of_rubbish_fails_the_start)
{
    fails_to_start(ctx, "rubbish", NS_PER_S * 30, ERR_UNAVAILABLE, "qmp");
}

struct starting {
    struct fixture *f;
    int create, start;
    struct err err;
    bool done;
};

static void start_fiber(void *arg)
{
    struct starting *s = arg;
    struct fixture *f = s->f;

    s->start = -2;
    s->create = f->fixture.v->ops->create(f->fixture.ctx, f->fixture.v, &f->fixture.doc, &s->err);
    if (s->create == 0)
        s->start = f->fixture.v->ops->start(f->fixture.ctx, f->fixture.v, &s->err);
    s->done = true;
}

TEST_FIBER(terminate_works_at_any_moment_of_create_and_start)
{
    for (unsigned step = 0; step < 24; step++) {
        struct fixture f;
        struct starting s = { .f = &f };
        struct err err = ERR_INIT;
        struct vmm_exit e;

        start_fixture(ctx, &f, step % 2 ? "silent" : "boots", "tsc");
        fibers_go(&f.calls, ctx->loop, start_fiber, &s, "starting");
        ASSERT_OK(fiber_sleep(ctx, step * 700 * NS_PER_US, &err), err);
        f.fixture.v->ops->terminate(f.fixture.v);
        ASSERT_OK(fibers_wait(ctx, &f.calls, "start", &err), err);
        ASSERT(s.done);
        if (s.create < 0 || s.start < 0) {
            ASSERT_EQ(s.err.code, ERR_UNAVAILABLE);
        }
        if (s.create < 0)
            ASSERT_FAIL(f.fixture.v->ops->wait(ctx, f.fixture.v, &e, &err), err, ERR_STATE);
        else
            ASSERT(ended(&f).requested);
        finish(&f);
    }
}

TEST_FIBER(a_terminated_vm_is_not_created_any_more)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start_fixture(ctx, &f, "boots", "tsc");
    f.fixture.v->ops->terminate(f.fixture.v);
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err,
                ERR_UNAVAILABLE);
    finish(&f);
}

TEST_FIBER(a_failed_create_leaves_nothing_and_can_be_repeated)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct vm_doc good;

    start_fixture(ctx, &f, "boots", "tsc");
    good = f.fixture.doc;
    f.fixture.doc.kernel = "/nonexistent/vmlinux";
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err,
                ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "make image");
    f.fixture.doc = good, f.fixture.doc.kernel = f.fixture.initrd;
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err,
                ERR_DATA_LOSS);
    f.fixture.doc = good, f.fixture.doc.initrd = f.fixture.kernel;
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err,
                ERR_DATA_LOSS);
    f.fixture.doc = good, f.fixture.doc.memory_mib = 1;
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err, ERR_INVALID);
    f.fixture.doc = good, f.fixture.doc.vmm_path = "/nonexistent/qemu";
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err,
                ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "bookworm-backports");
    f.fixture.doc = good, f.fixture.doc.allow_emulation = false;
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_NO_KVM);
    ASSERT_MSG_HAS(err.msg, "--allow-emulation");
    f.fixture.doc = good, f.fixture.doc.uid_count = 0;
    ASSERT_FAIL(f.fixture.v->ops->create(ctx, f.fixture.v, &f.fixture.doc, &err), err, ERR_INVALID);
    ASSERT_EQ(access(f.fixture.run_dir, F_OK), -1);
    f.fixture.doc = good;
    boot(&f);
    f.fixture.v->ops->terminate(f.fixture.v);
    ended(&f);
    finish(&f);
}

/* --- acceleration --- */

/* NULL: nothing. */
static void assert_remembered(struct fixture *f, const char *words)
{
    AUTO_FREE char *path = str_format("%s/accel", f->fixture.temp.dir), *text = NULL;
    size_t len;
    int r = file_read_all(path, 512, &text, &len);

    if (!words) {
        ASSERT(r == -ENOENT);
        return;
    }
    ASSERT_EQ(r, 0);
    ASSERT_HAS(text, words);
}

TEST_FIBER(a_first_boot_with_kvm_proves_it)
{
    struct fixture f;

    start_fixture(ctx, &f, "boots", "vmx");
    f.fixture.doc.allow_emulation = false;
    boot(&f);
    ASSERT(qemu_of(f.fixture.v)->stage >= VM_STAGE_KERNEL);
    assert_remembered(&f, "kvm works");
    f.fixture.v->ops->terminate(f.fixture.v);
    ended(&f);
    finish(&f);
}

/* The first boot with KVM comes up by emulation. */
static void falls_back(struct ctx *ctx, const char *part, uint64_t proof_cpu_ns, const char *words)
{
    struct fixture f;
    struct vmm_info info;

    start_fixture(ctx, &f, part, "vmx");
    f.fixture.env.proof_cpu_ns = proof_cpu_ns;
    boot(&f);
    f.fixture.v->ops->info(f.fixture.v, &info);
    ASSERT(info.emulated && info.pid > 0);
    assert_remembered(&f, words);
    await_stage(&f, VM_STAGE_INIT);
    f.fixture.v->ops->terminate(f.fixture.v);
    ASSERT(ended(&f).requested);
    finish(&f);
}

TEST_FIBER(a_kvm_that_fails_is_replaced_by_emulation_if_that_is_allowed)
{
    falls_back(ctx, "kvm-run", 0, " error: kvm run failed Bad address\n");
    falls_back(ctx, "spin-kvm", NS_PER_S, " the guest executed nothing: no output after 1 s");
}

TEST_FIBER(a_first_boot_that_fails_otherwise_does_not_condemn_kvm)
{
    falls_back(ctx, "no-kvm", 0, NULL);
}

/* The first boot with KVM fails, and emulation is not allowed. */
static void fails_with_kvm(struct ctx *ctx, const char *part, uint64_t limit, enum err_code code,
                           struct err *err, const char *words)
{
    struct fixture f;
    struct ctx limited = ctx_with_timeout(ctx, limit);

    start_fixture(ctx, &f, part, "svm");
    f.fixture.doc.allow_emulation = false;
    create(&f);
    ASSERT_FAIL(f.fixture.v->ops->start(&limited, f.fixture.v, err), *err, code);
    ASSERT(!ended(&f).requested);
    assert_remembered(&f, words);
    finish(&f);
}

TEST_FIBER(a_kvm_that_fails_is_an_error_if_emulation_is_not_allowed)
{
    struct err err = ERR_INIT;

    fails_with_kvm(ctx, "kvm-run", 30 * NS_PER_S, ERR_UNAVAILABLE, &err, "kvm broken ");
    ASSERT_EQ(err.reason, REASON_KVM_FAILED);
    ASSERT_MSG_HAS(err.msg, "--allow-emulation");
    ASSERT_HAS(err.msg, "internal-error: error: kvm run failed Bad address");
}

/* No memory, say: emulation would not help, so it is not advised. */
TEST_FIBER(the_next_vm_tries_kvm_again_after_an_error_that_is_not_its_own)
{
    struct err err = ERR_INIT;

    fails_with_kvm(ctx, "no-kvm", 30 * NS_PER_S, ERR_UNAVAILABLE, &err, NULL);
    ASSERT_HAS(err.msg, "cannot go on");
    ASSERT(!strstr(err.msg, "--allow-emulation"));
}

TEST_FIBER(a_first_boot_that_has_no_time_left_does_not_condemn_kvm)
{
    struct err err = ERR_INIT;

    fails_with_kvm(ctx, "mute-kvm", 3 * NS_PER_S, ERR_DEADLINE, &err, NULL);
    ASSERT_MSG_HAS(err.msg, "the guest kernel has printed nothing yet");
}

/* --- a VM that QEMU stops --- */

/* A VM that runs is stopped with this status: the exit says so. */
static void stops(struct ctx *ctx, const char *part, bool panicked, const char *why)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start_fixture(ctx, &f, part, "tsc");
    boot(&f);
    /* Which is when the peer does it. */
    ASSERT_OK(qmp_client_call(ctx, qemu_of(f.fixture.v)->proc->qmp, "cont", NULL, NULL, &err), err);
    struct vmm_exit e = ended(&f);
    ASSERT(!e.requested && !e.powered_off);
    ASSERT_EQ(e.panicked, panicked);
    ASSERT_EQ(e.reason, panicked ? REASON_GUEST_PANIC : REASON_VM_STOPPED);
    ASSERT(WIFSIGNALED(e.status));
    ASSERT_MSG(e.why, why);
    finish(&f);
}

#define STOPPED "the VM has failed: QEMU stopped it with status "

TEST_FIBER(an_unrequested_stop_is_the_end_of_the_vm)
{
    stops(ctx, "stops-internal-error", false, STOPPED "internal-error");
    stops(ctx, "stops-io-error", false, STOPPED "io-error");
    stops(ctx, "stops-watchdog", false, STOPPED "watchdog");
    stops(ctx, "stops-shutdown", false, STOPPED "shutdown");
    stops(ctx, "stops-suspended", false, STOPPED "suspended");
    stops(ctx, "stops-guest-panicked", true, "the guest kernel panicked");
    stops(ctx, "stops-of-a-later-QEMU", false, STOPPED "of-a-later-QEMU");
    /* These are expected of a template and of a clone only. */
    stops(ctx, "stops-postmigrate", false, STOPPED "postmigrate");
    stops(ctx, "stops-inmigrate", false, STOPPED "inmigrate");
    stops(ctx, "stops-paused", false, STOPPED "paused");
}

/* --- its stderr --- */

TEST(a_warning_is_not_the_reason_of_an_error)
{
    struct qemu_words w = { 0 };
    static const char text[] = "qemu: warning: Number of hotpluggable cpus requested (4) exceeds "
                               "the recommended cpus supported by KVM (2)\nqemu: first\n\n"
                               "qemu: sec\033ond\nqemu: warning: half a li";

    for (size_t i = 0; i < sizeof(text) - 1; i++) /* cut anywhere */
        qemu_words_feed(NULL, &w, text + i, 1);
    const char *last = qemu_words_last(NULL, &w);
    ASSERT_STR(last, "qemu: first / qemu: sec?ond");
}

TEST(what_kvm_failed_with_is_found_before_the_registers)
{
    static const char *const lines[] = { "error: kvm run failed Bad address",
                                         "KVM internal error. Suberror: 1",
                                         "KVM: entry failed, hardware error 0x80000021" };

    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct qemu_words w = { 0 };

        qemu_words_feed(NULL, &w, "qemu: before\n", 13);
        qemu_words_feed(NULL, &w, lines[i], strlen(lines[i]));
        for (int n = 0; n < 200; n++)
            qemu_words_feed(NULL, &w, "\nRAX=0000000000000000 RBX=0000000000000000", 42);
        const char *last = qemu_words_last(NULL, &w);
        ASSERT_STR(last, lines[i]);
        ASSERT_STR(w.kvm_error, lines[i]);
    }
}

TEST(of_many_words_the_last_are_kept)
{
    struct qemu_words w = { 0 };

    for (int i = 0; i < 1000; i++) {
        AUTO_FREE char *line = str_format("line %d\n", i);

        qemu_words_feed(NULL, &w, line, strlen(line));
    }
    const char *last = qemu_words_last(NULL, &w);
    ASSERT_HAS(last, "line 998 / line 999");
    ASSERT(strlen(last) < 400 && str_starts(last, "line "));
}
