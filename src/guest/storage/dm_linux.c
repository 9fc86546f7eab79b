#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "guest/storage/dm.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#define CONTROL "/dev/mapper/control"

/* What goes to the kernel, and room for what comes back. */
struct message {
    struct dm_ioctl io;
    struct dm_target_spec spec;
    char params[DM_PARAMS_MAX];
};

static void fill(struct message *m, const char *name, uint32_t flags)
{
    *m = (struct message){ .io = { .version = { DM_VERSION_MAJOR, 0, 0 },
                                   .data_size = sizeof(*m),
                                   .data_start = offsetof(struct message, spec),
                                   .flags = flags } };
    strncpy(m->io.name, name, sizeof(m->io.name) - 1);
}

static int load_table(int fd, const char *name, const char *target, const char *params,
                      uint64_t sectors, uint32_t flags)
{
    struct message m;
    int r = 0;

    fill(&m, name, flags);
    m.io.target_count = 1;
    m.spec = (struct dm_target_spec){ .length = sectors };
    strncpy(m.spec.target_type, target, sizeof(m.spec.target_type) - 1);
    strcpy(m.params, params); /* its length was checked */
    if (ioctl(fd, DM_TABLE_LOAD, &m) < 0)
        r = -errno;
    explicit_bzero(&m, sizeof(m));
    return r;
}

static int remove_device(int fd, const char *name)
{
    struct message m;

    fill(&m, name, 0);
    return ioctl(fd, DM_DEV_REMOVE, &m) < 0 ? -errno : 0;
}

int dm_create(const char *name, const char *target, const char *params, uint64_t sectors,
              bool read_only, bool secret, char **ret_node, struct err *err)
{
    AUTO_FD int fd = open(CONTROL, O_RDWR | O_CLOEXEC);
    struct message m;

    if (fd < 0)
        return err_sys(err, errno, "open %s", CONTROL);
    if (strlen(params) >= DM_PARAMS_MAX || strlen(name) >= DM_NAME_LEN)
        return err_set(err, ERR_INVALID, "device %s: too much is said about it", name);
    (void)remove_device(fd, name); /* of a call whose answer nobody waited for; or there is none */
    fill(&m, name, 0);
    if (ioctl(fd, DM_DEV_CREATE, &m) < 0)
        return err_sys(err, errno, "make device %s", name);
    uint64_t dev = m.io.dev;
    int r = load_table(fd, name, target, params, sectors,
                       (read_only ? DM_READONLY_FLAG : 0) | (secret ? DM_SECURE_DATA_FLAG : 0));
    fill(&m, name, 0); /* not "suspend": resume */
    if (r == 0 && ioctl(fd, DM_DEV_SUSPEND, &m) < 0)
        r = -errno;
    if (r < 0) {
        (void)remove_device(fd, name); /* nobody has seen it yet */
        return err_sys(err, -r, "set up device %s (%s)", name, target);
    }
    *ret_node = str_format("/dev/dm-%u", minor(dev));
    return 0;
}

int dm_remove(const char *name, struct err *err)
{
    AUTO_FD int fd = open(CONTROL, O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT || errno == ENODEV ? 0 : err_sys(err, errno, "open %s", CONTROL);
    int r = remove_device(fd, name);
    return r < 0 && r != -ENXIO ? err_sys(err, -r, "remove device %s", name) : 0;
}
