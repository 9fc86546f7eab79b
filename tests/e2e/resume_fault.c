/* resume_fault.c - preloaded into a shim: it answers -info as ever, and fails when it resumes a
 * saved one, in the way that RESUME_FAULT names. The previous program, which then resumes with the
 * same environment, is left alone: its command line has no program to return to. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
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

/* Its stack ends in a page that nobody may touch. */
static int overflow(volatile int *end)
{
    volatile char more[4096];

    more[0] = (char)*end;
    return *end ? 0 : overflow(end) + more[0];
}

/* Every fiber has run once, and waits. */
int epoll_pwait2(int epfd, struct epoll_event *events, int n, const struct timespec *limit,
                 const sigset_t *mask)
{
    int (*real)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *) =
        (int (*)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *))dlsym(
            RTLD_NEXT, "epoll_pwait2");
    const char *fault = getenv("RESUME_FAULT");
    static int calls;

    if (fault && strcmp(fault, "steps") == 0 && ++calls == 2 && resumes())
        abort();
    return real(epfd, events, n, limit, mask);
}

/* Before the program has looked at what it was given. */
int epoll_create1(int flags)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "epoll_create1");
    const char *fault = getenv("RESUME_FAULT");

    if (!fault || strcmp(fault, "noloop") != 0 || !resumes())
        return real(flags);
    errno = EMFILE;
    return -1;
}

static void fail(const char *fault)
{
    int *volatile nowhere = NULL;

    if (strcmp(fault, "crash") == 0)
        *nowhere = 1;
    if (strcmp(fault, "abort") == 0)
        abort();
    if (strcmp(fault, "overflow") == 0) {
        volatile int end = 0;

        overflow(&end);
    }
    if (strcmp(fault, "exit") == 0)
        exit(0);
    if (strcmp(fault, "late") == 0) { /* just before the limit */
        usleep(9700 * 1000);
        abort();
    }
    if (strcmp(fault, "hang") == 0)
        for (;;)
            pause();
}

/* Resuming looks at each descriptor whether it is the right one. The eighth (or RESUME_FAULT_AT) is
 * in the middle. */
int fstat64(int fd, struct stat64 *st)
{
    int (*real)(int, struct stat64 *) = (int (*)(int, struct stat64 *))dlsym(RTLD_NEXT, "fstat64");
    const char *fault = getenv("RESUME_FAULT"), *at = getenv("RESUME_FAULT_AT");
    static int calls;

    if (!fault || strcmp(fault, "steps") == 0 || strcmp(fault, "noloop") == 0 ||
        ++calls != (at ? atoi(at) : 8))
        return real(fd, st);
    if (resumes()) {
        fail(fault);
        errno = EBADF;
        return -1;
    }
    /* The limit of the program that failed must not end this one. */
    if (strcmp(fault, "late") == 0)
        usleep(1000 * 1000);
    return real(fd, st);
}
