#include "base/json.h"
#include "guest/runtime/container_priv.h"
#include "harness/tap.h"
#include <string.h>

static int check(const char *text, struct err *err)
{
    AUTO(json_decref) json_t *json = NULL;

    ASSERT_OK(js_parse(text, strlen(text), 4096, &json, err), *err);
    return resources_check(json, err);
}

TEST(valid_limits_pass)
{
    struct err err = ERR_INIT;

    ASSERT_OK(check("{}", &err), err);
    ASSERT_OK(check("{\"memory\":{\"limit\":-1,\"swap\":4096},\"cpu\":{\"shares\":2,\"quota\":-1,"
                    "\"period\":100000,\"cpus\":\"0-1,3\",\"mems\":\"\"},\"pids\":{\"limit\":5},"
                    "\"unknown\":7}",
                    &err),
              err);
}

TEST(invalid_limits_are_refused_and_named)
{
    static const char *const bad[][2] = {
        { "{\"memory\":7}", "memory" },
        { "{\"memory\":{\"limit\":\"much\"}}", "limit" },
        { "{\"memory\":{\"limit\":-2}}", "limit" },
        { "{\"memory\":{\"limit\":1e30}}", "limit" },
        { "{\"cpu\":{\"shares\":-1}}", "shares" },
        { "{\"cpu\":{\"cpus\":\"0;reboot\"}}", "cpus" },
        { "{\"pids\":{\"limit\":1.5}}", "limit" },
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = ERR_INIT;
        ASSERT_FAIL(check(bad[i][0], &err), err, ERR_INVALID);
        ASSERT_HAS(err.msg, bad[i][1]);
    }
}
