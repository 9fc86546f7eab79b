/* rootprobe.c - does what ordinary programs do to files of a container's root file system.
 *
 *   rootprobe rules DIR        one line for each rule: "name: ok", or what went wrong
 *   rootprobe speed DIR N      N small files: written, renamed, read, removed; how many a second
 *   rootprobe euid             who runs it
 *
 * The image has /probe/lower/file, /probe/gone/file, and this program as /probe/setuid, setuid
 * root.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static char why[512];

/* Notes why a rule does not hold; always false. */
static int no(const char *format, ...)
{
    int saved = errno;
    va_list args;

    va_start(args, format);
    int n = vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    snprintf(why + n, sizeof(why) - (size_t)n, " (%s)", strerror(saved));
    errno = 0;
    return 0;
}

static int put(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    return (fd < 0 || close(fd) == 0) && ok ? 1 : no("write %s", name);
}

static int holds(const char *name, const char *text)
{
    char got[256] = "";
    int fd = open(name, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, got, sizeof(got) - 1);

    if (fd >= 0)
        close(fd);
    if (n < 0)
        return no("read %s", name);
    return strcmp(got, text) == 0 ? 1 : no("%s holds \"%s\", not \"%s\"", name, got, text);
}

static int mode_is(const char *name, unsigned mode, unsigned uid, unsigned gid)
{
    struct stat st;

    if (lstat(name, &st) < 0)
        return no("lstat %s", name);
    if (st.st_mode != mode || st.st_uid != uid || st.st_gid != gid)
        return no("%s is %o %u:%u, not %o %u:%u", name, st.st_mode, st.st_uid, st.st_gid, mode, uid,
                  gid);
    return 1;
}

static int in_child(int (*body)(void), unsigned uid)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        if (uid && (setgid(uid) < 0 || setuid(uid) < 0))
            _exit(2);
        _exit(body() ? 0 : 1);
    }
    if (waitpid(pid, &status, 0) != pid)
        return no("waitpid");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : no("the child said %x", status);
}

/* --- the rules --- */

static int rewrite(void)
{
    return put("f", "one\n") && put("f", "two\n") && holds("f", "two\n");
}

static int owners(void)
{
    if (!put("owned", "x"))
        return 0;
    if (chown("owned", 1000, 34) < 0 || chmod("owned", 0640) < 0)
        return no("chown");
    return mode_is("owned", S_IFREG | 0640, 1000, 34);
}

static int setid(void)
{
    if (!put("suid", "x") || chown("suid", 0, 34) < 0 || chmod("suid", 06755) < 0)
        return no("chmod");
    return mode_is("suid", S_IFREG | 06755, 0, 34);
}

static int made_by_user_body(void)
{
    return put("open/mine", "x") && mode_is("open/mine", S_IFREG | 0644, 1000, 1000) &&
           mkdir("open/dir", 0750) == 0 && mode_is("open/dir", S_IFDIR | 0750, 1000, 1000);
}

static int made_by_user(void)
{
    if (mkdir("open", 0) < 0 || chmod("open", 01777) < 0)
        return no("mkdir");
    return in_child(made_by_user_body, 1000);
}

static int user_refused_body(void)
{
    int fd = open("secret", O_RDONLY);

    return fd < 0 && errno == EACCES && unlink("open/root") < 0 && chown("secret", 1000, 1000) < 0;
}

static int user_refused(void)
{
    if (!put("secret", "x") || chmod("secret", 0600) < 0 || !put("open/root", "x"))
        return 0;
    return in_child(user_refused_body, 1000);
}

static int read_only_mode_body(void)
{
    int fd = open("open/ro", O_RDWR | O_CREAT | O_EXCL, 0444);
    int ok = fd >= 0 && write(fd, "x", 1) == 1;

    return fd >= 0 && close(fd) == 0 && ok;
}

/* git makes its objects like that. */
static int read_only_mode(void)
{
    return in_child(read_only_mode_body, 1000);
}

static int hard_links(void)
{
    struct stat a, b;

    if (!put("h1", "x") || link("h1", "h2") < 0)
        return no("link");
    if (stat("h1", &a) < 0 || stat("h2", &b) < 0 || a.st_ino != b.st_ino || a.st_nlink != 2)
        return no("the links are two files");
    return put("h1", "new") && holds("h2", "new");
}

static int symlinks(void)
{
    char got[64] = "";

    if (mkdir("sub", 0755) < 0 || symlink("../f", "sub/s") < 0 ||
        readlink("sub/s", got, sizeof(got) - 1) != 4)
        return no("symlink");
    if (lchown("sub/s", 1000, 1000) < 0)
        return no("lchown");
    return strcmp(got, "../f") == 0 && mode_is("sub/s", S_IFLNK | 0777, 1000, 1000) &&
           holds("sub/s", "two\n");
}

static int renames(void)
{
    return put("new", "new") && put("old", "old") && rename("new", "old") == 0 &&
           holds("old", "new");
}

static int rename_dir(void)
{
    if (mkdir("d1", 0755) < 0 || !put("d1/f", "x") || mkdir("d2", 0755) < 0)
        return no("mkdir");
    if (rename("d1", "d2/d1") < 0)
        return no("rename");
    return holds("d2/d1/f", "x");
}

/* dpkg and others rename directories of the image itself. */
static int rename_lower_dir(void)
{
    struct stat st;

    if (stat("/probe/lower", &st) < 0)
        return no("stat");
    if (rename("/probe/lower", "/probe/moved") < 0)
        return no("rename");
    return holds("/probe/moved/file", "lower\n");
}

static int delete_lower(void)
{
    if (unlink("/probe/gone/file") < 0 || rmdir("/probe/gone") < 0)
        return no("unlink");
    if (mkdir("/probe/gone", 0755) < 0)
        return no("mkdir");
    struct stat st;
    return stat("/probe/gone/file", &st) < 0 ? 1 : no("it came back");
}

static int exchange(void)
{
    if (!put("x1", "1") || !put("x2", "2"))
        return 0;
    if (renameat2(AT_FDCWD, "x1", AT_FDCWD, "x2", RENAME_EXCHANGE) < 0)
        return no("renameat2");
    return holds("x1", "2") && holds("x2", "1");
}

static int noreplace(void)
{
    if (!put("n1", "1") || !put("n2", "2"))
        return 0;
    if (renameat2(AT_FDCWD, "n1", AT_FDCWD, "n2", RENAME_NOREPLACE) == 0)
        return no("it replaced");
    if (errno != EEXIST)
        return no("renameat2");
    return renameat2(AT_FDCWD, "n1", AT_FDCWD, "n3", RENAME_NOREPLACE) == 0 ? 1
                                                                            : no("to a new name");
}

static int unlinked(void)
{
    char got[8] = "";
    int fd = open("u", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || unlink("u") < 0)
        return no("unlink");
    int ok = write(fd, "hello", 5) == 5 && pread(fd, got, 5, 0) == 5 && strcmp(got, "hello") == 0;
    close(fd);
    return ok ? 1 : no("read and write");
}

static int unlinked_stat(void)
{
    struct stat st;
    int fd = open("u", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || unlink("u") < 0 || write(fd, "hello", 5) != 5)
        return no("unlink");
    int ok = fstat(fd, &st) == 0 && st.st_size == 5;
    int r = ok ? 1 : no("fstat");
    close(fd);
    return r;
}

static int unlinked_truncate(void)
{
    int fd = open("u", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || unlink("u") < 0 || write(fd, "hello", 5) != 5)
        return no("unlink");
    int r = ftruncate(fd, 2) == 0 ? 1 : no("ftruncate");
    close(fd);
    return r;
}

static int unlinked_chmod(void)
{
    int fd = open("u", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || unlink("u") < 0)
        return no("unlink");
    int r = fchmod(fd, 0644) == 0 && fchown(fd, 1000, 1000) == 0 ? 1 : no("fchmod");
    close(fd);
    return r;
}

static int unlinked_proc(void)
{
    char path[64];
    int fd = open("u", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || unlink("u") < 0)
        return no("unlink");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY);
    int r = again >= 0 ? 1 : no("open it again");
    close(again);
    close(fd);
    return r;
}

static int renamed_open(void)
{
    struct stat st;
    int fd = open("r1", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || rename("r1", "r2") < 0 || write(fd, "hello", 5) != 5 || fsync(fd) < 0)
        return no("rename");
    int r = fstat(fd, &st) == 0 && ftruncate(fd, 2) == 0 && fchmod(fd, 0644) == 0 ? 1 : no("use");
    close(fd);
    return r && holds("r2", "he");
}

static int replaced_open(void)
{
    char got[8] = "";
    struct stat st;

    if (!put("p1", "old"))
        return 0;
    int fd = open("p1", O_RDONLY);
    if (fd < 0 || !put("p2", "new") || rename("p2", "p1") < 0)
        return no("rename");
    int r = fstat(fd, &st) == 0 && read(fd, got, 7) == 3 && strcmp(got, "old") == 0 ? 1 : no("use");
    close(fd);
    return r && holds("p1", "new");
}

static int tmpfile_flag(void)
{
    int fd = open(".", O_RDWR | O_TMPFILE, 0600);

    if (fd < 0)
        return no("open");
    int r = linkat(AT_FDCWD, (char[]){ "" }, AT_FDCWD, "t", 0) < 0 && write(fd, "x", 1) == 1;
    close(fd);
    return r ? 1 : no("write");
}

static int fifos(void)
{
    char got[4] = "";

    if (mkfifo("fifo", 0640) < 0)
        return no("mkfifo");
    int fd = open("fifo", O_RDWR | O_NONBLOCK);
    if (fd < 0)
        return no("open");
    int r = write(fd, "abc", 3) == 3 && read(fd, got, 3) == 3 ? 1 : no("write");
    close(fd);
    return r && mode_is("fifo", S_IFIFO | 0640, 0, 0);
}

static int sockets(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = "sock" };
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);

    if (bind(server, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(server, 1) < 0)
        return no("bind");
    if (chmod("sock", 0666) < 0)
        return no("chmod");
    if (chown("sock", 1000, 1000) < 0)
        return no("chown");
    int r = connect(client, (struct sockaddr *)&a, sizeof(a)) == 0 ? 1 : no("connect");
    close(client);
    close(server);
    return r && unlink("sock") == 0;
}

static int devices(void)
{
    if (mknod("null", S_IFCHR | 0666, makedev(1, 3)) < 0)
        return no("mknod");
    int fd = open("null", O_RDWR);
    int r = fd >= 0 && write(fd, "x", 1) == 1 ? 1 : no("open");
    close(fd);
    return r;
}

static int user_xattr(void)
{
    char got[8] = "";

    if (!put("attr", "x"))
        return 0;
    if (setxattr("attr", "user.colour", "green", 5, 0) < 0)
        return no("setxattr");
    return getxattr("attr", "user.colour", got, 7) == 5 && strcmp(got, "green") == 0
               ? 1
               : no("getxattr");
}

static int capability(void)
{
    /* cap_net_raw+ep, as setcap writes it. */
    static const uint32_t value[5] = { 0x02000001, 1 << 13, 0, 0, 0 };
    uint32_t got[5];

    if (!put("capable", "x"))
        return 0;
    if (setxattr("capable", "security.capability", value, sizeof(value), 0) < 0)
        return no("setxattr");
    return getxattr("capable", "security.capability", got, sizeof(got)) == sizeof(got)
               ? 1
               : no("getxattr");
}

static int acls(void)
{
    /* user::rw-,user:1000:r--,group::r--,mask::r--,other::r--, as setfacl writes it. */
    static const uint32_t value[] = { 2,   0x00060001, ~0u, 0x00040002, 1000, 0x00040004,
                                      ~0u, 0x00040010, ~0u, 0x00040020, ~0u };
    uint32_t got[11];

    if (!put("acl", "x"))
        return 0;
    if (setxattr("acl", "system.posix_acl_access", value, sizeof(value), 0) < 0)
        return no("setxattr");
    return getxattr("acl", "system.posix_acl_access", got, sizeof(got)) == sizeof(got)
               ? 1
               : no("getxattr");
}

static int shared_map(void)
{
    int fd = open("map", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || ftruncate(fd, 8192) < 0)
        return no("ftruncate");
    char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return no("mmap");
    strcpy(p, "mapped");
    if (msync(p, 8192, MS_SYNC) < 0)
        return no("msync");
    munmap(p, 8192);
    close(fd);
    return holds("map", "mapped");
}

static int flock_body(void)
{
    int fd = open("lock", O_RDWR);

    return flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static int flocks(void)
{
    int fd = open("lock", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        return no("flock");
    int r = in_child(flock_body, 0);
    close(fd);
    return r;
}

static int fcntl_body(void)
{
    struct flock l = { .l_type = F_WRLCK };
    int fd = open("lock", O_RDWR);

    return fcntl(fd, F_SETLK, &l) < 0 && (errno == EAGAIN || errno == EACCES);
}

static int fcntls(void)
{
    struct flock l = { .l_type = F_WRLCK };
    int fd = open("lock", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || fcntl(fd, F_SETLK, &l) < 0)
        return no("fcntl");
    int r = in_child(fcntl_body, 0);
    close(fd);
    return r;
}

static int appends(void)
{
    int fd = open("app", O_WRONLY | O_CREAT | O_APPEND, 0600), other;

    if (fd < 0 || write(fd, "a", 1) != 1)
        return no("write");
    other = open("app", O_WRONLY | O_APPEND);
    if (other < 0 || write(other, "b", 1) != 1 || write(fd, "c", 1) != 1)
        return no("append");
    close(fd);
    close(other);
    return holds("app", "abc");
}

static int sparse(void)
{
    int fd = open("sparse", O_RDWR | O_CREAT, 0600);

    if (fd < 0)
        return no("open");
    int r = posix_fallocate(fd, 0, 1 << 20);
    close(fd);
    errno = r;
    return r == 0 ? 1 : no("posix_fallocate");
}

static int times(void)
{
    struct timespec t[2] = { { .tv_sec = 1000000000, .tv_nsec = 5 },
                             { .tv_sec = 1000000001, .tv_nsec = 7 } };
    struct stat st;

    if (!put("times", "x") || utimensat(AT_FDCWD, "times", t, 0) < 0 || stat("times", &st) < 0)
        return no("utimensat");
    return st.st_mtim.tv_sec == 1000000001 && st.st_mtim.tv_nsec == 7
               ? 1
               : no("%lld.%09ld", (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

static int suid_drops_body(void)
{
    int fd = open("open/dropped", O_WRONLY);

    return fd >= 0 && write(fd, "y", 1) == 1;
}

/* Writing by another takes the bits away. */
static int suid_drops(void)
{
    if (!put("open/dropped", "x") || chmod("open/dropped", 06777) < 0 ||
        !in_child(suid_drops_body, 1000))
        return no("write");
    return mode_is("open/dropped", S_IFREG | 0777, 0, 0);
}

static int chown_drops(void)
{
    if (!put("chowned", "x") || chmod("chowned", 06755) < 0 || chown("chowned", 1000, 1000) < 0)
        return no("chown");
    return mode_is("chowned", S_IFREG | 0755, 1000, 1000);
}

/* tar and cp -p, then a program that reads it. */
static int times_stay(void)
{
    struct timespec t[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };
    struct stat st;
    int fd = open("stays", O_WRONLY | O_CREAT, 0600);

    if (fd < 0 || write(fd, "x", 1) != 1 || futimens(fd, t) < 0 || close(fd) < 0 ||
        stat("stays", &st) < 0)
        return no("futimens");
    return st.st_mtim.tv_sec == 1000000000 ? 1 : no("%lld", (long long)st.st_mtim.tv_sec);
}

static int big_directory(void)
{
    char name[64];
    int n = 0;

    if (mkdir("many", 0755) < 0)
        return no("mkdir");
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "many/%0*d", 40, i);
        if (!put(name, ""))
            return 0;
    }
    /* Removing while reading, as rm -r does. */
    DIR *d = opendir("many");
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0) == 0;
    closedir(d);
    return n == 300 && rmdir("many") == 0 ? 1 : no("%d of 300 were removed", n);
}

static int run_suid(void)
{
    char *const argv[] = { "rootprobe", "euid", NULL };
    int p[2];
    char got[16] = "";

    if (pipe(p) < 0)
        return no("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        dup2(p[1], 1);
        if (setgid(1000) < 0 || setuid(1000) < 0)
            _exit(1);
        execv("/probe/setuid", argv);
        _exit(1);
    }
    close(p[1]);
    ssize_t n = read(p[0], got, sizeof(got) - 1);
    close(p[0]);
    waitpid(pid, NULL, 0);
    return n > 0 && got[0] == '0' ? 1 : no("its user is \"%s\"", got);
}

static int syncs(void)
{
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    int r = dir >= 0 && fsync(dir) == 0 ? 1 : no("fsync of a directory");

    close(dir);
    return r;
}

static int direct(void)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open("direct", O_RDWR | O_CREAT | O_DIRECT, 0600);

    if (fd < 0)
        return no("open");
    int r = pwrite(fd, p, 4096, 0) == 4096 ? 1 : no("write");
    close(fd);
    return r;
}

static const struct {
    const char *name;
    int (*body)(void);
} rules[] = {
    { "write-again", rewrite },
    { "owner-and-mode", owners },
    { "setuid-bits", setid },
    { "files-of-a-user", made_by_user },
    { "a-user-is-refused", user_refused },
    { "made-read-only", read_only_mode },
    { "hard-links", hard_links },
    { "symbolic-links", symlinks },
    { "rename-over", renames },
    { "rename-directory", rename_dir },
    { "rename-image-directory", rename_lower_dir },
    { "delete-image-file", delete_lower },
    { "rename-exchange", exchange },
    { "rename-noreplace", noreplace },
    { "unlinked-read-write", unlinked },
    { "unlinked-fstat", unlinked_stat },
    { "unlinked-ftruncate", unlinked_truncate },
    { "unlinked-fchmod", unlinked_chmod },
    { "unlinked-open-again", unlinked_proc },
    { "renamed-while-open", renamed_open },
    { "replaced-while-open", replaced_open },
    { "o-tmpfile", tmpfile_flag },
    { "fifo", fifos },
    { "socket", sockets },
    { "device-node", devices },
    { "user-xattr", user_xattr },
    { "file-capability", capability },
    { "acl", acls },
    { "mmap-shared", shared_map },
    { "flock", flocks },
    { "fcntl-lock", fcntls },
    { "append", appends },
    { "fallocate", sparse },
    { "file-times", times },
    { "file-times-while-open", times_stay },
    { "setuid-drops-at-write", suid_drops },
    { "setuid-drops-at-chown", chown_drops },
    { "remove-while-reading", big_directory },
    { "setuid-program", run_suid },
    { "fsync-directory", syncs },
    { "o-direct", direct },
};

static void need(int ok, const char *what)
{
    if (!ok) {
        printf("%s: %s\n", what, why[0] ? why : strerror(errno));
        exit(1);
    }
}

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* As a package manager unpacks: a new name, owner and mode, then renamed. */
static void speed(int n)
{
    char name[64], temp[64], text[4096];
    uint64_t t0 = now_us();

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    for (int i = 0; i < n; i++) {
        if (i % 100 == 0) {
            snprintf(name, sizeof(name), "s%d", i / 100);
            need(mkdir(name, 0755) == 0, "mkdir");
        }
        snprintf(temp, sizeof(temp), "s%d/%d.new", i / 100, i);
        snprintf(name, sizeof(name), "s%d/%d", i / 100, i);
        need(put(temp, text), "put");
        need(chown(temp, 0, 0) == 0 && chmod(temp, 0644) == 0, "chown");
        need(rename(temp, name) == 0, "rename");
    }
    uint64_t t1 = now_us();
    for (int i = 0; i < n; i++) {
        char got[sizeof(text)];

        snprintf(name, sizeof(name), "s%d/%d", i / 100, i);
        int fd = open(name, O_RDONLY);
        need(fd >= 0 && read(fd, got, sizeof(got)) == sizeof(text) - 1, "read");
        close(fd);
    }
    uint64_t t2 = now_us();
    int fd = open("journal", O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 50; i++)
        need(pwrite(fd, text, sizeof(text) - 1, i * 4096) > 0 && fdatasync(fd) == 0, "fdatasync");
    uint64_t t3 = now_us();
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "s%d/%d", i / 100, i);
        need(unlink(name) == 0, "unlink");
    }
    uint64_t t4 = now_us();
    printf("written/s=%.0f read/s=%.0f fdatasync/s=%.0f removed/s=%.0f\n",
           n * 1e6 / (double)(t1 - t0), n * 1e6 / (double)(t2 - t1), 50 * 1e6 / (double)(t3 - t2),
           n * 1e6 / (double)(t4 - t3));
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "euid") == 0) {
        printf("%u\n", geteuid());
        return 0;
    }
    if (argc < 3 || (mkdir(argv[2], 0755) < 0 && errno != EEXIST) || chdir(argv[2]) < 0)
        return 2;
    umask(022);
    if (strcmp(argv[1], "speed") == 0 && argc == 4) {
        speed(atoi(argv[3]));
        return 0;
    }
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        errno = 0;
        why[0] = 0;
        if (rules[i].body())
            printf("%s: ok\n", rules[i].name);
        else
            printf("%s: %s\n", rules[i].name, why[0] ? why : strerror(errno));
        fflush(stdout);
    }
    return 0;
}
