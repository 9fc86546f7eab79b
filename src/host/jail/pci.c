#include "host/jail/pci.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ATTRIBUTE_MAX 4096
#define VF_MAX UINT16_MAX

/* Up to `most` hexadecimal digits and the character behind them. */
static int hex(const char **at, size_t most, char end, unsigned *ret)
{
    char digits[9] = "";
    size_t n = 0;

    while (n < most && isxdigit((unsigned char)(*at)[n]))
        n++;
    if (n == 0 || (*at)[n] != end)
        return -EINVAL;
    memcpy(digits, *at, n);
    *ret = (unsigned)strtoul(digits, NULL, 16);
    *at += n + (end != '\0');
    return 0;
}

int pci_address(const char *text, char ret[static PCI_ADDRESS_MAX])
{
    const char *colon = strchr(text, ':'), *at = text;
    unsigned domain = 0, bus, slot, function;

    if (colon && strchr(colon + 1, ':') && hex(&at, 8, ':', &domain) < 0)
        return -EINVAL;
    if (hex(&at, 2, ':', &bus) < 0 || hex(&at, 2, '.', &slot) < 0 ||
        hex(&at, 1, '\0', &function) < 0 || slot > 31 || function > 7)
        return -EINVAL;
    snprintf(ret, PCI_ADDRESS_MAX, "%04x:%02x:%02x.%x", domain, bus, slot, function);
    return 0;
}

/* The last part of what a symlink leads to. */
static int symlink_name(const char *path, char *ret, size_t size)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof(target) - 1);

    if (n < 0)
        return -errno;
    target[n] = '\0';
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    if (strlen(name) >= size)
        return -ENAMETOOLONG;
    strcpy(ret, name);
    return 0;
}

static int virtual_function(const char *sys, const char *address, const char *number,
                            char ret[static PCI_ADDRESS_MAX], struct err *err)
{
    char name[64];
    uint64_t n;

    if (str_to_u64(number, VF_MAX, &n) < 0)
        return err_because(err, REASON_DEVICE_ADDRESS, ERR_INVALID,
                           "\"%.32s\" is not the number of a virtual function", number);
    AUTO_FREE char *path =
        str_format("%s/bus/pci/devices/%s/virtfn%llu", sys, address, (unsigned long long)n);
    if (symlink_name(path, name, sizeof(name)) < 0 || pci_address(name, ret) < 0)
        return err_because(err, REASON_DEVICE_NOT_FOUND, ERR_NOT_FOUND,
                           "PCI device %s has no virtual function %llu", address,
                           (unsigned long long)n);
    return 0;
}

/* "0x8086\n" */
static int number(const char *sys, const char *address, const char *name, uint16_t *ret)
{
    AUTO_FREE char *text = file_text(ATTRIBUTE_MAX, "%s/bus/pci/devices/%s/%s", sys, address, name);
    const char *at = text ? text : "";
    unsigned value;

    at += str_starts(at, "0x") ? 2 : 0;
    if (hex(&at, 4, '\n', &value) < 0)
        return -EIO;
    *ret = (uint16_t)value;
    return 0;
}

/* The last part of what a symlink of a function leads to; "" if it has none. */
static void attribute_name(const char *sys, const char *address, const char *name, char *ret,
                           size_t size)
{
    AUTO_FREE char *path = str_format("%s/bus/pci/devices/%s/%s", sys, address, name);

    if (symlink_name(path, ret, size) < 0)
        ret[0] = '\0';
}

/* Those with which the kernel gives the group away all the same: functions without a driver,
 * bridges, and what waits for a VM itself. */
static bool is_free(const char *driver)
{
    return !driver[0] || str_eq(driver, "pcieport") || str_eq(driver, "pci-stub") ||
           strstr(driver, "vfio");
}

static void find_rival(const char *sys, struct pci_function *f)
{
    AUTO_FREE char *path = str_format("%s/kernel/iommu_groups/%s/devices", sys, f->group);
    AUTO(closedir) DIR *dir = f->group[0] ? opendir(path) : NULL;
    char address[PCI_ADDRESS_MAX], driver[sizeof(f->driver)];

    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (pci_address(e->d_name, address) < 0 || str_eq(address, f->address))
            continue;
        attribute_name(sys, address, "driver", driver, sizeof(driver));
        /* The lowest of several, so that the message is always the same. */
        if (is_free(driver) || (f->rival[0] && strcmp(f->rival, address) < 0))
            continue;
        strcpy(f->rival, address);
        strcpy(f->rival_driver, driver);
    }
}

int pci_find(const char *sys, const char *name, struct pci_function *ret, struct err *err)
{
    const char *slash = strchr(name, '/');
    AUTO_FREE char *first = str_ndup(name, slash ? (size_t)(slash - name) : strlen(name));
    struct pci_function f = { 0 };

    if (pci_address(first, f.address) < 0)
        return err_because(err, REASON_DEVICE_ADDRESS, ERR_INVALID,
                           "\"%.64s\" is not a PCI address such as 0000:03:00.0", name);
    if (slash && virtual_function(sys, f.address, slash + 1, f.address, err) < 0)
        return -1;
    if (number(sys, f.address, "vendor", &f.vendor) < 0 ||
        number(sys, f.address, "device", &f.device) < 0)
        return err_because(err, REASON_DEVICE_NOT_FOUND, ERR_NOT_FOUND,
                           "this host has no PCI device %s", f.address);
    attribute_name(sys, f.address, "driver", f.driver, sizeof(f.driver));
    attribute_name(sys, f.address, "iommu_group", f.group, sizeof(f.group));
    find_rival(sys, &f);
    *ret = f;
    return 0;
}

/* --- by a node of vfio --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_bridge(const char *sys, const char *address)
{
    AUTO_FREE char *class = file_text(ATTRIBUTE_MAX, "%s/bus/pci/devices/%s/class", sys, address);

    return class && str_starts(class, "0x0604");
}

static int of_group(const char *sys, const char *group, struct strv *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/kernel/iommu_groups/%s/devices", sys, group);
    AUTO(closedir) DIR *dir = opendir(path);
    char address[PCI_ADDRESS_MAX];

    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        if (pci_address(e->d_name, address) < 0)
            return err_set(err, ERR_INVALID, "vfio group %s has %.64s, which is not a PCI function",
                           group, e->d_name);
        if (!is_bridge(sys, address))
            strv_add(ret, address);
    }
    if (ret->n == 0)
        return err_set(err, ERR_NOT_FOUND, "vfio group %.32s has no PCI function", group);
    qsort(ret->v, ret->n, sizeof(ret->v[0]), by_name);
    return 1;
}

int pci_of_node(const char *sys, uint32_t major, uint32_t minor, struct strv *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/dev/char/%u:%u", sys, major, minor);
    char target[PATH_MAX], address[PCI_ADDRESS_MAX];
    const char *part[3] = { "", "", "" }; /* the last one first */
    ssize_t n = readlink(path, target, sizeof(target) - 1);

    target[n > 0 ? n : 0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(part); i++) {
        char *slash = strrchr(target, '/');

        if (!slash)
            return 0;
        part[i] = slash + 1;
        *slash = '\0';
    }
    if (str_eq(part[1], "misc") && (str_eq(part[0], "vfio") || str_eq(part[0], "iommu")))
        return 1;
    if (str_eq(part[1], "vfio"))
        return of_group(sys, part[0], ret, err);
    if (!str_eq(part[1], "vfio-dev"))
        return 0;
    if (pci_address(part[2], address) < 0)
        return err_set(err, ERR_INVALID, "vfio's %.32s is %.64s, which is not a PCI function",
                       part[0], part[2]);
    strv_add(ret, address);
    return 1;
}

/* --- which way --- */

/* Its name below vfio-dev: "vfio0". */
static int cdev_name(const char *sys, const char *address, char *ret, size_t size)
{
    AUTO_FREE char *path = str_format("%s/bus/pci/devices/%s/vfio-dev", sys, address);
    AUTO(closedir) DIR *dir = opendir(path);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (str_starts(e->d_name, "vfio") && strlen(e->d_name) < size) {
            strcpy(ret, e->d_name);
            return 0;
        }
    return -ENOENT;
}

static bool has(const char *dev, const char *name, const char *below)
{
    AUTO_FREE char *path = str_format("%s/%s%s", dev, name, below);

    return access(path, F_OK) == 0;
}

unsigned pci_ways(const char *sys, const char *dev, const char *address)
{
    char cdev[32] = "", group[12] = "";

    if (address) {
        if (cdev_name(sys, address, cdev, sizeof(cdev)) < 0)
            strcpy(cdev, "none");
        attribute_name(sys, address, "iommu_group", group, sizeof(group));
        if (!group[0])
            strcpy(group, "none");
    }
    return (has(dev, "iommu", "") && (!address || has(dev, "vfio/devices/", cdev)) ? PCI_IOMMUFD
                                                                                   : 0) |
           (has(dev, "vfio/vfio", "") && has(dev, "vfio/", group) ? PCI_GROUPS : 0);
}

/* --- by descriptors --- */

int pci_open(const char *sys, const char *dev, const char *address, int *ret_device,
             struct err *err)
{
    char name[32];

    if (cdev_name(sys, address, name, sizeof(name)) < 0)
        return err_set(err, ERR_STATE,
                       "PCI device %s: vfio has no character device for it; bind it to " PCI_DRIVER
                       ", on a kernel (6.6 or later) with CONFIG_VFIO_DEVICE_CDEV",
                       address);
    AUTO_FREE char *path = str_format("%s/vfio/devices/%s", dev, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "PCI device %s: open %s", address, path);
    *ret_device = fd;
    return 0;
}

int pci_open_iommu(const char *dev, int *ret_fd, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/iommu", dev);
    int fd = open(path, O_RDWR | O_CLOEXEC);

    if (fd < 0 && (errno == ENOENT || errno == ENODEV))
        return err_because(err, REASON_DEVICE_NO_IOMMU, ERR_STATE,
                           "%s does not exist: turn the IOMMU on (intel_iommu=on), and load the "
                           "module iommufd",
                           path);
    if (fd < 0)
        return err_sys(err, errno, "open %s", path);
    *ret_fd = fd;
    return 0;
}

/* --- by the nodes of a group --- */

/* The same device under the same name. */
static int copy_node(int dir, const char *dev, const char *name, uint32_t uid, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/vfio/%s", dev, name);
    struct stat st;

    if (stat(path, &st) < 0 || !S_ISCHR(st.st_mode))
        return err_because(
            err, REASON_DEVICE_NO_IOMMU, ERR_STATE,
            "%s does not exist: turn the IOMMU on (intel_iommu=on), and bind the device "
            "to " PCI_DRIVER,
            path);
    if (mknodat(dir, name, S_IFCHR | 0600, st.st_rdev) < 0 ||
        fchownat(dir, name, uid, uid, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, errno, "make a node of %s for QEMU", path);
    return 0;
}

/* QEMU reads no more of sysfs than this: that there is a directory, and the number of the group. */
static int stand_in(int dir, const char *address, const char *group, uint32_t uid, struct err *err)
{
    AUTO_FREE char *link = str_format("%s/iommu_group", address);

    if (mkdirat(dir, address, 0500) < 0 || symlinkat(group, dir, link) < 0 ||
        fchownat(dir, address, uid, uid, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, errno, "make %s for QEMU", link);
    return 0;
}

int pci_show(int dir, const char *sys, const char *dev, const char *address, uint32_t uid,
             struct err *err)
{
    char group[12];

    attribute_name(sys, address, "iommu_group", group, sizeof(group));
    if (!group[0])
        return err_because(err, REASON_DEVICE_NO_IOMMU, ERR_STATE,
                           "PCI device %s has no IOMMU group: turn the IOMMU on (intel_iommu=on)",
                           address);
    if (stand_in(dir, address, group, uid, err) < 0 || copy_node(dir, dev, "vfio", uid, err) < 0 ||
        copy_node(dir, dev, group, uid, err) < 0) {
        pci_hide(dir, address);
        return err_wrap(err, "PCI device %s", address);
    }
    return 0;
}

void pci_hide(int dir, const char *address)
{
    AUTO_FREE char *link = str_format("%s/iommu_group", address);
    char group[12] = "";

    if (readlinkat(dir, link, group, sizeof(group) - 1) > 0)
        (void)unlinkat(dir, group, 0);
    (void)unlinkat(dir, "vfio", 0);
    (void)unlinkat(dir, link, 0);
    (void)unlinkat(dir, address, AT_REMOVEDIR);
}
