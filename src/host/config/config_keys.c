/* config_keys.c - THE TABLE: every key with its section, type, default, bounds and meaning. What is
 * read, printed, explained and documented comes from here. */
#include "base/err.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include "host/files/scratch.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(f) offsetof(struct config, f)
const struct config_key config_keys[] = {
    { "vm", "allow_emulation", KEY_BOOL, "false", 0, 0, FIELD(allow_emulation),
      "Run VMs by software emulation where KVM does not work. Slow, and no\n"
      "security boundary." },
    { "vm", "emulation_cache_mib", KEY_U32, "0", 0, 2048, FIELD(emulation_cache_mib),
      "Most memory of an emulated VM for translated code, 8 and more. 0: what a\n"
      "start needs (40 for a clone of one or two CPUs). With 17 a pod takes a\n"
      "third less memory, and its start twice the CPU time." },
    { "vm", "memory_mib", KEY_U32, "256", CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX,
      FIELD(memory_mib), "Memory of a VM." },
    { "vm", "cpus", KEY_U32, "1", 1, CONFIG_CPUS_MAX, FIELD(cpus), "Virtual CPUs of a VM." },
    { "vm", "nested_virtualization", KEY_BOOL, "false", 0, 0, FIELD(nested_virtualization),
      "Offer the processor's virtualization (svm, vmx) to guests. Then root\n"
      "in a VM also reaches KVM's code for nested guests on the host." },
    { "vm", "boot_timeout_s", KEY_U32, "60", 1, 120, FIELD(boot_timeout_s),
      "A VM whose agent has not answered by then is ended." },
    { "vm", "qemu", KEY_PROGRAM, "qemu-system-x86_64", 0, 0, FIELD(qemu),
      "QEMU: a path, or a name that is looked up in PATH." },
    { "vm", "image_dir", KEY_PATH, NULL, 0, 0, FIELD(image_dir),
      "Guest image: kernel, initramfs and manifest.json." },
    { "vm", "overhead_mib", KEY_U32, "128", 0, 65536, FIELD(overhead_mib),
      "A container with a memory limit gets a VM of that size plus this, for\n"
      "kernel and agent." },
    { "vm", "max_memory_mib", KEY_U32, "65536", CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX,
      FIELD(max_memory_mib), "No container's limit makes a VM larger than this." },
    { "vm", "max_cpus", KEY_U32, "32", 1, CONFIG_CPUS_MAX, FIELD(max_cpus),
      "No container's limit gives a VM more virtual CPUs than this." },
    { "vm",
      "rootfs",
      KEY_CHOICE,
      "auto",
      0,
      0,
      FIELD(rootfs),
      "Where a container's writes to its root file system go: scratch (a disk\n"
      "of the VM, gone with it), shared (the snapshot on the host; slower), or\n"
      "auto: scratch for containers of the CRI, shared for all others.",
      { "auto", "scratch", "shared" } },
    { "vm",
      "empty_dir",
      KEY_EITHER,
      "guest",
      0,
      0,
      FIELD(shared_empty_dirs),
      "Where a pod's emptyDir volumes are: guest (in its VM, on the scratch disk\n"
      "or in its memory; sockets and fifos work) or shared (the kubelet's\n"
      "directory on the host).",
      { "guest", "shared" } },
    { "vm",
      "template",
      KEY_EITHER,
      "auto",
      0,
      0,
      FIELD(use_template),
      "Start VMs from the memory of one that was booted once: auto (where QEMU\n"
      "can), or off (each boots on its own).",
      { "off", "auto" } },
    { "vm", "device_slots", KEY_U32, "4", 1, 14, FIELD(device_slots),
      "PCI devices of the host that a VM can have at a time, where\n"
      "allow_devices names any." },
    { "host", "allow_annotations", KEY_WORDS, "", 0, 0, FIELD(allow_annotations),
      "Annotations of a container that may change its VM, or give the container\n"
      "more than others have; the guest does not see others. A name may end\n"
      "with * (io.lcow.*)." },
    { "host", "allow_devices", KEY_WORDS, "", 0, 0, FIELD(allow_devices),
      "PCI devices of the host that containers may ask for (windows.devices, or\n"
      "an annotation io.lcow.device/NAME = ADDRESS): addresses (0000:03:00.0) and\n"
      "models (VENDOR:DEVICE, as lspci -n). They must be bound to vfio-pci.\n"
      "test:edu and test:nvme are devices that QEMU emulates, for tests." },
    { "host", "shim_cgroup", KEY_CGROUP, "none", 0, 0, FIELD(shim_cgroup),
      "Cgroup of the shim: none (containerd's), pod (the pod's, with its VM: then\n"
      "the pod pays for what the shim does for it, and its CPU limit slows the\n"
      "shim down, too), or a path that is made if it is missing and stays." },
    { "host", "run_root", KEY_PATH, "/run/lcow", 0, 0, FIELD(run_root),
      "A directory for each VM, with the ledger of what it owns." },
    { "host", "scratch_dir", KEY_PATH, "/var/lib/lcow", 0, 0, FIELD(scratch_dir),
      "The VMs' scratch disks are here: sparse files." },
    { "host", "template_dir", KEY_PATH, "/var/lib/lcow/templates", 0, 0, FIELD(template_dir),
      "What VMs are started from (template = auto)." },
    { "host", "scratch_mib", KEY_U32, "10240", SCRATCH_MIB_MIN, SCRATCH_MIB_MAX, FIELD(scratch_mib),
      "Size of a VM's scratch disk. It takes what is written to it." },
    { "host", "scratch_free_mib", KEY_U32, "512", 0, SCRATCH_MIB_MAX, FIELD(scratch_free_mib),
      "No VM and no container is started while the file system of scratch_dir\n"
      "has less than this free: scratch disks are sparse, and those that are there\n"
      "grow into the same space." },
    { "host", "scratch_quota_mib", KEY_U32, "0", 0, SCRATCH_MIB_MAX, FIELD(scratch_quota_mib),
      "What one container may write to the scratch disk, so that it cannot take\n"
      "it all; a pod's emptyDirs count as its sandbox's. 0: no limit." },
    { "host", "parallel_starts", KEY_U32, "0", 0, 4096, FIELD(parallel_starts),
      "VMs that may start at one time; others wait for their turn. 0: two for\n"
      "each processor." },
    { "host", "vm_uid_base", KEY_U32, "2000000000", 1000, 4294900000u, FIELD(vm_uid_base),
      "Each VM's QEMU runs as a user of its own, taken from the range that\n"
      "begins here. Nobody else may use it." },
    { "host", "vm_uid_count", KEY_U32, "4096", 1, 65536, FIELD(vm_uid_count),
      "Size of that range: the most VMs at one time." },
    { "host", "log_level", KEY_LEVEL, "warn", 0, 0, FIELD(log_level),
      "Of the shim: trace, debug, info, warn, error or off. lcow itself has\n"
      "--log-level." },
};
const size_t config_n_keys = ARRAY_LEN(config_keys);
_Static_assert(ARRAY_LEN(config_keys) <= CONFIG_KEYS_MAX,
               "struct config_report has too little room");

static void set_str(char **field, char *value)
{
    free(*field);
    *field = value;
}

static int parse_bool(const char *value, bool *ret)
{
    static const char *const yes[] = { "true", "yes", "on", "1" };
    static const char *const no[] = { "false", "no", "off", "0" };

    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (str_eq(value, yes[i]) || str_eq(value, no[i])) {
            *ret = str_eq(value, yes[i]);
            return 0;
        }
    }
    return -EINVAL;
}

int config_key_set(struct config *c, const struct config_key *k, const char *value, struct err *err)
{
    void *field = (char *)c + k->offset;
    bool program_ok = k->type == KEY_PROGRAM && *value && !strchr(value, '/');
    uint64_t number;

    switch (k->type) {
    case KEY_BOOL:
        return parse_bool(value, field) < 0 ? err_set(err, ERR_INVALID, "must be true or false")
                                            : 0;
    case KEY_U32:
        if (str_to_u64(value, UINT64_MAX, &number) < 0)
            return err_set(err, ERR_INVALID, "must be a number from %u to %u", k->min, k->max);
        if (number < k->min || number > k->max)
            return err_set(err, ERR_RANGE, "must be from %u to %u", k->min, k->max);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case KEY_PATH:
    case KEY_PROGRAM:
        if (*value != '/' && !program_ok)
            return err_set(err, ERR_INVALID, "must be an absolute path%s",
                           k->type == KEY_PROGRAM ? " or a program's name" : "");
        set_str(field, str_dup(value));
        return 0;
    case KEY_LEVEL:
        if (log_level_parse(value, field) < 0)
            return err_set(err, ERR_INVALID, "must be trace, debug, info, warn, error or off");
        return 0;
    case KEY_WORDS:
        set_str(field, str_dup(value));
        return 0;
    case KEY_CGROUP:
        if (*value != '/' && !str_eq(value, "none") && !str_eq(value, "pod"))
            return err_set(err, ERR_INVALID, "must be none, pod or an absolute path");
        set_str(field, str_dup(value));
        return 0;
    case KEY_EITHER:
        if (!str_eq(value, k->either[0]) && !str_eq(value, k->either[1]))
            return err_set(err, ERR_INVALID, "must be %s or %s", k->either[0], k->either[1]);
        *(bool *)field = str_eq(value, k->either[1]);
        return 0;
    case KEY_CHOICE:
        for (unsigned i = 0; i < ARRAY_LEN(k->either); i++) {
            if (str_eq(value, k->either[i])) {
                *(unsigned *)field = i;
                return 0;
            }
        }
        return err_set(err, ERR_INVALID, "must be %s, %s or %s", k->either[0], k->either[1],
                       k->either[2]);
    }
    return err_set(err, ERR_INTERNAL, "key of unknown type");
}

void config_key_print(const struct config *c, const struct config_key *k, struct sbuf *out)
{
    const void *field = (const char *)c + k->offset;

    switch (k->type) {
    case KEY_BOOL:
        sbuf_adds(out, *(const bool *)field ? "true" : "false");
        break;
    case KEY_U32:
        sbuf_addf(out, "%u", *(const uint32_t *)field);
        break;
    case KEY_PATH:
    case KEY_PROGRAM:
    case KEY_WORDS:
    case KEY_CGROUP:
        sbuf_adds(out, *(char *const *)field);
        break;
    case KEY_LEVEL:
        sbuf_adds(out, log_level_name(*(const enum log_level *)field));
        break;
    case KEY_EITHER:
        sbuf_adds(out, k->either[*(const bool *)field]);
        break;
    case KEY_CHOICE:
        sbuf_adds(out, k->either[*(const unsigned *)field]);
        break;
    }
}

void config_key_allowed(const struct config_key *k, struct sbuf *out)
{
    static const char *const text[] = {
        [KEY_BOOL] = "true or false",
        [KEY_PATH] = "an absolute path",
        [KEY_PROGRAM] = "an absolute path, or a program's name",
        [KEY_LEVEL] = "trace, debug, info, warn, error or off",
        [KEY_WORDS] = "names, separated by blanks",
        [KEY_CGROUP] = "none, pod or an absolute path",
    };

    if (k->type == KEY_U32)
        sbuf_addf(out, "%u to %u", k->min, k->max);
    else if (k->type == KEY_EITHER)
        sbuf_addf(out, "%s or %s", k->either[0], k->either[1]);
    else if (k->type == KEY_CHOICE)
        sbuf_addf(out, "%s, %s or %s", k->either[0], k->either[1], k->either[2]);
    else
        sbuf_adds(out, text[k->type]);
}

/* ------------------------------------------------------------------ finding */

static const struct config_key *by_name(const char *section, const char *name)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        if (str_eq(config_keys[i].name, name) &&
            (!*section || str_eq(config_keys[i].section, section)))
            return &config_keys[i];
    }
    return NULL;
}

static bool is_section(const char *section)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        if (str_eq(config_keys[i].section, section))
            return true;
    }
    return false;
}

const struct config_key *config_key_find(const char *section, const char *name, struct err *err)
{
    const struct config_key *found = by_name(section, name), *elsewhere = by_name("", name);
    const char *candidates[ARRAY_LEN(config_keys) + 1] = { 0 };
    bool in_section = !*section || is_section(section);
    const char *near;

    if (found)
        return found;
    if (elsewhere) {
        err_set(err, ERR_INVALID, "%s belongs below [%s], not below [%s]", name, elsewhere->section,
                section);
        return NULL;
    }
    for (size_t i = 0; i < config_n_keys; i++)
        candidates[i] = in_section ? config_keys[i].name : config_keys[i].section;
    near = str_nearest(in_section ? name : section, candidates);
    if (in_section)
        err_set(err, ERR_INVALID, "unknown key %s%s%s%s", name, near ? "; did you mean " : "",
                near ? near : "", near ? "?" : "");
    else
        err_set(err, ERR_INVALID, "unknown section [%s]%s%s%s", section,
                near ? "; did you mean [" : "", near ? near : "", near ? "]?" : "");
    return NULL;
}

uint32_t config_pci_ports(const struct config *c)
{
    return c->allow_devices[strspn(c->allow_devices, " \t,")] ? c->device_slots : 0;
}
