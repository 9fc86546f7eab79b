/* cmd_doctor_host.c - checks of the host: namespaces, tap, tc, cgroups, disk, containerd, and
 * leftovers of dead programs. Probes run in children with a new network namespace; everything that
 * they create disappears with it. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "host/files/layers.h"
#include "host/files/scratch.h"
#include "host/jail/pci.h"
#include "tool/cmd_config.h"
#include "tool/lib/capture.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/magic.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PROBE_LIMIT (20 * NS_PER_S)
#define ROOT_FIX "run lcow as root"

/* In the child: creates taps that persist across exec. They disappear with the namespace. */
static int make_taps(void *arg, struct err *err)
{
    const char *const *names = arg;

    for (; *names; names++) {
        struct ifreq req = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
        AUTO_FD int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

        if (fd < 0)
            return err_sys(err, errno, "open /dev/net/tun");
        strncpy(req.ifr_name, *names, sizeof(req.ifr_name) - 1);
        if (ioctl(fd, TUNSETIFF, &req) < 0)
            return err_sys(err, errno, "create tap %s", *names);
        if (ioctl(fd, TUNSETPERSIST, 1) < 0)
            return err_sys(err, errno, "make tap %s persistent", *names);
    }
    return 0;
}

/* Runs this program as a child that does nothing: the probe runs before its exec. */
static int probe(struct ctx *ctx, int (*setup)(void *arg, struct err *err), void *arg,
                 struct err *err)
{
    struct capture c = { .argv = (const char *const[]){ "/proc/self/exe", "--version", NULL },
                         .clone_flags = CLONE_NEWNET,
                         .setup = setup,
                         .setup_arg = arg,
                         .limit_ns = PROBE_LIMIT };
    AUTO_FREE char *text = NULL;
    int status;

    return capture_run(ctx, &c, &text, &status, err);
}

static enum doctor_status check_netns(struct ctx *ctx, struct doctor *d)
{
    struct err err = ERR_INIT;

    if (probe(ctx, NULL, NULL, &err) < 0)
        return doctor_say(d, DOCTOR_FAILED, ROOT_FIX, "cannot create a network namespace: %s",
                          err.msg);
    return doctor_say(d, DOCTOR_OK, NULL, "network namespaces can be created");
}

static enum doctor_status check_tun(struct ctx *ctx, struct doctor *d)
{
    const char *names[] = { "lcow0", NULL };
    struct err err = ERR_INIT;

    if (access("/dev/net/tun", F_OK) < 0)
        return doctor_say(d, DOCTOR_FAILED, "modprobe tun", "/dev/net/tun: %s", strerror(errno));
    if (probe(ctx, make_taps, names, &err) < 0)
        return doctor_say(d, DOCTOR_FAILED, geteuid() == 0 ? "modprobe tun" : ROOT_FIX, "%s",
                          err.msg);
    return doctor_say(d, DOCTOR_OK, NULL, "a tap can be created in a network namespace");
}

static enum doctor_status check_vsock(struct ctx *ctx, struct doctor *d)
{
    bool wanted = d->tool->config.vsock_link;
    /* Opening the node loads the module, so it is only looked at where the configuration does not
     * ask for it. */
    AUTO_FD int fd = wanted ? open("/dev/vhost-vsock", O_RDWR | O_CLOEXEC) : -1;
    bool there = wanted ? fd >= 0 : access("/dev/vhost-vsock", F_OK) == 0;
    int why = errno;

    (void)ctx;
    if (there)
        return doctor_say(d, DOCTOR_OK, NULL, "this host has kernel vsock%s",
                          wanted ? "" : " (used only with link = vsock)");
    return wanted ? doctor_say(d, DOCTOR_FAILED, "modprobe vhost_vsock, or set link = tcp",
                               "link = vsock, but /dev/vhost-vsock: %s", strerror(why))
                  : doctor_say(d, DOCTOR_OK, NULL,
                               "not needed with link = tcp; this host has no /dev/vhost-vsock: %s",
                               strerror(why));
}

/* Never a failure: without it QEMU moves the packets. */
static enum doctor_status check_vhost_net(struct ctx *ctx, struct doctor *d)
{
    bool wanted = d->tool->config.vhost_net;
    AUTO_FD int fd = wanted ? open("/dev/vhost-net", O_RDWR | O_CLOEXEC) : -1;
    int why = errno;

    (void)ctx;
    if (!wanted)
        return doctor_say(d, DOCTOR_OK, NULL, "not used: vhost_net = off");
    if (fd < 0)
        return doctor_say(d, DOCTOR_WARNING, "modprobe vhost_net, or set vhost_net = off",
                          "QEMU moves the packets of pods: /dev/vhost-net: %s", strerror(why));
    return doctor_say(d, DOCTOR_OK, NULL, "NICs of pods use vhost-net");
}

/* The rules of a pod's network: they redirect all packets from one interface to the other. */
static enum doctor_status check_tc(struct ctx *ctx, struct doctor *d)
{
    const char *names[] = { "lcow0", "lcow1", NULL };
    struct capture c = { .argv = (const char *const[]){ "tc", "-batch", "-", NULL },
                         .input = "qdisc add dev lcow0 ingress\n"
                                  "filter add dev lcow0 parent ffff: protocol all u32 match u32 0 "
                                  "0 action mirred egress redirect dev lcow1\n",
                         .clone_flags = CLONE_NEWNET,
                         .setup = make_taps,
                         .setup_arg = names,
                         .limit_ns = PROBE_LIMIT };
    AUTO_FREE char *text = NULL;
    struct err err = ERR_INIT;
    int status;

    bool ran = capture_run(ctx, &c, &text, &status, &err) == 0;

    if (err.code == ERR_NOT_FOUND)
        return doctor_say(d, DOCTOR_WARNING, "apt install iproute2",
                          "not checked: tc is not installed");
    if (!ran)
        return doctor_say(d, DOCTOR_FAILED, "see tun above", "%s", err.msg);
    if (status != 0)
        return doctor_say(d, DOCTOR_FAILED, "modprobe -a sch_ingress cls_u32 act_mirred",
                          "tc rules for pod networks fail: %.150s", text);
    return doctor_say(d, DOCTOR_OK, NULL, "u32 filters and mirred redirection work");
}

static enum doctor_status check_cgroups(struct ctx *ctx, struct doctor *d)
{
    AUTO_FREE char *text = NULL;
    struct statfs fs;
    size_t len;
    bool v2 = statfs("/sys/fs/cgroup", &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
    const char *file = v2 ? "/sys/fs/cgroup/cgroup.controllers" : "/proc/cgroups";
    int r = file_read_all(file, 65536, &text, &len);

    if (r < 0)
        return doctor_say(d, DOCTOR_FAILED, "mount cgroups on /sys/fs/cgroup", "%s: %s", file,
                          strerror(-r));
    if (v2 ? !doctor_has_word(text, "memory") : !doctor_cgroup_v1_has(text, "memory"))
        return doctor_say(d, DOCTOR_FAILED, "boot the host with cgroup_enable=memory",
                          "version %d without the memory controller", v2 ? 2 : 1);
    if (!v2 && access("/sys/fs/cgroup/memory", F_OK) < 0)
        return doctor_say(d, DOCTOR_FAILED, "mount cgroups below /sys/fs/cgroup",
                          "version 1, but the memory controller is not mounted");
    return doctor_say(d, DOCTOR_OK, NULL, "version %d with the memory controller", v2 ? 2 : 1);
}

static enum doctor_status check_disk(struct ctx *ctx, struct doctor *d)
{
    const char *root = d->tool->config.run_root;
    AUTO_FREE char *there = doctor_nearest(root);
    struct statvfs fs;

    if (!there || statvfs(there, &fs) < 0)
        return doctor_say(d, DOCTOR_FAILED, "set run_root in the configuration", "%s: %s", root,
                          strerror(errno));
    unsigned long long mib = (unsigned long long)fs.f_bavail * fs.f_frsize / (1024 * 1024);

    if (fs.f_flag & ST_RDONLY)
        return doctor_say(d, DOCTOR_FAILED, "set run_root in the configuration",
                          "%s is not writable", root);
    if (mib < 16)
        return doctor_say(d, DOCTOR_FAILED, "free space there, or set run_root",
                          "%llu MiB free in %s", mib, root);
    return doctor_say(d, mib < 64 ? DOCTOR_WARNING : DOCTOR_OK,
                      mib < 64 ? "free space there, or set run_root" : NULL, "%llu MiB free for %s",
                      mib, root);
}

/* mke2fs formats the scratch disk of each VM. */
static enum doctor_status check_mke2fs(struct ctx *ctx, struct doctor *d)
{
    struct capture c = { .argv = (const char *const[]){ scratch_mke2fs(), "-V", NULL },
                         .limit_ns = PROBE_LIMIT };
    AUTO_FREE char *text = NULL;
    struct doctor_version v;
    struct err err = ERR_INIT;
    int status;

    if (capture_run(ctx, &c, &text, &status, &err) < 0)
        return doctor_say(d, DOCTOR_FAILED, "apt install e2fsprogs", "%s",
                          err.code == ERR_NOT_FOUND ? "not installed" : err.msg);
    if (status != 0 || !doctor_parse_version(text, &v))
        return doctor_say(d, DOCTOR_FAILED, "apt install e2fsprogs", "does not run: %.60s", text);
    return doctor_say(d, DOCTOR_OK, NULL, "version %u.%u", v.major, v.minor);
}

/* mkfs.erofs makes images of layers. */
static enum doctor_status check_erofs(struct ctx *ctx, struct doctor *d)
{
    bool wanted = d->tool->config.layer_images != CONFIG_LAYERS_OFF;
    AUTO_FREE char *version = NULL;
    struct err err = ERR_INIT;

    if (layers_program(ctx, &version, &err) == 0 && version[0])
        return doctor_say(d, DOCTOR_OK, NULL, "version %s%s", version,
                          wanted ? "" : " (not used: layer_images = off)");
    return doctor_say(d, wanted ? DOCTOR_WARNING : DOCTOR_OK, "apt install erofs-utils",
                      "%s; layers reach VMs as shares, which are slow for small files",
                      err.code == ERR_NOT_FOUND ? "not installed"
                      : err.code == ERR_NONE    ? "prints no version"
                                                : err.msg);
}

static enum doctor_status check_scratch(struct ctx *ctx, struct doctor *d)
{
    const struct config *c = &d->tool->config;
    struct ctx limited = ctx_with_timeout(ctx, PROBE_LIMIT);
    AUTO_FREE char *there = doctor_nearest(c->scratch_dir);
    struct err err = ERR_INIT;

    if (!there)
        return doctor_say(d, DOCTOR_FAILED, "set scratch_dir in the configuration", "%s: %s",
                          c->scratch_dir, strerror(errno));
    if (scratch_room(&limited, there, c->scratch_free_mib, &err) < 0)
        return doctor_say(d, DOCTOR_FAILED,
                          err.code == ERR_EXHAUSTED ? "free space there, or set scratch_dir"
                                                    : "set scratch_dir in the configuration",
                          "%s", err.msg);
    return doctor_say(d, DOCTOR_OK, NULL, "at least %u MiB (scratch_free_mib) free for %s",
                      c->scratch_free_mib, c->scratch_dir);
}

static enum doctor_status check_containerd(struct ctx *ctx, struct doctor *d)
{
    struct capture c = { .argv = (const char *const[]){ "containerd", "--version", NULL },
                         .limit_ns = PROBE_LIMIT };
    AUTO_FREE char *text = NULL, *config = file_text(1 << 20, "/etc/containerd/config.toml");
    struct stanza found = { 0 };
    struct doctor_version v;
    struct err err = ERR_INIT;
    int status;

    if (capture_run(ctx, &c, &text, &status, &err) < 0)
        return doctor_say(d, DOCTOR_WARNING, "apt install containerd",
                          err.code == ERR_NOT_FOUND ? "not installed (lcow boot does not need it)"
                                                    : "%s",
                          err.msg);
    if (!doctor_parse_version(text, &v))
        return doctor_say(d, DOCTOR_WARNING, "apt install containerd", "prints no version: %.60s",
                          text);
    if (config)
        stanza_read(config, &found);
    if (v.major < 1 || (v.major == 1 && v.minor < 6))
        return doctor_say(d, DOCTOR_FAILED, "apt install containerd",
                          "version %u.%u is unsupported: must be 1.6 or later", v.major, v.minor);
    if (!found.has_type)
        return doctor_say(
            d, DOCTOR_WARNING,
            "append the output of lcow config containerd, then restart containerd (not needed for "
            "ctr)",
            "version %u.%u; /etc/containerd/config.toml does not name lcow as a runtime", v.major,
            v.minor);
    if (found.is_default)
        return doctor_say(
            d, DOCTOR_WARNING,
            "set the RuntimeClass in pods (lcow config runtimeclass), or raise their memory "
            "limits by the output of lcow overhead",
            "version %u.%u; lcow is the default runtime: pods without a RuntimeClass "
            "have no overhead, and small memory limits OOM-kill the whole VM",
            v.major, v.minor);
    return doctor_say(d, DOCTOR_OK, NULL,
                      "version %u.%u, with a runtime of type io.containerd.lcow.v2", v.major,
                      v.minor);
}

#define IOMMU_FIX "turn the IOMMU on: in the firmware, and by the kernel's option intel_iommu=on"

/* The devices that allow_devices names by their addresses. False: this one cannot be given away. */
static bool check_function(const char *address, struct doctor *d)
{
    struct pci_function f;
    struct err err = ERR_INIT;

    if (pci_find(PCI_SYS, address, &f, &err) < 0)
        doctor_say(d, DOCTOR_WARNING, "take it out of allow_devices", "%s", err.msg);
    else if (!str_eq(f.driver, PCI_DRIVER))
        doctor_say(d, DOCTOR_WARNING, "driverctl set-override ADDRESS " PCI_DRIVER,
                   "PCI device %s is bound to driver \"%s\", not to " PCI_DRIVER, f.address,
                   f.driver);
    else if (f.rival[0])
        doctor_say(d, DOCTOR_WARNING, "driverctl set-override ADDRESS " PCI_DRIVER,
                   "PCI device %s shares IOMMU group %s with %s, which is bound to driver \"%s\"",
                   f.address, f.group, f.rival, f.rival_driver);
    else
        return true;
    return false;
}

static bool has_iommu(void)
{
    AUTO(closedir) DIR *dir = opendir(PCI_SYS "/kernel/iommu_groups");
    struct dirent *e = NULL;

    while (dir && (e = readdir(dir)) && e->d_name[0] == '.')
        ;
    return e != NULL;
}

/* Which way QEMU gets devices of the host (docs/decisions/0018). */
static enum doctor_status check_pci(struct ctx *ctx, struct doctor *d)
{
    const char *allowed = d->tool->config.allow_devices;
    unsigned ways = has_iommu() ? pci_ways(PCI_SYS, PCI_DEV, NULL) : 0;
    const char *way = !has_iommu()         ? "the IOMMU is off"
                      : ways & PCI_IOMMUFD ? "by iommufd"
                      : ways & PCI_GROUPS  ? "by vfio groups (type1)"
                                           : "the module vfio-pci is not loaded";
    char address[PCI_ADDRESS_MAX];

    if (!allowed[strspn(allowed, " \t,")])
        return doctor_say(d, DOCTOR_OK, NULL, "allow_devices names none; this host: %s", way);
    if (!ways)
        return doctor_say(d, DOCTOR_WARNING, has_iommu() ? "modprobe vfio-pci" : IOMMU_FIX,
                          "PCI devices cannot be given to VMs: %s", way);
    for (const char *at = allowed; *(at += strspn(at, " \t,")); at += strcspn(at, " \t,")) {
        AUTO_FREE char *word = str_ndup(at, strcspn(at, " \t,"));

        if (pci_address(word, address) == 0 && !check_function(address, d))
            return d->now.status;
    }
    return doctor_say(d, DOCTOR_OK, NULL, "devices of the host are given to VMs %s", way);
}

struct count {
    size_t dead, alive, unknown;
};

static int on_leftover(void *arg, const struct leftover *l)
{
    struct count *c = arg;

    if (l->err)
        c->unknown++;
    else if (l->alive)
        c->alive++;
    else
        c->dead++;
    return 0;
}

static enum doctor_status check_leftovers(struct ctx *ctx, struct doctor *d)
{
    struct count c = { 0 };
    struct err err = ERR_INIT;

    if (leftovers_walk(d->tool->config.run_root, on_leftover, &c, &err) < 0)
        return doctor_say(d, DOCTOR_FAILED, ROOT_FIX, "%s", err.msg);
    if (c.unknown > 0)
        return doctor_say(d, DOCTOR_WARNING, ROOT_FIX, "cannot read %zu VM directories", c.unknown);
    if (c.dead > 0)
        return doctor_say(d, DOCTOR_WARNING, "lcow gc", "%zu VM%s of dead owners (%zu in use)",
                          c.dead, c.dead == 1 ? "" : "s", c.alive);
    return doctor_say(d, DOCTOR_OK, NULL, "none (%zu VM%s in use)", c.alive,
                      c.alive == 1 ? "" : "s");
}

static enum doctor_status check_shims(struct ctx *ctx, struct doctor *d)
{
    struct err err = ERR_INIT;
    size_t behind = 0;

    if (tool_list(ctx, d->tool, &err) < 0)
        return doctor_say(d, DOCTOR_FAILED, ROOT_FIX, "%s", err.msg);
    for (size_t i = 0; i < d->tool->shims.n; i++)
        behind += shim_is_behind(&d->tool->shims.v[i]);
    if (behind > 0)
        return doctor_say(d, DOCTOR_WARNING, "lcow upgrade --all",
                          "%zu of %zu run another version than %s", behind, d->tool->shims.n,
                          LCOW_VERSION);
    return doctor_say(d, DOCTOR_OK, NULL, "%zu, all of version %s", d->tool->shims.n, LCOW_VERSION);
}

const struct doctor_check doctor_host_checks[] = {
    { "netns", check_netns },
    { "tun", check_tun },
    { "vsock", check_vsock },
    { "vhost-net", check_vhost_net },
    { "tc", check_tc },
    { "cgroups", check_cgroups },
    { "disk", check_disk },
    { "mke2fs", check_mke2fs },
    { "mkfs.erofs", check_erofs },
    { "scratch", check_scratch },
    { "pci", check_pci },
    { "containerd", check_containerd },
    { "leftovers", check_leftovers },
    { "shims", check_shims },
    { NULL },
};
