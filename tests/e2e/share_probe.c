/* share_probe.c - what can be done to a directory that was shared, and with which error it is
 * refused. Static: it runs in the VM and in containers.
 *
 *     share_probe write DIR     every way of changing DIR, which has a file f, a directory d and a
 *                               link l: a line "NAME ERRNO" each, "NAME done" if it was possible
 *     share_probe cross A B     from share A into share B, both with a file f
 *     share_probe limits DIR    what virtio-9p cannot do in a directory that is writable
 *     share_probe race FILE N   reads FILE N times; how often it had something, and all it had
 *     share_probe hold FILE     opens FILE, says "held", and at the end of stdin what it reads */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

static void tell(const char *what, int r)
{
    printf("%s %s\n", what, r < 0 ? strerrorname_np(errno) : "done");
}

static int try_open(const char *path, int flags)
{
    int fd = open(path, flags, 0644);

    return fd < 0 ? -1 : close(fd);
}

static void try_writing(void)
{
    const struct timespec times[2] = { { 1, 0 }, { 1, 0 } };

    tell("open-write", try_open("f", O_WRONLY));
    tell("open-append", try_open("f", O_WRONLY | O_APPEND));
    tell("open-truncate", try_open("f", O_RDONLY | O_TRUNC));
    tell("create", try_open("new", O_CREAT | O_EXCL | O_WRONLY));
    tell("mkdir", mkdir("newdir", 0755));
    tell("rmdir", rmdir("d"));
    tell("rename", rename("f", "g"));
    tell("rename-into", rename("f", "d/f"));
    tell("exchange", renameat2(AT_FDCWD, "f", AT_FDCWD, "d", RENAME_EXCHANGE));
    tell("unlink", unlink("f"));
    tell("unlink-link", unlink("l"));
    tell("link", link("f", "hard"));
    tell("symlink", symlink("/etc", "soft"));
    tell("mknod-file", mknod("node", S_IFREG | 0644, 0));
    tell("mknod-device", mknod("null", S_IFCHR | 0666, makedev(1, 3)));
    tell("mkfifo", mkfifo("fifo", 0644));
    tell("chmod", chmod("f", 0777));
    tell("chmod-root", chmod(".", 0777));
    tell("chown", chown("f", 1000, 1000));
    tell("lchown", lchown("l", 1000, 1000));
    tell("utimes", utimensat(AT_FDCWD, "f", times, 0));
    tell("truncate", truncate("f", 0));
    tell("setxattr", setxattr("f", "user.lcow", "x", 1, 0));
    tell("setxattr-security", setxattr("f", "security.lcow", "x", 1, 0));
    tell("removexattr", removexattr("f", "user.mark"));
}

static void try_crossing(const char *a, const char *b)
{
    char from[512], to[512];

    snprintf(from, sizeof(from), "%s/f", a);
    snprintf(to, sizeof(to), "%s/stolen", b);
    tell("link", link(from, to));
    tell("rename", rename(from, to));
    snprintf(to, sizeof(to), "%s/f", b);
    tell("rename-over", rename(from, to));
    tell("exchange", renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE));
}

static void try_fifo(void)
{
    char text[4] = "";
    int made = mkfifo("fifo", 0644), fd;

    tell("fifo", made);
    fd = open("fifo", O_RDWR | O_NONBLOCK);
    tell("fifo-open", fd);
    tell("fifo-use", fd >= 0 && write(fd, "abc", 3) == 3 && read(fd, text, 3) == 3 ? 0 : -1);
    tell("fifo-chmod", chmod("fifo", 0600));
}

static void try_socket(void)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX, .sun_path = "socket" };
    int s = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0);

    tell("socket", bind(s, (struct sockaddr *)&sa, sizeof(sa)));
    tell("socket-listen", listen(s, 1));
    tell("socket-connect", connect(c, (struct sockaddr *)&sa, sizeof(sa)));
}

static void try_limits(void)
{
    int fd = open("gone", O_CREAT | O_RDWR, 0644);

    try_fifo();
    try_socket();
    tell("device", mknod("null", S_IFCHR | 0666, makedev(1, 3)));
    if (fd < 0 || write(fd, "data", 4) != 4 || unlink("gone") < 0)
        tell("prepare", -1);
    tell("truncate-unlinked", ftruncate(fd, 1));
    tell("chmod-unlinked", fchmod(fd, 0600));
}

static void race(const char *path, int rounds)
{
    char seen[65536] = "", text[64];
    int n = 0;

    for (int i = 0; i < rounds; i++) {
        int fd = open(path, O_RDONLY);
        ssize_t len = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

        if (fd >= 0)
            close(fd);
        if (len <= 0)
            continue;
        text[len] = '\0';
        n++;
        if (!strstr(seen, text) && strlen(seen) + (size_t)len < sizeof(seen))
            strcat(seen, text);
    }
    printf("%d\n%s", n, seen);
}

static void hold(const char *path)
{
    char text[4096];
    int fd = open(path, O_RDONLY);

    puts(fd < 0 ? "not there" : "held");
    fflush(stdout);
    while (read(0, text, sizeof(text)) > 0)
        ;
    ssize_t n = read(fd, text, sizeof(text));
    if (n < 0)
        tell("read", -1);
    else
        printf("%.*s", (int)n, text);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";

    if ((!strcmp(what, "write") || !strcmp(what, "limits")) && chdir(argv[2]) < 0)
        return 1;
    if (!strcmp(what, "write"))
        try_writing();
    else if (!strcmp(what, "limits"))
        try_limits();
    else if (!strcmp(what, "cross") && argc > 3)
        try_crossing(argv[2], argv[3]);
    else if (!strcmp(what, "race") && argc > 3)
        race(argv[2], atoi(argv[3]));
    else if (!strcmp(what, "hold"))
        hold(argv[2]);
    else
        return 2;
    return 0;
}
