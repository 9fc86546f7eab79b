/* fd_later.c - close() beside the loop. A thread per close, joined if the close is done at once (as
 * nearly all are), so that the file is closed before a following unmount. A close that hangs keeps
 * its thread. The queue holds closes that arrive while all threads hang. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/thread.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 64
#define AT_ONCE_NS (20 * NS_PER_MS)
#define PATIENCE_NS (1 * NS_PER_S) /* no caller waits for this long after a hang */

/* Process-wide, as the descriptors are. */
static struct {
    pthread_mutex_t lock;
    int *fds; /* to be closed */
    size_t n, cap;
    unsigned threads;
    _Atomic uint64_t hung_ns; /* when a caller's wait last timed out */
} later = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* -1 if there is none. Called with the lock. */
static int next(void)
{
    return later.n > 0 ? later.fds[--later.n] : -1;
}

static void *close_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&later.lock);
    for (int fd; (fd = next()) >= 0;) {
        pthread_mutex_unlock(&later.lock);
        fd_close(fd);
        pthread_mutex_lock(&later.lock);
    }
    later.threads--;
    pthread_mutex_unlock(&later.lock);
    return NULL;
}

static bool done_at_once(pthread_t thread)
{
    uint64_t now = clock_mono(), until = now + AT_ONCE_NS, hung = later.hung_ns;
    struct timespec at = { (time_t)(until / NS_PER_S), (long)(until % NS_PER_S) };

    if (hung && now - hung < PATIENCE_NS)
        return false;
    if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &at) == 0)
        return true;
    later.hung_ns = now;
    return false;
}

void fd_close_later(int fd)
{
    int saved = errno;
    pthread_t thread;

    if (fd < 0)
        return;
    pthread_mutex_lock(&later.lock);
    later.fds = mem_grow(later.fds, later.n, &later.cap, sizeof(*later.fds));
    later.fds[later.n++] = fd;

    bool more = later.threads < THREADS_MAX;

    if (more && thread_start(&thread, THREAD_STACK_BYTES, close_main, NULL) < 0) {
        /* Without a thread the caller closes: this may block, but an open descriptor would surely
         * keep the client's file system busy. */
        more = false;
        fd = later.threads == 0 ? next() : -1;
    } else {
        later.threads += more;
        fd = -1;
    }
    pthread_mutex_unlock(&later.lock);
    fd_close(fd);
    if (more && !done_at_once(thread))
        pthread_detach(thread);
    errno = saved;
}

void fd_close_later_auto(int *fd)
{
    fd_close_later(*fd);
}

unsigned fd_closing(void)
{
    pthread_mutex_lock(&later.lock);
    unsigned n = later.threads;
    pthread_mutex_unlock(&later.lock);
    return n;
}

static bool is_ours(const char *target, const char *dir)
{
    return str_starts(target, "socket:") || str_starts(target, "pipe:") ||
           (str_starts(target, dir) && target[strlen(dir)] == '/');
}

void fd_close_ours(const char *dir)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;

    while (d && (e = readdir(d))) {
        int fd = atoi(e->d_name); /* "." and ".." are 0 */
        char target[512];
        ssize_t n = fd < 3 ? -1 : readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1);

        target[n < 0 ? 0 : n] = '\0';
        if (is_ours(target, dir))
            fd_close(fd);
    }
    if (d)
        closedir(d);
}
