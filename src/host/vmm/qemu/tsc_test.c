#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/vmm/qemu/accel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two clocks that run beside each other. Each reading takes time; one in so many is interrupted. */
struct fake_tsc {
    uint64_t now;      /* ns, the truth */
    uint64_t khz;      /* of the counter */
    uint64_t cost;     /* of a reading, ns */
    unsigned readings; /* so far */
    unsigned every;    /* this one is interrupted; 0: none */
    uint64_t lost;     /* for so long, ns */
};

static void pass(struct fake_tsc *r)
{
    r->now += r->cost;
    if (r->every && ++r->readings % r->every == 0)
        r->now += r->lost;
}

static uint64_t ticks(void *arg)
{
    struct fake_tsc *r = arg;

    pass(r);
    return r->now * r->khz / NS_PER_MS;
}

static uint64_t ns(void *arg)
{
    struct fake_tsc *r = arg;

    pass(r);
    return r->now;
}

static bool near(uint64_t have, uint64_t want, uint64_t ppm)
{
    uint64_t off = have > want ? have - want : want - have;

    return off * 1000000 <= want * ppm;
}

struct fixture {
    struct tempdir temp;
    char *clocksource, *boot_id, *state;
    struct fake_tsc tsc;
    struct tsc_env env;
};

static void put(const char *path, const char *text)
{
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

static void open_fixture(struct fixture *f)
{
    tempdir_init(&f->temp, "/tmp");
    f->clocksource = str_format("%s/clocksource", f->temp.dir);
    f->boot_id = str_format("%s/boot_id", f->temp.dir);
    f->state = str_format("%s/tsc", f->temp.dir);
    f->tsc = (struct fake_tsc){ .now = 1234, .khz = 2299998, .cost = 25 };
    put(f->clocksource, "tsc\n");
    put(f->boot_id, "boot-one\n");
    f->env = (struct tsc_env){ f->clocksource, f->boot_id, f->state, { ticks, ns, &f->tsc } };
}

static void close_fixture(struct fixture *f)
{
    free(f->clocksource);
    free(f->boot_id);
    free(f->state);
    ASSERT_EQ(dir_remove(f->temp.dir), 0);
}

/* What the kernel wrote to its log when it booted plays no part: on a host that has been up for
 * long, it is gone. */
TEST(the_frequency_is_measured_and_needs_no_log_of_the_kernel)
{
    struct fixture f;

    open_fixture(&f);
    ASSERT(near(tsc_khz(&f.env), 2299998, 10));
    close_fixture(&f);
}

TEST(a_busy_machine_measures_the_same)
{
    struct fake_tsc r = { .khz = 2299998, .cost = 25, .every = 5, .lost = 30 * NS_PER_MS };

    ASSERT(near(tsc_measure(&(struct tsc_clocks){ ticks, ns, &r }), 2299998, 20));
    r.every = 2; /* within each look: there is nothing to go by */
    ASSERT_EQ(tsc_measure(&(struct tsc_clocks){ ticks, ns, &r }), 0);
}

TEST(readings_that_take_long_take_a_longer_measurement)
{
    struct fake_tsc r = { .khz = 3000000, .cost = 2000 };

    ASSERT(near(tsc_measure(&(struct tsc_clocks){ ticks, ns, &r }), 3000000, 20));
    ASSERT(r.now > 100 * NS_PER_MS);
    r.cost = 100000; /* nothing is precise enough there */
    ASSERT_EQ(tsc_measure(&(struct tsc_clocks){ ticks, ns, &r }), 0);
}

TEST(a_counter_that_stands_still_has_no_frequency)
{
    struct fake_tsc r = { .khz = 0, .cost = 25 };

    ASSERT_EQ(tsc_measure(&(struct tsc_clocks){ ticks, ns, &r }), 0);
    r.khz = 50; /* 50 kHz */
    ASSERT_EQ(tsc_measure(&(struct tsc_clocks){ ticks, ns, &r }), 0);
}

TEST(it_is_measured_once_for_each_boot_of_the_host)
{
    struct fixture f;
    uint32_t khz;

    open_fixture(&f);
    khz = tsc_khz(&f.env);
    ASSERT(khz > 0);
    f.tsc.khz = 1000000;
    ASSERT_EQ(tsc_khz(&f.env), khz);
    put(f.boot_id, "boot-two\n");
    ASSERT(near(tsc_khz(&f.env), 1000000, 20));
    f.tsc.khz = 2000000;
    tsc_forget(&f.env);
    ASSERT(near(tsc_khz(&f.env), 2000000, 20));
    close_fixture(&f);
}

TEST(a_damaged_saved_frequency_is_ignored)
{
    static const char *const damaged[] = { "",
                                           "boot-one",
                                           "boot-one tsc ",
                                           "boot-one tsc 229999", /* cut */
                                           "boot-one tsc x\n",
                                           "boot-one tsc 84\n",
                                           "boot-one tsc 99999999999\n" };
    struct fixture f;

    open_fixture(&f);
    for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
        put(f.state, damaged[i]);
        ASSERT(near(tsc_khz(&f.env), 2299998, 20));
    }
    close_fixture(&f);
}

TEST(a_tsc_that_the_host_does_not_use_is_not_reported)
{
    struct fixture f;

    open_fixture(&f);
    put(f.clocksource, "hpet\n");
    ASSERT_EQ(tsc_khz(&f.env), 0);
    ASSERT_EQ(unlink(f.clocksource), 0);
    ASSERT_EQ(tsc_khz(&f.env), 0);
    put(f.clocksource, "kvm-clock\n");
    ASSERT(tsc_khz(&f.env) > 0);
    close_fixture(&f);
}

TEST(two_measurements_are_the_same_and_two_processors_are_not)
{
    ASSERT(tsc_same(2299998, 2299998));
    ASSERT(tsc_same(2299998, 2300100));
    ASSERT(tsc_same(2300100, 2299998));
    ASSERT(!tsc_same(2299998, 2301000));
    ASSERT(!tsc_same(84000, 2299998));
    ASSERT(!tsc_same(0, 2299998));
    ASSERT(!tsc_same(2299998, 0));
    ASSERT(tsc_same(0, 0)); /* nobody knows, nobody relies on it */
}

TEST(this_machine_has_one_if_its_own_clock_does)
{
    struct tsc_env env = tsc_env_of_host("/nonexistent/tsc");
    uint32_t one = tsc_khz(&env), two = tsc_khz(&env);

    if (!one || !two)
        tap_skip("this machine's clock does not go by its TSC");
    ASSERT(tsc_same(one, two));
}
