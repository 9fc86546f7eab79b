/* config_keys.c - the table of configuration keys: section, type, default, bounds and meaning of
 * each. The parser, everything that `lcow config` prints and the documentation are made from it. */
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include "host/files/scratch.h"
#include <stdlib.h>
#include <string.h>

#define ORIGIN_COLUMN 40
#define UID_LAST 4294967294u /* 4294967295 is (uid_t)-1, "no user" */

#define FIELD(f) offsetof(struct config, f)
#define WORDS(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
const struct config_key config_keys[] = {
    { "vm", "allow_emulation", KEY_BOOL, "false", 0, 0, FIELD(allow_emulation),
      "Run VMs in software emulation where KVM is not available. Emulation is slow\n"
      "and is not a security boundary." },
    { "vm", "emulation_cache_mib", KEY_U32, "0", 0, 2048, FIELD(emulation_cache_mib),
      "Maximum memory in MiB that an emulated VM uses for translated code, at\n"
      "least 8. 0: as much as a start needs (40 for a clone with 1 or 2 CPUs).\n"
      "With 17, a pod uses a third less memory, and its start takes twice the CPU\n"
      "time." },
    { "vm", "memory_mib", KEY_U32, "256", CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX,
      FIELD(memory_mib), "Memory of a VM in MiB." },
    { "vm", "cpus", KEY_U32, "1", 1, CONFIG_CPUS_MAX, FIELD(cpus),
      "Number of virtual CPUs of a VM." },
    { "vm", "nested_virtualization", KEY_BOOL, "false", 0, 0, FIELD(nested_virtualization),
      "Offer the processor's virtualization extensions (svm, vmx) to guests. Root\n"
      "in a VM can then also reach KVM's code for nested guests on the host." },
    { "vm", "boot_timeout_s", KEY_U32, "60", 1, 120, FIELD(boot_timeout_s),
      "Time limit for a boot. The shim stops a VM whose agent has not answered by\n"
      "then." },
    { "vm", "qemu", KEY_PROGRAM, "qemu-system-x86_64", 0, 0, FIELD(qemu),
      "QEMU: an absolute path, or a program's name to look up in PATH." },
    { "vm", "image_dir", KEY_PATH, NULL, 0, 0, FIELD(image_dir),
      "Directory of the guest image: kernel, initramfs and manifest.json." },
    { "vm", "overhead_mib", KEY_U32, "128", 0, 65536, FIELD(overhead_mib),
      "Memory in MiB for the guest's kernel and agent. A VM for containers with a\n"
      "memory limit gets their limit plus this." },
    { "vm", "max_memory_mib", KEY_U32, "65536", CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX,
      FIELD(max_memory_mib),
      "Maximum memory of a VM in MiB, whatever its containers' limits are." },
    { "vm", "max_cpus", KEY_U32, "32", 1, CONFIG_CPUS_MAX, FIELD(max_cpus),
      "Maximum number of virtual CPUs of a VM, whatever its containers' limits are." },
    { "vm", "rootfs", KEY_CHOICE, "auto", 0, 0, FIELD(rootfs),
      "Where a container's writes to its root file system are stored. scratch: on a\n"
      "disk that is deleted with the VM; shared: in the snapshot on the host, which\n"
      "is slower; auto: scratch for CRI containers, shared for all others.",
      WORDS("auto", "scratch", "shared") },
    { "vm", "layer_images", KEY_CHOICE, "off", 0, 0, FIELD(layer_images),
      "Turn the layers of an image, which are directories of the overlayfs\n"
      "snapshotter, into disk images (erofs) that VMs share. Small files are then\n"
      "read several times faster. off: never; auto: in the background, while the\n"
      "first container of an image uses a share; always: before the first container\n"
      "of an image starts. Needs mkfs.erofs. See lcow layers.",
      WORDS("auto", "off", "always") },
    { "vm", "layer_verity", KEY_BOOL, "false", 0, 0, FIELD(layer_verity),
      "Add a hash tree to these images; the guest verifies each block that it\n"
      "reads (dm-verity)." },
    { "vm", "empty_dir", KEY_EITHER, "guest", 0, 0, FIELD(shared_empty_dirs),
      "Where a pod's emptyDir volumes are stored: guest (in its VM, on the scratch\n"
      "disk or in memory; sockets and FIFOs work) or shared (the kubelet's\n"
      "directory on the host).",
      WORDS("guest", "shared") },
    { "vm", "template", KEY_EITHER, "auto", 0, 0, FIELD(use_template),
      "Start VMs as clones of a template, a VM that was booted once and saved:\n"
      "auto (where QEMU supports it), or off (every VM boots).",
      WORDS("off", "auto") },
    { "vm", "link", KEY_EITHER, "tcp", 0, 0, FIELD(vsock_link),
      "Transport between the shim and the agent in the VM. tcp: over a tap in its\n"
      "own network namespace. vsock: over the host's kernel module vhost_vsock,\n"
      "which then parses data from guests in the kernel.",
      WORDS("tcp", "vsock") },
    { "vm", "vhost_net", KEY_EITHER, "off", 0, 0, FIELD(vhost_net),
      "What moves the packets of pods. off: QEMU, in its jail. auto: the host's\n"
      "kernel, by its module vhost_net, where the host has it; faster, but the\n"
      "kernel then parses data from guests.",
      WORDS("off", "auto") },
    { "vm", "device_slots", KEY_U32, "4", 1, 14, FIELD(device_slots),
      "Maximum number of PCI devices of the host that a VM can have at a time, if\n"
      "allow_devices names any." },
    { "host", "allow_annotations", KEY_WORDS, "", 0, 0, FIELD(allow_annotations),
      "Annotations that may change a container's VM or give the container more\n"
      "privileges. Others of this kind are removed. A name may end with *\n"
      "(io.lcow.*)." },
    { "host", "allow_devices", KEY_WORDS, "", 0, 0, FIELD(allow_devices),
      "PCI devices of the host that containers may request by windows.devices, an\n"
      "annotation io.lcow.device/NAME = ADDRESS, or a device /dev/vfio/N (CDI).\n"
      "Entries are addresses (0000:03:00.0) and models (VENDOR:DEVICE, as lspci -n\n"
      "prints them). The devices must be bound to vfio-pci, and so must the other\n"
      "functions of their IOMMU groups.\n"
      "test:edu and test:nvme are devices that QEMU emulates, for tests." },
    { "host", "cpu_group_dir", KEY_PATH, "/etc/lcow/cpugroups", 0, 0, FIELD(cpu_group_dir),
      "Directory of CPU groups: groups of host CPUs that a VM can be bound to\n"
      "(annotation cpugroup.id). Each file has the name of its group and holds a\n"
      "list of CPUs. See lcow cpugroup." },
    { "host", "hooks", KEY_EITHER, "run", 0, 0, FIELD(run_hooks),
      "What to do with OCI hooks of a container that run on the host as root\n"
      "(prestart, createRuntime, poststart, poststop; nerdctl and CDI use them):\n"
      "run them, or refuse the container.",
      WORDS("refuse", "run") },
    { "host", "upgrade", KEY_EITHER, "manual", 0, 0, FIELD(auto_upgrade),
      "What the installation of a new version does with the shims of running pods.\n"
      "manual: it prints how many run an older version. auto: it upgrades them, as\n"
      "lcow upgrade --all does.",
      WORDS("manual", "auto") },
    { "host", "shim_cgroup", KEY_CGROUP, "none", 0, 0, FIELD(shim_cgroup),
      "Cgroup of the shim: none (containerd's), pod (the pod's, with its VM), or a\n"
      "path, which is created if it is missing and not removed. With pod, the\n"
      "shim's work counts for the pod, and the pod's CPU limit slows the shim.",
      WORDS("none", "pod") },
    { "host", "run_root", KEY_PATH, "/run/lcow", 0, 0, FIELD(run_root),
      "Directory of the shims' state. Each VM has a directory in it, with the\n"
      "ledger of what the VM owns." },
    { "host", "scratch_dir", KEY_PATH, "/var/lib/lcow", 0, 0, FIELD(scratch_dir),
      "Directory of the VMs' scratch disks, which are sparse files." },
    { "host", "template_dir", KEY_PATH, "/var/lib/lcow/templates", 0, 0, FIELD(template_dir),
      "Directory of the templates (template = auto)." },
    { "host", "layer_dir", KEY_PATH, "/var/lib/lcow/layers", 0, 0, FIELD(layer_dir),
      "Directory of the images of layers (layer_images)." },
    { "host", "layer_images_max_mib", KEY_U32, "20480", 1, SCRATCH_MIB_MAX,
      FIELD(layer_images_max_mib),
      "Maximum size of all of them in MiB. Beyond it, the longest unused are\n"
      "removed, but for a build none that a VM uses or that was used within the\n"
      "last hour. A layer for which there is no room stays a share." },
    { "host", "scratch_mib", KEY_U32, "10240", SCRATCH_MIB_MIN, SCRATCH_MIB_MAX, FIELD(scratch_mib),
      "Size of a VM's scratch disk in MiB. The file uses only the space that was\n"
      "written to." },
    { "host", "scratch_free_mib", KEY_U32, "512", 0, SCRATCH_MIB_MAX, FIELD(scratch_free_mib),
      "Minimum free space in MiB in the file system of scratch_dir. With less, no\n"
      "VM and no container starts: scratch disks are sparse, and existing ones\n"
      "grow into the same space." },
    { "host", "scratch_quota_mib", KEY_U32, "0", 0, SCRATCH_MIB_MAX, FIELD(scratch_quota_mib),
      "Maximum space in MiB that one container may use on the scratch disk. A\n"
      "pod's emptyDirs count for its sandbox. 0: no limit." },
    { "host", "parallel_starts", KEY_U32, "0", 0, 4096, FIELD(parallel_starts),
      "Maximum number of VMs that start at the same time; others wait for their\n"
      "turn. 0: two for each processor." },
    { "host", "vm_uid_base", KEY_U32, "2000000000", 1000, 4294900000u, FIELD(vm_uid_base),
      "First user ID of a range. Each VM's QEMU runs as a user of its own from this\n"
      "range. Nothing else may use it." },
    { "host", "vm_uid_count", KEY_U32, "4096", 1, 65536, FIELD(vm_uid_count),
      "Size of that range: the maximum number of VMs at the same time." },
    { "host", "log_level", KEY_LEVEL, "warn", 0, 0, FIELD(log_level),
      "Log level of the shim: trace, debug, info, warn, error or off. The lcow\n"
      "command has the option --log-level." },
    { "host", "scrub_logs", KEY_BOOL, "true", 0, 0, FIELD(scrub_logs),
      "At level trace the log has the messages between shim and guest. true:\n"
      "without environment, arguments, annotations and credentials." },
    { "host", "trace_endpoint", KEY_URL, "", 0, 0, FIELD(trace_endpoint),
      "OTLP collector to which the shim sends traces by HTTP: http://HOST:PORT.\n"
      "Empty: OTEL_EXPORTER_OTLP_ENDPOINT in containerd's environment names it;\n"
      "without either, no traces are sent." },
};
const size_t config_n_keys = ARRAY_LEN(config_keys);
_Static_assert(ARRAY_LEN(config_keys) <= CONFIG_KEYS_MAX,
               "struct config_report needs a larger CONFIG_KEYS_MAX");

/* ------------------------------------------------------------------ values */

/* The words that stand for 0, 1 and 2; the third may be NULL. */
static const char *const *words_of(const struct config_key *k)
{
    static const char *const truth[3] = { "false", "true" };

    return k->type == KEY_BOOL ? truth : k->words;
}

/* The value that the word stands for, or -1. */
static int word_index(const struct config_key *k, const char *value)
{
    static const char *const as_well[2][3] = { { "no", "off", "0" }, { "yes", "on", "1" } };

    for (int i = 0; i < 3; i++) {
        if (words_of(k)[i] && str_eq(value, words_of(k)[i]))
            return i;
        for (int n = 0; k->type == KEY_BOOL && i < 2 && n < 3; n++)
            if (str_eq(value, as_well[i][n]))
                return i;
    }
    return -1;
}

static int set_text(char **field, const char *value, bool ok)
{
    if (!ok)
        return -1;
    free(*field);
    *field = str_dup(value);
    return 0;
}

static int set(void *field, const struct config_key *k, const char *value)
{
    int word = word_index(k, value);
    uint64_t number;

    switch (k->type) {
    case KEY_BOOL:
    case KEY_EITHER:
        if (word >= 0)
            *(bool *)field = word;
        return word;
    case KEY_CHOICE:
        if (word >= 0)
            *(unsigned *)field = (unsigned)word;
        return word;
    case KEY_U32:
        if (str_to_u64(value, k->max, &number) < 0 || number < k->min)
            return -1;
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case KEY_LEVEL:
        return log_level_parse(value, field);
    case KEY_PATH:
        return set_text(field, value, *value == '/');
    case KEY_PROGRAM:
        return set_text(field, value, *value == '/' || (*value && !strchr(value, '/')));
    case KEY_CGROUP:
        return set_text(field, value, *value == '/' || word >= 0);
    case KEY_URL:
        return set_text(field, value, !*value || str_starts(value, "http://"));
    case KEY_WORDS:
        return set_text(field, value, true);
    }
    return -1;
}

static void put_allowed(const struct config_key *k, struct sbuf *out)
{
    static const char *const text[] = {
        [KEY_BOOL] = "true or false",
        [KEY_PATH] = "an absolute path",
        [KEY_PROGRAM] = "an absolute path, or a program's name",
        [KEY_LEVEL] = "trace, debug, info, warn, error or off",
        [KEY_WORDS] = "names, separated by blanks",
        [KEY_URL] = "empty, or http://HOST:PORT; TLS (https://) is not supported",
        [KEY_CGROUP] = "none, pod or an absolute path",
    };
    const char *const *words = words_of(k);

    if (k->type == KEY_U32)
        sbuf_addf(out, "%u–%u", k->min, k->max);
    else if (k->type < ARRAY_LEN(text) && text[k->type])
        sbuf_adds(out, text[k->type]);
    else
        sbuf_addf(out, "%s%s%s or %s", words[0], words[2] ? ", " : "", words[2] ? words[1] : "",
                  words[2] ? words[2] : words[1]);
}

int config_key_set(void *fields, const struct config_key *k, const char *value, struct err *err)
{
    AUTO(sbuf_release) struct sbuf allowed = { 0 };

    if (set((char *)fields + k->offset, k, value) >= 0)
        return 0;
    put_allowed(k, &allowed);
    return err_set(err, ERR_INVALID, "must be %s", allowed.data);
}

static void put_value(const struct config *c, const struct config_key *k, struct sbuf *out)
{
    const void *field = (const char *)c + k->offset;

    switch (k->type) {
    case KEY_BOOL:
    case KEY_EITHER:
        sbuf_adds(out, words_of(k)[*(const bool *)field]);
        break;
    case KEY_CHOICE:
        sbuf_adds(out, words_of(k)[*(const unsigned *)field]);
        break;
    case KEY_U32:
        sbuf_addf(out, "%u", *(const uint32_t *)field);
        break;
    case KEY_LEVEL:
        sbuf_adds(out, log_level_name(*(const enum log_level *)field));
        break;
    default:
        sbuf_adds(out, *(char *const *)field);
    }
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
        err_set(err, ERR_INVALID, "key %s belongs to section [%s], not to [%s]", name,
                elsewhere->section, section);
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

/* ------------------------------------------------------------------ printing */

static void put_meaning(const struct config_key *k, struct sbuf *out)
{
    for (const char *line = k->doc; *line;) {
        size_t n = strcspn(line, "\n");

        sbuf_addf(out, "# %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    if (k->type == KEY_U32)
        sbuf_addf(out, "# Allowed: %u to %u. Default: %s.\n", k->min, k->max, k->def);
    else if (k->def)
        sbuf_addf(out, "# Default: %s.\n", *k->def ? k->def : "empty");
}

static const char *origin_of(const struct config_report *r, size_t i)
{
    return r->origin[i] ? r->origin[i] : "default";
}

void config_print(const struct config *c, const struct config_report *report, bool meaning,
                  struct sbuf *out)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];

        if (i == 0 || !str_eq(k->section, config_keys[i - 1].section))
            sbuf_addf(out, "%s[%s]\n", i ? "\n" : "", k->section);
        if (meaning)
            put_meaning(k, out);

        size_t begin = out->len, used;

        sbuf_addf(out, "%s = ", k->name);
        put_value(c, k, out);
        used = out->len - begin;
        if (report)
            sbuf_addf(out, "%*s; %s", used < ORIGIN_COLUMN - 1 ? (int)(ORIGIN_COLUMN - used) : 1,
                      "", origin_of(report, i));
        sbuf_addc(out, '\n');
    }
}

void config_print_json(const struct config *c, const struct config_report *report, struct sbuf *out)
{
    AUTO(json_decref) json_t *all = json_array();

    for (size_t i = 0; i < config_n_keys; i++) {
        AUTO(sbuf_release) struct sbuf value = { 0 };

        put_value(c, &config_keys[i], &value);
        json_array_append_new(all, json_pack("{ss, ss, ss, ss}", "section", config_keys[i].section,
                                             "key", config_keys[i].name, "value", value.data,
                                             "origin", origin_of(report, i)));
    }

    AUTO_FREE char *text = js_text(all, 0);

    sbuf_adds(out, text);
}

void config_check(const struct config *c, struct config_report *report)
{
    if (c->memory_mib > c->max_memory_mib)
        strv_addf(&report->errors, "memory_mib = %u: must not exceed max_memory_mib = %u",
                  c->memory_mib, c->max_memory_mib);
    if (c->cpus > c->max_cpus)
        strv_addf(&report->errors, "cpus = %u: must not exceed max_cpus = %u", c->cpus,
                  c->max_cpus);
    if ((uint64_t)c->vm_uid_base + c->vm_uid_count - 1 > UID_LAST)
        strv_addf(&report->errors,
                  "vm_uid_base = %u: with vm_uid_count = %u the range exceeds user ID %u",
                  c->vm_uid_base, c->vm_uid_count, UID_LAST);
}

/* ------------------------------------------------------------------ the page */

void config_print_markdown(struct sbuf *out)
{
    sbuf_adds(out,
              "# Configuration\n\n"
              "Generated from the code's table by `lcow config reference`; a test compares it.\n\n"
              "lcow reads `" CONFIG_PATH "`, then `" CONFIG_PATH ".d/*.conf` in the order of "
              "their names;\nlater values override earlier ones. `$" CONFIG_ENV "` or `lcow "
              "--config` names another file. A\nruntime in containerd's configuration may name a "
              "file as `ConfigPath`, or set the keys in its\n`options` table, which overrides the "
              "file. The format is INI: `[section]`, `key = value`,\ncomments begin with `#` or "
              "`;`. Section lines may be left out. The names of keys contain\ntheir units.\n\n"
              "`lcow config` prints the configuration in effect as a file. `lcow config show "
              "--origin` prints\nwhere each value comes from. `lcow config check` reports all "
              "errors.\n");
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];

        if (i == 0 || !str_eq(k->section, config_keys[i - 1].section))
            sbuf_addf(out, "\n## [%s]\n\n%s\n", k->section,
                      str_eq(k->section, "vm")
                          ? "The parts and the size of a VM."
                          : "Directories and limits on the host, and what containers may choose.");
        sbuf_addf(out, "\n### %s\n\n%s\n\n", k->name, k->doc);
        sbuf_adds(out, "- allowed: ");
        put_allowed(k, out);
        sbuf_addf(out, "\n- default: `%s`\n", k->def ? k->def : CONFIG_IMAGE_DIR);
    }
}
