#include "host/service/options.h"
#include "base/err.h"
#include "base/str.h"
#include <string.h>

int options_type(const char *type_url, enum options_type *ret, struct err *err)
{
    static const struct {
        const char *name;
        enum options_type type;
    } known[] = {
        { "", OPTIONS_NONE },
        { "google.protobuf.Empty", OPTIONS_NONE }, /* ctr sandboxes run */
        { "runtimeoptions.v1.Options", OPTIONS_RUNTIME },
        { "containerd.runc.v1.Options", OPTIONS_RUNC },
        { "containerd.runhcs.v1.Options", OPTIONS_RUNHCS },
    };
    const char *slash = strrchr(type_url, '/'), *name = slash ? slash + 1 : type_url;

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (str_eq(name, known[i].name)) {
            *ret = known[i].type;
            return 0;
        }
    }
    /* Of runc's first shim; and bytes that are no Any at all, whose first field is no type. */
    if (str_starts(name, "containerd.linux.runc.") || !strchr(name, '.')) {
        *ret = OPTIONS_NONE;
        return 0;
    }
    return err_set(err, ERR_INVALID,
                   "runtime options of type \"%.100s\" are not understood: "
                   "runtimeoptions.v1.Options and containerd.runhcs.v1.Options are",
                   type_url);
}
