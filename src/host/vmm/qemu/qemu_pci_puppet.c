/* qemu_pci_puppet.c - stands in for QEMU where PCI devices are added and removed: keeps the books
 * as QEMU does, refuses what QEMU refuses, and misbehaves once as the VM's name asks for:
 * "HOW.COMMAND@…" with HOW one of error (nothing happens), lost (it happens, no answer comes), and
 * deaf (device_del is taken and nothing follows until another device is added). What QEMU would
 * choke on ends it with status 7; quit with something left ends it with status 9. Runs in the real
 * jail. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QMP = 3, CONSOLE = 4, SLOTS = 8, PORTS = 2 };

/* Descriptors by name, sets, nodes. Ports: the slot of the device on each, -1 if free. */
static int names[SLOTS], fdset[PORTS], ports[PORTS], iommu = -1, held = -1;
static bool nodes[SLOTS], has_iommu;
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
    static const char *const keys[] = { "\"fdname\":\"pcifd-", "\"node-name\":\"pcidisk-",
                                        "\"id\":\"pci-" };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *p = strstr(line, keys[i]);
        unsigned slot = p ? (unsigned)(p[strlen(keys[i])] - 'a') : SLOTS;
        if (slot < SLOTS)
            return slot;
    }
    return SLOTS;
}

static unsigned number_behind(const char *line, const char *key)
{
    const char *p = strstr(line, key);

    if (!p)
        choke(line);
    return (unsigned)atoi(p + strlen(key));
}

static int take_held(int *to)
{
    if (held < 0)
        return -1;
    if (*to >= 0)
        close(*to);
    *to = held;
    held = -1;
    return 0;
}

static int port_of(unsigned s)
{
    for (int i = 0; i < PORTS; i++)
        if (ports[i] == (int)s)
            return i;
    return -1;
}

static void add_device(const char *line, unsigned s)
{
    unsigned port = number_behind(line, "\"bus\":\"port");

    if (port >= PORTS || ports[port] >= 0 || port_of(s) >= 0)
        choke("a second device on a port");
    if (strstr(line, "\"driver\":\"nvme\"") && !nodes[s])
        choke("nvme without a disk");
    if (strstr(line, "\"driver\":\"vfio-pci\"")) {
        if (names[s] < 0 || !has_iommu || !strstr(line, "\"iommufd\":\"iommu0\""))
            choke("vfio without its descriptors");
        close(names[s]); /* taken */
        names[s] = -1;
    }
    ports[port] = (int)s;
}

static const char *with_fds(const char *cmd, const char *line, unsigned s)
{
    bool is_iommu = strstr(line, "\"fdname\":\"iommu0\"");

    if (!strcmp(cmd, "getfd"))
        return take_held(is_iommu ? &iommu : &names[s]) < 0 ? "No file descriptor" : NULL;
    if (!strcmp(cmd, "closefd")) {
        if (names[s] < 0)
            return "File descriptor named 'pcifd' not found";
        close(names[s]);
        names[s] = -1;
    } else if (!strcmp(cmd, "add-fd")) {
        return take_held(&fdset[number_behind(line, "\"fdset-id\":") - 2000]) < 0 ? "No fd" : NULL;
    } else if (!strcmp(cmd, "remove-fd")) {
        int *set = &fdset[number_behind(line, "\"fdset-id\":") - 2000];
        if (*set < 0)
            return "File descriptor named 'fdset-id' not found";
        close(*set);
        *set = -1;
    } else if (!strcmp(cmd, "object-add")) {
        if (iommu < 0 || has_iommu)
            choke("an iommufd without its descriptor, or twice");
        close(iommu);
        iommu = -1;
        has_iommu = true;
    }
    return NULL;
}

/* NULL when it was done. */
static const char *perform(const char *cmd, const char *line, unsigned s)
{
    if (!strcmp(cmd, "blockdev-add")) {
        unsigned set = number_behind(line, "/dev/fdset/") - 2000;
        if (set >= PORTS || fdset[set] < 0 || nodes[s])
            choke("a node without a descriptor, or twice");
        nodes[s] = true;
    } else if (!strcmp(cmd, "blockdev-del")) {
        if (port_of(s) >= 0)
            choke("a node is removed under its device");
        if (!nodes[s])
            return "Failed to find node with node-name='x'";
        nodes[s] = false;
    } else if (!strcmp(cmd, "device_add")) {
        add_device(line, s);
    } else {
        return with_fds(cmd, line, s);
    }
    return NULL;
}

static void quit(void)
{
    agree();
    for (int i = 0; i < SLOTS; i++)
        if (names[i] >= 0 || nodes[i])
            exit(9);
    for (int i = 0; i < PORTS; i++)
        if (ports[i] >= 0 || fdset[i] >= 0)
            exit(9);
    exit(0);
}

static void deleted(unsigned s)
{
    char text[160];

    ports[port_of(s)] = -1;
    snprintf(text, sizeof(text),
             "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": "
             "\"DEVICE_DELETED\", \"data\": {\"device\": \"pci-%c\", \"path\": \"/x\"}}\r\n",
             'a' + (int)s);
    say(QMP, text);
}

static void handle(const char *line)
{
    static int deaf = -1;
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
    if (!strcmp(cmd, "device_del") && port_of(s) < 0) {
        refuse("DeviceNotFound", "Device not found");
        return;
    }
    if (!strcmp(cmd, "device_add") && deaf >= 0) { /* a guest that lets go when it is too late */
        deleted((unsigned)deaf);
        deaf = -1;
        which[0] = '\0';
    }
    const char *why = perform(cmd, line, s);
    bool lost = odd && !strcmp(how, "lost");
    if (why && !lost)
        refuse("GenericError", why);
    else if (!lost)
        agree();
    if (!strcmp(cmd, "device_del") && odd && !strcmp(how, "deaf"))
        deaf = (int)s;
    else if (!strcmp(cmd, "device_del"))
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
        names[i] = -1;
    for (int i = 0; i < PORTS; i++)
        fdset[i] = ports[i] = -1;
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
