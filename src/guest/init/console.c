#include "guest/init/console.h"
#include "base/fd.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kernel's log only reaches a quiet console with an urgent priority. */
#define KMSG_PREFIX "<1>"

void console_say(const char *fmt, ...)
{
    char line[512] = KMSG_PREFIX "lcow: ";
    size_t used = strlen(line);
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(line + used, sizeof(line) - used - 1, fmt, ap);
    va_end(ap);
    if (n > 0)
        used += (size_t)n < sizeof(line) - used - 2 ? (size_t)n : sizeof(line) - used - 2;
    line[used++] = '\n';

    const char *plain = line + strlen(KMSG_PREFIX);
    AUTO_FD int console = open("/dev/console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (console >= 0 && fd_write_full(console, plain, used - strlen(KMSG_PREFIX)) >= 0)
        return;
    AUTO_FD int kmsg = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (kmsg >= 0)
        (void)fd_write_full(kmsg, line, used); /* nowhere left to complain */
}
