/* registry_test.c - containers from create to delete. */
#include "host/control/registry_rig.h"

TEST_VIRTUAL(a_container_runs_and_ends_with_its_status)
{
    struct rig r = { .guest_opts.exit_code = 7, .guest_opts.output_bytes = 5000 };

    rig_open(&r, ctx);
    rig_create(&r, ctx, "a");
    rig_start(&r, ctx, "a", "");
    ASSERT_EQ(rig_wait(&r, ctx, "a", ""), 7);
    rig_delete(&r, ctx, "a", "");
    ASSERT_STR(rig_told(&r, ctx), "create a;start a;exit a 7;delete a 7");
    rig_close(&r, ctx);
}
