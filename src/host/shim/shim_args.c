#include "host/shim/shim_args.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/service/service.h"
#include <string.h>

struct flag {
    const char *name;
    size_t offset;
    bool boolean;
};

#define AT(f) offsetof(struct shim_args, f)
static const struct flag flags[] = {
    { "namespace", AT(ns), false },
    { "id", AT(id), false },
    { "address", AT(address), false },
    { "publish-binary", AT(publish_binary), false },
    { "bundle", AT(bundle), false },
    { "socket", AT(socket), false },
    { "debug-socket", AT(debug_socket), false },
    { "debug", AT(debug), true },
    { "info", AT(info), true },
    { "v", AT(version), true },
    { "version", AT(version), true },
};

static const struct flag *find_flag(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (strlen(flags[i].name) == len && strncmp(flags[i].name, name, len) == 0)
            return &flags[i];
    return NULL;
}

int shim_args_parse(char **argv, struct shim_args *ret, struct err *err)
{
    struct shim_args a = { "", "", "", "", "", "", "", false, false, false, "" };
    char **arg = argv[0] ? argv + 1 : argv;

    for (; *arg && (*arg)[0] == '-' && (*arg)[1]; arg++) {
        const char *name = *arg + ((*arg)[1] == '-' ? 2 : 1), *value = strchr(name, '=');

        if (!name[0]) { /* "--" ends the flags */
            arg++;
            break;
        }

        const struct flag *f = find_flag(name, value ? (size_t)(value - name) : strlen(name));

        if (!f)
            return err_set(err, ERR_INVALID, "unknown flag %s", *arg);
        if (f->boolean) {
            if (str_to_bool(value ? value + 1 : "true", (bool *)((char *)&a + f->offset)) < 0)
                return err_set(err, ERR_INVALID, "-%s=%s: only true and false", f->name, value + 1);
            continue;
        }
        if (!value && !*++arg)
            return err_set(err, ERR_INVALID, "flag -%s needs a value", f->name);
        *(const char **)((char *)&a + f->offset) = value ? value + 1 : *arg;
    }
    if (*arg)
        a.action = *arg;
    *ret = a;
    return 0;
}

int shim_args_check(const struct shim_args *a, struct err *err)
{
    if (!a->ns[0])
        return err_set(err, ERR_INVALID, "shim namespace cannot be empty: give -namespace");
    if (service_check_id("namespace", a->ns, err) < 0)
        return -1;
    return service_check_id("id", a->id, err);
}
