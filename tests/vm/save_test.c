/* A real VM is saved while a process runs in it, and read into other objects on another loop: the
 * process, its streams and the wait for it go on, and the guest takes new calls. */
#include "base/saved.h"
#include "fixture/real_vm.h"
#define SAVED_TWO_PROGRAMS
#include "fixture/handover_fixture.h"

static const char *const env[] = { "PATH=/bin:/sbin", NULL };

struct world {
    struct tempdir temp;
    char *run_dir, *kernel, *initrd;
    struct timeline timeline;
    struct ctx *ctx;
    struct vmm *vmm;
    struct guest *guest;
    struct guest_process process;
    uint64_t wait_id;
    uint32_t code;
    int r;
    struct err err;
    struct saved *writer;
    struct fibers fibers;
};

static void wait_main(void *arg)
{
    struct world *w = arg;

    w->r = w->guest->ops->wait_process(w->ctx, w->guest, NULL, w->process.pid, GUEST_WAIT_FOREVER,
                                       &w->code, &w->wait_id, &w->err);
}

static void boot(struct world *w)
{
    struct ctx limited = ctx_with_timeout(w->ctx, FIXTURE_BOOT_NS);
    const struct vm_doc doc = { .id = "saved@vm",
                                .run_dir = w->run_dir,
                                .kernel = w->kernel,
                                .initrd = w->initrd,
                                .memory_mib = 256,
                                .cpus = 1,
                                .max_cpus = 1,
                                .allow_emulation = true,
                                .uid_base = 62100,
                                .uid_count = 16,
                                .scsi_controllers = 1 };
    struct err err = ERR_INIT;

    w->vmm = qemu_vmm_new(w->ctx->loop);
    w->guest = bridge_new(w->ctx->loop, w->vmm, &w->timeline);
    ASSERT_OK(w->vmm->ops->create(&limited, w->vmm, &doc, &err), err);
    ASSERT_OK(w->guest->ops->prepare(&limited, w->guest, &err), err);
    ASSERT_OK(w->vmm->ops->start(&limited, w->vmm, &err), err);
    ASSERT_OK(w->guest->ops->connect(&limited, w->guest, &err), err);
}

static void exec(struct world *w, const char *line, struct guest_process *ret)
{
    const char *const argv[] = { "/bin/sh", "-c", line, NULL };
    const struct guest_exec e = {
        .argv = argv, .env = env, .cwd = "/", .want_stdin = true, .want_stdout = true
    };
    struct ctx limited = ctx_with_timeout(w->ctx, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;

    ASSERT_OK(w->guest->ops->exec(&limited, w->guest, &e, ret, &err), err);
}

/* Both write at the level where they are called. */
static void both_saved(struct world *w, struct saved *s)
{
    ASSERT(saved_open(s, 1));
    w->vmm->ops->saved(w->vmm, s, NULL);
    saved_close(s);
    ASSERT(saved_open(s, 2));
    w->guest->ops->saved(w->guest, s);
    saved_close(s);
    saved_stream(s, 3, "stdin", w->ctx->loop, &w->process.in);
    saved_stream(s, 4, "stdout", w->ctx->loop, &w->process.out);
}

static void first_half(struct ctx *ctx, void *arg)
{
    struct world *w = arg;

    w->ctx = ctx;
    boot(w);
    exec(w, "read x; echo got $x; exit 7", &w->process);
    fibers_init(&w->fibers);
    fibers_go(&w->fibers, ctx->loop, wait_main, w, "wait");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &w->err), w->err); /* the guest logs its beginning */
    w->writer = saved_writer();
    both_saved(w, w->writer);
}

static void read_again(struct ctx *ctx, struct world *w)
{
    AUTO(saved_free) struct saved *reader = NULL;
    struct err err = ERR_INIT;

    w->ctx = ctx;
    w->vmm = qemu_vmm_new(ctx->loop);
    w->guest = bridge_new(ctx->loop, w->vmm, &w->timeline);
    reader = saved_fixture_read(w->writer);
    saved_hand_over(reader, NULL);
    both_saved(w, reader);
    ASSERT_OK(saved_check(reader, &err), err);
}

/* All that it prints, with this on its stdin; and its exit status. */
static void talk(struct world *w, struct guest_process *p, const char *in, const char *want)
{
    struct ctx limited = ctx_with_timeout(w->ctx, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;
    char out[64] = "";
    size_t n, len = 0;

    ASSERT_OK(stream_write_full(&limited, p->in, in, strlen(in), &err), err);
    do {
        ASSERT_OK(stream_read(&limited, p->out, out + len, sizeof(out) - 1 - len, &n, &err), err);
        len += n;
    } while (n > 0 && len < sizeof(out) - 1);
    ASSERT_STR(out, want);
    stream_free(p->in);
    stream_free(p->out);
    w->process.pid = p->pid;
    fibers_init(&w->fibers);
    fibers_go(&w->fibers, w->ctx->loop, wait_main, w, "wait");
    ASSERT_OK(fibers_wait(&limited, &w->fibers, "the process to end", &err), err);
    ASSERT_OK(w->r, w->err);
}

static void finish(struct world *w)
{
    struct ctx limited = ctx_with_timeout(w->ctx, FIXTURE_CALL_NS);
    struct vmm_exit e;
    struct err err = ERR_INIT;

    w->vmm->ops->terminate(w->vmm);
    ASSERT_OK(w->vmm->ops->wait(&limited, w->vmm, &e, &err), err);
    ASSERT(e.requested);
    w->guest->ops->close(w->guest, "the VM is gone");
    ASSERT_OK(w->guest->ops->drain_log(&limited, w->guest, &err), err);
    w->guest->ops->free(w->guest);
    ASSERT_OK(w->vmm->ops->release(&limited, w->vmm, &err), err);
    w->vmm->ops->free(w->vmm);
    ASSERT_EQ(access(w->run_dir, F_OK), -1);
    saved_free(w->writer);
    tempdir_release_auto(&w->temp);
}

TEST_FIBER(a_vm_its_processes_and_their_waits_go_on)
{
    const char *image = getenv("LCOW_IMAGE");
    struct world w = { .kernel = str_format("%s/vmlinux", image ? image : ""),
                       .initrd = str_format("%s/initrd.cpio", image ? image : "") };
    struct guest_process p;

    if (geteuid() != 0 || access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("a VM needs root and /dev/net/tun");
    if (access(w.kernel, R_OK) < 0 || access(w.initrd, R_OK) < 0)
        tap_skip("no guest image in LCOW_IMAGE: make image");
    tempdir_init(&w.temp, "/tmp");
    w.run_dir = str_format("%s/run/test/vm", w.temp.dir);
    saved_first_half(false, first_half, &w);
    read_again(ctx, &w);
    talk(&w, &w.process, "hello\n", "got hello\n");
    ASSERT_EQ(w.code, 7);
    exec(&w, "read x; echo $x again; exit 8", &p);
    talk(&w, &p, "hello\n", "hello again\n");
    ASSERT_EQ(w.code, 8);
    finish(&w);
    free(w.run_dir);
    free(w.kernel);
    free(w.initrd);
}
