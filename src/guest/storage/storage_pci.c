/* storage_pci.c - a PCI device that the host has just added: until it is there, has its driver, and
 * is of use. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/storage/pci.h"
#include "guest/storage/storage_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/utsname.h>

#define SYS "/sys"
#define APPEAR_NS (20 * NS_PER_S) /* usually some ms, but emulation on a busy host is slow */
#define DISK_NS (20 * NS_PER_S)
#define LOOK_NS (10 * NS_PER_MS)
#define ALIASES_MAX (4u << 20)

static int await_device(struct ctx *ctx, const char *place, char **ret_dir, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, APPEAR_NS);
    int r;

    while ((r = pci_find(SYS, place, ret_dir)) == -ENXIO) {
        if (fiber_sleep(&bounded, LOOK_NS, err) == 0)
            continue;
        if (err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0)
            return -1;
        return err_set(err, ERR_UNAVAILABLE, "PCI device %s did not appear", place);
    }
    if (r < 0)
        return err_set(err, ERR_INVALID, "VMBusGUID \"%.64s\" is no place of a PCI device", place);
    return 0;
}

struct settle {
    const char *place;
};

static int settle(void *arg, struct err *err)
{
    const char *place = ((struct settle *)arg)->place;
    int r = pci_settle(SYS, place);

    return r < 0 ? err_sys(err, -r, "rescan the bus of PCI device %s", place) : 0;
}

static int read_aliases(char **ret, struct err *err)
{
    struct utsname u;
    size_t len;

    (void)uname(&u); /* cannot fail */
    AUTO_FREE char *path = str_format("/lib/modules/%s/modules.alias", u.release);
    int r = file_read_all(path, ALIASES_MAX, ret, &len);
    return r < 0 ? err_sys(err, -r, "read %s", path) : 0;
}

/* A device without a driver in the image is still one: its registers can be used. */
static int load_driver(struct ctx *ctx, struct storage *s, const char *place, const char *dir,
                       struct err *err)
{
    AUTO(strv_release) struct strv names = { 0 };
    AUTO_FREE char *aliases = NULL;

    if (pci_has_driver(dir))
        return 0;
    if (read_aliases(&aliases, err) < 0)
        return -1;
    if (pci_modules(dir, aliases, &names) < 0)
        return err_set(err, ERR_UNAVAILABLE, "PCI device %s is gone again", place);
    if (names.n == 0)
        log_info(ctx, "the image has no driver for a PCI device", F_STR("device", place));
    else if (storage_load(ctx, s, (const char *const *)names.v, err) < 0)
        return err_wrap(err, "driver of PCI device %s", place);
    return 0;
}

static int await_disk(struct ctx *ctx, const char *place, const char *dir, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, DISK_NS);

    while (pci_lacks_disk(SYS, dir)) {
        if (fiber_sleep(&bounded, LOOK_NS, err) == 0)
            continue;
        if (err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0)
            return -1;
        err_clear(err);
        log_warn(ctx, "a disk controller shows no disk, going on", F_STR("device", place));
        return 0;
    }
    return 0;
}

int storage_add_device(struct ctx *ctx, struct storage *s, const char *place, struct err *err)
{
    AUTO_FREE char *dir = NULL;
    struct settle job = { place };

    if (await_device(ctx, place, &dir, err) < 0 ||
        OFFLOAD(ctx, settle, &job, 1, NULL, "PCI device to settle", err) < 0 ||
        load_driver(ctx, s, place, dir, err) < 0)
        return -1;
    return await_disk(ctx, place, dir, err);
}
