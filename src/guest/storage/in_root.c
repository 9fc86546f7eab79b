#include "guest/storage/in_root.h"
#include "base/fd.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CANNOT 126 /* as a shell that cannot run a program */
#define INSIDE (RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)

static int open_in(int root, const char *path, int flags, uint64_t resolve)
{
    const struct open_how how = {
        .flags = (uint64_t)(flags | O_CLOEXEC),
        .resolve = resolve,
    };
    long fd = syscall(SYS_openat2, root, path, &how, sizeof(how));

    return fd < 0 ? -errno : (int)fd;
}

/* An fd, CLOEXEC. path may begin with a slash. */
static int open_inside(const char *root, const char *path, int flags)
{
    AUTO_FD int dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);

    return dir < 0 ? -errno : open_in(dir, path, flags, INSIDE);
}

int in_root_check_dir(const char *root, const char *name, char **ret_link)
{
    AUTO_FD int dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    char target[PATH_MAX];
    struct stat st;

    if (dir < 0)
        return -errno;
    AUTO_FD int fd = open_in(dir, name, O_PATH | O_NOFOLLOW, RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISLNK(st.st_mode))
        return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
    ssize_t n = readlinkat(fd, "", target, sizeof(target));
    if (n < 0)
        return -errno;
    *ret_link = str_ndup(target, (size_t)n);
    return -ELOOP;
}

int in_root_mkdir(const char *root, const char *path, mode_t mode)
{
    AUTO_FD int dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    AUTO_FREE char *copy = str_dup(path);
    AUTO(sbuf_release) struct sbuf so_far = { 0 };
    char *save = NULL;

    if (dir < 0)
        return -errno;
    /* Opens each parent from the root again, so that a symlink in it stays in the tree. */
    for (char *name = strtok_r(copy, "/", &save); name; name = strtok_r(NULL, "/", &save)) {
        AUTO_FD int parent =
            open_in(dir, so_far.len ? so_far.data : "/", O_PATH | O_DIRECTORY, INSIDE);
        if (parent < 0)
            return parent;
        if (strcmp(name, "..") != 0 && mkdirat(parent, name, mode) < 0 && errno != EEXIST)
            return -errno;
        sbuf_addf(&so_far, "/%s", name);
    }
    return 0;
}

int in_root_read(const char *root, const char *path, size_t max, char **ret_text, size_t *ret_len)
{
    AUTO_FD int fd = open_inside(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    struct stat st;

    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    if ((uint64_t)st.st_size > max)
        return -EFBIG;
    AUTO_FREE char *text = mem_zalloc((size_t)st.st_size + 1);
    ssize_t n = fd_read_full(fd, text, (size_t)st.st_size);
    if (n < 0)
        return (int)n;
    *ret_len = (size_t)n;
    *ret_text = TAKE_PTR(text);
    return 0;
}

/* --- a program of the VM in that tree --- */

static int fail(const char *what, const char *name)
{
    fprintf(stderr, "gcs: %s %s: %s\n", what, name, strerror(errno));
    return CANNOT;
}

/* The tools look up owners in this file, and would block on a FIFO that a container put in its
 * place. */
static int check_users(void)
{
    static const char *const files[] = { "/etc/passwd", "/etc/group" };
    struct stat st;

    for (int i = 0; i < 2; i++)
        if (stat(files[i], &st) == 0 && !S_ISREG(st.st_mode)) {
            fprintf(stderr, "gcs: %s of the container is not a regular file\n", files[i]);
            return -1;
        }
    return 0;
}

int in_root_exec(const char *root, const char *program, char **argv)
{
    extern char **environ;
    int fd = open(program, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return fail("open", program);
    if (chroot(root) < 0 || chdir("/") < 0)
        return fail("enter", root);
    if (check_users() < 0)
        return CANNOT;
    (void)execveat(fd, "", argv, environ, AT_EMPTY_PATH);
    return fail("run", program);
}
