/* config_keys.c - THE TABLE: every key with its section, type, default, bounds and meaning. What is
 * read, printed (as a file, as a list with origins, as JSON, as a page), explained and documented
 * comes from here. */
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include "host/files/scratch.h"
#include <stdlib.h>
#include <string.h>

#define ORIGIN_COLUMN 40
#define UID_LAST 4294967294u /* the one behind it means "no user" */

#define FIELD(f) offsetof(struct config, f)
#define WORDS(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
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
    { "vm", "rootfs", KEY_CHOICE, "auto", 0, 0, FIELD(rootfs),
      "Where a container's writes to its root file system go: scratch (a disk\n"
      "of the VM, gone with it), shared (the snapshot on the host; slower), or\n"
      "auto: scratch for containers of the CRI, shared for all others.",
      WORDS("auto", "scratch", "shared") },
    { "vm", "empty_dir", KEY_EITHER, "guest", 0, 0, FIELD(shared_empty_dirs),
      "Where a pod's emptyDir volumes are: guest (in its VM, on the scratch disk\n"
      "or in its memory; sockets and fifos work) or shared (the kubelet's\n"
      "directory on the host).",
      WORDS("guest", "shared") },
    { "vm", "template", KEY_EITHER, "auto", 0, 0, FIELD(use_template),
      "Start VMs from the memory of one that was booted once: auto (where QEMU\n"
      "can), or off (each boots on its own).",
      WORDS("off", "auto") },
    { "vm", "device_slots", KEY_U32, "4", 1, 14, FIELD(device_slots),
      "PCI devices of the host that a VM can have at a time, where\n"
      "allow_devices names any." },
    { "host", "allow_annotations", KEY_WORDS, "", 0, 0, FIELD(allow_annotations),
      "Annotations of a container that may change its VM, or give the container\n"
      "more than others have; the guest does not see others. A name may end\n"
      "with * (io.lcow.*)." },
    { "host", "allow_devices", KEY_WORDS, "", 0, 0, FIELD(allow_devices),
      "PCI devices of the host that containers may ask for (windows.devices, an\n"
      "annotation io.lcow.device/NAME = ADDRESS, or a device /dev/vfio/N, as CDI\n"
      "names it): addresses (0000:03:00.0) and models (VENDOR:DEVICE, as\n"
      "lspci -n). They must be bound to vfio-pci.\n"
      "test:edu and test:nvme are devices that QEMU emulates, for tests." },
    { "host", "cpu_group_dir", KEY_PATH, "/etc/lcow/cpugroups", 0, 0, FIELD(cpu_group_dir),
      "Groups of host CPUs that a VM can be bound to (annotation cpugroup.id): a\n"
      "file for each, with its name, that holds a list of CPUs. See lcow cpugroup." },
    { "host", "hooks", KEY_EITHER, "run", 0, 0, FIELD(run_hooks),
      "OCI hooks of a container that run on the host, as root (prestart,\n"
      "createRuntime, poststart, poststop; nerdctl and CDI use them): run, or\n"
      "refuse the container.",
      WORDS("refuse", "run") },
    { "host", "shim_cgroup", KEY_CGROUP, "none", 0, 0, FIELD(shim_cgroup),
      "Cgroup of the shim: none (containerd's), pod (the pod's, with its VM: then\n"
      "the pod pays for what the shim does for it, and its CPU limit slows the\n"
      "shim down, too), or a path that is made if it is missing and stays.",
      WORDS("none", "pod") },
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
    { "host", "trace_endpoint", KEY_URL, "", 0, 0, FIELD(trace_endpoint),
      "Traces are sent to this OTLP collector by HTTP: http://HOST:PORT. Empty:\n"
      "as OTEL_EXPORTER_OTLP_ENDPOINT of containerd's environment says, or not." },
};
const size_t config_n_keys = ARRAY_LEN(config_keys);
_Static_assert(ARRAY_LEN(config_keys) <= CONFIG_KEYS_MAX,
               "struct config_report has too little room");

/* ------------------------------------------------------------------ values */

/* The words for 0, 1 and 2; the third may be NULL. */
static const char *const *words_of(const struct config_key *k)
{
    static const char *const truth[3] = { "false", "true" };

    return k->type == KEY_BOOL ? truth : k->words;
}

/* -1: not one of the words. */
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
        sbuf_addf(out, "%u to %u", k->min, k->max);
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
    return err_set(err, ERR_INVALID, "must be %s%s", k->type == KEY_U32 ? "from " : "",
                   allowed.data);
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

/* ------------------------------------------------------------------ printing */

static void put_meaning(const struct config_key *k, struct sbuf *out)
{
    for (const char *line = k->doc; *line;) {
        size_t n = strcspn(line, "\n");

        sbuf_addf(out, "# %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    if (k->type == KEY_U32)
        sbuf_addf(out, "# %u to %u, by default %s.\n", k->min, k->max, k->def);
    else if (k->def)
        sbuf_addf(out, "# By default %s.\n", k->def);
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
        strv_addf(&report->errors, "memory_mib = %u: larger than max_memory_mib = %u",
                  c->memory_mib, c->max_memory_mib);
    if (c->cpus > c->max_cpus)
        strv_addf(&report->errors, "cpus = %u: more than max_cpus = %u", c->cpus, c->max_cpus);
    if ((uint64_t)c->vm_uid_base + c->vm_uid_count - 1 > UID_LAST)
        strv_addf(&report->errors, "vm_uid_base = %u: with vm_uid_count = %u it goes beyond %u",
                  c->vm_uid_base, c->vm_uid_count, UID_LAST);
}

/* ------------------------------------------------------------------ the page */

void config_print_markdown(struct sbuf *out)
{
    sbuf_adds(out,
              "# Configuration\n\n"
              "Generated from the code's table by `lcow config reference`; a test keeps it so.\n\n"
              "`" CONFIG_PATH "`, then `" CONFIG_PATH ".d/*.conf` in the order of their names; "
              "later values\nwin. `$" CONFIG_ENV "` or `lcow --config` names another file. A "
              "runtime in containerd's\nconfiguration may name one as `ConfigPath`, or have the "
              "keys themselves in its `options`\ntable, which win over the file. INI: `[section]`, "
              "`key = value`, comments begin with `#` or\n`;`. Sections may be left out. Units are "
              "in the names of keys.\n\n"
              "`lcow config` prints the configuration in effect as a file, `lcow config show "
              "--origin`\nwhere each value comes from, `lcow config check` everything that is "
              "wrong.\n");
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];

        if (i == 0 || !str_eq(k->section, config_keys[i - 1].section))
            sbuf_addf(out, "\n## [%s]\n\n%s\n", k->section,
                      str_eq(k->section, "vm")
                          ? "What a VM is made of, and how large it is."
                          : "Where things are kept on the host, and what containers may choose.");
        sbuf_addf(out, "\n### %s\n\n%s\n\n", k->name, k->doc);
        sbuf_adds(out, "- allowed: ");
        put_allowed(k, out);
        sbuf_addf(out, "\n- default: `%s`\n", k->def ? k->def : CONFIG_IMAGE_DIR);
    }
}
