#include "guest/runtime/in_root.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CANNOT 126

static int fail(const char *what, const char *name)
{
    fprintf(stderr, "gcs: %s %s: %s\n", what, name, strerror(errno));
    return CANNOT;
}

int in_root_exec(const char *root, const char *program, char **argv)
{
    extern char **environ;
    int fd = open(program, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return fail("open", program);
    if (chroot(root) < 0 || chdir("/") < 0)
        return fail("enter", root);
    (void)execveat(fd, "", argv, environ, AT_EMPTY_PATH);
    return fail("run", program);
}
