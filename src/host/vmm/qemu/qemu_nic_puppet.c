/* qemu_nic_puppet.c - stands in for QEMU where NICs are added and removed: keeps the books as QEMU
 * does, refuses what QEMU refuses, and misbehaves once as the VM's name asks for: "HOW.COMMAND@…"
 * with HOW one of error (nothing happens), lost (it happens, no answer comes), and deaf (device_del
 * is taken and nothing follows: a guest that lets go only when its link is cut). What QEMU would
 * choke on ends it with status 7; quit with something left ends it with status 9. Runs in the real
 * jail. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QMP = 3, CONSOLE = 4, SLOTS = 8 };

/* Descriptors by name, and those that backends have. */
static int names[SLOTS], netdevs[SLOTS], held = -1;
static bool devices[SLOTS], hears[SLOTS];
static char how[16], which[32];
static unsigned answered_id;

static void say(int fd, const char *text)
{
    size_t n = strlen(text);

    if (write(fd, text, n) != (ssize_t)n)
        _exit(3);
}

static void choke(const char *what)
{
    fprintf(stderr, "puppet: %s\n", what);
    exit(7);
}

static void refuse(const char *class, const char *desc)
{
    char text[256];

    snprintf(text, sizeof(text),
             "{\"error\": {\"class\": \"%s\", \"desc\": \"%s\"}, \"id\": %u}\r\n", class, desc,
             answered_id);
    say(QMP, text);
}

static void agree(void)
{
    char text[64];

    snprintf(text, sizeof(text), "{\"return\": {}, \"id\": %u}\r\n", answered_id);
    say(QMP, text);
}

/* "X-a", "X-b" …: the letter is the slot. */
static unsigned slot_of(const char *line)
{
    static const char *const keys[] = { "\"fdname\":\"net-", "\"id\":\"net-", "\"id\":\"nic-",
                                        "\"name\":\"nic-" };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *p = strstr(line, keys[i]);
        unsigned slot = p ? (unsigned)(p[strlen(keys[i])] - 'a') : SLOTS;
        if (slot < SLOTS)
            return slot;
    }
    choke(line);
    return 0;
}

/* NULL when it was done. */
static const char *perform(const char *cmd, unsigned s)
{
    if (!strcmp(cmd, "getfd")) {
        if (held < 0)
            return "No file descriptor supplied via SCM_RIGHTS";
        if (names[s] >= 0)
            close(names[s]);
        names[s] = held;
        held = -1;
    } else if (!strcmp(cmd, "closefd")) {
        if (names[s] < 0)
            return "File descriptor named 'net' not found";
        close(names[s]);
        names[s] = -1;
    } else if (!strcmp(cmd, "netdev_add")) {
        if (names[s] < 0 || netdevs[s] >= 0)
            choke("a backend without a descriptor, or twice");
        netdevs[s] = names[s];
        names[s] = -1;
    } else if (!strcmp(cmd, "device_add")) {
        if (netdevs[s] < 0 || devices[s])
            choke("a device without a backend, or twice");
        devices[s] = true;
    } else if (!strcmp(cmd, "set_link")) {
        hears[s] = true; /* a guest that lets go when it is too late */
    } else if (!strcmp(cmd, "netdev_del")) {
        if (devices[s])
            choke("a backend is removed under its device");
        close(netdevs[s]);
        netdevs[s] = -1;
    }
    return NULL;
}

static void quit(void)
{
    agree();
    for (int i = 0; i < SLOTS; i++)
        if (names[i] >= 0 || netdevs[i] >= 0 || devices[i])
            exit(9);
    exit(0);
}

static void deleted(unsigned s)
{
    char text[160];

    devices[s] = false;
    snprintf(text, sizeof(text),
             "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": "
             "\"DEVICE_DELETED\", \"data\": {\"device\": \"nic-%c\", \"path\": \"/x\"}}\r\n",
             'a' + (int)s);
    say(QMP, text);
}

static bool missing(const char *cmd, unsigned s)
{
    return (!strcmp(cmd, "device_del") && !devices[s]) ||
           (!strcmp(cmd, "netdev_del") && netdevs[s] < 0);
}

static void handle(const char *line)
{
    char cmd[32] = "";
    const char *id = strstr(line, "\"id\":");

    /* The message's own id is its last. */
    for (const char *next = id; next; next = strstr(next + 1, "\"id\":"))
        id = next;
    answered_id = id ? (unsigned)atoi(id + 5) : 0;
    if (sscanf(line, " {\"execute\":\"%31[^\"]", cmd) != 1)
        choke(line);
    if (!strcmp(cmd, "quit"))
        quit();
    if (!strcmp(cmd, "qmp_capabilities")) {
        agree();
        return;
    }
    bool odd = !strcmp(cmd, which);
    unsigned s = slot_of(line);
    if (odd && strcmp(how, "deaf") != 0)
        which[0] = '\0'; /* once */
    if (odd && !strcmp(how, "error")) {
        refuse("GenericError", "the puppet says no");
        return;
    }
    if (missing(cmd, s)) {
        refuse("DeviceNotFound", "Device not found");
        return;
    }
    const char *why = perform(cmd, s);
    bool lost = odd && !strcmp(how, "lost");
    if (why && !lost)
        refuse("GenericError", why);
    else if (!lost)
        agree();
    if (!strcmp(cmd, "device_del") && !(odd && !strcmp(how, "deaf")))
        deleted(s);
    if (!strcmp(cmd, "set_link") && hears[s])
        deleted(s);
}

/* As QEMU: a descriptor that comes replaces the one before. */
static ssize_t receive(char *buf, size_t size)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = { buf, size };
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
    };
    ssize_t n = recvmsg(QMP, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;

    if (c && c->cmsg_type == SCM_RIGHTS) {
        if (held >= 0)
            close(held);
        memcpy(&held, CMSG_DATA(c), sizeof(held));
    }
    return n;
}

int main(int argc, char **argv)
{
    char line[8192];
    size_t len = 0;

    for (int i = 1; i < argc - 1; i++)
        if (!strcmp(argv[i], "-name"))
            sscanf(argv[i + 1], "guest=%15[a-z].%31[^@,]", how, which);
    for (int i = 0; i < SLOTS; i++)
        names[i] = netdevs[i] = -1;
    say(QMP, "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 1, \"minor\": 0, \"major\": 10}, "
             "\"package\": \"\"}, \"capabilities\": []}}\r\n");
    say(CONSOLE, "[    0.000000] Linux version 6.1.0 (puppet)\r\n");
    for (ssize_t n; (n = receive(line + len, sizeof(line) - 1 - len)) > 0;) {
        len += (size_t)n;
        line[len] = '\0';
        for (char *end; (end = strchr(line, '\n'));) {
            *end = '\0';
            handle(line);
            len -= (size_t)(end + 1 - line);
            memmove(line, end + 1, len + 1);
        }
    }
    return 0;
}
