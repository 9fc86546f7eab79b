/* ids.c - names as containerd allows them. */
#include "base/err.h"
#include "host/service/service.h"
#include <ctype.h>
#include <string.h>

int service_check_id(const char *what, const char *id, struct err *err)
{
    size_t len = strlen(id);

    if (len == 0)
        return err_set(err, ERR_INVALID, "the %s is empty", what);
    if (len > SERVICE_ID_MAX)
        return err_set(err, ERR_INVALID, "%s \"%.40s…\" has %zu bytes, at most %d are allowed",
                       what, id, len, SERVICE_ID_MAX);
    for (size_t i = 0; i < len; i++) {
        bool word = isalnum((unsigned char)id[i]) && (unsigned char)id[i] < 128;
        bool between = strchr("._-", id[i]) && i > 0 && i + 1 < len &&
                       isalnum((unsigned char)id[i - 1]) && isalnum((unsigned char)id[i + 1]);
        if (!word && !between)
            return err_set(err, ERR_INVALID,
                           "%s \"%s\" is not made of letters and digits, single . _ - between them",
                           what, id);
    }
    return 0;
}
