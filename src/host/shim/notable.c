#include "host/shim/notable.h"
#include "base/err.h"
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

static bool is_one_of(const char *line, size_t len, const char *const *operations, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (has_field(line, len, "operation", operations[i]))
            return true;
    return false;
}

/* No reason to keep the journal of a sandbox that was well. Whoever asks once more after the end is
 * told that the thing is gone, as an error. Whoever kills or removes something twice is told so,
 * too; but what could not be killed or removed has to be explained. */
static bool is_routine(const char *line, size_t len)
{
    static const char *const questions[] = { "State", "Pids",    "Wait",
                                             "Stats", "CloseIO", "ResizePty" };
    static const char *const ends[] = { "Kill", "Delete" };

    return is_one_of(line, len, questions, ARRAY_LEN(questions)) ||
           (is_one_of(line, len, ends, ARRAY_LEN(ends)) &&
            has_field(line, len, "code", err_code_name(ERR_NOT_FOUND)));
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
