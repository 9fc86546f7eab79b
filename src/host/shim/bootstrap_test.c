/* bootstrap_test.c - the command line, the forms of stdin and stdout, -info. */
#include "api/bootstrap.pb-c.h"
#include "api/runc.pb-c.h"
#include "api/runhcs.pb-c.h"
#include "api/runtimeoptions.pb-c.h"
#include "api/task.pb-c.h"
#include "api/types.pb-c.h"
#include "base/json.h"
#include "fixture/ttrpc_vectors.h"
#include "host/config/config.h"
#include "host/config/runhcs.h"
#include "host/files/rootfs.h"
#include "host/shim/bootstrap.h"
#include "host/shim/shim_priv.h"
#include "proto/pb.h"
#include <string.h>

#define ADDRESS                                                                                    \
    "unix:///run/containerd/s/d25aa4ef11a84e954e74a5bcff06557d0b6ea8d0c00243896f29826694bbd888"

static void parse(const char *vector, const char *ns, const char *id, struct bootstrap *b)
{
    struct vector v = vector_load(vector);
    struct err err = ERR_INIT;

    ASSERT_OK(bootstrap_parse(v.bytes, v.len, ns, id, b, &err), err);
}

TEST(B1_bootstrap_params_are_read)
{
    AUTO(bootstrap_release) struct bootstrap b = { 0 };

    parse("B1", "default", "c1", &b);
    ASSERT(b.params);
    ASSERT_STR(b.ttrpc_address, "/run/containerd/containerd.sock.ttrpc");
    ASSERT_STR(b.grpc_address, "/run/containerd/containerd.sock");
    ASSERT_STR(b.socket_dir, "/run/containerd/s");
    ASSERT(b.has_log_level);
    ASSERT_EQ(b.log_level, LOG_DEBUG);
    ASSERT(!b.config_path);
}

TEST(B1_for_another_id_is_not_the_new_form)
{
    AUTO(bootstrap_release) struct bootstrap b = { 0 };

    parse("B1", "default", "c2", &b);
    ASSERT(!b.params);
    ASSERT(!b.ttrpc_address);
}

TEST(B2_result_is_written)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    bootstrap_answer(&(struct bootstrap){ .params = true }, "2", "", ADDRESS, &out);
    vector_same("B2", out.data, out.len);
}

TEST(B3_legacy_options_are_read)
{
    AUTO(bootstrap_release) struct bootstrap b = { 0 };

    parse("B3", "default", "c1", &b);
    ASSERT(!b.params);
    ASSERT_STR(b.config_path, "/etc/lcow.toml");
}

TEST(B4_delete_response_is_written)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    DeleteResponse r = DELETE_RESPONSE__INIT;
    Timestamp t = pb_time_of(UINT64_C(1700000000123456789));

    r.pid = 4343;
    r.exit_status = 137;
    r.exited_at = &t;
    ASSERT_EQ(pb_pack(&r, &out), 0);
    vector_same("B4", out.data, out.len);
}

static bool lists(const json_t *list, const char *word)
{
    const json_t *v;
    size_t i;

    json_array_foreach(list, i, v) if (str_eq(json_string_value(v), word)) return true;
    return false;
}

/* Decoded like containerd does; B5 is the answer of another runtime in the same format. */
TEST(B5_runtime_info_names_features_and_mounts_and_echoes_options)
{
    struct vector options = vector_load("B3"), other = vector_load("B5");
    AUTO(sbuf_release) struct sbuf out = { 0 }, again = { 0 };
    AUTO(pb_free) RuntimeInfo *m = NULL, *b5 = NULL;
    AUTO(json_decref) json_t *features = NULL;
    struct err err = ERR_INIT;

    ASSERT_EQ(pb_unpack(&runtime_info__descriptor, (struct pb_slice){ other.bytes, other.len },
                        PB_MEM_MAX, (void **)&b5, NULL),
              0);
    ASSERT_EQ(pb_pack(b5, &again), 0);
    vector_same("B5", again.data, again.len);
    shim_info((struct pb_slice){ options.bytes, options.len }, &out);
    ASSERT_EQ(pb_unpack(&runtime_info__descriptor,
                        (struct pb_slice){ (const uint8_t *)out.data, out.len }, PB_MEM_MAX,
                        (void **)&m, NULL),
              0);
    ASSERT_STR(m->name, b5->name);
    ASSERT_STR(m->version->version, LCOW_VERSION);
    ASSERT_STR(m->options->type_url, "runtimeoptions.v1.Options");
    ASSERT_STR(m->features->type_url,
               "types.containerd.io/opencontainers/runtime-spec/1/features/Features");
    ASSERT_OK(js_parse((const char *)m->features->value.data, m->features->value.len, 1 << 16,
                       &features, &err),
              err);
    /* The features that containerd and Docker check. */
    const json_t *l = js_get(features, "linux");
    ASSERT(lists(js_get(features, "mountOptions"), "rro"));
    ASSERT(lists(js_get(features, "mountOptions"), "rslave"));
    ASSERT(!lists(js_get(features, "mountOptions"), "rshared"));
    ASSERT_EQ(json_array_size(js_get(features, "hooks")), 4);
    ASSERT(lists(js_get(features, "hooks"), "createRuntime"));
    ASSERT(lists(js_get(l, "capabilities"), "CAP_SYS_ADMIN"));
    ASSERT(lists(js_get(js_get(l, "seccomp"), "archs"), "SCMP_ARCH_X86_64"));
    ASSERT(lists(js_get(l, "namespaces"), "user"));
    ASSERT(json_is_true(js_get(js_get(js_get(l, "mountExtensions"), "idmap"), "enabled")));
    ASSERT_EQ(m->n_annotations, 2);
    ASSERT_STR(m->annotations[0]->key, b5->annotations[0]->key);
    ASSERT_STR(m->annotations[0]->value, ROOTFS_ALLOW_MOUNTS);
    ASSERT_STR(m->annotations[1]->key, SHIM_SAVED_KEY);
}

TEST(ws03_older_containerd_and_its_options_are_understood)
{
    AUTO(pb_free) Any *any = NULL;
    AUTO(sbuf_release) struct sbuf bytes = { 0 };
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    Runhcs__Options o = RUNHCS__OPTIONS__INIT;
    struct err err = ERR_INIT;

    o.log_level = "warning";
    o.vm_memory_size_in_mb = 512;
    o.vm_processor_count = 2;
    o.boot_files_root_path = "/opt/image";
    o.scrub_case = RUNHCS__OPTIONS__SCRUB_SCRUB_LOGS;
    ASSERT_EQ(pb_set_any(&any, &o), 0);
    ASSERT_EQ(pb_pack(any, &bytes), 0);
    ASSERT_OK(bootstrap_parse(bytes.data, bytes.len, "n", "c", &b, &err), err);
    ASSERT_EQ(b.log_level, LOG_WARN);
    ASSERT_EQ(b.memory_mib, 512);
    ASSERT_EQ(b.cpus, 2);
    ASSERT_STR(b.image_dir, "/opt/image");
}

/* Encodes options like containerd's stdin of `start`, and applies them to the defaults. */
static int apply(const void *message, struct config *c, struct err *err)
{
    AUTO(pb_free) Any *any = NULL;
    AUTO(sbuf_release) struct sbuf bytes = { 0 };
    AUTO(bootstrap_release) struct bootstrap b = { 0 };

    config_init(c);
    ASSERT_EQ(pb_set_any(&any, message), 0);
    ASSERT_EQ(pb_pack(any, &bytes), 0);
    if (bootstrap_parse(bytes.data, bytes.len, "n", "c", &b, err) < 0)
        return -1;
    return bootstrap_apply(&b, c, err);
}

static int apply_body(const char *body, size_t len, struct config *c, struct err *err)
{
    Runtimeoptions__Options o = RUNTIMEOPTIONS__OPTIONS__INIT;

    o.config_body.data = (uint8_t *)body;
    o.config_body.len = len;
    return apply(&o, c, err);
}

TEST(the_options_table_of_containerds_configuration_is_read)
{
    static const char good[] = "[vm]\n  cpus = 3\n  rootfs = 'shared'\n";
    static const char bad[] = "cpu = 3\n";
    AUTO(config_release) struct config c, d, e;
    struct err err = ERR_INIT;

    ASSERT_OK(apply_body(good, strlen(good), &c, &err), err);
    ASSERT_EQ(c.cpus, 3);
    ASSERT(c.rootfs == CONFIG_ROOTFS_SHARED);
    ASSERT_FAIL(apply_body(bad, strlen(bad), &d, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "runtime options:1: unknown key cpu; did you mean cpus?");
    ASSERT_EQ(err.reason, REASON_INVALID_CONFIG);
    ASSERT_FAIL(apply_body("a\0b", 3, &e, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "contains a NUL byte");
}

TEST(hcsshims_options_change_the_configuration)
{
    Runhcs__Options o = RUNHCS__OPTIONS__INIT;
    Runhcs__Options__DefaultContainerAnnotationsEntry
        entry = RUNHCS__OPTIONS__DEFAULT_CONTAINER_ANNOTATIONS_ENTRY__INIT,
        *entries[] = { &entry };
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    entry.key = "io.lcow.cpus";
    entry.value = "4";
    o.sandbox_platform = "Linux/AMD64";
    o.boot_files_root_path = "/opt/image";
    o.vm_memory_size_in_mb = 512;
    o.vm_processor_count = 2;
    o.log_level = "trace";
    o.default_container_annotations = entries;
    o.n_default_container_annotations = 1;
    ASSERT_OK(apply(&o, &c, &err), err);
    ASSERT_EQ(c.memory_mib, 512);
    ASSERT_EQ(c.cpus, 2);
    ASSERT_STR(c.image_dir, "/opt/image");
    ASSERT_EQ(c.log_level, LOG_TRACE);
    ASSERT_EQ(c.default_annotations.n, 1);
    ASSERT_STR(c.default_annotations.v[0], "io.lcow.cpus=4");
}

TEST(an_unsupported_options_type_is_named)
{
    Any any = ANY__INIT;
    AUTO(sbuf_release) struct sbuf bytes = { 0 };
    struct bootstrap b = { 0 };
    struct err err = ERR_INIT;

    any.type_url = "type.googleapis.com/runsc.v1.Options";
    ASSERT_EQ(pb_pack(&any, &bytes), 0);
    ASSERT_FAIL(bootstrap_parse(bytes.data, bytes.len, "n", "c", &b, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "runsc.v1.Options");
    ASSERT_HAS(err.msg, "runtimeoptions.v1.Options");
}

TEST(an_extension_of_another_kind_is_ignored)
{
    Bootstrap__BootstrapParams p = BOOTSTRAP__BOOTSTRAP_PARAMS__INIT;
    Bootstrap__Extension x = BOOTSTRAP__EXTENSION__INIT, *xs[] = { &x };
    AUTO(sbuf_release) struct sbuf bytes = { 0 };
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    struct err err = ERR_INIT;
    Any any = ANY__INIT;

    any.type_url = "containerd.future.v1.Extension";
    x.value = &any;
    p.instance_id = "c";
    p.namespace_ = "n";
    p.extensions = xs;
    p.n_extensions = 1;
    ASSERT_EQ(pb_pack(&p, &bytes), 0);
    ASSERT_OK(bootstrap_parse(bytes.data, bytes.len, "n", "c", &b, &err), err);
    ASSERT(b.params);
}

static void refused(const Runhcs__Options *o, const char *part)
{
    AUTO(pb_free) Any *any = NULL;
    AUTO(sbuf_release) struct sbuf bytes = { 0 };
    struct bootstrap b = { 0 };
    struct err err = ERR_INIT;

    ASSERT_EQ(pb_set_any(&any, o), 0);
    ASSERT_EQ(pb_pack(any, &bytes), 0);
    ASSERT_FAIL(bootstrap_parse(bytes.data, bytes.len, "n", "c", &b, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, part);
}

TEST(invalid_values_in_options_of_this_runtime_are_named)
{
    Runhcs__Options level = RUNHCS__OPTIONS__INIT, memory = level, cpus = level, small = level,
                    platform = level, boot = level;

    level.log_level = "loud";
    memory.vm_memory_size_in_mb = -1;
    cpus.vm_processor_count = 1000;
    small.vm_memory_size_in_mb = 64;
    platform.sandbox_platform = "windows/amd64";
    boot.boot_files_root_path = "image";
    refused(&small, "vm_memory_size_in_mb 64 in the runtime options: must be 128–");
    refused(&platform, "sandbox_platform \"windows/amd64\"");
    refused(&boot, "boot_files_root_path \"image\"");
    refused(&level, "log_level \"loud\"");
    refused(&memory, "vm_memory_size_in_mb -1");
    refused(&cpus, "vm_processor_count 1000");
}

TEST(every_field_of_hcsshims_options_has_a_verdict)
{
    for (unsigned i = 0; i < runhcs__options__descriptor.n_fields; i++) {
        const char *name = runhcs__options__descriptor.fields[i].name;

        ASSERT_STR(runhcs_option(name) ? "" : name, "");
    }
}

static void options_of(const void *message, struct bootstrap *b)
{
    AUTO(pb_free) Any *any = NULL;
    struct err err = ERR_INIT;

    ASSERT_EQ(pb_set_any(&any, message), 0);
    ASSERT_OK(bootstrap_options(any, b, &err), err);
}

TEST(ignored_options_of_hcsshim_are_noted_and_unsupported_ones_refused)
{
    Runhcs__Options o = RUNHCS__OPTIONS__INIT, none = o, proxy = o;
    AUTO(bootstrap_release) struct bootstrap b = { 0 }, quiet = { 0 }, ignored = { 0 };
    AUTO(pb_free) Any *any = NULL;
    struct err err = ERR_INIT;

    o.io_retry_timeout_in_sec = 10;
    o.scrub_case = RUNHCS__OPTIONS__SCRUB_SCRUB_LOGS;
    o.registry_root = "x";
    options_of(&o, &b);
    ASSERT_EQ(b.notes.n, 2);
    ASSERT(b.has_scrub_logs && !b.scrub_logs);
    ASSERT_HAS(b.notes.v[0], "registry_root: ");
    ASSERT_HAS(b.notes.v[1], "io_retry_timeout_in_sec: ");
    options_of(&none, &quiet);
    ASSERT_EQ(quiet.notes.n, 0);
    proxy.ncproxyaddr = "tcp:x";
    ASSERT_EQ(pb_set_any(&any, &proxy), 0);
    ASSERT_FAIL(bootstrap_options(any, &ignored, &err), err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(err.msg,
               "NCProxyAddr in the runtime options: lcow does not support the network proxy");
}

static int merge(const void *start, const void *create, bool early, uint32_t *ret_memory,
                 struct err *err)
{
    AUTO(bootstrap_release) struct bootstrap have = { 0 }, more = { 0 };
    AUTO(config_release) struct config c;

    config_init(&c);
    options_of(start, &have);
    options_of(create, &more);

    int r = bootstrap_merge(&have, &more, early, &c, err);

    *ret_memory = c.memory_mib;
    return r;
}

TEST(options_of_a_create_equal_the_shims_or_are_applied_or_refused)
{
    Runhcs__Options none = RUNHCS__OPTIONS__INIT, some = none, other = none;
    uint32_t memory;
    struct err err = ERR_INIT;

    some.vm_memory_size_in_mb = 512;
    some.log_level = "debug";
    other.vm_memory_size_in_mb = 1024;
    ASSERT_OK(merge(&some, &some, false, &memory, &err), err);
    ASSERT_OK(merge(&some, &none, false, &memory, &err), err);
    ASSERT_OK(merge(&some, &other, true, &memory, &err), err);
    ASSERT_EQ(memory, 1024);
    ASSERT_FAIL(merge(&some, &other, false, &memory, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "vm_memory_size_in_mb in the runtime options differs from the value with "
                        "which this shim started its VM");
}

TEST(options_that_the_shim_itself_depends_on_cannot_change)
{
    static const char body[] = "[vm]\ncpus = 2\nmemory_mib = 512\n",
                      turned[] = "[vm]\nmemory_mib = 512\ncpus = 2\n", wrong[] = "cpus = 3\n";
    Runtimeoptions__Options start = RUNTIMEOPTIONS__OPTIONS__INIT, same = start, other = start,
                            path = start;
    Runc__Options runc = RUNC__OPTIONS__INIT, cgroup = runc;
    uint32_t c;
    struct err err = ERR_INIT;

    start.config_body = (ProtobufCBinaryData){ strlen(body), (uint8_t *)body };
    same.config_body = (ProtobufCBinaryData){ strlen(turned), (uint8_t *)turned };
    other.config_body = (ProtobufCBinaryData){ strlen(wrong), (uint8_t *)wrong };
    path.config_path = "/etc/other.conf";
    cgroup.shim_cgroup = "/x";
    ASSERT_OK(merge(&start, &same, false, &c, &err), err);
    ASSERT_FAIL(merge(&start, &other, true, &c, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "the options table");
    ASSERT_FAIL(merge(&start, &path, true, &c, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "ConfigPath in the runtime options differs from the value with which this "
                        "shim was started:");
    ASSERT_OK(merge(&start, &runc, true, &c, &err), err); /* clients send it to all runtimes */
    ASSERT_FAIL(merge(&start, &cgroup, true, &c, &err), err, ERR_STATE);
}

TEST(garbage_and_foreign_options_are_ignored)
{
    static const char *const texts[] = { "", "{\"version\":2}", "\n\xff\xff\xff\xff\x7f",
                                         "\x0a\x03" };
    AUTO(pb_free) Any *any = NULL;
    AUTO(sbuf_release) struct sbuf bytes = { 0 };
    Runc__Options o = RUNC__OPTIONS__INIT;
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        AUTO(bootstrap_release) struct bootstrap b = { 0 };

        ASSERT_OK(bootstrap_parse(texts[i], strlen(texts[i]), "n", "c", &b, &err), err);
        ASSERT(!b.params && !b.config_path);
    }
    o.binary_name = "runc";
    o.shim_cgroup = "/shims";
    ASSERT_EQ(pb_set_any(&any, &o), 0);
    ASSERT_EQ(pb_pack(any, &bytes), 0);

    AUTO(bootstrap_release) struct bootstrap b = { 0 };

    ASSERT_OK(bootstrap_parse(bytes.data, bytes.len, "n", "c", &b, &err), err);
    ASSERT_STR(b.shim_cgroup, "/shims");
}

TEST(a_socket_directory_that_is_too_long_or_relative_is_refused)
{
    static const char *const dirs[] = { "s", "/123456789012345678901234567890123456789012" };

    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        Bootstrap__BootstrapParams p = BOOTSTRAP__BOOTSTRAP_PARAMS__INIT;
        AUTO(sbuf_release) struct sbuf bytes = { 0 };
        struct bootstrap b = { 0 };
        struct err err = ERR_INIT;

        p.instance_id = "c";
        p.namespace_ = "n";
        p.socket_dir = dirs[i];
        ASSERT_EQ(pb_pack(&p, &bytes), 0);
        ASSERT_FAIL(bootstrap_parse(bytes.data, bytes.len, "n", "c", &b, &err), err, ERR_INVALID);
        ASSERT_HAS(err.msg, dirs[i]);
    }
}

TEST(each_containerd_version_gets_its_answer_format)
{
    const char *task = "/run/containerd/io.containerd.runtime.v2.task/default/c1";
    const char *sandbox = "/run/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io/p";
    struct bootstrap none = { 0 }, params = { .params = true };

    AUTO(sbuf_release) struct sbuf old = { 0 }, bare = { 0 }, json = { 0 }, result = { 0 };

    bootstrap_answer(&none, NULL, task, "unix:///s/x", &old); /* 1.6 */
    ASSERT_STR(old.data, "unix:///s/x");
    bootstrap_answer(&none, "2", task, "unix:///s/x", &bare); /* 1.7, 2.0 to 2.2 */
    ASSERT_STR(bare.data, "unix:///s/x");
    bootstrap_answer(&none, "2", sandbox, "unix:///s/x", &json); /* 2.0 to 2.2 */
    ASSERT_STR(json.data, "{\"version\":3,\"address\":\"unix:///s/x\",\"protocol\":\"ttrpc\"}");
    bootstrap_answer(&params, "2", task, "unix:///s/x", &result); /* 2.3 */
    ASSERT(result.data[0] == 8 && result.data[1] == 3);           /* the version, as protobuf */
}

static void address_is(const char *containerd, const char *want)
{
    AUTO_FREE char *got = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(bootstrap_address(NULL, containerd, "default", "c1", &got, &err), err);
    ASSERT_STR(got, want);
}

TEST(the_socket_has_the_name_of_the_reference_implementation)
{
    address_is("/run/containerd/containerd.sock", ADDRESS);
    address_is("/run//containerd/./x/../containerd.sock/", ADDRESS); /* joined cleanly */
}

TEST(a_socket_path_beyond_the_limit_is_refused)
{
    AUTO_FREE char *got = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(
        bootstrap_address("/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "/s", "n", "c", &got, &err),
        err, ERR_INVALID);
    ASSERT_OK(
        bootstrap_address("/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "/s", "n", "c", &got, &err),
        err);
}

TEST(flags_are_read_as_go_reads_them)
{
    char *argv[] = {
        "shim", "-namespace",    "n",  "--address=/a", "-publish-binary", "/c",     "-id",
        "c1",   "-debug-socket", "/d", "-debug",       "-bundle=/b",      "delete", "-x",
        NULL
    };
    char *bools[] = { "shim", "-debug=false", "--info=true", "-", NULL };
    struct shim_args a;
    struct err err = ERR_INIT;

    ASSERT_OK(shim_args_parse(argv, &a, &err), err);
    ASSERT_STR(a.ns, "n");
    ASSERT_STR(a.address, "/a");
    ASSERT_STR(a.id, "c1");
    ASSERT_STR(a.bundle, "/b");
    ASSERT_STR(a.action, "delete");
    ASSERT(a.debug && !a.info && !a.version);
    ASSERT_OK(shim_args_check(&a, &err), err);
    ASSERT_OK(shim_args_parse(bools, &a, &err), err);
    ASSERT(!a.debug && a.info);
    ASSERT_STR(a.action, "-");
}

TEST(wrong_flags_are_named)
{
    char *unknown[] = { "shim", "-nope", NULL }, *missing[] = { "shim", "-id", NULL };
    char *not_bool[] = { "shim", "-debug=maybe", NULL }, *empty[] = { NULL };
    struct shim_args a;
    struct err err = ERR_INIT;

    ASSERT_FAIL(shim_args_parse(unknown, &a, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "-nope");
    ASSERT_FAIL(shim_args_parse(missing, &a, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "-id");
    ASSERT_FAIL(shim_args_parse(not_bool, &a, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "maybe");
    ASSERT_OK(shim_args_parse(empty, &a, &err), err);
    ASSERT_FAIL(shim_args_check(&a, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "namespace cannot be empty");
}
