/* crun_text.c - what crun's words mean (gcs-protocol.md §2.5). Pure. */
#include "base/err.h"
#include "base/json.h"
#include "guest/runtime/crun.h"
#include <string.h>

static const struct {
    const char *part;
    enum err_code code;
} known[] = {
    { "does not exist", ERR_NOT_FOUND },
    { "already exists", ERR_EXISTS },
    { "invalid container ID", ERR_INVALID },
    { "invalid character", ERR_INVALID },
    { "is not in `created` or `stopped` state", ERR_STATE },
    { "not stopped", ERR_STATE },
    { "still running", ERR_STATE },
    { "is not running", ERR_UNAVAILABLE },
    { "container not running", ERR_UNAVAILABLE },
    { "container process not found", ERR_UNAVAILABLE },
};

/* The name between the first pair of back quotes. */
static char *quoted(const char *text)
{
    const char *from = strchr(text, '`'), *end = from ? strchr(from + 1, '`') : NULL;

    return end ? str_ndup(from + 1, (size_t)(end - from - 1)) : str_dup("");
}

int crun_error(const char *text, struct err *err)
{
    AUTO_FREE char *name = quoted(text);

    if (strstr(text, "not found in $PATH"))
        return err_set(err, ERR_NOT_FOUND, "exec: \"%s\": executable file not found in $PATH",
                       name);
    if (str_starts(text, "exec container process") && strstr(text, "No such file"))
        return err_set(err, ERR_NOT_FOUND, "exec: \"%s\": no such file or directory", name);
    if (str_starts(text, "open executable") ||
        (strstr(text, "exec container process") && strstr(text, "ermission denied")))
        return err_set(err, ERR_PERMISSION, "exec: permission denied (%s)", text);
    if (strstr(text, "/status`: No such file or directory"))
        return err_set(err, ERR_NOT_FOUND, "container does not exist: %s", text);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strstr(text, known[i].part))
            return err_set(err, known[i].code, "%s", text);
    return err_set(err, ERR_INTERNAL, "%s", text);
}

char *crun_log_error(const char *log, size_t len)
{
    char *found = NULL;

    for (const char *line = log; line < log + len;) {
        const char *end = memchr(line, '\n', (size_t)(log + len - line));
        size_t n = end ? (size_t)(end - line) : (size_t)(log + len - line);
        AUTO(json_decref) json_t *entry = NULL;
        const char *level = "", *msg = NULL;
        struct err ignored = ERR_INIT;

        if (n > 0 && js_parse(line, n, 64 * 1024, &entry, &ignored) == 0 && json_is_object(entry) &&
            js_str(entry, "level", &level, &ignored) == 0 &&
            js_str(entry, "msg", &msg, &ignored) == 0 && msg && strcmp(level, "error") == 0) {
            mem_free_auto(&found);
            found = str_dup(msg);
        }
        line += n + 1;
    }
    return found;
}
