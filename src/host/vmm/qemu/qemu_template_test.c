/* Building a template and what becomes of a clone that fails, with a peer in QEMU's place:
 * everything is real but the program in the jail. A clone that comes to life is in
 * tests/integration. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/str.h"
#include "fixture/qemu_fixture.h"
#include "host/template/template.h"
#include "host/vmm/qemu/qemu_priv.h"
#include "proto/qmp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

struct fixture {
    struct qemu_fixture fixture;
    char *templates;
};

static void open_fixture(struct ctx *ctx, struct fixture *f)
{
    struct vm_doc *doc = &f->fixture.doc;

    fixture_prepare(ctx, &f->fixture, "", "", 61400);
    f->templates = str_format("%s/templates", f->fixture.temp.dir);
    doc->max_memory_mib = 512;
    doc->max_cpus = 3;
    doc->accel = VM_ACCEL_TCG;
    doc->template_dir = f->templates;
}

static void finish(struct fixture *f)
{
    fixture_free(&f->fixture);
    free(f->templates);
}

static void name(struct fixture *f, const char *part)
{
    free(f->fixture.id);
    f->fixture.doc.id = f->fixture.id = str_format("%s@vm", part);
}

static bool build(struct fixture *f, char key[TEMPLATE_KEY_SIZE])
{
    AUTO(template_info_release) struct template_info info = { 0 };
    struct ctx patient = ctx_root(f->fixture.ctx->loop); /* 256 MiB are hashed */
    struct err err = ERR_INIT;
    bool made;

    name(f, "builder");
    ASSERT_OK(qemu_template_build(&patient, f->fixture.ctx->loop, &f->fixture.doc,
                                  &(struct vmm_template_opts){ 0 }, &info, &made, &err),
              err);
    ASSERT_EQ(access(f->fixture.run_dir, F_OK), -1); /* ledger and jail are gone */
    ASSERT_STR(info.vmm_version, "10.0.1");
    memcpy(key, info.key, TEMPLATE_KEY_SIZE);
    return made;
}

static void end(struct fixture *f, struct vmm *v)
{
    struct vmm_exit exit;
    struct err err = ERR_INIT;

    v->ops->terminate(v);
    ASSERT_OK(v->ops->wait(f->fixture.ctx, v, &exit, &err), err);
    ASSERT_OK(v->ops->release(f->fixture.ctx, v, &err), err);
    v->ops->free(v);
}

static size_t count(const struct fixture *f)
{
    char(*keys)[TEMPLATE_KEY_SIZE];
    struct err err = ERR_INIT;
    size_t n;

    ASSERT_OK(template_list(f->templates, &keys, &n, &err), err);
    free(keys);
    return n;
}

TEST_FIBER(a_template_is_built_once)
{
    char first[TEMPLATE_KEY_SIZE], second[TEMPLATE_KEY_SIZE];
    AUTO(template_info_release) struct template_info info = { 0 };
    struct fixture f;
    struct err err = ERR_INIT;

    open_fixture(ctx, &f);
    ASSERT(build(&f, first));
    ASSERT_OK(template_verify(f.templates, first, &info, &err), err);
    ASSERT_EQ(info.memory_mib, 256);
    ASSERT_EQ(info.ram.size, 256u << 20);
    ASSERT_EQ(info.state.size, strlen("devices"));
    ASSERT(!build(&f, second));
    ASSERT_STR(first, second);
    ASSERT_EQ(count(&f), 1);
    /* Another kernel is another template. */
    fixture_write_kernel(f.fixture.kernel, 2);
    ASSERT(build(&f, second));
    ASSERT(strcmp(first, second) != 0);
    finish(&f);
}

/* wants: that a template is built; left: how many there are then. */
static void start_cold_with(struct fixture *f, const char *part, const char *why, bool wants,
                            size_t left)
{
    struct vmm *v = qemu_vmm_new(f->fixture.ctx->loop);
    struct vmm_info info;
    struct err err = ERR_INIT;
    struct ctx patient = ctx_root(f->fixture.ctx->loop);

    struct ctx *before = f->fixture.ctx;

    f->fixture.ctx = &patient;
    name(f, part);
    ASSERT_OK(v->ops->create(f->fixture.ctx, v, &f->fixture.doc, &err), err);
    ASSERT_OK(v->ops->start(f->fixture.ctx, v, &err), err);
    v->ops->info(v, &info);
    ASSERT(!info.clone);
    ASSERT(info.cold_why[0]);
    ASSERT_MSG_HAS(info.cold_why, why);
    ASSERT_EQ(info.want_template, wants);
    ASSERT(info.pid > 0);
    while (qemu_of(v)->stage < VM_STAGE_INIT)
        ASSERT_OK(fiber_sleep(f->fixture.ctx, 1000 * 1000, &err), err);
    ASSERT_EQ(count(f), left);
    end(f, v);
    f->fixture.ctx = before;
}

static void start_cold(struct fixture *f, const char *part, const char *why, bool removed)
{
    start_cold_with(f, part, why, removed, removed ? 0 : 1);
}

static void start_wants(struct fixture *f, const char *part, const char *why)
{
    start_cold_with(f, part, why, true, 1);
}

static void cold_why(struct fixture *f, uint32_t memory_mib, char ret[160]);

TEST_FIBER(a_clone_that_fails_is_a_cold_start)
{
    char key[TEMPLATE_KEY_SIZE];
    struct fixture f;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    start_cold(&f, "dies", "restore template", false); /* the cause is unknown */
    start_cold(&f, "goes", "template", false);
    start_cold(&f, "refuses", "restore template", true); /* QEMU says it is the template's */
    start_cold(&f, "first", "no template yet", true);
    finish(&f);
}

/* The commands of a restore: capabilities of QMP, those of the migration, the migration itself, its
 * memory, the list of vCPUs, one more of them. After that it is the guest that says something. */
TEST_FIBER(a_clone_that_is_killed_at_any_command_is_a_cold_start)
{
    static const char *const at[] = { "",        "migrate-set-capabilities", "migrate-incoming",
                                      "qom-set", "query-hotpluggable-cpus",  "device_add" };
    char key[TEMPLATE_KEY_SIZE], part[32];
    struct fixture f;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    f.fixture.doc.cpus = 2;
    f.fixture.doc.memory_mib = 400;
    for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        snprintf(part, sizeof(part), "dies-at-%u", i + 1);
        start_cold(&f, part, at[i], false);
        template_absolve(f.templates, key);
    }
    finish(&f);
}

/* The cause of one failure is unknown; after two, the template is not used again. */
TEST_FIBER(a_template_whose_clones_abort_is_marked_bad_and_built_again)
{
    struct template t = { .ram_fd = -1, .state_fd = -1 };
    char key[TEMPLATE_KEY_SIZE], why[160];
    struct fixture f;
    struct err err = ERR_INIT;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    f.fixture.doc.cpus = 2;
    start_cold(&f, "dies-at-1", "", false); /* before the restore: not the template's fault */
    start_cold(&f, "dies-at-1", "", false);
    start_cold(&f, "dies-at-3", "", false);
    ASSERT_OK(template_open(f.templates, key, &t, &err), err);
    template_close(&t);
    start_wants(&f, "dies-at-3", "");
    ASSERT_FAIL(template_open(f.templates, key, &t, &err), err, ERR_DATA_LOSS);
    ASSERT_HAS(err.msg, "2 clones failed in a row");
    cold_why(&f, 256, why);
    ASSERT_MSG_HAS(why, "marked bad");
    ASSERT(build(&f, key)); /* in its place */
    cold_why(&f, 256, why);
    ASSERT_STR(why, "");
    finish(&f);
}

/* The restore is over, the clone gets its memory and its vCPUs: its end counts all the same. */
TEST_FIBER(clones_that_abort_while_they_are_resized_count_against_their_template)
{
    static const char *const pairs[][2] = { { "dies-at-4", "dies-at-5" },
                                            { "dies-at-6", "dies-at-6" } };
    struct fixture f;
    struct err err = ERR_INIT;

    open_fixture(ctx, &f);
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        struct template t = { .ram_fd = -1, .state_fd = -1 };
        char key[TEMPLATE_KEY_SIZE];

        f.fixture.doc.cpus = 1;
        f.fixture.doc.memory_mib = 256;
        ASSERT(build(&f, key));
        f.fixture.doc.cpus = 2;
        f.fixture.doc.memory_mib = 400;
        start_cold(&f, pairs[i][0], "", false);
        ASSERT_OK(template_open(f.templates, key, &t, &err), err);
        template_close(&t);
        start_wants(&f, pairs[i][1], "");
        ASSERT_FAIL(template_open(f.templates, key, &t, &err), err, ERR_DATA_LOSS);
        ASSERT_HAS(err.msg, "2 clones failed in a row");
        err_clear(&err);
    }
    finish(&f);
}

/* Somebody has compared the clock of a VM of that form. */
static void judge(struct fixture *f, enum qemu_form form, const char *why)
{
    struct vmm *v = qemu_vmm_new(f->fixture.ctx->loop);
    struct err err = ERR_INIT;

    name(f, "judged");
    ASSERT_OK(v->ops->create(f->fixture.ctx, v, &f->fixture.doc, &err), err);
    qemu_of(v)->form = form;
    v->ops->judge(v, why);
    ASSERT_OK(v->ops->release(f->fixture.ctx, v, &err), err);
    v->ops->free(v);
}

TEST_FIBER(a_template_whose_clones_clock_is_wrong_is_marked_bad)
{
    char key[TEMPLATE_KEY_SIZE], why[160];
    struct fixture f;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    judge(&f, QEMU_CLONE, NULL);
    judge(&f, QEMU_COLD, "its clock runs 1 % too fast"); /* the template is not to blame */
    cold_why(&f, 256, why);
    ASSERT_STR(why, "");
    judge(&f, QEMU_CLONE, "its clock runs 1 % too fast");
    cold_why(&f, 256, why);
    ASSERT_MSG_HAS(why, "marked bad: its clock runs 1 % too fast");
    finish(&f);
}

static int refuse(struct ctx *ctx, void *arg, const char *draft, struct err *err)
{
    struct template t = { .ram_fd = -1, .state_fd = -1 };
    unsigned *asked = arg;

    (void)ctx;
    ++*asked;
    ASSERT_EQ(access(draft, F_OK), 0);
    ASSERT_FAIL(template_open_draft(draft, "0123456789abcdef0123456789abcdef", &t, err), *err,
                ERR_DATA_LOSS); /* it is whole, and another */
    return err_set(err, ERR_DATA_LOSS, "its clock runs 96 %% too slow");
}

TEST_FIBER(a_template_that_fails_its_proof_is_thrown_away_and_the_reason_kept)
{
    AUTO(template_info_release) struct template_info info = { 0 };
    AUTO_FREE struct template_failure *all = NULL;
    struct ctx patient = ctx_root(ctx->loop);
    char key[TEMPLATE_KEY_SIZE], why[160];
    struct fixture f;
    struct err err = ERR_INIT;
    unsigned asked = 0;
    bool made = true;

    open_fixture(ctx, &f);
    name(&f, "builder");
    const struct vmm_template_opts opts = { .prove = refuse, .arg = &asked };
    ASSERT_FAIL(qemu_template_build(&patient, ctx->loop, &f.fixture.doc, &opts, &info, &made, &err),
                err, ERR_DATA_LOSS);
    ASSERT_EQ(err.reason, REASON_TEMPLATE_BUILD_FAILED);
    ASSERT_EQ(asked, 1);
    ASSERT(!made);
    ASSERT_EQ(count(&f), 0);
    ASSERT_EQ(template_failures(f.templates, &all), 1);
    ASSERT_MSG_HAS(all[0].why, "96 % too slow");
    ASSERT_EQ(access(f.fixture.run_dir, F_OK), -1);
    /* A VM that starts now reports it, and does not request another build at once. */
    cold_why(&f, 256, why);
    ASSERT_MSG_HAS(why, "the last build of its template failed");
    ASSERT_MSG_HAS(why, "96 % too slow");
    start_cold_with(&f, "first", "failed", false, 0);
    /* An administrator does. */
    ASSERT(build(&f, key));
    ASSERT_STR(key, all[0].key);
    cold_why(&f, 256, why);
    ASSERT_STR(why, "");
    finish(&f);
}

/* The lines of the key that a VM of this fixture would have. */
static char *identity(struct fixture *f, bool kvm)
{
    struct vmm *v = qemu_vmm_new(f->fixture.ctx->loop);
    struct err err = ERR_INIT;

    name(f, "identity");
    ASSERT_OK(v->ops->create(f->fixture.ctx, v, &f->fixture.doc, &err), err);
    qemu_of(v)->accel.emulated = !kvm;
    char *text = qemu_template_identity(qemu_of(v));
    ASSERT_OK(v->ops->release(f->fixture.ctx, v, &err), err);
    v->ops->free(v);
    return text;
}

TEST_FIBER(the_key_has_the_hosts_kernel_with_kvm_only)
{
    struct fixture f;
    struct utsname u;

    open_fixture(ctx, &f);
    AUTO_FREE char *kvm = identity(&f, true), *tcg = identity(&f, false);
    ASSERT_EQ(uname(&u), 0);
    ASSERT_HAS(kvm, u.release);
    ASSERT(!strstr(tcg, u.release));
    AUTO_FREE char *updated = str_dup(kvm);
    strstr(updated, "\nhost ")[6] ^= 1;
    AUTO_FREE char *why = template_difference(kvm, updated);
    ASSERT_STR(why, "another kernel of the host");
    finish(&f);
}

/* Two measurements of a frequency differ a little: no reason to build another template. A frequency
 * that is really another is one. */
TEST_FIBER(the_key_does_not_have_the_frequency_but_the_header_does)
{
    AUTO_FREE char *boot_id = NULL;
    char key[TEMPLATE_KEY_SIZE], why[160];
    struct fixture f;
    size_t len;

    open_fixture(ctx, &f);
    AUTO_FREE char *tsc = str_format("%s/tsc", f.fixture.temp.dir);
    ASSERT_EQ(file_read_all("/proc/sys/kernel/random/boot_id", 256, &boot_id, &len), 0);
    boot_id[strcspn(boot_id, "\n")] = '\0';
    AUTO_FREE char *first = str_format("%s tsc 2300000\n", boot_id),
                   *near = str_format("%s tsc 2300099\n", boot_id),
                   *far = str_format("%s tsc 2400000\n", boot_id);
    ASSERT_EQ(file_write(tsc, first, strlen(first), 0600), 0);
    ASSERT(build(&f, key));
    cold_why(&f, 256, why);
    if (strstr(why, "no template yet"))
        tap_skip("this machine's clock does not go by its TSC");
    ASSERT_STR(why, "");
    ASSERT_EQ(file_write(tsc, near, strlen(near), 0600), 0);
    cold_why(&f, 256, why);
    ASSERT_STR(why, "");
    ASSERT_EQ(file_write(tsc, far, strlen(far), 0600), 0);
    cold_why(&f, 256, why);
    ASSERT_HAS(why, "2300000");
    finish(&f);
}

/* Why a VM of that size would not be a clone; "" if it would. */
static void cold_why(struct fixture *f, uint32_t memory_mib, char ret[160])
{
    struct vmm *v = qemu_vmm_new(f->fixture.ctx->loop);
    struct vmm_info info;
    struct err err = ERR_INIT;

    name(f, "sized");
    f->fixture.doc.memory_mib = memory_mib;
    f->fixture.doc.max_memory_mib = 0;
    ASSERT_OK(v->ops->create(f->fixture.ctx, v, &f->fixture.doc, &err), err);
    v->ops->info(v, &info);
    memcpy(ret, info.cold_why, sizeof(info.cold_why));
    ASSERT_OK(v->ops->release(f->fixture.ctx, v, &err), err);
    v->ops->free(v);
}

TEST_FIBER(one_template_serves_all_sizes_up_to_eight_gib)
{
    char key[TEMPLATE_KEY_SIZE], why[160];
    struct fixture f;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    cold_why(&f, 128, why);
    ASSERT_STR(why, "");
    cold_why(&f, 256 + 8192, why);
    ASSERT_STR(why, "");
    cold_why(&f, 256 + 8193, why);
    ASSERT_MSG_HAS(why, "no template yet"); /* another, with more room */
    finish(&f);
}

TEST_FIBER(a_vm_that_no_template_fits_starts_cold_and_says_so)
{
    char key[TEMPLATE_KEY_SIZE];
    struct fixture f;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    f.fixture.doc.cpus = f.fixture.doc.max_cpus = 64;
    start_cold(&f, "wide", "vCPUs", false);
    f.fixture.doc.cpus = f.fixture.doc.max_cpus = 1;
    f.fixture.doc.scsi_controllers = 4;
    start_cold(&f, "many", "SCSI", false);
    finish(&f);
}

/* The template as it would be if that line of its identity, or its maker's version, were another:
 * whole, honest, and in its place. */
static void become_foreign(struct fixture *f, const char *key, const char *line,
                           const char *version)
{
    struct template t = { .ram_fd = -1, .state_fd = -1 };
    struct err err = ERR_INIT;
    char was[192], is[160];
    size_t len;

    ASSERT_OK(template_open(f->templates, key, &t, &err), err);
    if (line) {
        char *at = strstr(t.info.identity, line);
        ASSERT(at);
        at[strlen(line)] ^= 1; /* within the line: its value begins there */
        template_key_of(t.info.identity, t.info.key);
    }
    if (version)
        snprintf(t.info.vmm_version, sizeof(t.info.vmm_version), "%s", version);
    AUTO_FREE char *header = template_header_format(&t.info, &len);
    snprintf(was, sizeof(was), "%s/%s", f->templates, key);
    snprintf(is, sizeof(is), "%s/%s", f->templates, t.info.key);
    ASSERT_EQ(rename(was, is), 0);
    snprintf(was, sizeof(was), "%s/header", is);
    ASSERT_EQ(file_write(was, header, len, 0600), 0);
    template_close(&t);
}

TEST_FIBER(a_template_from_another_qemu_is_ignored_said_and_built_again)
{
    char key[TEMPLATE_KEY_SIZE], again[TEMPLATE_KEY_SIZE], why[160];
    struct fixture f;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    /* The program's file was another: its key is another. */
    become_foreign(&f, key, "qemu ", "99.0.0");
    cold_why(&f, 256, why);
    ASSERT_MSG_HAS(why, "another QEMU");
    ASSERT(!strstr(why, "processor"));
    ASSERT(build(&f, again));
    ASSERT_STR(again, key);
    ASSERT_EQ(count(&f), 2); /* who has the other QEMU may still want it; prune removes it */
    cold_why(&f, 256, why);
    ASSERT_STR(why, "");
    finish(&f);
}

static void note_unusable(void *arg, enum log_level level, const char *line, size_t len)
{
    if (memmem(line, len, reason_name(REASON_TEMPLATE_UNUSABLE), strlen("TEMPLATE_UNUSABLE")))
        *(bool *)arg = true;
}

TEST_FIBER(a_template_with_our_key_from_a_newer_qemu_is_a_cold_start_and_removed)
{
    char key[TEMPLATE_KEY_SIZE];
    struct fixture f;

    open_fixture(ctx, &f);
    ASSERT(build(&f, key));
    become_foreign(&f, key, NULL, "99.0.0");
    bool seen = false;
    log_tee(LOG_WARN, note_unusable, &seen);
    start_cold(&f, "newer", "saved by QEMU 99.0.0, this one is 10.0.1", true);
    log_tee(LOG_OFF, NULL, NULL);
    ASSERT(seen);
    ASSERT(build(&f, key));
    finish(&f);
}

TEST_FIBER(a_template_of_another_processor_is_not_used_and_said)
{
    static const char moved[] = "processor\t: 0\nvendor_id\t: Another\nmodel\t\t: 7\n\n";
    char key[TEMPLATE_KEY_SIZE];
    struct vmm_info info;
    struct fixture f;
    struct err err = ERR_INIT;

    open_fixture(ctx, &f);

    struct vmm *v = qemu_vmm_new(ctx->loop);

    qemu_of(v)->test_env = &f.fixture.env;

    ASSERT(build(&f, key));
    /* As after a move of the disk, or of the VM that the host is, to another machine. */
    ASSERT_EQ(file_write(f.fixture.cpuinfo, moved, strlen(moved), 0600), 0);
    name(&f, "moved");
    ASSERT_OK(v->ops->create(ctx, v, &f.fixture.doc, &err), err);
    v->ops->info(v, &info);
    ASSERT_HAS(info.cold_why, "another processor");
    ASSERT(!strstr(info.cold_why, "QEMU"));
    ASSERT_OK(v->ops->release(ctx, v, &err), err);
    v->ops->free(v);
    ASSERT_EQ(count(&f), 1);
    finish(&f);
}

/* One that may get four vCPUs, whose part is how it goes wrong with them. */
static void start_with_four(struct ctx *ctx, struct fixture *f, struct vmm *v, const char *part)
{
    struct err err = ERR_INIT;

    open_fixture(ctx, f);
    f->fixture.doc.template_dir = NULL;
    f->fixture.doc.max_cpus = 4;
    name(f, part);
    ASSERT_OK(v->ops->create(ctx, v, &f->fixture.doc, &err), err);
    ASSERT_OK(v->ops->start(ctx, v, &err), err);
    qemu_of(v)->accel.emulated = false; /* an emulated one keeps its vCPUs */
}

/* How many QEMU has; whatever event it sent before that has been heard then. */
static unsigned real_cpus(struct ctx *ctx, struct vmm *v)
{
    AUTO(qmp_message_release) struct qmp_message list = { 0 };
    struct err err = ERR_INIT;
    unsigned n = 0;

    ASSERT_OK(
        qmp_client_call(ctx, qemu_of(v)->proc->qmp, "query-hotpluggable-cpus", NULL, &list, &err),
        err);
    for (size_t i = 0; i < json_array_size(list.data); i++)
        n += json_object_get(json_array_get(list.data, i), "qom-path") != NULL;
    return n;
}

/* The guest releases a vCPU after our deadline, and after another one was added. */
TEST_FIBER(a_vcpu_that_goes_late_is_counted_and_the_others_keep_their_names)
{
    struct vmm *v = qemu_vmm_new(ctx->loop);
    struct fixture f;
    struct err err = ERR_INIT;

    start_with_four(ctx, &f, v, "late");
    ASSERT_OK(v->ops->set_cpus(ctx, v, 3, &err), err);

    struct ctx little = ctx_with_timeout(ctx, 200 * NS_PER_MS);

    ASSERT_FAIL(v->ops->set_cpus(&little, v, 2, &err), err, ERR_DEADLINE);
    err_clear(&err);
    ASSERT_EQ(real_cpus(ctx, v), 3);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 4, &err), err);
    ASSERT(real_cpus(ctx, v) >= 3); /* one has come; if the late one went since, there are 3 */
    ASSERT_OK(v->ops->set_cpus(ctx, v, 4, &err), err);
    ASSERT_EQ(real_cpus(ctx, v), 4);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 3, &err), err);
    ASSERT_EQ(real_cpus(ctx, v), 3);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 1, &err), err);
    ASSERT_EQ(real_cpus(ctx, v), 1);
    end(&f, v);
    finish(&f);
}

/* QEMU has done what we did not wait for. */
TEST_FIBER(a_vcpu_whose_answer_is_lost_is_counted_and_its_name_is_taken)
{
    struct vmm *v = qemu_vmm_new(ctx->loop);
    struct fixture f;
    struct err err = ERR_INIT;

    start_with_four(ctx, &f, v, "mute");
    /* On a slow machine already the question before that is not answered in time: once more. */
    for (uint64_t ms = 200; real_cpus(ctx, v) == 1; ms *= 2) {
        struct ctx little = ctx_with_timeout(ctx, ms * NS_PER_MS);

        ASSERT_FAIL(v->ops->set_cpus(&little, v, 2, &err), err, ERR_DEADLINE);
        err_clear(&err);
    }
    ASSERT_EQ(real_cpus(ctx, v), 2);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 2, &err), err);
    ASSERT_EQ(real_cpus(ctx, v), 2);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 3, &err), err);
    ASSERT_EQ(real_cpus(ctx, v), 3);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 1, &err), err);
    ASSERT_EQ(real_cpus(ctx, v), 1);
    end(&f, v);
    finish(&f);
}

TEST_FIBER(memory_and_vcpus_are_added_within_their_bounds)
{
    struct vmm *v = qemu_vmm_new(ctx->loop);
    struct fixture f;
    struct err err = ERR_INIT;

    open_fixture(ctx, &f);
    f.fixture.doc.template_dir = NULL;
    name(&f, "grows");
    ASSERT_FAIL(v->ops->set_memory(ctx, v, 300, &err), err, ERR_STATE);
    ASSERT_OK(v->ops->create(ctx, v, &f.fixture.doc, &err), err);
    ASSERT_OK(v->ops->start(ctx, v, &err), err);
    ASSERT_OK(v->ops->set_memory(ctx, v, 300, &err), err);
    ASSERT_OK(v->ops->set_memory(ctx, v, 257, &err), err); /* rounded up to a block */
    ASSERT_FAIL(v->ops->set_memory(ctx, v, 513, &err), err, ERR_RANGE);
    ASSERT_FAIL(v->ops->set_memory(ctx, v, 255, &err), err, ERR_RANGE);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 2, &err), err);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 2, &err), err);
    ASSERT_FAIL(v->ops->set_cpus(ctx, v, 4, &err), err, ERR_RANGE);
    ASSERT_FAIL(v->ops->set_cpus(ctx, v, 0, &err), err, ERR_RANGE);
    ASSERT_OK(v->ops->set_cpus(ctx, v, 1, &err), err);
    end(&f, v);
    finish(&f);
}
