#include "base/err.h"
#include "base/json.h"
#include "fixture/device_fixture.h"
#include "fixture/files_fixture.h"
#include "harness/fsm_table.h"
#include "host/device/vpci.h"

#define NIC "0000:03:00.0"
#define GPU "0000:04:00.0"

struct fixture {
    struct files_fixture fixture;
    struct vpci *c;
};

static void start(struct ctx *ctx, struct fixture *f)
{
    files_fixture_start(ctx, &f->fixture);
    f->c = vpci_new(f->fixture.vmm, &f->fixture.guest);
}

static void finish(struct ctx *ctx, struct fixture *f)
{
    ASSERT_EQ(vpci_used(f->c), 0);
    files_fixture_clean(&f->fixture);
    vpci_free(f->c);
    files_fixture_finish(ctx, &f->fixture);
}

static uint64_t reserve(struct ctx *ctx, struct fixture *f, const char *address)
{
    struct err err = ERR_INIT;
    uint64_t id = 0;

    ASSERT_OK(vpci_reserve(ctx, f->c, address, &id, &err), err);
    return id;
}

static void reserve_fails(struct ctx *ctx, struct fixture *f, const char *address)
{
    struct err err = ERR_INIT;
    uint64_t id = 0;

    ASSERT_FAIL(vpci_reserve(ctx, f->c, address, &id, &err), err, ERR_STATE);
}

static void add(struct ctx *ctx, struct fixture *f, uint64_t id)
{
    AUTO_FREE char *place = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(vpci_add(ctx, f->c, id, &place, &err), err);
    ASSERT(place && place[0]);
}

static void add_fails(struct ctx *ctx, struct fixture *f, uint64_t id, enum err_code code)
{
    char *place = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(vpci_add(ctx, f->c, id, &place, &err), err, code);
    ASSERT(!place);
}

static void drop(struct ctx *ctx, struct fixture *f, uint64_t id)
{
    struct err err = ERR_INIT;

    ASSERT_OK(vpci_remove(ctx, f->c, id, &err), err);
    ASSERT_FAIL(vpci_remove(ctx, f->c, id, &err), err, ERR_NOT_FOUND);
}

static void drop_fails(struct ctx *ctx, struct fixture *f, uint64_t id, enum err_code code)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(vpci_remove(ctx, f->c, id, &err), err, code);
}

static unsigned in_vm(struct fixture *f)
{
    struct fake_facts facts;

    fake_vmm_facts(f->fixture.vmm, &facts);
    return facts.devices;
}

TEST(every_step_of_a_device_is_in_its_table)
{
    fsm_table_check(&vpci_fsm);
}

TEST_VIRTUAL(a_function_is_attached_once_and_goes_with_its_last_holder)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, NIC), two = reserve(ctx, &f, NIC), gpu = reserve(ctx, &f, GPU);

    add(ctx, &f, one);
    add(ctx, &f, two);
    add(ctx, &f, two);
    add(ctx, &f, gpu);
    ASSERT_EQ(in_vm(&f), 2);
    ASSERT_EQ(f.fixture.calls[FIXTURE_ADD_DEVICE], 2);
    drop(ctx, &f, one);
    ASSERT_EQ(in_vm(&f), 2);
    drop(ctx, &f, two);
    ASSERT_EQ(in_vm(&f), 1);
    drop(ctx, &f, gpu);
    /* And can be had again. */
    one = reserve(ctx, &f, NIC);
    add(ctx, &f, one);
    drop(ctx, &f, one);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws19_reservations_count_not_only_what_was_added)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, NIC), two = reserve(ctx, &f, NIC);

    add(ctx, &f, one);
    drop(ctx, &f, one); /* the second has not been added yet, and holds it all the same */
    ASSERT_EQ(in_vm(&f), 1);
    add(ctx, &f, two);
    ASSERT_EQ(f.fixture.calls[FIXTURE_ADD_DEVICE], 1);
    drop(ctx, &f, two);
    ASSERT_EQ(in_vm(&f), 0);
    uint64_t three = reserve(ctx, &f, GPU);
    drop(ctx, &f, three); /* never added: no request to VM or guest */
    finish(ctx, &f);
}

TEST_VIRTUAL(a_failed_device_is_unusable_until_all_reservations_are_dropped)
{
    for (int step = 0; step < 3; step++) {
        struct fixture f;

        start(ctx, &f);
        uint64_t one = reserve(ctx, &f, NIC), two = reserve(ctx, &f, NIC);

        if (step == 0)
            fake_vmm_tune(f.fixture.vmm)->pci_add.how = FAKE_FAIL;
        else
            f.fixture.faults[FIXTURE_ADD_DEVICE] = step == 1 ? FIXTURE_FAIL : FIXTURE_LOST;
        add_fails(ctx, &f, one, ERR_INTERNAL);
        fake_vmm_tune(f.fixture.vmm)->pci_add.how = FAKE_OK;
        add_fails(ctx, &f, one, ERR_STATE);
        add_fails(ctx, &f, two, ERR_STATE);
        reserve_fails(ctx, &f, NIC);
        drop(ctx, &f, one);
        reserve_fails(ctx, &f, NIC);
        drop(ctx, &f, two);
        one = reserve(ctx, &f, NIC);
        add(ctx, &f, one);
        drop(ctx, &f, one);
        finish(ctx, &f);
    }
}

TEST_VIRTUAL(a_failed_remove_is_repeated)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, NIC);

    add(ctx, &f, one);
    fake_vmm_tune(f.fixture.vmm)->pci_remove.how = FAKE_FAIL;
    drop_fails(ctx, &f, one, ERR_INTERNAL);
    add_fails(ctx, &f, one, ERR_STATE); /* it is on its way out */
    reserve_fails(ctx, &f, NIC);
    ASSERT_EQ(vpci_used(f.c), 1);
    fake_vmm_tune(f.fixture.vmm)->pci_remove.how = FAKE_OK;
    drop(ctx, &f, one);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_vm_that_is_gone_has_given_all_back)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, NIC), two = reserve(ctx, &f, GPU);

    add(ctx, &f, one);
    fake_vmm_die(f.fixture.vmm, FAKE_CRASHED);
    add_fails(ctx, &f, two, ERR_UNAVAILABLE);
    drop(ctx, &f, one);
    drop(ctx, &f, two);
    finish(ctx, &f);
}

TEST_VIRTUAL(with_a_silent_vm_or_guest_each_call_ends_at_its_deadline)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, NIC);
    struct ctx limited = ctx_with_timeout(ctx, NS_PER_S);

    f.fixture.faults[FIXTURE_ADD_DEVICE] = FIXTURE_HANG;
    add_fails(&limited, &f, one, ERR_DEADLINE);
    fake_vmm_tune(f.fixture.vmm)->pci_remove.how = FAKE_HANG;
    limited = ctx_with_timeout(ctx, NS_PER_S);
    drop_fails(&limited, &f, one, ERR_DEADLINE);
    fake_vmm_tune(f.fixture.vmm)->pci_remove.how = FAKE_OK;
    drop(ctx, &f, one);
    finish(ctx, &f);
}

TEST_VIRTUAL(inspect_names_devices_and_how_many_hold_them)
{
    struct fixture f;
    struct jsw w;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, NIC), two = reserve(ctx, &f, NIC);

    add(ctx, &f, one);
    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    vpci_describe(f.c, &w);
    jsw_end_arr(&w);
    AUTO_FREE char *text = jsw_take(&w, NULL);
    ASSERT_STR(text, "[{\"device\":\"" NIC "\",\"place\":\"0000:00:10.0/01.0\","
                     "\"state\":\"Ready\",\"holders\":2}]");
    ASSERT_STR(vpci_address(f.c, two), NIC);
    drop(ctx, &f, one);
    drop(ctx, &f, two);
    ASSERT_STR(vpci_address(f.c, two), "");
    finish(ctx, &f);
}

/* Many who come, go and fail in any order: the fake says if a function was ever there twice. */
TEST_VIRTUAL(any_order_with_any_failure_loses_nothing)
{
    static const char *const addresses[] = { NIC, GPU, "0000:05:00.0" };
    uint64_t held[8] = { 0 };
    uint32_t seed = 1;
    struct fixture f;

    start(ctx, &f);
    for (int i = 0; i < 4000; i++) {
        seed = seed * 1664525 + 1013904223;
        unsigned slot = seed >> 29, how = seed >> 16 & 7;
        struct fake_vmm_opts *tune = fake_vmm_tune(f.fixture.vmm);
        struct err err = ERR_INIT;
        char *place = NULL;

        tune->pci_add.how = how == 1 ? FAKE_FAIL : FAKE_OK;
        tune->pci_remove.how = how == 2 ? FAKE_FAIL : FAKE_OK;
        f.fixture.faults[FIXTURE_ADD_DEVICE] = how == 3   ? FIXTURE_FAIL
                                               : how == 4 ? FIXTURE_LOST
                                                          : FIXTURE_OK;
        if (!held[slot])
            (void)vpci_reserve(ctx, f.c, addresses[slot % 3], &held[slot], &err);
        else if (seed >> 20 & 1)
            (void)vpci_add(ctx, f.c, held[slot], &place, &err);
        else if (vpci_remove(ctx, f.c, held[slot], &err) == 0)
            held[slot] = 0;
        free(place);
    }
    fake_vmm_tune(f.fixture.vmm)->pci_remove.how = FAKE_OK;
    for (int i = 0; i < 8; i++)
        if (held[i])
            drop(ctx, &f, held[i]);
    finish(ctx, &f);
}
