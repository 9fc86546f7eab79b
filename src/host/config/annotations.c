#include "host/config/annotations.h"
#include "base/err.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include "oci/document.h"
#include "oci/volume.h"
#include <string.h>

#define VM "io.microsoft.virtualmachine."
#define SHARES_NAME VM "fileshares.disablewritable"
#define ENCRYPTED_NAME VM "storage.scratch.encrypted"
#define BLANKS " \t,"

const char annotations_no_writable_shares[] = SHARES_NAME;

enum effect {
    TAKES_KEY,      /* as the key of the configuration takes it */
    TAKES_KEY_EVEN, /* rounded up to an even number */
    TAKES_TRUTH,
    PASSED_ON, /* the agent takes it, and says what is wrong with it */
    RESTRICTS_SHARES,
    ENCRYPTS_SCRATCH,
    REFUSED,          /* if there is a value */
    REFUSED_IF_TRUE,  /* or if it is no truth value at all */
    REFUSED_IF_FALSE, /* the same */
};

#define AT(f) offsetof(struct annotations, f)
static const struct annotation {
    const char *name;
    enum effect effect;
    const char *doc;
    size_t offset;   /* of what it sets */
    const char *key; /* TAKES_KEY */
} annotations[] = {
    /* Ours are last: where both are given, ours wins. */
    { VM "computetopology.memory.sizeinmb", TAKES_KEY_EVEN, "memory of the VM in MiB",
      AT(memory_mib), "memory_mib" },
    { VM "computetopology.processor.count", TAKES_KEY, "virtual CPUs of the VM", AT(cpus), "cpus" },
    { "io.lcow.memory_mib", TAKES_KEY, "memory of the VM in MiB", AT(memory_mib), "memory_mib" },
    { "io.lcow.cpus", TAKES_KEY, "virtual CPUs of the VM", AT(cpus), "cpus" },
    { "io.lcow.rootfs", TAKES_KEY, "`auto`, `scratch` or `shared`, as the key `rootfs`", AT(rootfs),
      "rootfs" },
    { "io.lcow.scratch_quota_mib", TAKES_KEY,
      "what the container may write to the scratch disk, as the key `scratch_quota_mib`",
      AT(scratch_quota_mib), "scratch_quota_mib" },
    { "io.lcow.empty_dir", TAKES_KEY, "`guest` or `shared`, as the key `empty_dir`",
      AT(shared_empty_dirs), "empty_dir" },
    { VM "lcow.privileged", TAKES_TRUTH,
      "true: no seccomp filter, and every device of the VM, its disks too", AT(privileged) },
    { SPEC_SHM_SIZE_KEY, PASSED_ON, "size of `/dev/shm` in KiB" },
    { SPEC_CORE_LIMIT_KEY, PASSED_ON, "`SOFT;HARD`: limits of core dumps in bytes" },
    { SPEC_LOG_DIR_KEY, PASSED_ON, "where the container sees the pod's log directory in the VM" },
    { SHARES_NAME, RESTRICTS_SHARES, "true: a writable directory of the host is refused" },
    { "io.microsoft.disable-unsafe-operations", RESTRICTS_SHARES,
      "sets the one before to the same value" },
    { ENCRYPTED_NAME, ENCRYPTS_SCRATCH,
      "true: what the VM's containers write is encrypted with a key that only the VM has",
      AT(encrypted_scratch) },
    { "io.microsoft.network.ncproxy", REFUSED, "" },
    { VM "lcow.vpmem.nomultimapping", REFUSED, "" },
    { VM "kerneldrivers", REFUSED, "" },
    { VM "lcow.securitypolicy", REFUSED, "confidential VMs" },
    { "io.microsoft.cri.virtual-pod-id", REFUSED, "several pods in one VM" },
    { VM "cpugroup.id", REFUSED, "groups of host CPUs" },
    { VM "resource-partition-id", REFUSED, "partitions of the host" },
    { VM "lcow.dmverity-mode", REFUSED_IF_TRUE, "a verified root file system of the VM" },
    { VM "lcow.dmverity-create-args", REFUSED, "a verified root file system of the VM" },
    { VM "lcow.dmverity-rootfs-vhd", REFUSED, "a verified root file system of the VM" },
    { VM "fullyphysicallybacked", REFUSED_IF_TRUE, "memory that is never overcommitted" },
    { VM "computetopology.memory.allowovercommit", REFUSED_IF_FALSE,
      "memory that is never overcommitted" },
    { "io.microsoft.migration.support-enabled", REFUSED_IF_TRUE, "live migration" },
};

/* A word of the list: a name, or its beginning followed by "*". */
static bool matches(const char *word, size_t len, const char *name)
{
    if (len > 0 && word[len - 1] == '*')
        return strncmp(word, name, len - 1) == 0;
    return strlen(name) == len && strncmp(word, name, len) == 0;
}

static bool allowed(const struct config *c, const char *name)
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
                       "annotation %s is \"%.32s\", which " SHARES_NAME " contradicts", a->name,
                       text);
    o->said_shares = true;
    o->no_writable_shares = value;
    return 0;
}

static int refuse(const struct annotation *a, const char *text, struct err *err)
{
    bool value = true;

    if (a->effect == REFUSED && !*text)
        return 0;
    if (a->effect != REFUSED && truth(a->name, text, &value, err) < 0)
        return -1;
    if (a->effect == REFUSED_IF_FALSE)
        value = !value;
    if (!value)
        return 0;
    return err_set(err, ERR_UNIMPLEMENTED, "annotation %s is \"%.32s\": %s not supported", a->name,
                   text, *a->doc ? a->doc : "it is");
}

static int take(const struct config *c, const struct annotation *a, const char *text,
                struct annotations *o, struct err *err)
{
    switch (a->effect) {
    case TAKES_KEY:
    case TAKES_KEY_EVEN:
        return take_key(c, a, text, o, err);
    case TAKES_TRUTH:
    case ENCRYPTS_SCRATCH:
        return truth(a->name, text, (bool *)((char *)o + a->offset), err);
    case PASSED_ON:
        return 0;
    case RESTRICTS_SHARES:
        return restrict_shares(a, text, o, err);
    default:
        return refuse(a, text, err);
    }
}

static bool needs_leave(const struct annotation *a)
{
    return a->effect < RESTRICTS_SHARES;
}

/* True for all that annotations.c knows nothing about. */
static bool may_stay(const void *config, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++) {
        if (str_eq(annotations[i].name, name))
            return !needs_leave(&annotations[i]) || allowed(config, name);
    }
    return true;
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

/* Mounts that document_mount() does not take are refused by who makes them, and emptyDirs that turn
 * out to be the host's. */
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
            return err_set(err, ERR_PERMISSION,
                           "mount %.200s: it is writable, which " SHARES_NAME " forbids", d.source);
    }
    return 0;
}

/* Writes are not worth keeping if the caller throws the container away or nothing can be written,
 * and must not be kept if they may not reach the host or not in the clear. */
static enum config_rootfs settle_rootfs(const struct annotations *o, const struct spec *s)
{
    if (o->rootfs == CONFIG_ROOTFS_AUTO &&
        (spec_is_cri(s) || spec_root_readonly(s) || o->no_writable_shares || o->encrypted_scratch))
        return CONFIG_ROOTFS_SCRATCH;
    return o->rootfs;
}

int annotations_read(const struct config *c, struct spec *s, struct annotations *ret,
                     struct err *err)
{
    struct annotations o = { .scratch_quota_mib = c->scratch_quota_mib,
                             .rootfs = c->rootfs,
                             .shared_empty_dirs = c->shared_empty_dirs };

    spec_annotations_keep(s, may_stay, c);
    add_defaults(c, s); /* the administrator's own need nobody's leave */
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++) {
        const struct annotation *a = &annotations[i];
        const char *text = spec_annotation(s, a->name);

        if (text && take(c, a, text, &o, err) < 0)
            return -1;
    }
    if (o.no_writable_shares && o.rootfs == CONFIG_ROOTFS_SHARED)
        return err_set(err, ERR_INVALID,
                       "a root file system that is shared is writable, which " SHARES_NAME
                       " forbids");
    if (o.encrypted_scratch && o.scratch_quota_mib)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "an encrypted scratch disk keeps no quotas: with annotation " ENCRYPTED_NAME
                       " scratch_quota_mib must be 0, and is %u",
                       o.scratch_quota_mib);
    if (o.no_writable_shares && check_mounts(s, err) < 0)
        return -1;
    o.rootfs = settle_rootfs(&o, s);
    *ret = o;
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

        if (needs_leave(a) ? allowed(c, a->name) : a->effect < REFUSED)
            strv_add(ret, a->name);
    }
    if (config_pci_ports(c) > 0)
        strv_add(ret, OPTIONS_DEVICES);
}

static void rows(struct sbuf *out, const char *title, enum effect from, enum effect to)
{
    sbuf_addf(out, "\n%s\n\n", title);
    for (size_t i = 0; i < ARRAY_LEN(annotations); i++) {
        const struct annotation *a = &annotations[i];

        if (a->effect >= from && a->effect <= to)
            sbuf_addf(out, "- `%s`%s%s%s\n", a->name, *a->doc ? ": " : "", a->doc,
                      a->effect == REFUSED_IF_TRUE    ? " (true)"
                      : a->effect == REFUSED_IF_FALSE ? " (false)"
                                                      : "");
    }
}

void annotations_print_markdown(struct sbuf *out)
{
    sbuf_adds(out, "\n## Annotations\n\n"
                   "Of pods and containers, as far as containerd passes them on (`lcow config "
                   "containerd`).\nA value that makes no sense is an error. Annotations that are "
                   "not listed change nothing.\n");
    rows(out,
         "These change the VM or give a container more than others have. They are taken if "
         "`allow_annotations` names them (or their beginning and `*`), and removed otherwise:",
         TAKES_KEY, PASSED_ON);
    sbuf_adds(out,
              "\nThese give a container PCI devices of the host, if `allow_devices` names them; "
              "others are refused:\n\n- `io.lcow.device/NAME`: a PCI address, `0000:03:00.0`; "
              "`0000:03:00.0/2` is its virtual function 2\n");
    rows(out, "These only restrict a container and are always taken:", RESTRICTS_SHARES,
         ENCRYPTS_SCRATCH);
    rows(out,
         "These ask for something that lcow does not give; a container with one of them is "
         "refused:",
         REFUSED, REFUSED_IF_FALSE);
}
