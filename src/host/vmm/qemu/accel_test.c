#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/vmm/qemu/accel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    struct tempdir temp;
    char *cpuinfo, *kvm, *boot_id, *state;
    struct accel_env env;
};

static void put(const char *path, const char *text)
{
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

static void fixture_release(struct fixture *f)
{
    tempdir_release_auto(&f->temp);
    free(f->cpuinfo);
    free(f->kvm);
    free(f->boot_id);
    free(f->state);
}

static void fixture_release_auto(struct fixture *f)
{
    fixture_release(f);
}

static struct fixture fixture_of(const char *flags)
{
    struct fixture f = { 0 };
    AUTO_FREE char *cpuinfo =
        str_format("processor\t: 0\nvendor_id\t: x\nflags\t\t: %s\nbugs\t: svm_none vmx\n", flags);

    tempdir_init(&f.temp, "/tmp");
    f.cpuinfo = str_format("%s/cpuinfo", f.temp.dir);
    f.kvm = str_format("%s/kvm", f.temp.dir);
    f.boot_id = str_format("%s/boot_id", f.temp.dir);
    f.state = str_format("%s/accel", f.temp.dir);
    put(f.cpuinfo, cpuinfo);
    put(f.kvm, "");
    put(f.boot_id, "id-one\n");
    f.env = (struct accel_env){ f.cpuinfo, f.kvm, f.boot_id, f.state };
    return f;
}

TEST(only_whole_flags_count)
{
    AUTO(fixture_release) struct fixture none = fixture_of("fpu vmx_ept xsvm tsc");
    AUTO(fixture_release) struct fixture intel = fixture_of("fpu vmx tsc");
    AUTO(fixture_release) struct fixture amd = fixture_of("svm");

    ASSERT_EQ(accel_look(&none.env, NULL), ACCEL_NO_CPU);
    ASSERT_EQ(accel_look(&intel.env, NULL), ACCEL_UNPROVEN);
    ASSERT_EQ(accel_look(&amd.env, NULL), ACCEL_UNPROVEN);
}

TEST(a_missing_device_is_distinguished)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");

    unlink(f.kvm);
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_NO_DEVICE);
    enum accel_state s;
    AUTO_FREE char *text = accel_describe(&f.env, &s);
    ASSERT_HAS(text, "modprobe");
}

TEST(a_proof_holds_until_the_host_is_restarted)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");
    struct accel_choice c;
    struct err err = ERR_INIT;

    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_AUTO, false, &c, &err), err);
    ASSERT(!c.emulated && c.prove);
    accel_remember_works(&f.env);
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_WORKS);
    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_AUTO, false, &c, &err), err);
    ASSERT(!c.emulated && !c.prove);
    put(f.boot_id, "id-two\n");
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
}

TEST(a_failure_is_kept_with_reason_and_time_until_the_host_is_restarted)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");
    struct accel_failure have = { 0 };
    struct accel_choice c;
    struct err err = ERR_INIT;
    enum accel_state s;

    accel_remember_failure(&f.env, &(struct accel_failure){ "KVM internal\nerror", 1700000000 });
    ASSERT_EQ(accel_look(&f.env, &have), ACCEL_BROKEN);
    ASSERT_EQ(have.at_s, 1700000000);
    ASSERT_STR(have.reason, "KVM internal?error");
    AUTO_FREE char *text = accel_describe(&f.env, &s);
    ASSERT_STR(text, "KVM failed at 2023-11-14T22:13:20Z: KVM internal?error (lcow doctor --retest "
                     "tries it again)");
    ASSERT_FAIL(accel_choose(&f.env, VM_ACCEL_AUTO, false, &c, &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_KVM_BROKEN);
    ASSERT_HAS(err.msg, "2023-11-14T22:13:20Z: KVM internal?error");
    put(f.boot_id, "id-two\n");
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
}

TEST(a_failure_never_replaces_the_proof_that_it_works)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");
    const struct accel_failure failure = { "KVM internal error", 1700000000 };

    accel_remember_works(&f.env);
    accel_remember_failure(&f.env, &failure);
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_WORKS);
    put(f.boot_id, "id-two\n"); /* that was before the host was restarted */
    accel_remember_failure(&f.env, &failure);
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_BROKEN);
    accel_remember_works(&f.env);
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_WORKS);
}

TEST(a_forgotten_verdict_is_found_anew)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");

    ASSERT_EQ(accel_forget(&f.env), 0); /* there is none */
    accel_remember_failure(&f.env, &(struct accel_failure){ "KVM internal error", 1700000000 });
    ASSERT_EQ(accel_forget(&f.env), 0);
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
    accel_remember_works(&f.env);
    ASSERT_EQ(accel_forget(&f.env), 0);
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
}

TEST(without_acceleration_the_setting_is_named)
{
    AUTO(fixture_release) struct fixture f = fixture_of("fpu");
    struct accel_choice c;
    struct err err = ERR_INIT;

    ASSERT_FAIL(accel_choose(&f.env, VM_ACCEL_AUTO, false, &c, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "allow_emulation = true");
    ASSERT_MSG_HAS(err.msg, "/etc/lcow/lcow.conf");
    ASSERT_MSG_HAS(err.msg, "--allow-emulation");
    ASSERT_FAIL(accel_choose(&f.env, VM_ACCEL_TCG, false, &c, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "--allow-emulation");
    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_AUTO, true, &c, &err), err);
    ASSERT(c.emulated && !c.prove);
    ASSERT_FAIL(accel_choose(&f.env, VM_ACCEL_KVM, true, &c, &err), err, ERR_STATE);
}

TEST(emulation_is_taken_when_asked_for_though_kvm_would_work)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");
    struct accel_choice c;
    struct err err = ERR_INIT;

    accel_remember_works(&f.env);
    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_TCG, true, &c, &err), err);
    ASSERT(c.emulated);
}

TEST(a_damaged_answer_is_ignored)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");

    put(f.state, "id-one kvm wor");
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
    put(f.state, "");
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
    put(f.state, "id-one kvm broken\n"); /* as lcow wrote before it kept reasons */
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
    put(f.state, "id-one kvm broken 17 KVM inter");
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
    put(f.state, "id-one kvm broken x KVM internal error\n");
    ASSERT_EQ(accel_look(&f.env, NULL), ACCEL_UNPROVEN);
}
