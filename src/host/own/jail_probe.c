/* jail_probe.c - runs in a jail instead of QEMU and tells what it sees, as key=value lines. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say_caps(void)
{
    struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct d[2] = { 0 };
    unsigned long long ambient = 0, bounding = 0;

    syscall(SYS_capget, &head, d);
    for (int i = 0; i < 64; i++) {
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0) == 1)
            ambient |= 1ULL << i;
        if (prctl(PR_CAPBSET_READ, i, 0, 0, 0) == 1)
            bounding |= 1ULL << i;
    }
    printf("effective=%x%08x\n", d[1].effective, d[0].effective);
    printf("permitted=%x%08x\n", d[1].permitted, d[0].permitted);
    printf("ambient=%llx\nbounding=%llx\n", ambient, bounding);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void say_dir(const char *key, const char *path)
{
    char *names[64];
    size_t n = 0;
    DIR *d = opendir(path);

    for (struct dirent *e; d && n < 64 && (e = readdir(d));)
        if (e->d_name[0] != '.')
            names[n++] = strdup(e->d_name);
    qsort(names, n, sizeof(*names), by_name);
    printf("%s=", key);
    for (size_t i = 0; i < n; i++)
        printf("%s ", names[i]);
    printf("\n");
}

static void say_open(const char *key, const char *path, int flags)
{
    int fd = open(path, flags, 0600);

    printf("%s=%s\n", key, fd < 0 ? strerrorname_np(errno) : "open");
    if (fd >= 0)
        close(fd);
}

static void say_text(const char *key, const char *path)
{
    char text[64] = "";
    struct stat st = { 0 };
    int fd = open(path, O_RDONLY);

    if (fd >= 0 && read(fd, text, sizeof(text) - 1) >= 0)
        fstat(fd, &st);
    printf("%s=%s\n%s-mode=%o\n", key, text, key, st.st_mode & 07777);
}

/* With the mode it has: nothing is changed where it is allowed. */
static void say_chmod(void)
{
    printf("chmod-null=%s\n", chmod("/dev/null", 0666) < 0 ? strerrorname_np(errno) : "done");
    printf("chmod-stdin=%s\n", fchmod(0, 0666) < 0 ? strerrorname_np(errno) : "done");
}

static void say_key(void)
{
    long key =
        syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", "lcow-jail-test", 0);

    printf("key=%s\n", key < 0 ? strerrorname_np(errno) : "found");
}

int main(void)
{
    struct rlimit files, core;
    struct if_nameindex *ifs = if_nameindex();
    char host[64] = "";
    int sig = 0;

    printf("uid=%d\ngid=%d\ngroups=%d\npid=%d\nsid=%d\n", getuid(), getgid(), getgroups(0, NULL),
           getpid(), getsid(0));
    say_caps();
    printf("small_pages=%d\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    printf("no_new_privs=%d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    prctl(PR_GET_PDEATHSIG, &sig);
    gethostname(host, sizeof(host));
    printf("pdeathsig=%d\nhost=%s\nif=", sig, host);
    for (struct if_nameindex *i = ifs; i && i->if_name; i++)
        printf("%s ", i->if_name);
    printf("\nfds=");
    for (int fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("%d ", fd);
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_CORE, &core);
    printf("\nnofile=%ld\ncore=%ld\n", (long)files.rlim_max, (long)core.rlim_max);
    say_dir("root", "/");
    say_dir("dev", "/dev");
    say_dir("shares", "/shares");
    say_open("passwd", "/etc/passwd", O_RDONLY);
    say_open("proc", "/proc/self/status", O_RDONLY);
    say_open("outside", "/../../../etc/passwd", O_RDONLY);
    say_open("tmp", "/tmp/x", O_WRONLY | O_CREAT);
    say_open("new", "/new", O_WRONLY | O_CREAT);
    say_open("share", "/shares/x", O_WRONLY | O_CREAT);
    say_open("lib", "/usr/lib/x", O_WRONLY | O_CREAT);
    say_open("kernel-write", "/boot/kernel", O_WRONLY);
    say_open("null", "/dev/null", O_RDWR);
    say_text("kernel", "/boot/kernel");
    say_text("blob", "/boot/blob");
    printf("mknod=%s\n", mknod("/dev/mem", S_IFCHR, 0x101) < 0 ? strerrorname_np(errno) : "made");
    say_chmod();
    say_key();
    return 0;
}
