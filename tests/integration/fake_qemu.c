/* fake_qemu.c - stands in for QEMU and does it badly. The name under which it is run (a copy or a
 * link) says how; the socket of QMP is found on its command line as QEMU finds it. Static, since
 * it runs in the jail. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETING(major)                                                                            \
    "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 2, \"major\": " major            \
    "}, \"package\": \"fake\"}, \"capabilities\": [\"oob\"]}}\r\n"

static void for_ever(void)
{
    for (;;)
        pause();
}

static void put(int fd, const char *text)
{
    size_t len = strlen(text);

    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        text += n;
        len -= (size_t)n;
    }
}

/* "socket,id=qmp,fd=7" */
static int qmp_fd(char **argv)
{
    for (; *argv; argv++) {
        char *fd = strstr(*argv, "fd=");
        if (strncmp(*argv, "socket,id=qmp,", 14) == 0 && fd)
            return atoi(fd + 3);
    }
    return -1;
}

/* One command; the number that is its id. */
static long await_command(int fd)
{
    static char buf[65536];
    size_t have = 0;

    do {
        ssize_t n = recv(fd, buf + have, sizeof(buf) - 1 - have, 0);
        if (n <= 0)
            exit(0);
        have += (size_t)n;
        buf[have] = '\0';
    } while (!strchr(buf, '\n') && !strchr(buf, '}'));
    char *id = strstr(buf, "\"id\":");
    return id ? atol(id + 5) : 0;
}

static void answer(int fd, const char *what)
{
    char text[256];
    long id = await_command(fd);

    snprintf(text, sizeof(text), "{%s, \"id\": %ld}\r\n", what, id);
    put(fd, text);
}

static void fail(int fd)
{
    (void)fd;
    fprintf(stderr, "qemu-system-x86_64: the moon is in the wrong phase\n");
    exit(1);
}

/* As the first process of its pid namespace it would survive abort(). */
static void crash(int fd)
{
    (void)fd;
    __builtin_trap();
}

static void close_qmp(int fd)
{
    close(fd);
    for_ever();
}

static void garbage(int fd)
{
    put(fd, "\x01\xff}}}} 220 smtp.example.org ready\r\n\r\n");
    for_ever();
}

static void huge(int fd)
{
    char part[65537];

    memset(part, 'x', sizeof(part) - 1);
    part[sizeof(part) - 1] = '\0';
    put(fd, "{\"QMP\": \"");
    for (;;)
        put(fd, part);
}

static void deep(int fd)
{
    for (int i = 0; i < 100000; i++)
        put(fd, "[");
    put(fd, "\r\n");
    for_ever();
}

static void silent(int fd)
{
    (void)fd;
    for_ever();
}

/* Greets and then says no more. */
static void greets(int fd)
{
    put(fd, GREETING("10"));
    for_ever();
}

/* Obliging, but of another time. */
static void old(int fd)
{
    put(fd, GREETING("5"));
    for (;;)
        answer(fd, "\"return\": {}");
}

/* Refuses everything it is asked. */
static void refuses(int fd)
{
    put(fd, GREETING("10"));
    for (;;)
        answer(fd, "\"error\": {\"class\": \"GenericError\", \"desc\": \"not today\"}");
}

/* Events that nobody asked for, without end. */
static void floods(int fd)
{
    put(fd, GREETING("10"));
    for (;;)
        put(fd, "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"RTC_CHANGE\", "
                "\"data\": {\"offset\": 0, \"qom-path\": \"/x\"}}\r\n");
}

/* As with too large a VM. */
static void memory(int fd)
{
    (void)fd;
    fprintf(stderr,
            "qemu-system-x86_64: warning: Number of hotpluggable cpus requested (4) exceeds "
            "the recommended cpus supported by KVM (2)\n"
            "qemu-system-x86_64: cannot set up guest memory 'mem0': Cannot allocate "
            "memory\n");
    exit(1);
}

/* Does what it is asked, but has no guest. */
static void obliging(int fd)
{
    put(fd, GREETING("10"));
    for (;;)
        answer(fd, "\"return\": {}");
}

/* Its guest is a kernel's first line; the console is the descriptor behind that of QMP. */
static void kernel(int fd)
{
    put(fd + 1, "[    0.000000] Linux version 6.1.0 (fake)\r\n");
    obliging(fd);
}

/* KVM_RUN fails at once. */
static void kvmfails(int fd)
{
    put(fd, GREETING("10"));
    answer(fd, "\"return\": {}");
    fprintf(stderr,
            "error: kvm run failed Bad address\nRAX=0000000000000000 RBX=0000000000000000\n");
    put(fd, "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"STOP\"}\r\n");
    for (;;)
        answer(fd, "\"return\": {\"status\": \"internal-error\", \"running\": false}");
}

static const struct {
    const char *name, *version;
    void (*run)(int fd);
} ways[] = {
    { "old", "5.2.0", old },
    { "fails", "10.0.0", fail },
    { "crashes", "10.0.0", crash },
    { "closes", "10.0.0", close_qmp },
    { "garbage", "10.0.0", garbage },
    { "huge", "10.0.0", huge },
    { "deep", "10.0.0", deep },
    { "silent", "10.0.0", silent },
    { "greets", "10.0.0", greets },
    { "refuses", "10.0.0", refuses },
    { "floods", "10.0.0", floods },
    { "memory", "10.0.0", memory },
    { "kernel", "10.0.0", kernel },
    { "kvmfails", "10.0.0", kvmfails },
    { "obliging", "10.0.0", obliging },
};

int main(int argc, char **argv)
{
    const char *dash = strrchr(argv[0], '-');

    for (size_t i = 0; dash && i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (strcmp(ways[i].name, dash + 1) != 0)
            continue;
        if (argc == 2 && strstr(argv[1], "version")) {
            printf("QEMU emulator version %s (fake)\n", ways[i].version);
            return 0;
        }
        ways[i].run(qmp_fd(argv));
    }
    fprintf(stderr, "fake_qemu: no way is called %s\n", argv[0]);
    return 1;
}
