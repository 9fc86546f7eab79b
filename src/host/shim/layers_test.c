/* layers_test.c - the fiber that awaits a builder of layer images. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/waits.h"
#include "harness/tap.h"
#include "host/control/settled.h"
#include "host/shim/shim_priv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A builder executes /proc/self/exe: this program, which then never ends. */
__attribute__((constructor)) static void build(int argc, char **argv)
{
    if (argc > 1 && str_eq(argv[argc - 1], "layers-build") &&
        prctl(PR_SET_PDEATHSIG, SIGKILL) == 0) /* of a test that failed */
        for (;;)
            pause();
}

static bool look(void *arg, const char *name, const char *why)
{
    bool *settled = arg;

    if (str_eq(name, FIBER_LAYERS))
        *settled = settled_at(name, why);
    return true;
}

/* Of the builder: our only child. 0: there is none. */
static pid_t child(void)
{
    AUTO_FREE char *text = file_text(64, "/proc/self/task/%d/children", getpid());

    return text ? atoi(text) : 0;
}

/* For up to 15 min per layer. The new program does not await it; it builds to its end. */
TEST_FIBER(a_shim_whose_layers_are_being_built_can_be_upgraded)
{
    const struct shim_args args = { .ns = "test", .id = "box" };
    struct ctx limited = ctx_with_timeout(ctx, 30 * NS_PER_S);
    AUTO(strv_release) struct strv dirs = { 0 };
    struct err err = ERR_INIT;
    bool settled = false;

    strv_add(&dirs, "/none");
    layers_spawn(ctx->loop, NULL, &args, &dirs, NULL);
    while (!settled) {
        ASSERT_OK(loop_wait_idle(&limited, "the builder", &err), err);
        loop_each_fiber(ctx->loop, look, &settled);
    }
    ASSERT(child() > 0);
    ASSERT_EQ(kill(child(), SIGKILL), 0);
    while (child() > 0)
        ASSERT_OK(fiber_sleep(&limited, 10 * NS_PER_MS, &err), err);
}
