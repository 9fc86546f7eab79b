/* qemu_nic_puppet.c - stands in for QEMU where NICs are added and removed (qmp_puppet.h). HOW is
 * one of error (nothing happens), lost (it happens, no answer comes), and deaf (device_del is taken
 * and nothing follows: a guest that lets go only when its link is cut). */
#include "host/vmm/qemu/qmp_puppet.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 8 };

/* Descriptors by name, and those that backends have. */
static int names[SLOTS], netdevs[SLOTS];
static bool devices[SLOTS], hears[SLOTS];

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
    puppet_choke(line);
}

/* NULL when it was done. */
static const char *perform(const char *cmd, unsigned s)
{
    if (!strcmp(cmd, "getfd")) {
        int fd = puppet_take_fd();
        if (fd < 0)
            return "No file descriptor supplied via SCM_RIGHTS";
        if (names[s] >= 0)
            close(names[s]);
        names[s] = fd;
    } else if (!strcmp(cmd, "closefd")) {
        if (names[s] < 0)
            return "File descriptor named 'net' not found";
        close(names[s]);
        names[s] = -1;
    } else if (!strcmp(cmd, "netdev_add")) {
        if (names[s] < 0 || netdevs[s] >= 0)
            puppet_choke("a backend without a descriptor, or twice");
        netdevs[s] = names[s];
        names[s] = -1;
    } else if (!strcmp(cmd, "device_add")) {
        if (netdevs[s] < 0 || devices[s])
            puppet_choke("a device without a backend, or twice");
        devices[s] = true;
    } else if (!strcmp(cmd, "set_link")) {
        hears[s] = true; /* a guest that lets go when it is too late */
    } else if (!strcmp(cmd, "netdev_del")) {
        if (devices[s])
            puppet_choke("a backend is removed under its device");
        close(netdevs[s]);
        netdevs[s] = -1;
    }
    return NULL;
}

static bool is_left(void)
{
    for (int i = 0; i < SLOTS; i++)
        if (names[i] >= 0 || netdevs[i] >= 0 || devices[i])
            return true;
    return false;
}

static void deleted(unsigned s)
{
    devices[s] = false;
    puppet_deleted("nic-%c", 'a' + (int)s);
}

static bool missing(const char *cmd, unsigned s)
{
    return (!strcmp(cmd, "device_del") && !devices[s]) ||
           (!strcmp(cmd, "netdev_del") && netdevs[s] < 0);
}

static void handle(const char *cmd, const char *line)
{
    unsigned s = slot_of(line);
    const char *how = puppet_how(cmd);

    if (!strcmp(how, "error")) {
        puppet_answer("the puppet says no");
        return;
    }
    if (missing(cmd, s)) {
        puppet_refuse("DeviceNotFound", "Device not found");
        return;
    }
    const char *why = perform(cmd, s);
    if (strcmp(how, "lost") != 0)
        puppet_answer(why);
    if (!strcmp(cmd, "device_del") && strcmp(how, "deaf") != 0)
        deleted(s);
    if (!strcmp(cmd, "set_link") && hears[s])
        deleted(s);
}

int main(int argc, char **argv)
{
    for (int i = 0; i < SLOTS; i++)
        names[i] = netdevs[i] = -1;
    return puppet_run(argc, argv, handle, is_left);
}
