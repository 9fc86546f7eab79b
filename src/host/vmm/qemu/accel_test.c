#include "base/fd.h"
#include "base/str.h"
#include "harness/place.h"
#include "harness/tap.h"
#include "host/vmm/qemu/accel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    struct place place;
    char *cpuinfo, *kvm, *boot_id, *state;
    struct accel_env env;
};

static void put(const char *path, const char *text)
{
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

static void fixture_release(struct fixture *f)
{
    place_release_auto(&f->place);
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

    place_init(&f.place, "/tmp");
    f.cpuinfo = str_format("%s/cpuinfo", f.place.dir);
    f.kvm = str_format("%s/kvm", f.place.dir);
    f.boot_id = str_format("%s/boot_id", f.place.dir);
    f.state = str_format("%s/accel", f.place.dir);
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

    ASSERT_EQ(accel_look(&none.env), ACCEL_NO_CPU);
    ASSERT_EQ(accel_look(&intel.env), ACCEL_UNPROVEN);
    ASSERT_EQ(accel_look(&amd.env), ACCEL_UNPROVEN);
}

TEST(a_missing_device_is_told_apart)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");

    unlink(f.kvm);
    ASSERT_EQ(accel_look(&f.env), ACCEL_NO_DEVICE);
    ASSERT_HAS(accel_state_text(ACCEL_NO_DEVICE), "modprobe");
}

TEST(a_proof_holds_until_the_host_is_restarted)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");
    struct accel_choice c;
    struct err err = ERR_INIT;

    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_AUTO, false, &c, &err), err);
    ASSERT(!c.emulated && c.prove);
    accel_remember(&f.env, true);
    ASSERT_EQ(accel_look(&f.env), ACCEL_WORKS);
    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_AUTO, false, &c, &err), err);
    ASSERT(!c.emulated && !c.prove);
    accel_remember(&f.env, false);
    ASSERT_EQ(accel_look(&f.env), ACCEL_BROKEN);
    put(f.boot_id, "id-two\n");
    ASSERT_EQ(accel_look(&f.env), ACCEL_UNPROVEN);
}

TEST(without_acceleration_the_setting_is_named)
{
    AUTO(fixture_release) struct fixture f = fixture_of("fpu");
    struct accel_choice c;
    struct err err = ERR_INIT;

    ASSERT_FAIL(accel_choose(&f.env, VM_ACCEL_AUTO, false, &c, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "allow_emulation = true");
    ASSERT_HAS(err.msg, "/etc/lcow/lcow.conf");
    ASSERT_HAS(err.msg, "--allow-emulation");
    ASSERT_FAIL(accel_choose(&f.env, VM_ACCEL_TCG, false, &c, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "--allow-emulation");
    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_AUTO, true, &c, &err), err);
    ASSERT(c.emulated && !c.prove);
    ASSERT_FAIL(accel_choose(&f.env, VM_ACCEL_KVM, true, &c, &err), err, ERR_STATE);
}

TEST(emulation_is_taken_when_asked_for_though_kvm_would_work)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");
    struct accel_choice c;
    struct err err = ERR_INIT;

    accel_remember(&f.env, true);
    ASSERT_OK(accel_choose(&f.env, VM_ACCEL_TCG, true, &c, &err), err);
    ASSERT(c.emulated);
}

TEST(a_damaged_answer_is_no_answer)
{
    AUTO(fixture_release) struct fixture f = fixture_of("vmx");

    put(f.state, "id-one kvm wor");
    ASSERT_EQ(accel_look(&f.env), ACCEL_UNPROVEN);
    put(f.state, "");
    ASSERT_EQ(accel_look(&f.env), ACCEL_UNPROVEN);
}

TEST(the_kernels_log_gives_the_frequency)
{
    ASSERT_EQ(accel_tsc_parse("4,1,2,-;tsc: Detected 2299.998 MHz processor\n"), 2299998);
    ASSERT_EQ(accel_tsc_parse("tsc: Detected 2300.000 MHz processor\n"
                              "tsc: Refined TSC clocksource calibration: 2299.977 MHz\n"),
              2299977);
    ASSERT_EQ(accel_tsc_parse("tsc: Detected 2300 MHz\n"), 0);
    ASSERT_EQ(accel_tsc_parse("tsc: Detected abc.def MHz"), 0);
    ASSERT_EQ(accel_tsc_parse("tsc: Detected 2300.1"), 0);
    ASSERT_EQ(accel_tsc_parse(""), 0);
}
