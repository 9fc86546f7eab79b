/* service_save_test.c - what the service remembers between two calls, for the next program. */
#include "base/loop.h"
#include "fixture/saved_fixture.h"
#include "host/service/service_priv.h"

TEST_VIRTUAL(announced_creates_and_shutdown_calls_are_known_to_the_new_program)
{
    const struct service_opts o = { .loop = ctx->loop };
    struct service *from = service_new(&o), *to = service_new(&o);

    service_expect(from);
    service_expect(from);
    from->asked_to_leave = 3;
    SAVED_PASS_ON(w, service_saved(w, from), , s, service_saved(s, to), again,
                  service_saved(again, to));
    ASSERT_EQ(to->expected, 2);
    ASSERT(to->expected_until > 0);
    ASSERT_EQ(to->expected_until, from->expected_until);
    ASSERT_EQ(service_asked_to_leave(to), 3);
    service_free(from);
    service_free(to);
}
