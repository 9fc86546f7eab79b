#include "base/reason.h"
#include "base/mem.h"
#include "base/str.h"
#include <errno.h>
#include <stdlib.h>

static const char *const names[REASON_COUNT] = { [REASON_NONE] = "UNKNOWN",
#define REASON_NAME(name) [REASON_##name] = #name,
                                                 REASONS(REASON_NAME) };

const char *reason_name(enum reason reason)
{
    return names[(unsigned)reason < REASON_COUNT ? reason : REASON_NONE];
}

enum reason reason_parse(const char *name)
{
    for (int i = REASON_NONE + 1; name && i < REASON_COUNT; i++)
        if (str_eq(name, names[i]))
            return (enum reason)i;
    return REASON_NONE;
}

enum reason reason_from_errno(int errnum)
{
    static const struct {
        int errnum;
        enum reason reason;
    } reasons[] = {
        { ENOSPC, REASON_DISK_FULL },       { EDQUOT, REASON_DISK_FULL },
        { EMFILE, REASON_TOO_MANY_FILES },  { ENFILE, REASON_TOO_MANY_FILES },
        { ENOMEM, REASON_NO_MEMORY },       { ENOTCONN, REASON_FILESYSTEM_DEAD },
        { ESTALE, REASON_FILESYSTEM_DEAD },
    };

    for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
        if (reasons[i].errnum == abs(errnum))
            return reasons[i].reason;
    return REASON_NONE;
}
