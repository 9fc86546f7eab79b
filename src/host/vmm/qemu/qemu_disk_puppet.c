/* qemu_disk_puppet.c - stands in for QEMU where disks are attached and removed: keeps the books as
 * QEMU does, refuses what QEMU refuses, and misbehaves once as the VM's name asks for:
 * "HOW.COMMAND@…" with HOW one of error (nothing happens), lost (it happens, no answer comes) and
 * quiet (it happens, the event does not come). What QEMU would choke on ends it with status 7;
 * quit with something left ends it with status 9. Runs in the real jail. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QMP = 3, CONSOLE = 4, LUNS = 64, CONTROLLERS = 4, FDSET_BASE = 1000 };
enum { SLOTS = CONTROLLERS * LUNS };

static int fdsets[SLOTS], held = -1;
static bool files[SLOTS], nodes[SLOTS], devices[SLOTS], controllers[CONTROLLERS] = { true };
static bool spare; /* slot 0 has the disk of the command line, with nothing behind it */
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

static unsigned number_after(const char *line, const char *key)
{
    const char *p = strstr(line, key);

    if (!p)
        choke("a command without its argument");
    return (unsigned)atoi(p + strlen(key));
}

/* The slot that a command is about; each names it in its own way. */
static unsigned slot_of(const char *line)
{
    const char *at = strstr(line, "\"sd-") ? strstr(line, "\"sd-") : strstr(line, "\"disk-");

    if (!at)
        at = strstr(line, "\"file-");
    unsigned controller = 0, lun = 0, slot;

    if (strstr(line, "\"fdset-id\":"))
        slot = number_after(line, "\"fdset-id\":") - FDSET_BASE;
    else if (at && sscanf(at, "\"%*[a-z]-%u-%u", &controller, &lun) == 2 && lun < LUNS)
        slot = controller * LUNS + lun;
    else
        slot = SLOTS;
    if (slot >= SLOTS)
        choke("a slot out of range");
    return slot;
}

/* A file by itself, and how it gets below the disk of the command line. NULL when it was done. */
static const char *perform_file(const char *cmd, unsigned s)
{
    if (!strcmp(cmd, "blockdev-add")) {
        if (fdsets[s] < 0 || files[s] || !spare)
            choke("a file without a descriptor, twice, or for no disk");
        files[s] = true;
    } else if (!strcmp(cmd, "blockdev-reopen")) {
        if (!files[s] || !nodes[s] || !devices[s] || !spare || s != 0)
            choke("nothing to put a file below");
        spare = false;
    } else if (!strcmp(cmd, "blockdev-del")) {
        if (!files[s])
            return "Failed to find node with node-name='file'";
        if (nodes[s])
            choke("a file is removed under its node");
        files[s] = false;
    }
    return NULL;
}

/* NULL when it was done. */
static const char *perform(const char *cmd, unsigned s)
{
    if (!strcmp(cmd, "add-fd")) {
        if (held < 0)
            return "No file descriptor supplied via SCM_RIGHTS";
        fdsets[s] = held;
        held = -1;
    } else if (!strcmp(cmd, "blockdev-add")) {
        if (fdsets[s] < 0 || nodes[s])
            choke("a node without a descriptor, or twice");
        nodes[s] = true;
    } else if (!strcmp(cmd, "device_add")) {
        if (!nodes[s] || devices[s] || !controllers[s / LUNS])
            choke("a device without a node or a controller, or twice");
        devices[s] = true;
    } else if (!strcmp(cmd, "device_del")) {
        devices[s] = false;
    } else if (!strcmp(cmd, "blockdev-del")) {
        if (!nodes[s])
            return "Failed to find node with node-name='disk'";
        if (devices[s])
            choke("a node is removed under its device");
        nodes[s] = false;
        spare = spare && s != 0;
    } else if (!strcmp(cmd, "remove-fd")) {
        if (fdsets[s] < 0)
            return "File descriptor named 'fdset-id:1' not found";
        if (files[s] || (nodes[s] && !(spare && s == 0)))
            choke("a descriptor is removed under its node");
        close(fdsets[s]);
        fdsets[s] = -1;
    }
    return NULL;
}

/* In order, each in its own place. NULL when it was done. */
static const char *add_controller(const char *line)
{
    unsigned n = number_after(line, "\"id\":\"scsi");
    char place[32];

    if (n >= CONTROLLERS || n == 0 || !controllers[n - 1])
        choke("a controller out of order");
    snprintf(place, sizeof(place), "\"addr\":\"%x\"", 0x1c + n);
    if (!strstr(line, place) || !strstr(line, "\"bus\":\"hp\""))
        choke("a controller in another's place");
    if (controllers[n])
        return "Duplicate device ID 'scsi'";
    controllers[n] = true;
    return NULL;
}

static void quit(void)
{
    agree();
    for (int i = 0; i < SLOTS; i++)
        if (fdsets[i] >= 0 || files[i] || ((nodes[i] || devices[i]) && !(spare && i == 0)))
            exit(9);
    exit(0);
}

static void handle(const char *line)
{
    char cmd[32] = "";
    const char *id = strstr(line, "\"id\":");
    bool odd;

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
    bool controller = strstr(line, "virtio-scsi-pci");
    odd = !strcmp(controller ? "controller" : cmd, which);
    unsigned s = controller ? 0 : slot_of(line);
    if (odd)
        which[0] = '\0'; /* once */
    if (odd && !strcmp(how, "error")) {
        refuse("GenericError", "the puppet says no");
        return;
    }
    if (!strcmp(cmd, "device_del") && !devices[s]) {
        refuse("DeviceNotFound", "Device 'sd' not found");
        return;
    }
    const char *why = controller                        ? add_controller(line)
                      : strstr(line, "\"file-") != NULL ? perform_file(cmd, s)
                                                        : perform(cmd, s);
    if (odd && !strcmp(how, "lost"))
        return;
    if (why)
        refuse("GenericError", why);
    else
        agree();
    if (!strcmp(cmd, "device_del") && !(odd && !strcmp(how, "quiet"))) {
        char text[160];
        snprintf(text, sizeof(text),
                 "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": "
                 "\"DEVICE_DELETED\", \"data\": {\"device\": \"sd-%u-%u\", \"path\": \"/x\"}}\r\n",
                 s / LUNS, s % LUNS);
        say(QMP, text);
    }
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

    for (int i = 1; i < argc - 1; i++) {
        if (!strcmp(argv[i], "-name"))
            sscanf(argv[i + 1], "guest=%15[a-z].%31[^@,]", how, which);
        if (!strncmp(argv[i + 1], "scsi-hd,id=sd-0-0,", 18))
            spare = nodes[0] = devices[0] = true;
    }
    for (int i = 0; i < SLOTS; i++)
        fdsets[i] = -1;
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
