/* qemu_pci_puppet.c - stands in for QEMU where PCI devices are added and removed (qmp_puppet.h).
 * HOW is one of error (nothing happens), lost (it happens, no answer comes), and deaf (device_del
 * is taken and nothing follows until another device is added). */
#include "host/vmm/qemu/qmp_puppet.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 8, PORTS = 2 };

/* Descriptors by name, sets, nodes. Ports: the slot of the device on each, -1 if free. */
static int names[SLOTS], fdset[PORTS], ports[PORTS], iommu = -1;
static bool nodes[SLOTS], has_iommu;

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

static int take_fd(int *to)
{
    int fd = puppet_take_fd();

    if (fd < 0)
        return -1;
    if (*to >= 0)
        close(*to);
    *to = fd;
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
    unsigned port = puppet_number(line, "\"bus\":\"port");

    if (port >= PORTS || ports[port] >= 0 || port_of(s) >= 0)
        puppet_choke("a second device on a port");
    if (strstr(line, "\"driver\":\"nvme\"") && !nodes[s])
        puppet_choke("nvme without a disk");
    if (strstr(line, "\"driver\":\"vfio-pci\"")) {
        if (names[s] < 0 || !has_iommu || !strstr(line, "\"iommufd\":\"iommu0\""))
            puppet_choke("vfio without its descriptors");
        close(names[s]); /* taken */
        names[s] = -1;
    }
    ports[port] = (int)s;
}

static const char *with_fds(const char *cmd, const char *line, unsigned s)
{
    bool is_iommu = strstr(line, "\"fdname\":\"iommu0\"");

    if (!strcmp(cmd, "getfd"))
        return take_fd(is_iommu ? &iommu : &names[s]) < 0 ? "No file descriptor" : NULL;
    if (!strcmp(cmd, "closefd")) {
        if (names[s] < 0)
            return "File descriptor named 'pcifd' not found";
        close(names[s]);
        names[s] = -1;
    } else if (!strcmp(cmd, "add-fd")) {
        return take_fd(&fdset[puppet_number(line, "\"fdset-id\":") - 2000]) < 0 ? "No fd" : NULL;
    } else if (!strcmp(cmd, "remove-fd")) {
        int *set = &fdset[puppet_number(line, "\"fdset-id\":") - 2000];
        if (*set < 0)
            return "File descriptor named 'fdset-id' not found";
        close(*set);
        *set = -1;
    } else if (!strcmp(cmd, "object-add")) {
        if (iommu < 0 || has_iommu)
            puppet_choke("an iommufd without its descriptor, or twice");
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
        unsigned set = puppet_number(line, "/dev/fdset/") - 2000;
        if (set >= PORTS || fdset[set] < 0 || nodes[s])
            puppet_choke("a node without a descriptor, or twice");
        nodes[s] = true;
    } else if (!strcmp(cmd, "blockdev-del")) {
        if (port_of(s) >= 0)
            puppet_choke("a node is removed under its device");
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

static bool is_left(void)
{
    for (int i = 0; i < SLOTS; i++)
        if (names[i] >= 0 || nodes[i])
            return true;
    for (int i = 0; i < PORTS; i++)
        if (ports[i] >= 0 || fdset[i] >= 0)
            return true;
    return false;
}

static void deleted(unsigned s)
{
    ports[port_of(s)] = -1;
    puppet_deleted("pci-%c", 'a' + (int)s);
}

static void handle(const char *cmd, const char *line)
{
    static int deaf = -1;
    unsigned s = slot_of(line);
    const char *how = puppet_how(cmd);

    if (!strcmp(how, "error")) {
        puppet_answer("the puppet says no");
        return;
    }
    if (!strcmp(cmd, "device_del") && port_of(s) < 0) {
        puppet_refuse("DeviceNotFound", "Device not found");
        return;
    }
    if (!strcmp(cmd, "device_add") && deaf >= 0) { /* a guest that lets go when it is too late */
        deleted((unsigned)deaf);
        deaf = -1;
        puppet_behave();
    }
    const char *why = perform(cmd, line, s);
    if (strcmp(how, "lost") != 0)
        puppet_answer(why);
    if (!strcmp(cmd, "device_del") && !strcmp(how, "deaf"))
        deaf = (int)s;
    else if (!strcmp(cmd, "device_del"))
        deleted(s);
}

int main(int argc, char **argv)
{
    for (int i = 0; i < SLOTS; i++)
        names[i] = -1;
    for (int i = 0; i < PORTS; i++)
        fdset[i] = ports[i] = -1;
    return puppet_run(argc, argv, handle, is_left);
}
