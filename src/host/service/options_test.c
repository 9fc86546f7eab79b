#include "base/err.h"
#include "harness/tap.h"
#include "host/service/service.h"

static enum options_type type_of(const char *url)
{
    enum options_type type = OPTIONS_NONE;
    struct err err = ERR_INIT;

    ASSERT_OK(service_options_type(url, &type, &err), err);
    return type;
}

TEST(types_that_containerd_sends_are_known)
{
    ASSERT_EQ(type_of("runtimeoptions.v1.Options"), OPTIONS_RUNTIME);
    ASSERT_EQ(type_of("type.googleapis.com/runtimeoptions.v1.Options"), OPTIONS_RUNTIME);
    ASSERT_EQ(type_of("containerd.runhcs.v1.Options"), OPTIONS_RUNHCS);
    ASSERT_EQ(type_of("containerd.runc.v1.Options"), OPTIONS_RUNC);
    ASSERT_EQ(type_of("containerd.linux.runc.CreateOptions"), OPTIONS_NONE);
    ASSERT_EQ(type_of("google.protobuf.Empty"), OPTIONS_NONE);
    ASSERT_EQ(type_of(""), OPTIONS_NONE);
    ASSERT_EQ(type_of("c1"), OPTIONS_NONE); /* bytes that are not an Any */
}

TEST(any_other_type_is_refused_by_its_name)
{
    static const char *const urls[] = { "runtimeoptions.v2.Options", "a/b/kata.v1.Options",
                                        "containerd.runhcs.v1.ProcessDetails" };

    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        enum options_type type;
        struct err err = ERR_INIT;

        ASSERT_FAIL(service_options_type(urls[i], &type, &err), err, ERR_INVALID);
        ASSERT_EQ(err.reason, REASON_INVALID_OPTIONS);
        ASSERT_HAS(err.msg, urls[i]);
        ASSERT_MSG_HAS(err.msg, "runtimeoptions.v1.Options");
    }
}
