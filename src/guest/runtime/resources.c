#include "guest/runtime/resources.h"
#include "base/err.h"
#include "base/json.h"
#include <string.h>

enum kind { SIGNED, UNSIGNED, CPU_SET };

static const struct {
    const char *part, *key;
    enum kind kind;
} fields[] = {
    { "memory", "limit", SIGNED }, { "memory", "reservation", SIGNED },
    { "memory", "swap", SIGNED },  { "cpu", "shares", UNSIGNED },
    { "cpu", "quota", SIGNED },    { "cpu", "period", UNSIGNED },
    { "cpu", "cpus", CPU_SET },    { "cpu", "mems", CPU_SET },
    { "pids", "limit", SIGNED },
};

static int check_field(const json_t *part, const char *key, enum kind kind, struct err *err)
{
    const char *text = "";
    uint64_t u;
    int64_t i = 0;

    switch (kind) {
    case UNSIGNED:
        return js_u64(part, key, &u, err);
    case SIGNED:
        if (js_i64(part, key, &i, err) < 0)
            return -1;
        return i < -1 ? err_set(err, ERR_INVALID, "%s is %ld", key, i) : 0;
    case CPU_SET:
        if (js_str(part, key, &text, err) < 0)
            return -1;
        if (strspn(text, "0123456789,-") != strlen(text))
            return err_set(err, ERR_INVALID, "%s is \"%.32s\", not a set of numbers", key, text);
        return 0;
    }
    return 0;
}

int resources_check(const json_t *resources, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const json_t *part = NULL;

        if (js_obj(resources, fields[i].part, &part, err) < 0)
            return err_wrap(err, "resources");
        if (part && check_field(part, fields[i].key, fields[i].kind, err) < 0)
            return err_wrap(err, "resources: %s", fields[i].part);
    }
    return 0;
}
