#include "guest/bridge/bootargs.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include <string.h>

#define CMDLINE_MAX 8192

static int take_word(const char *word, struct bootargs *a, struct err *err)
{
    const char *value = strchr(word, '=');

    if (!value++)
        return 0;
    if (str_starts(word, "lcow.host=")) {
        if (!str_eq(value, "tcp") && !str_eq(value, "vsock"))
            return err_set(err, ERR_INVALID, "lcow.host=%s: say tcp or vsock", value);
        a->transport = str_eq(value, "tcp") ? LINK_TCP : LINK_VSOCK;
    } else if (str_starts(word, "lcow.loglevel=") && log_level_parse(value, &a->level) < 0) {
        return err_set(err, ERR_INVALID,
                       "lcow.loglevel=%s: say trace, debug, info, warn, error or off", value);
    }
    return 0;
}

int bootargs_parse(const char *cmdline, struct bootargs *ret, struct err *err)
{
    AUTO_FREE char *copy = str_dup(cmdline);
    struct bootargs a = { .transport = LINK_TCP, .level = LOG_INFO };
    char *save = NULL;

    for (char *word = strtok_r(copy, " \t\n", &save); word && !str_eq(word, "--");
         word = strtok_r(NULL, " \t\n", &save))
        if (take_word(word, &a, err) < 0)
            return -1;
    *ret = a;
    return 0;
}

int bootargs_load(struct bootargs *ret, struct err *err)
{
    AUTO_FREE char *text = NULL;

    if (file_load("/proc/cmdline", CMDLINE_MAX, &text, err) < 0)
        return -1;
    return bootargs_parse(text, ret, err);
}
