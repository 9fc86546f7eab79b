#include "guest/storage/scsi.h"
#include "base/fd.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOSTS_MAX 16
#define ATTRIBUTE_MAX 4096 /* sysfs reports one page for every attribute */

/* Version 5 GUIDs of "0" … "3" in d422512d-2bf2-4752-809d-7b82b5fcb1b4. */
static const char *const vmbus_guids[SCSI_CONTROLLERS] = {
    "df6d0690-79e5-55b6-a5ec-c1e2f77f580a",
    "0110f83b-de10-5172-a266-78bca56bf50a",
    "b5d2d8d4-3a75-51bf-945b-3444dc6b8579",
    "305891a9-b251-5dfe-91a2-c25d9212275b",
};

static bool host_number(const char *name, unsigned *ret)
{
    uint64_t n;

    if (!str_starts(name, "host") || str_to_u64(name + 4, UINT_MAX, &n) < 0)
        return false;
    *ret = (unsigned)n;
    return true;
}

static int vmbus_host(const char *sys, unsigned controller, unsigned *ret)
{
    AUTO_FREE char *path = str_format("%s/bus/vmbus/devices/%s", sys, vmbus_guids[controller]);
    AUTO(closedir) DIR *dir = opendir(path);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (host_number(e->d_name, ret))
            return 0;
    return -ENXIO;
}

/* As host/vmm/qemu/qemu_devices.c puts them. */
#define SLOT_BASE 0x1c

/* A virtio-scsi host and where it sits: "0000:00:03.0" or "0000:00:05.0/0000:01:1d.0". */
struct host {
    unsigned number;
    char address[64];
};

static bool is_pci_address(const char *s, size_t len)
{
    return len == 12 && s[4] == ':' && s[7] == ':' && s[10] == '.';
}

static void set_address(struct host *h, char *real)
{
    size_t used = 0;

    h->address[0] = '\0';
    for (char *at; (at = strsep(&real, "/"));)
        if (is_pci_address(at, strlen(at)) && used + 14 <= sizeof(h->address))
            used += (size_t)sprintf(h->address + used, "%s%s", used ? "/" : "", at);
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const struct host *)a)->address, ((const struct host *)b)->address);
}

static bool is_virtio(const char *sys, const char *name)
{
    AUTO_FREE char *text = file_text(ATTRIBUTE_MAX, "%s/class/scsi_host/%s/proc_name", sys, name);

    return text && str_starts(text, "virtio_scsi");
}

static size_t list_hosts(const char *sys, struct host *hosts)
{
    AUTO_FREE char *path = str_format("%s/class/scsi_host", sys);
    AUTO(closedir) DIR *dir = opendir(path);
    size_t n = 0;

    for (struct dirent *e; dir && n < HOSTS_MAX && (e = readdir(dir));) {
        if (!host_number(e->d_name, &hosts[n].number) || !is_virtio(sys, e->d_name))
            continue;
        AUTO_FREE char *entry = str_format("%s/%s", path, e->d_name), *real = realpath(entry, NULL);
        if (real)
            set_address(&hosts[n++], real);
    }
    return n;
}

/* On its bridge, if it was added later; 0 on the root bus. */
static long slot_of(const struct host *h)
{
    const char *last = strrchr(h->address, '/');

    return last ? strtol(last + 1 + strlen("0000:00:"), NULL, 16) : 0;
}

static int pick(const struct host *hosts, size_t n, unsigned controller, unsigned *ret)
{
    unsigned at_boot = 0;

    for (size_t i = 0; i < n; i++) {
        long slot = slot_of(&hosts[i]);

        if (slot ? slot == SLOT_BASE + (long)controller : at_boot++ == controller) {
            *ret = hosts[i].number;
            return 0;
        }
    }
    return -ENXIO;
}

int scsi_host(const char *sys, unsigned controller, unsigned *ret_host)
{
    struct host hosts[HOSTS_MAX];

    if (controller >= SCSI_CONTROLLERS)
        return -EINVAL;
    if (vmbus_host(sys, controller, ret_host) == 0)
        return 0;
    size_t n = list_hosts(sys, hosts);
    qsort(hosts, n, sizeof(hosts[0]), by_address);
    return pick(hosts, n, controller, ret_host);
}

int scsi_block(const char *sys, unsigned host, unsigned lun, uint64_t partition, char **ret_name)
{
    AUTO_FREE char *path = str_format("%s/bus/scsi/devices/%u:0:0:%u/block", sys, host, lun);
    AUTO_FREE char *disk = NULL;
    AUTO(closedir) DIR *dir = opendir(path);

    if (!dir)
        return errno == ENOENT ? -ENXIO : -errno;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        if (disk)
            return -EEXIST;
        disk = str_dup(e->d_name);
    }
    if (!disk)
        return -ENXIO;
    if (partition == 0) {
        *ret_name = TAKE_PTR(disk);
        return 0;
    }
    AUTO_FREE char *name = str_format("%s%lu", disk, partition);
    AUTO_FREE char *part = str_format("%s/%s/%s", path, disk, name);
    if (access(part, F_OK) < 0)
        return -ENXIO;
    *ret_name = TAKE_PTR(name);
    return 0;
}

bool scsi_has_capacity(const char *sys, unsigned host, unsigned lun, const char *disk)
{
    AUTO_FREE char *text = file_text(ATTRIBUTE_MAX, "%s/bus/scsi/devices/%u:0:0:%u/block/%s/size",
                                     sys, host, lun, disk);

    return text && strtoull(text, NULL, 10) > 0;
}

int scsi_reread(const char *sys, unsigned host, unsigned lun)
{
    AUTO_FREE char *path = str_format("%s/bus/scsi/devices/%u:0:0:%u/rescan", sys, host, lun);

    return file_put(path, "1\n");
}

int scsi_scan(const char *sys, unsigned host, unsigned lun)
{
    AUTO_FREE char *path = str_format("%s/class/scsi_host/host%u/scan", sys, host);
    AUTO_FREE char *text = str_format("0 0 %u", lun);

    return file_put(path, text);
}

int scsi_forget(const char *sys, unsigned host, unsigned lun)
{
    AUTO_FREE char *path = str_format("%s/bus/scsi/devices/%u:0:0:%u/delete", sys, host, lun);
    int r = file_put(path, "1\n");

    return r == -ENOENT || r == -ENODEV ? 0 : r;
}
