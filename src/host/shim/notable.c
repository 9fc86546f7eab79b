#include "host/shim/notable.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

static const char *const polls[NOTABLE_POLLS] = { "Stats", "State", "Pids" };

static bool has(const char *line, size_t len, const char *part)
{
    return memmem(line, len, part, strlen(part));
}

static bool has_field(const char *line, size_t len, const char *key, const char *value)
{
    AUTO_FREE char *field = str_format("\"%s\":\"%s\"", key, value);

    return has(line, len, field);
}

/* No reason to keep the journal of a sandbox that was well: a question that came while the VM
 * ended. (That a thing is gone is not an error: struct rpc_method.) What could not be killed or
 * removed has to be explained. */
static bool is_routine(const char *line, size_t len)
{
    static const char *const questions[] = { "State", "Pids",    "Wait",
                                             "Stats", "CloseIO", "ResizePty" };

    for (size_t i = 0; i < ARRAY_LEN(questions); i++)
        if (has_field(line, len, "operation", questions[i]))
            return true;
    return false;
}

static bool is_due(struct notable *n, const char *line, size_t len, uint64_t now_ns)
{
    for (size_t i = 0; i < NOTABLE_POLLS; i++) {
        if (!has_field(line, len, "operation", polls[i]))
            continue;
        if (now_ns < n->next_ns[i])
            return false;
        n->next_ns[i] = now_ns + NOTABLE_POLL_NS;
    }
    return true;
}

bool notable_take(struct notable *n, enum log_level level, const char *line, size_t len,
                  uint64_t now_ns)
{
    if (level < LOG_ERROR)
        return true;
    if (!has(line, len, "\"request failed\"")) {
        n->erred = true;
        return true;
    }
    n->erred = n->erred || !is_routine(line, len);
    return is_due(n, line, len, now_ns);
}
