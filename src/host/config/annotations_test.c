#include "base/str.h"
#include "harness/tap.h"
#include "host/config/annotations.h"
#include "host/config/config.h"
#include "oci/spec.h"
#include <stdlib.h>
#include <string.h>

#define VM "io.microsoft.virtualmachine."

static struct spec *spec_with(const char *annotations, const char *mounts)
{
    AUTO_FREE char *text = str_format("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},"
                                      "\"linux\":{},\"annotations\":{%s},\"mounts\":[%s]}",
                                      annotations, mounts);
    struct spec *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_parse(text, strlen(text), &s, &err), err);
    return s;
}

static int read_with(const char *allow, const char *annotations, struct annotations *ret,
                     struct err *err)
{
    AUTO(config_release) struct config c;
    AUTO(spec_free) struct spec *s = spec_with(annotations, "");

    config_init(&c);
    if (allow) {
        free(c.allow_annotations);
        c.allow_annotations = str_dup(allow);
    }
    c.max_memory_mib = 4096;
    c.max_cpus = 8;
    return annotations_read(&c, s, ret, err);
}

static struct annotations taken(const char *allow, const char *annotations)
{
    struct annotations o = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(read_with(allow, annotations, &o, &err), err);
    return o;
}

static void refused(const char *annotations, enum err_code code, const char *part)
{
    struct annotations o;
    struct err err = ERR_INIT;

    ASSERT_FAIL(read_with("io.*", annotations, &o, &err), err, code);
    ASSERT_MSG_HAS(err.msg, part);
}

TEST(memory_mib_is_taken_within_its_bounds)
{
    ASSERT_EQ(taken("io.lcow.memory_mib", "\"io.lcow.memory_mib\":\"513\"").memory_mib, 513);
    refused("\"io.lcow.memory_mib\":\"64\"", ERR_INVALID, "must be 128–4096");
    refused("\"io.lcow.memory_mib\":\"1e3\"", ERR_INVALID, "\"1e3\"");
    refused("\"io.lcow.memory_mib\":\"\"", ERR_INVALID, "io.lcow.memory_mib");
    refused("\"io.lcow.memory_mib\":\"99999999999\"", ERR_INVALID, "must be 128–4096");
}

TEST(cpus_is_taken_within_its_bounds)
{
    ASSERT_EQ(taken("io.lcow.cpus", "\"io.lcow.cpus\":\"8\"").cpus, 8);
    refused("\"io.lcow.cpus\":\"0\"", ERR_INVALID, "must be 1–8");
    refused("\"io.lcow.cpus\":\"-1\"", ERR_INVALID, "must be 1–8");
}

TEST(rootfs_is_one_of_three_words)
{
    ASSERT_EQ(taken("io.lcow.rootfs", "\"io.lcow.rootfs\":\"shared\"").rootfs,
              CONFIG_ROOTFS_SHARED);
    ASSERT_EQ(taken("io.lcow.rootfs", "\"io.lcow.rootfs\":\"scratch\"").rootfs,
              CONFIG_ROOTFS_SCRATCH);
    ASSERT_EQ(taken("io.lcow.rootfs", "\"io.lcow.rootfs\":\"auto\"").rootfs, CONFIG_ROOTFS_AUTO);
    refused("\"io.lcow.rootfs\":\"/etc/passwd\"", ERR_INVALID, "auto, scratch or shared");
}

TEST(hcsshims_memory_is_rounded_up_to_even)
{
    static const char text[] = "\"" VM "computetopology.memory.sizeinmb\":\"513\"";

    ASSERT_EQ(taken(VM "computetopology.memory.sizeinmb", text).memory_mib, 514);
    ASSERT_EQ(taken(NULL, text).memory_mib, 0); /* not in the default allow_annotations */
    ASSERT_EQ(taken("io.*", "\"io.lcow.memory_mib\":\"256\",\"" VM
                            "computetopology.memory.sizeinmb\":\"512\"")
                  .memory_mib,
              256);
    refused("\"" VM "computetopology.memory.sizeinmb\":\"x\"", ERR_INVALID, "must be 128–4096");
}

TEST(hcsshims_processor_count)
{
    ASSERT_EQ(taken(VM "*", "\"" VM "computetopology.processor.count\":\"3\"").cpus, 3);
    ASSERT_EQ(taken(NULL, "\"" VM "computetopology.processor.count\":\"3\"").cpus, 0);
    refused("\"" VM "computetopology.processor.count\":\"9\"", ERR_INVALID, "must be 1–8");
}

TEST(allow_annotations_contains_names_and_prefixes)
{
    static const char text[] = "\"io.lcow.cpus\":\"3\"";

    ASSERT_EQ(taken("io.lcow.cpu io.lcow.cpuss, xio.lcow.cpus", text).cpus, 0);
    ASSERT_EQ(taken(" , io.lcow.memory_mib,\tio.lcow.cpus", text).cpus, 3);
    ASSERT_EQ(taken("io.lcow.c*", text).cpus, 3);
    ASSERT_EQ(taken("*", text).cpus, 3);
    ASSERT_EQ(taken("", text).cpus, 0);
    /* Values of annotations that are not allowed are not checked. */
    ASSERT_EQ(taken("", "\"io.lcow.cpus\":\"nonsense\"").cpus, 0);
}

static int mount(const char *annotations, const char *mounts, struct err *err)
{
    AUTO(config_release) struct config c;
    AUTO(spec_free) struct spec *s = spec_with(annotations, mounts);
    struct annotations o;

    config_init(&c);
    return annotations_read(&c, s, &o, err);
}

TEST(writable_shares_can_be_forbidden)
{
    static const char no[] = "\"" VM "fileshares.disablewritable\":\"true\"";
    static const char rw[] = "{\"destination\":\"/a\",\"type\":\"bind\",\"source\":\"/host/a\","
                             "\"options\":[\"rbind\"]}";
    static const char ro[] = "{\"destination\":\"/a\",\"type\":\"bind\",\"source\":\"/host/a\","
                             "\"options\":[\"rbind\",\"ro\"]},"
                             "{\"destination\":\"/t\",\"type\":\"tmpfs\",\"source\":\"tmpfs\"}";
    struct err err = ERR_INIT;

    ASSERT_FAIL(mount(no, rw, &err), err, ERR_PERMISSION);
    ASSERT_HAS(err.msg, "/host/a");
    ASSERT_OK(mount(no, ro, &err), err);
    ASSERT_OK(mount("", rw, &err), err);
    ASSERT_OK(mount("\"" VM "fileshares.disablewritable\":\"F\"", rw, &err), err);
    ASSERT_FAIL(mount("\"io.microsoft.disable-unsafe-operations\":\"1\"", rw, &err), err,
                ERR_PERMISSION);
    refused("\"" VM "fileshares.disablewritable\":\"1\",\"io.lcow.rootfs\":\"shared\"", ERR_INVALID,
            "writable");
}

TEST(contradicting_annotations_about_shares_are_refused)
{
    refused("\"" VM "fileshares.disablewritable\":\"false\","
            "\"io.microsoft.disable-unsafe-operations\":\"true\"",
            ERR_INVALID, "has the opposite value");
    ASSERT(taken(NULL, "\"" VM "fileshares.disablewritable\":\"t\","
                       "\"io.microsoft.disable-unsafe-operations\":\"true\"")
               .no_writable_shares);
    refused("\"" VM "fileshares.disablewritable\":\"yes\"", ERR_INVALID, "true or false");
}

TEST(unsupported_annotations_are_refused)
{
    static const struct {
        const char *name, *asks, *does_not;
    } cases[] = {
        { "io.microsoft.network.ncproxy", "x", "" },
        { VM "lcow.vpmem.nomultimapping", "true", "" },
        { VM "kerneldrivers", "x", "" },
        { VM "lcow.securitypolicy", "cGFja2FnZQ==", "" },
        { "io.microsoft.cri.virtual-pod-id", "v", "" },
        { VM "resource-partition-id", "1", "" },
        { VM "lcow.dmverity-mode", "true", "0" },
        { VM "lcow.dmverity-create-args", "test,,,ro,0 1 verity", "" },
        { VM "lcow.dmverity-rootfs-vhd", "rootfs.vhd", "" },
        { VM "bootfilesrootpath", "/etc", "" },
        { VM "lcow.kerneldirectboot", "false", "1" },
        { VM "lcow.preferredrootfstype", "vhd", "initrd" },
        { VM "lcow.extra-exec-command-args", "-x", "" },
        { "io.microsoft.container.processdumplocation", "/x", "" },
        { VM "devices.virtualpmem.maximumcount", "2", "0" },
        { VM "lcow.network.policybasedrouting", "true", "false" },
        { VM "console.pipe", "com1", "" },
        { VM "hv-socket.service-table.0000-1", "{}", "" },
        { VM "lcow.hostnetwork", "t", "f" },
        { "io.microsoft.cri.skip-pod-networking", "true", "false" },
        { "io.microsoft.container.lcow.tee-log-path", "/x", "" },
        { "io.microsoft.container.gpu.capabilities", "utility", "" },
        { "io.microsoft.migration.source-container-id", "x", "" },
        { "microsoft.com/hostprocess-container", "true", "false" },
        { "io.microsoft.migration.support-enabled", "1", "0" },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE char *yes = str_format("\"%s\":\"%s\"", cases[i].name, cases[i].asks);
        AUTO_FREE char *no = str_format("\"%s\":\"%s\"", cases[i].name, cases[i].does_not);

        refused(yes, ERR_UNIMPLEMENTED, cases[i].name);
        (void)taken("", no);
    }
    refused("\"" VM "storage.scratch.encrypted\":\"perhaps\"", ERR_INVALID, "true or false");
}

TEST(an_encrypted_scratch_disk_needs_no_permission)
{
    struct annotations yes = taken("", "\"" VM "storage.scratch.encrypted\":\"true\"");
    struct annotations no = taken("*", "\"" VM "storage.scratch.encrypted\":\"false\"");

    ASSERT(yes.encrypted_scratch && !no.encrypted_scratch);
}

TEST(scratch_quota_mib_needs_an_unencrypted_disk)
{
    static const char text[] = "\"io.lcow.scratch_quota_mib\":\"32\"";

    ASSERT_EQ(taken("io.lcow.scratch_quota_mib", text).scratch_quota_mib, 32);
    ASSERT_EQ(taken(NULL, text).scratch_quota_mib, 0); /* not in the default allow_annotations */
    refused("\"io.lcow.scratch_quota_mib\":\"much\"", ERR_INVALID, "must be 0–");
    refused("\"io.lcow.scratch_quota_mib\":\"32\",\"" VM "storage.scratch.encrypted\":\"true\"",
            ERR_UNIMPLEMENTED, "keeps no quotas");
}

TEST(privilege_is_off_unless_allowed)
{
    static const char name[] = VM "lcow.privileged", text[] = "\"" VM "lcow.privileged\":\"true\"";

    ASSERT(!taken(NULL, text).privileged);
    ASSERT(!taken("io.lcow.*", text).privileged);
    ASSERT(taken(name, text).privileged);
    ASSERT(!taken(name, "\"" VM "lcow.privileged\":\"false\"").privileged);
    refused("\"" VM "lcow.privileged\":\"yes\"", ERR_INVALID, "true or false");
}

TEST(annotations_that_are_not_allowed_are_removed_from_the_spec)
{
    static const char *const names[] = {
        VM "lcow.privileged",
        "io.microsoft.lcow.shm.size-kb",
        "io.microsoft.lcow.rlimitcore",
        "io.microsoft.container.lcow.tee-log-dir-mount",
        "io.lcow.cpus",
    };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO(config_release) struct config c;
        AUTO_FREE char *text = str_format("\"%s\":\"1\",\"other\":\"2\"", names[i]);
        AUTO(spec_free) struct spec *s = spec_with(text, ""), *kept = spec_copy(s);
        struct err err = ERR_INIT;
        struct annotations o;

        config_init(&c);
        ASSERT_OK(annotations_read(&c, s, &o, &err), err);
        ASSERT(spec_annotation(s, names[i]) == NULL);
        ASSERT_STR(spec_annotation(s, "other"), "2"); /* document.h */
        free(c.allow_annotations);
        c.allow_annotations = str_dup(names[i]);
        ASSERT_OK(annotations_read(&c, kept, &o, &err), err);
        ASSERT_STR(spec_annotation(kept, names[i]), "1");
    }
}

TEST(unknown_annotations_have_no_effect)
{
    struct annotations o = taken("*", "\"io.lcow.unknown\":\"1\",\"" VM "lcow.enforcer\":\"x\"");

    ASSERT(!o.memory_mib && !o.cpus && o.rootfs == CONFIG_ROOTFS_AUTO && !o.no_writable_shares);
}

TEST(numbers_for_the_vm_are_checked_against_their_bounds)
{
    static const struct {
        const char *name;
        uint32_t max;
        size_t at;
    } all[] = {
        { VM "computetopology.processor.limit", 100000, offsetof(struct annotations, cpu_limit) },
        { VM "computetopology.processor.weight", 10000, offsetof(struct annotations, cpu_weight) },
        { VM "storageqos.iopsmaximum", INT32_MAX, offsetof(struct annotations, disk_iops) },
        { VM "storageqos.bandwidthmaximum", INT32_MAX,
          offsetof(struct annotations, disk_bytes_per_s) },
        { VM "computetopology.memory.lowmmiogapinmb", 3072,
          offsetof(struct annotations, low_mmio_mib) },
        { VM "computetopology.memory.highmmiogapinmb", 524288,
          offsetof(struct annotations, high_mmio_mib) },
        { VM "computetopology.processor.numa.max-processors-per-node", 64,
          offsetof(struct annotations, node_cpus) },
        { VM "computetopology.processor.numa.max-size-per-node", 1048576,
          offsetof(struct annotations, node_mib) },
    };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        AUTO_FREE char *text = str_format("\"%s\":\"7\"", all[i].name),
                       *more = str_format("\"%s\":\"%u\"", all[i].name, all[i].max + 1),
                       *less = str_format("\"%s\":\"-1\"", all[i].name),
                       *why = str_format("annotation %s is \"%u\": must be 0–%u", all[i].name,
                                         all[i].max + 1, all[i].max);
        struct annotations yes = taken(all[i].name, text), no = taken("", text);

        ASSERT_EQ(*(uint32_t *)((char *)&yes + all[i].at), 7);
        ASSERT_EQ(*(uint32_t *)((char *)&no + all[i].at), 0);
        refused(more, ERR_INVALID, why);
        refused(less, ERR_INVALID, all[i].name);
    }
}

TEST(texts_and_flags_for_the_vm_are_read)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };
    struct annotations o =
        taken("*", "\"" VM "cpugroup.id\":\"fast\",\"" VM "lcow.kernelbootoptions\":\"nosmt\",\"" VM
                   "fullyphysicallybacked\":\"1\",\"" VM
                   "computetopology.memory.allowovercommit\":\"false\"");

    ASSERT_STR(o.cpu_group, "fast");
    ASSERT_STR(o.kernel_args, "nosmt");
    ASSERT(o.backed && o.committed && !o.deferred);
    ASSERT(!taken("*", "\"" VM "computetopology.memory.allowovercommit\":\"true\"").committed);
    ASSERT(!taken("", "\"" VM "fullyphysicallybacked\":\"1\"").backed);
    sbuf_adds(&text, "\"" VM "cpugroup.id\":\"");
    for (int i = 0; i < 65; i++)
        sbuf_addc(&text, 'a');
    sbuf_addc(&text, '"');
    refused(text.data, ERR_INVALID, "must be 0–64 bytes");
}

TEST(a_later_container_cannot_change_settings_of_the_vm)
{
    static const char text[] =
        "\"" VM "cpugroup.id\":\"fast\",\"" VM "computetopology.processor.limit\":\"5\"";
    struct annotations first = taken("*", text), same = taken("*", text), none = taken("*", ""),
                       other = taken("*", "\"" VM "computetopology.processor.limit\":\"6\""),
                       flag = taken("*", "\"" VM "fullyphysicallybacked\":\"1\"");
    struct err err = ERR_INIT;

    ASSERT_OK(annotations_contradiction(&first, &same, &err), err);
    ASSERT_OK(annotations_contradiction(&first, &none, &err), err);
    ASSERT_FAIL(annotations_contradiction(&first, &other, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "processor.limit");
    ASSERT_FAIL(annotations_contradiction(&first, &flag, &err), err, ERR_STATE);
}

/* Every name of docs/reference/host.md §17.3 to §17.6, in its order. */
static const char *const originals[] = {
    VM "computetopology.processor.count",
    VM "computetopology.processor.limit",
    VM "computetopology.processor.weight",
    VM "cpugroup.id",
    VM "resource-partition-id",
    VM "computetopology.memory.sizeinmb",
    VM "computetopology.memory.allowovercommit",
    VM "computetopology.memory.enabledeferredcommit",
    VM "computetopology.memory.enablecolddiscardhint",
    VM "computetopology.memory.lowmmiogapinmb",
    VM "computetopology.memory.highmmiobaseinmb",
    VM "computetopology.memory.highmmiogapinmb",
    VM "fullyphysicallybacked",
    VM "computetopology.processor.numa.max-processors-per-node",
    VM "computetopology.processor.numa.max-size-per-node",
    VM "computetopology.numa.preferred-physical-nodes",
    VM "computetopology.numa.mapped-physical-nodes",
    VM "computetopology.numa.count-of-processors",
    VM "computetopology.numa.count-of-memory-blocks",
    VM "storageqos.iopsmaximum",
    VM "storageqos.bandwidthmaximum",
    VM "bootfilesrootpath",
    VM "lcow.kerneldirectboot",
    VM "lcow.preferredrootfstype",
    VM "lcow.kernelbootoptions",
    VM "lcow.vpcienabled",
    VM "lcow.timesync.disable",
    VM "lcow.writable-overlay-directories",
    VM "lcow.extra-exec-command-args",
    "io.microsoft.container.processdumplocation",
    VM "lcow.dmverity-mode",
    VM "lcow.dmverity-create-args",
    VM "devices.virtualpmem.maximumcount",
    VM "fileshares.disablewritable",
    VM "storage.scratch.encrypted",
    VM "lcow.network.policybasedrouting",
    VM "console.pipe",
    VM "hv-socket.service-table.12345678-facb-11e6-bd58-64006a7986d3",
    VM "lcow.extra-vsock-ports",
    VM "lcow.securitypolicy",
    VM "lcow.enforcer",
    VM "lcow.uvm-reference-info-file",
    VM "uvm-hash-envelope-reference-info-file",
    VM "no_security_hardware",
    VM "lcow.gueststatefile",
    VM "lcow.dmverity-rootfs-vhd",
    VM "lcow.hcl-enabled",
    "io.microsoft.migration.support-enabled",
    "io.kubernetes.cri.container-type",
    "io.kubernetes.cri.sandbox-id",
    VM "lcow.privileged",
    "io.microsoft.migration.source-container-id",
    "io.microsoft.lcow.rlimitcore",
    "io.microsoft.lcow.shm.size-kb",
    VM "lcow.hostnetwork",
    "io.microsoft.container.lcow.tee-log-path",
    "io.microsoft.container.lcow.tee-log-dir-mount",
    VM "lcow.securitypolicy.env",
    "io.microsoft.container.gpu.capabilities",
    "io.microsoft.cri.skip-pod-networking",
    "io.microsoft.cri.virtual-pod-id",
    "io.microsoft.cri.tenant-sandbox-id",
    VM "dump-directory-path",
    VM "devices.virtualpmem.maximumsizebytes",
    VM "lcow.amd-certificate",
    "io.microsoft.lcow.gpuvhdpath",
    "io.microsoft.network.ncproxy.containerid",
    "io.microsoft.container.memory.sizeinmb",
    "io.microsoft.container.processor.count",
    "io.microsoft.container.processor.limit",
    "io.microsoft.container.processor.weight",
    "io.microsoft.container.storage.qos.iopsmaximum",
    "io.microsoft.container.storage.qos.bandwidthmaximum",
    "io.microsoft.network.ncproxy",
    VM "lcow.vpmem.nomultimapping",
    VM "kerneldrivers",
    "io.microsoft.disable-unsafe-operations",
    "io.microsoft.container.wcow.gmsa.disable",
    VM "wcow.virtualSMB.nodirectmap",
    "microsoft.com/disable-hostprocess-container",
    "microsoft.com/hostprocess-container",
};

TEST(every_annotation_of_hcsshim_has_a_verdict)
{
    for (size_t i = 0; i < ARRAY_LEN(originals); i++)
        ASSERT_STR(annotations_verdict(originals[i]) ? "" : originals[i], "");
    ASSERT(annotations_verdict("io.microsoft.unheard-of") == NULL);
}

/* A misspelled name in the table would never match. */
TEST(every_name_in_the_table_is_hcsshims_or_ours)
{
    AUTO(sbuf_release) struct sbuf page = { 0 };

    annotations_print_markdown(&page);
    for (char *at = strstr(page.data, "\n| `"); at; at = strstr(at + 1, "\n| `")) {
        AUTO_FREE char *name = str_ndup(at + 4, strcspn(at + 4, "`"));
        bool known = str_starts(name, "io.lcow."), many = str_ends(name, "*");

        for (size_t i = 0; i < ARRAY_LEN(originals) && !known; i++)
            known = many ? strncmp(originals[i], name, strlen(name) - 1) == 0
                         : str_eq(originals[i], name);
        ASSERT_STR(known ? "" : name, "");
    }
}

TEST(ignored_annotations_are_removed_from_the_spec)
{
    AUTO(config_release) struct config c;
    AUTO(spec_free)
    struct spec *s = spec_with("\"" VM "lcow.enforcer\":\"rego\","
                               "\"io.microsoft.container.memory.sizeinmb\":\"x\"",
                               "");
    struct annotations o;
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT_OK(annotations_read(&c, s, &o, &err), err);
    ASSERT(!spec_annotation(s, VM "lcow.enforcer"));
    ASSERT(!spec_annotation(s, "io.microsoft.container.memory.sizeinmb"));
}

TEST(a_sandbox_forbids_its_containers_writable_shares)
{
    AUTO(spec_free)
    struct spec *rw = spec_with("", "{\"destination\":\"/a\",\"type\":\"bind\","
                                    "\"source\":\"/host/a\",\"options\":[\"rbind\"]}"),
                *none = spec_with("", "");
    struct annotations o = taken("", "");
    struct err err = ERR_INIT;

    ASSERT_OK(annotations_restrict(none, &o, &err), err);
    ASSERT(o.no_writable_shares && o.rootfs == CONFIG_ROOTFS_SCRATCH);
    ASSERT_FAIL(annotations_restrict(rw, &o, &err), err, ERR_PERMISSION);
}

TEST(default_annotations_apply_to_containers_without_them)
{
    AUTO(config_release) struct config c;
    AUTO(spec_free) struct spec *s = spec_with("\"io.lcow.cpus\":\"2\"", "");
    AUTO(spec_free) struct spec *same = spec_copy(s);
    struct annotations o;
    struct err err = ERR_INIT;

    config_init(&c);
    strv_add(&c.default_annotations, "io.lcow.cpus=4");
    strv_add(&c.default_annotations, "io.lcow.memory_mib=512");
    for (int i = 0; i < 2; i++) { /* a container's own value takes effect only if it is allowed */
        ASSERT_OK(annotations_read(&c, s, &o, &err), err);
        ASSERT_EQ(o.cpus, 4);
        ASSERT_EQ(o.memory_mib, 512);
    }
    free(c.allow_annotations);
    c.allow_annotations = str_dup("io.lcow.cpus");
    ASSERT_OK(annotations_read(&c, same, &o, &err), err);
    ASSERT_EQ(o.cpus, 2);
    ASSERT_EQ(o.memory_mib, 512);
}

TEST(names_for_allow_annotations_are_checked)
{
    const char *near = NULL;

    ASSERT(annotations_known("io.lcow.cpus", 12, &near));
    ASSERT(annotations_known("io.lcow.*", 9, &near));
    ASSERT(!annotations_known("io.lcow.cpu", 11, &near));
    ASSERT_STR(near, "io.lcow.cpus");
    ASSERT(!annotations_known("com.example.*", 13, &near));
}
