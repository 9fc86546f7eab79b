#include "host/config/annotations.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include "host/config/shape.h"
#include "oci/document.h"
#include "oci/volume.h"
#include <string.h>

#define VM "io.microsoft.virtualmachine."
#define SHARES_NAME VM "fileshares.disablewritable"
#define ENCRYPTED_NAME VM "storage.scratch.encrypted"
#define CPU_GROUP_NAME VM "cpugroup.id"
#define BLANKS " \t,"

const char annotations_no_writable_shares[] = SHARES_NAME;
const char annotations_cpu_group[] = CPU_GROUP_NAME;

enum effect {
    /* Effective if allow_annotations names them: */
    TAKES_KEY,      /* values as of the configuration key */
    TAKES_KEY_EVEN, /* rounded up to an even number */
    TAKES_TRUTH,
    PASSED_ON, /* the agent reads and checks it */
    /* The same, for the VM: the first container's value counts (annotations_contradiction). */
    VM_NUMBER,
    VM_FLAG,
    VM_FLAG_OFF, /* false sets it */
    VM_TEXT,
    /* Always effective: */
    RESTRICTS_SHARES,
    ENCRYPTS_SCRATCH,
    READ, /* containerd's own; other modules read it */
    /* Never effective: */
    REFUSED,          /* any value is refused */
    REFUSED_IF_TRUE,  /* true is refused, and what is not a truth value */
    REFUSED_IF_FALSE, /* false is refused, and what is not a truth value */
    REFUSED_UNLESS,   /* any other word than .key is refused */
    MEANINGLESS,      /* removed and logged */
};

#define AT(f) offsetof(struct annotations, f)
#define TEXT(f) AT(f), NULL, 0, sizeof(((struct annotations *)0)->f)
#define MEMORY VM "computetopology.memory."
#define CPU VM "computetopology.processor."
#define NUMA VM "computetopology.numa."
#define VERITY "a verified root file system of the VM"
#define WITH_POLICY "only with a security policy, which is refused"
#define FOR_WINDOWS "for Windows containers only"
#define UNUSED "hcsshim ignores it as well"
/* The table: every name that hcsshim knows (docs/reference/host.md §17), and ours. A name that ends
 * with * stands for all names with this prefix. */
static const struct annotation {
    const char *name;
    enum effect effect;
    const char *doc; /* of a refused annotation: what is not supported */
    size_t offset;   /* of the field that it sets */
    const char *key; /* TAKES_KEY; REFUSED_UNLESS: the word */
    uint32_t min, max;
} annotations[] = {
    /* Ours come after hcsshim's: where both are given, the later row overrides the earlier. */
    { MEMORY "sizeinmb", TAKES_KEY_EVEN, "memory of the VM in MiB", AT(memory_mib), "memory_mib" },
    { CPU "count", TAKES_KEY, "virtual CPUs of the VM", AT(cpus), "cpus" },
    { "io.lcow.memory_mib", TAKES_KEY, "memory of the VM in MiB", AT(memory_mib), "memory_mib" },
    { "io.lcow.cpus", TAKES_KEY, "virtual CPUs of the VM", AT(cpus), "cpus" },
    { "io.lcow.rootfs", TAKES_KEY, "`auto`, `scratch` or `shared`, as the key `rootfs`", AT(rootfs),
      "rootfs" },
    { "io.lcow.scratch_quota_mib", TAKES_KEY,
      "maximum space that the container may use on the scratch disk, as the key "
      "`scratch_quota_mib`",
      AT(scratch_quota_mib), "scratch_quota_mib" },
    { "io.lcow.empty_dir", TAKES_KEY, "`guest` or `shared`, as the key `empty_dir`",
      AT(shared_empty_dirs), "empty_dir" },
    { VM "lcow.privileged", TAKES_TRUTH,
      "true: no seccomp filter, and access to every device of the VM, including its disks",
      AT(privileged) },
    { SPEC_SHM_SIZE_KEY, PASSED_ON, "size of `/dev/shm` in KiB" },
    { SPEC_CORE_LIMIT_KEY, PASSED_ON, "`SOFT;HARD`: size limits of core dumps in bytes" },
    { SPEC_LOG_DIR_KEY, PASSED_ON,
      "path in the container at which the pod's log directory in the VM is mounted" },
    { CPU "limit", VM_NUMBER,
      "CPU time limit of the VM on the host (its cgroup): 100000 is all of its virtual CPUs, "
      "50000 half of them; 0: no limit",
      AT(cpu_limit), .max = 100000 },
    { CPU "weight", VM_NUMBER,
      "CPU weight of the VM on a busy host (its cgroup); 0: the default, 100", AT(cpu_weight),
      .max = 10000 },
    { CPU_GROUP_NAME, VM_TEXT, "group of host CPUs for the VM, see `cpu_group_dir`",
      TEXT(cpu_group) },
    { VM "storageqos.iopsmaximum", VM_NUMBER,
      "maximum I/O operations per second of all disks of the VM together; 0: no limit",
      AT(disk_iops), .max = INT32_MAX },
    { VM "storageqos.bandwidthmaximum", VM_NUMBER,
      "maximum bytes per second of all disks of the VM together; 0: no limit", AT(disk_bytes_per_s),
      .max = INT32_MAX },
    { MEMORY "allowovercommit", VM_FLAG_OFF,
      "false: the host allocates all memory of the VM at its start. The VM starts cold and cannot "
      "grow",
      AT(committed) },
    { VM "fullyphysicallybacked", VM_FLAG, "true: the same", AT(backed) },
    { MEMORY "enabledeferredcommit", VM_FLAG,
      "true: the host allocates memory when the VM first uses it. This is the default unless one "
      "of the previous two is set",
      AT(deferred) },
    { MEMORY "lowmmiogapinmb", VM_NUMBER,
      "MiB below 4 GiB that are free for PCI devices, if more than QEMU's default (1280, or 2048 "
      "with much memory). The VM starts cold",
      AT(low_mmio_mib), .max = 3072 },
    { MEMORY "highmmiogapinmb", VM_NUMBER,
      "MiB above the memory that are free for PCI devices. The VM starts cold", AT(high_mmio_mib),
      .max = 512 * 1024 },
    { CPU "numa.max-processors-per-node", VM_NUMBER,
      "NUMA nodes of equal size: maximum virtual CPUs of each. Needs the next annotation and, as "
      "all NUMA settings, memory that is not overcommitted. The VM starts cold",
      AT(node_cpus), .max = CONFIG_CPUS_MAX },
    { CPU "numa.max-size-per-node", VM_NUMBER, "maximum MiB of each of these nodes", AT(node_mib),
      .max = CONFIG_MEMORY_MIB_MAX },
    { NUMA "mapped-physical-nodes", VM_TEXT,
      "`0,1`: NUMA nodes of the VM, each bound to the host's node with this number (255: not "
      "bound). Needs the next two annotations",
      TEXT(numa_host) },
    { NUMA "count-of-processors", VM_TEXT, "`2,2`: virtual CPUs of each node", TEXT(numa_cpus) },
    { NUMA "count-of-memory-blocks", VM_TEXT, "`512,512`: MiB of each node", TEXT(numa_mib) },
    { NUMA "preferred-physical-nodes", VM_TEXT,
      "`0,1`: NUMA nodes of the host from which memory is preferably allocated. The VM starts cold",
      TEXT(numa_prefer) },
    { VM "lcow.kernelbootoptions", VM_TEXT,
      "additional parameters for the guest's kernel, from the list below. The VM starts cold",
      TEXT(kernel_args) },
    { VM "lcow.timesync.disable", VM_FLAG,
      "true: the VM's clock is not adjusted when the host's clock is set", AT(no_timesync) },
    { SHARES_NAME, RESTRICTS_SHARES,
      "true: the container may not have a writable directory of the host. On a sandbox, this "
      "holds for all of its containers" },
    { "io.microsoft.disable-unsafe-operations", RESTRICTS_SHARES,
      "the same as the previous annotation" },
    { ENCRYPTED_NAME, ENCRYPTS_SCRATCH,
      "true: the VM encrypts what its containers write, with a key that only the VM has",
      AT(encrypted_scratch) },
    { SPEC_TYPE_KEY, READ, "sandbox or container" },
    { SPEC_SANDBOX_KEY, READ, "the pod" },
    { "io.microsoft.network.ncproxy", REFUSED, "the network proxy of Windows (ncproxy)" },
    { VM "lcow.vpmem.nomultimapping", REFUSED, "virtual persistent memory" },
    { VM "kerneldrivers", REFUSED, "kernel modules of the pod's choice" },
    { VM "lcow.securitypolicy", REFUSED, "confidential VMs" },
    { "io.microsoft.cri.virtual-pod-id", REFUSED, "several pods in one VM" },
    { VM "resource-partition-id", REFUSED, "partitions of the host" },
    { VM "lcow.dmverity-mode", REFUSED_IF_TRUE, VERITY },
    { VM "lcow.dmverity-create-args", REFUSED, VERITY },
    { VM "lcow.dmverity-rootfs-vhd", REFUSED, VERITY },
    { VM "bootfilesrootpath", REFUSED,
      "a guest image of the pod's choice (the administrator's is `image_dir`)" },
    { VM "lcow.kerneldirectboot", REFUSED_IF_FALSE, "UEFI boot" },
    { VM "lcow.preferredrootfstype", REFUSED_UNLESS, "a root file system of the VM on a disk", 0,
      "initrd" },
    { VM "lcow.extra-exec-command-args", REFUSED, "additional arguments for the agent" },
    { "io.microsoft.container.processdumplocation", REFUSED,
      "core dumps at a path of the pod's choice" },
    { VM "devices.virtualpmem.maximumcount", REFUSED_UNLESS, "virtual persistent memory", 0, "0" },
    { VM "lcow.network.policybasedrouting", REFUSED_IF_TRUE, "a routing table for each interface" },
    { VM "console.pipe", REFUSED, "a console on a named pipe (see `lcow console`)" },
    { VM "hv-socket.service-table.*", REFUSED, "Hyper-V sockets" },
    { VM "lcow.hostnetwork", REFUSED_IF_TRUE, "the VM's own network for a container" },
    { "io.microsoft.cri.skip-pod-networking", REFUSED_IF_TRUE, "a pod without its network" },
    { "io.microsoft.container.lcow.tee-log-path", REFUSED, "a second copy of the log output" },
    { "io.microsoft.container.gpu.capabilities", REFUSED, "a GPU by name (see `allow_devices`)" },
    { "io.microsoft.migration.support-enabled", REFUSED_IF_TRUE, "live migration" },
    { "io.microsoft.migration.source-container-id", REFUSED, "live migration" },
    { "microsoft.com/hostprocess-container", REFUSED_IF_TRUE, "a container on the host itself" },
    { MEMORY "enablecolddiscardhint", MEANINGLESS, "a hint for Windows' memory manager" },
    { MEMORY "highmmiobaseinmb", MEANINGLESS, "QEMU places that window after the memory" },
    { VM "lcow.vpcienabled", MEANINGLESS, "every VM has PCI" },
    { VM "lcow.writable-overlay-directories", MEANINGLESS,
      "the VM's own root file system is read-only, and containers do not use it" },
    { VM "lcow.extra-vsock-ports", MEANINGLESS, WITH_POLICY },
    { VM "lcow.enforcer", MEANINGLESS, WITH_POLICY },
    { VM "lcow.uvm-reference-info-file", MEANINGLESS, WITH_POLICY },
    { VM "uvm-hash-envelope-reference-info-file", MEANINGLESS, WITH_POLICY },
    { VM "no_security_hardware", MEANINGLESS, WITH_POLICY },
    { VM "lcow.gueststatefile", MEANINGLESS, WITH_POLICY },
    { VM "lcow.hcl-enabled", MEANINGLESS, WITH_POLICY },
    { VM "lcow.securitypolicy.env", MEANINGLESS, WITH_POLICY },
    { VM "lcow.amd-certificate", MEANINGLESS, WITH_POLICY },
    { "io.microsoft.cri.tenant-sandbox-id", MEANINGLESS, UNUSED },
    { VM "dump-directory-path", MEANINGLESS, UNUSED },
    { VM "devices.virtualpmem.maximumsizebytes", MEANINGLESS, UNUSED },
    { "io.microsoft.lcow.gpuvhdpath", MEANINGLESS, UNUSED },
    { "io.microsoft.network.ncproxy.containerid", MEANINGLESS, UNUSED },
    { "io.microsoft.container.memory.*", MEANINGLESS, FOR_WINDOWS },
    { "io.microsoft.container.processor.*", MEANINGLESS, FOR_WINDOWS },
    { "io.microsoft.container.storage.*", MEANINGLESS, FOR_WINDOWS },
    { "io.microsoft.container.wcow.gmsa.disable", MEANINGLESS, FOR_WINDOWS },
    { VM "wcow.virtualSMB.nodirectmap", MEANINGLESS, FOR_WINDOWS },
    { "microsoft.com/disable-hostprocess-container", MEANINGLESS,
      "lcow runs no container on the host" },
};

/* A word of the list is a name, or a prefix followed by "*". */
static bool matches(const char *word, size_t len, const char *name)
{
    if (len > 0 && word[len - 1] == '*')
        return strncmp(word, name, len - 1) == 0;
    return strlen(name) == len && strncmp(word, name, len) == 0;
}

static const struct annotation *find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++)
        if (matches(annotations[i].name, strlen(annotations[i].name), name))
            return &annotations[i];
    return NULL;
}

bool annotations_allowed(const struct config *c, const char *name)
{
    for (const char *at = c->allow_annotations + strspn(c->allow_annotations, BLANKS); *at;) {
        size_t n = strcspn(at, BLANKS);

        if (matches(at, n, name))
            return true;
        at += n + strspn(at + n, BLANKS);
    }
    return false;
}

static int take_key(const struct config *c, const struct annotation *a, const char *text,
                    struct annotations *o, struct err *err)
{
    struct config_key k = *config_key_find("", a->key, err);

    if (a->offset == AT(memory_mib))
        k.max = c->max_memory_mib;
    if (a->offset == AT(cpus))
        k.max = c->max_cpus;
    if (a->offset == AT(shared_empty_dirs))
        o->said_empty_dirs = true;
    k.offset = a->offset;
    if (config_key_set(o, &k, text, err) < 0)
        return err_wrap(err, "annotation %s is \"%.32s\"", a->name, text);
    if (a->effect == TAKES_KEY_EVEN)
        o->memory_mib += o->memory_mib % 2;
    return 0;
}

static int truth(const char *name, const char *text, bool *ret, struct err *err)
{
    return str_to_bool(text, ret) < 0
               ? err_set(err, ERR_INVALID, "annotation %s is \"%.32s\": must be true or false",
                         name, text)
               : 0;
}

static int restrict_shares(const struct annotation *a, const char *text, struct annotations *o,
                           struct err *err)
{
    bool value;

    if (truth(a->name, text, &value, err) < 0)
        return -1;
    if (o->said_shares && value != o->no_writable_shares)
        return err_set(err, ERR_INVALID,
                       "annotation %s is \"%.32s\", but " SHARES_NAME
                       " has the opposite value; set both to the same value",
                       a->name, text);
    o->said_shares = true;
    o->no_writable_shares = value;
    return 0;
}

static int refuse(const struct annotation *a, const char *name, const char *text, struct err *err)
{
    bool value = *text != '\0';

    if (a->effect == REFUSED_UNLESS)
        value = value && !str_eq(text, a->key);
    else if (a->effect != REFUSED && truth(name, text, &value, err) < 0)
        return -1;
    if (a->effect == REFUSED_IF_FALSE)
        value = !value;
    if (!value)
        return 0;
    return err_set(err, ERR_UNIMPLEMENTED, "annotation %s is \"%.32s\": lcow does not support %s",
                   name, text, a->doc);
}

static int take_number(const struct annotation *a, const char *text, void *field, struct err *err)
{
    const struct config_key k = { .type = KEY_U32, .max = a->max };

    return config_key_set(field, &k, text, err) < 0
               ? err_wrap(err, "annotation %s is \"%.32s\"", a->name, text)
               : 0;
}

static int take_text(const struct annotation *a, const char *text, char *field, struct err *err)
{
    if (strlen(text) >= a->max)
        return err_set(err, ERR_INVALID, "annotation %s is \"%.32s…\": must be 0–%u bytes", a->name,
                       text, a->max - 1);
    memcpy(field, text, strlen(text) + 1);
    return 0;
}

static int take(const struct config *c, const struct annotation *a, const char *name,
                const char *text, struct annotations *o, struct err *err)
{
    void *field = (char *)o + a->offset;

    switch (a->effect) {
    case TAKES_KEY:
    case TAKES_KEY_EVEN:
        return take_key(c, a, text, o, err);
    case VM_FLAG_OFF:
        if (truth(name, text, field, err) < 0)
            return -1;
        *(bool *)field = !*(bool *)field;
        return 0;
    case TAKES_TRUTH:
    case VM_FLAG:
    case ENCRYPTS_SCRATCH:
        return truth(name, text, field, err);
    case VM_NUMBER:
        return take_number(a, text, field, err);
    case VM_TEXT:
        return take_text(a, text, field, err);
    case PASSED_ON:
    case READ:
    case MEANINGLESS:
        return 0;
    case RESTRICTS_SHARES:
        return restrict_shares(a, text, o, err);
    default:
        return refuse(a, name, text, err);
    }
}

static bool needs_leave(const struct annotation *a)
{
    return a->effect < RESTRICTS_SHARES;
}

/* True also for names that are not in the table. A removed annotation is logged once, because the
 * spec no longer has it when it is read again. */
static bool may_stay(const void *config, const char *name)
{
    const struct annotation *a = find(name);
    bool stays =
        !a || (a->effect != MEANINGLESS && (!needs_leave(a) || annotations_allowed(config, name)));

    if (!a && (str_starts(name, "io.lcow.") || str_starts(name, "io.microsoft.")))
        log_info(NULL, "unknown annotation", F_STR("annotation", name));
    if (!stays)
        log_info(NULL, "annotation ignored", F_STR("annotation", name),
                 F_STR("detail",
                       a->effect == MEANINGLESS ? a->doc : "allow_annotations does not name it"));
    return stays;
}

static void add_defaults(const struct config *c, struct spec *s)
{
    for (size_t i = 0; i < c->default_annotations.n; i++) {
        AUTO_FREE char *name = str_dup(c->default_annotations.v[i]);
        char *value = strchr(name, '=');

        if (!value)
            continue;
        *value++ = '\0';
        spec_annotation_default(s, name, value);
    }
}

/* Two kinds are refused later, when they are mounted: mounts that document_mount() does not accept,
 * and emptyDirs that turn out to be directories of the host. */
static int check_mounts(const struct spec *s, struct err *err)
{
    json_t *mounts = js_get(spec_json(s), "mounts"), *m;
    size_t i;

    json_array_foreach(mounts, i, m)
    {
        AUTO_FREE char *empty_dir = NULL;
        struct err ignored = ERR_INIT;
        struct document_mount d;

        if (document_mount(m, &d, &ignored) == 0 && d.kind == DOCUMENT_MOUNT_HOST && !d.read_only &&
            !volume_is_empty_dir(d.source, &empty_dir))
            return err_because(err, REASON_WRITABLE_SHARE_FORBIDDEN, ERR_PERMISSION,
                               "mount %.200s is writable, which annotation " SHARES_NAME
                               " forbids; make it read-only",
                               d.source);
    }
    return 0;
}

/* The scratch disk is used where writes need not outlive the VM (the CRI deletes its containers,
 * and a read-only root has no writes), and where they must not reach the host unencrypted. */
static enum config_rootfs settle_rootfs(const struct annotations *o, const struct spec *s)
{
    if (o->rootfs == CONFIG_ROOTFS_AUTO &&
        (spec_is_cri(s) || spec_root_readonly(s) || o->encrypted_scratch))
        return CONFIG_ROOTFS_SCRATCH;
    return o->rootfs;
}

int annotations_restrict(const struct spec *s, struct annotations *o, struct err *err)
{
    if (o->rootfs == CONFIG_ROOTFS_SHARED)
        return err_because(err, REASON_WRITABLE_SHARE_FORBIDDEN, ERR_INVALID,
                           "the shared root file system is writable, which annotation " SHARES_NAME
                           " forbids; set rootfs = scratch");
    o->rootfs = CONFIG_ROOTFS_SCRATCH;
    o->no_writable_shares = true;
    return check_mounts(s, err);
}

/* Applies all values of one row; a row whose name ends with * may have several. */
static int take_row(const struct config *c, const struct annotation *a, const struct spec *s,
                    struct annotations *o, struct err *err)
{
    json_t *all = js_get(spec_json(s), "annotations"), *value;
    const char *text = spec_annotation(s, a->name), *name;

    if (!str_ends(a->name, "*"))
        return text ? take(c, a, a->name, text, o, err) : 0;
    json_object_foreach(all, name, value)
    {
        if (find(name) == a && json_is_string(value) &&
            take(c, a, name, json_string_value(value), o, err) < 0)
            return -1;
    }
    return 0;
}

int annotations_read(const struct config *c, struct spec *s, struct annotations *ret,
                     struct err *err)
{
    struct annotations o = { .scratch_quota_mib = c->scratch_quota_mib,
                             .rootfs = c->rootfs,
                             .shared_empty_dirs = c->shared_empty_dirs };

    spec_annotations_keep(s, may_stay, c);
    add_defaults(c, s); /* after the removal: the administrator's own need not be allowed */
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++)
        if (take_row(c, &annotations[i], s, &o, err) < 0)
            return err_blame(err, REASON_INVALID_ANNOTATION);
    if (o.encrypted_scratch && o.scratch_quota_mib)
        return err_because(
            err, REASON_SCRATCH_QUOTA, ERR_UNIMPLEMENTED,
            "an encrypted scratch disk keeps no quotas: with annotation " ENCRYPTED_NAME
            ", scratch_quota_mib must be 0, but is %u",
            o.scratch_quota_mib);
    if (o.no_writable_shares && annotations_restrict(s, &o, err) < 0)
        return -1;
    o.rootfs = settle_rootfs(&o, s);
    *ret = o;
    return 0;
}

int annotations_contradiction(const struct annotations *first, const struct annotations *later,
                              struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++) {
        const struct annotation *a = &annotations[i];
        const char *was = (const char *)first + a->offset, *is = (const char *)later + a->offset;
        bool differs = a->effect == VM_TEXT     ? *is && !str_eq(was, is)
                       : a->effect == VM_NUMBER ? *(const uint32_t *)is && *(const uint32_t *)was !=
                                                                               *(const uint32_t *)is
                       : a->effect == VM_FLAG || a->effect == VM_FLAG_OFF
                           ? *(const bool *)is && !*(const bool *)was
                           : false;

        AUTO_FREE char *value = a->effect == VM_TEXT ? str_dup(is)
                                : a->effect == VM_NUMBER
                                    ? str_format("%u", *(const uint32_t *)is)
                                    : str_dup(a->effect == VM_FLAG ? "true" : "false");

        if (differs)
            return err_because(
                err, REASON_INVALID_ANNOTATION, ERR_STATE,
                "annotation %s is \"%s\", but the VM runs with another value: it applies to "
                "the whole VM; set it on the pod's sandbox (its first container)",
                a->name, value);
    }
    return 0;
}

bool annotations_known(const char *word, size_t len, const char **ret_near)
{
    const char *names[ARRAY_LEN(annotations) + 1] = { 0 };
    AUTO_FREE char *copy = str_ndup(word, len);
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(annotations); i++) {
        if (needs_leave(&annotations[i]) && matches(word, len, annotations[i].name))
            return true;
        if (needs_leave(&annotations[i]))
            names[n++] = annotations[i].name;
    }
    *ret_near = str_nearest(copy, names);
    return false;
}

void annotations_taken(const struct config *c, struct strv *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++) {
        const struct annotation *a = &annotations[i];

        if (needs_leave(a) ? annotations_allowed(c, a->name) : a->effect < READ)
            strv_add(ret, a->name);
    }
    if (config_pci_ports(c) > 0)
        strv_add(ret, OPTIONS_DEVICES);
}

const char *annotations_verdict(const char *name)
{
    const struct annotation *a = find(name);

    return !a                         ? NULL
           : needs_leave(a)           ? "works if allowed"
           : a->effect < REFUSED      ? "works"
           : a->effect == MEANINGLESS ? "ignored"
                                      : "refused";
}

static void put_row(struct sbuf *out, const struct annotation *a)
{
    const char *when = a->effect == REFUSED_IF_TRUE    ? " (true)"
                       : a->effect == REFUSED_IF_FALSE ? " (false)"
                       : a->effect == REFUSED_UNLESS   ? " (unless it is "
                                                       : "";

    sbuf_addf(out, "| `%s` | %s | %s%s", a->name, annotations_verdict(a->name), a->doc, when);
    if (a->effect == REFUSED_UNLESS)
        sbuf_addf(out, "`%s`)", a->key);
    if (a->effect == VM_NUMBER)
        sbuf_addf(out, " (0–%u)", a->max);
    sbuf_adds(out, " |\n");
}

void annotations_print_markdown(struct sbuf *out)
{
    sbuf_adds(out,
              "\n## Annotations\n\n"
              "lcow reads these annotations of pods and containers if containerd passes them on "
              "(`lcow config\ncontainerd`). An invalid value is an error. Annotations that are not "
              "listed have no effect.\n\n"
              "- *works if allowed*: it changes the VM or gives a container more privileges. "
              "It takes effect if\n  `allow_annotations` names it (or its prefix and `*`); "
              "otherwise it is removed and logged (info).\n"
              "- *works*: it only restricts a container, and always takes effect.\n"
              "- *refused*: it asks for something that lcow does not support. The container is "
              "refused.\n"
              "- *ignored*: it has no effect here, and is logged (info).\n\n"
              "Annotations that apply to the whole VM must be set on the pod's sandbox (its first "
              "container).\n\n"
              "| annotation | verdict | what it does, or what is not supported |\n|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++)
        put_row(out, &annotations[i]);
    sbuf_adds(out, "| `io.lcow.device/NAME` | works if allowed | PCI address of a host device that "
                   "`allow_devices` names, such as `0000:03:00.0`; `0000:03:00.0/2` is its virtual "
                   "function 2. Other devices are refused |\n\n"
                   "`lcow.kernelbootoptions` may contain these parameters; others are refused:\n");
    shape_print_kernel(out);
}
