/* qemu_disk_puppet.c - stands in for QEMU where disks are attached and removed (qmp_puppet.h). HOW
 * is one of error (nothing happens), lost (it happens, no answer comes) and quiet (it happens, the
 * event does not come). */
#include "host/vmm/qemu/qmp_puppet.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LUNS = 64, CONTROLLERS = 4, FDSET_BASE = 1000 };
enum { SLOTS = CONTROLLERS * LUNS };

static int fdsets[SLOTS];
static bool files[SLOTS], nodes[SLOTS], devices[SLOTS], controllers[CONTROLLERS] = { true };
static bool spare; /* slot 0 has the disk of the command line, with nothing behind it */

/* The slot that a command is about; each names it in its own way. */
static unsigned slot_of(const char *line)
{
    const char *at = strstr(line, "\"sd-") ? strstr(line, "\"sd-") : strstr(line, "\"disk-");

    if (!at)
        at = strstr(line, "\"file-");
    unsigned controller = 0, lun = 0, slot;

    if (strstr(line, "\"fdset-id\":"))
        slot = puppet_number(line, "\"fdset-id\":") - FDSET_BASE;
    else if (at && sscanf(at, "\"%*[a-z]-%u-%u", &controller, &lun) == 2 && lun < LUNS)
        slot = controller * LUNS + lun;
    else
        slot = SLOTS;
    if (slot >= SLOTS)
        puppet_choke("a slot out of range");
    return slot;
}

/* A file by itself, and how it gets below the disk of the command line. NULL when it was done. */
static const char *perform_file(const char *cmd, unsigned s)
{
    if (!strcmp(cmd, "blockdev-add")) {
        if (fdsets[s] < 0 || files[s] || !spare)
            puppet_choke("a file without a descriptor, twice, or for no disk");
        files[s] = true;
    } else if (!strcmp(cmd, "blockdev-reopen")) {
        if (!files[s] || !nodes[s] || !devices[s] || !spare || s != 0)
            puppet_choke("nothing to put a file below");
        spare = false;
    } else if (!strcmp(cmd, "blockdev-del")) {
        if (!files[s])
            return "Failed to find node with node-name='file'";
        if (nodes[s])
            puppet_choke("a file is removed under its node");
        files[s] = false;
    }
    return NULL;
}

/* NULL when it was done. */
static const char *perform(const char *cmd, unsigned s)
{
    if (!strcmp(cmd, "add-fd")) {
        int fd = puppet_take_fd();
        if (fd < 0)
            return "No file descriptor supplied via SCM_RIGHTS";
        fdsets[s] = fd;
    } else if (!strcmp(cmd, "blockdev-add")) {
        if (fdsets[s] < 0 || nodes[s])
            puppet_choke("a node without a descriptor, or twice");
        nodes[s] = true;
    } else if (!strcmp(cmd, "device_add")) {
        if (!nodes[s] || devices[s] || !controllers[s / LUNS])
            puppet_choke("a device without a node or a controller, or twice");
        devices[s] = true;
    } else if (!strcmp(cmd, "device_del")) {
        devices[s] = false;
    } else if (!strcmp(cmd, "blockdev-del")) {
        if (!nodes[s])
            return "Failed to find node with node-name='disk'";
        if (devices[s])
            puppet_choke("a node is removed under its device");
        nodes[s] = false;
        spare = spare && s != 0;
    } else if (!strcmp(cmd, "remove-fd")) {
        if (fdsets[s] < 0)
            return "File descriptor named 'fdset-id:1' not found";
        if (files[s] || (nodes[s] && !(spare && s == 0)))
            puppet_choke("a descriptor is removed under its node");
        close(fdsets[s]);
        fdsets[s] = -1;
    }
    return NULL;
}

/* In order, each in its own place. NULL when it was done. */
static const char *add_controller(const char *line)
{
    unsigned n = puppet_number(line, "\"id\":\"scsi");
    char place[32];

    if (n >= CONTROLLERS || n == 0 || !controllers[n - 1])
        puppet_choke("a controller out of order");
    snprintf(place, sizeof(place), "\"addr\":\"%x\"", 0x1c + n);
    if (!strstr(line, place) || !strstr(line, "\"bus\":\"hp\""))
        puppet_choke("a controller in another's place");
    if (controllers[n])
        return "Duplicate device ID 'scsi'";
    controllers[n] = true;
    return NULL;
}

static bool is_left(void)
{
    for (int i = 0; i < SLOTS; i++)
        if (fdsets[i] >= 0 || files[i] || ((nodes[i] || devices[i]) && !(spare && i == 0)))
            return true;
    return false;
}

static void handle(const char *cmd, const char *line)
{
    bool controller = strstr(line, "virtio-scsi-pci");
    const char *how = puppet_how(controller ? "controller" : cmd);
    unsigned s = controller ? 0 : slot_of(line);

    if (!strcmp(how, "error")) {
        puppet_answer("the puppet says no");
        return;
    }
    if (!strcmp(cmd, "device_del") && !devices[s]) {
        puppet_refuse("DeviceNotFound", "Device 'sd' not found");
        return;
    }
    const char *why = controller                        ? add_controller(line)
                      : strstr(line, "\"file-") != NULL ? perform_file(cmd, s)
                                                        : perform(cmd, s);
    if (!strcmp(how, "lost"))
        return;
    puppet_answer(why);
    if (!strcmp(cmd, "device_del") && strcmp(how, "quiet") != 0)
        puppet_deleted("sd-%u-%u", s / LUNS, s % LUNS);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "scsi-hd,id=sd-0-0,", 18))
            spare = nodes[0] = devices[0] = true;
    for (int i = 0; i < SLOTS; i++)
        fdsets[i] = -1;
    return puppet_run(argc, argv, handle, is_left);
}
