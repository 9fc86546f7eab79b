/* resume_fault.c - preloaded into a shim: it answers -info as ever, and fails when it resumes a
 * saved one, in the way that RESUME_FAULT names. The previous program, which then resumes with the
 * same environment, is left alone: its command line has no program to return to. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* resume STATE PREVIOUS WHY, with a PREVIOUS that is not -1. */
static int resumes(void)
{
    char text[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof(text) - 1);

    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    for (char *p = text; n > 0 && p < text + n; p += strlen(p) + 1)
        if (strcmp(p, "resume") == 0) {
            p += strlen(p) + 1; /* the state */
            p += strlen(p) + 1;
            return strcmp(p, "-1") != 0;
        }
    return 0;
}

/* Resuming looks at each descriptor whether it is the right one. The eighth is in the middle. */
int fstat64(int fd, struct stat64 *st)
{
    int (*real)(int, struct stat64 *) = (int (*)(int, struct stat64 *))dlsym(RTLD_NEXT, "fstat64");
    const char *fault = getenv("RESUME_FAULT");
    static int calls;

    if (fault && resumes() && ++calls == 8) {
        if (strcmp(fault, "crash") == 0)
            *(volatile int *)8 = 1;
        if (strcmp(fault, "abort") == 0)
            abort();
        if (strcmp(fault, "hang") == 0)
            for (;;)
                pause();
        errno = EBADF;
        return -1;
    }
    return real(fd, st);
}
