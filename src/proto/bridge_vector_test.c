/* Each vector of docs/reference/gcs-protocol.md §10 in both directions: the struct below gives
 * exactly the bytes of the file, and the bytes give exactly the struct. */
#include "base/err.h"
#include "base/fd.h"
#include "harness/tap.h"
#include "proto/bridge_priv.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_5A "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
#define ID_C7 "c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7"
#define NET_NS "6e7f3f0c-4a57-4c55-9d2c-0b1f6b9f2a10"
#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const char pause_spec[] =
    "{\"ociVersion\":\"1.0.2\",\"process\":{\"user\":{\"uid\":0,\"gid\":0},\"args\":[\"/pause\"],"
    "\"env\":[\"PATH=/usr/bin:/bin\"],\"cwd\":\"/\"},\"root\":{\"path\":\"/run/gcs/c/" ID_5A
    "/rootfs\",\"readonly\":true},\"hostname\":\"pod0\",\"mounts\":[{\"destination\":\"/proc\","
    "\"type\":\"proc\",\"source\":\"proc\"}],\"annotations\":{"
    "\"io.kubernetes.cri.container-type\":\"sandbox\",\"io.kubernetes.cri.sandbox-id\":\"" ID_5A
    "\"},\"linux\":{\"resources\":{},\"namespaces\":[{\"type\":\"pid\"},{\"type\":\"ipc\"},"
    "{\"type\":\"uts\"},{\"type\":\"mount\"},{\"type\":\"network\"}]},\"windows\":{\"network\":{"
    "\"networkNamespace\":\"" NET_NS "\"}}}";

static const char exec_process[] =
    "{\"terminal\":true,\"user\":{\"uid\":1000,\"gid\":1000},\"args\":[\"/bin/sh\",\"-c\","
    "\"echo hi && exec sh\"],\"env\":[\"PATH=/usr/bin:/bin\",\"TERM=xterm\"],\"cwd\":\"/\"}";

static const char metrics_text[] =
    "{\"LCOWMetrics\":{\"pids\":{\"current\":2,\"limit\":18446744073709551615},\"cpu\":{\"usage\":{"
    "\"total\":51234000,\"kernel\":20100000,\"user\":31134000},\"throttling\":{}},\"memory\":{"
    "\"cache\":4096,\"rss\":1048576,\"hierarchical_memory_limit\":268435456,\"usage\":{\"limit\":"
    "268435456,\"usage\":1155072,\"max\":2203648},\"swap\":{},\"kernel\":{\"usage\":32768},"
    "\"kernel_tcp\":{}},\"blkio\":{},\"rdma\":{},\"memory_oom_control\":{}}}";

/* --- files ------------------------------------------------------------------------------------ */

struct vector {
    uint8_t *bytes;
    size_t len;
    uint32_t crc;
};

static void vector_release_auto(struct vector *v)
{
    free(v->bytes);
}

static uint32_t crc32_of(const uint8_t *p, size_t len)
{
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

/* Lines that begin with '#' are comments; one of them has the checksum. */
static void vector_load(const char *name, struct vector *ret)
{
    AUTO_FREE char *path = str_format("%s/%s.hex", VECTOR_DIR, name), *text = NULL;
    size_t len;
    char *save = NULL;

    ASSERT_EQ(file_read_all(path, 1 << 20, &text, &len), 0);
    *ret = (struct vector){ .bytes = mem_alloc(len) };
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *crc = strstr(line, "crc32 ");

        if (line[0] == '#') {
            if (crc)
                ret->crc = (uint32_t)strtoul(crc + 6, NULL, 16);
            continue;
        }
        for (unsigned byte; *line; line += 2) {
            line += strspn(line, " ");
            ASSERT_EQ(sscanf(line, "%2x", &byte), 1);
            ret->bytes[ret->len++] = (uint8_t)byte;
        }
    }
}

/* --- comparing structs -------------------------------------------------------------------------
 */

static bool fields_equal(const struct bridge_schema *schema, const void *a, const void *b);

static bool strings_equal(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static bool lists_equal(const char *const *a, const char *const *b)
{
    static const char *const none[] = { NULL };

    a = a ? a : none;
    b = b ? b : none;
    while (*a && *b && strcmp(*a, *b) == 0)
        a++, b++;
    return !*a && !*b;
}

static bool modify_equal(const struct bridge_request *a, const struct bridge_request *b)
{
    const struct bridge_schema *settings = bridge_resources[a->modify.resource].settings;

    return a->modify.resource == b->modify.resource && a->modify.action == b->modify.action &&
           (!settings || fields_equal(settings, a, b));
}

static bool arrays_equal(const struct bridge_field *f, const char *a, const char *b)
{
    size_t n = *(const size_t *)(a + f->count_offset);
    const char *x = *(const char *const *)(a + f->offset),
               *y = *(const char *const *)(b + f->offset);

    if (n != *(const size_t *)(b + f->count_offset))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!fields_equal(f->sub, x + i * f->sub->size, y + i * f->sub->size))
            return false;
    return true;
}

static bool field_equal(const struct bridge_field *f, const void *a, const void *b)
{
    const void *x = (const char *)a + f->offset, *y = (const char *)b + f->offset;
    static const size_t sizes[] = { [BF_BOOL] = sizeof(bool),
                                    [BF_U8] = 1,
                                    [BF_U16] = 2,
                                    [BF_U32] = 4,
                                    [BF_U64] = 8,
                                    [BF_I32] = 4,
                                    [BF_HR] = 4,
                                    [BF_FIXED] = 0 };

    switch ((enum bridge_field_kind)f->kind) {
    case BF_STR:
        return strings_equal(*(const char *const *)x, *(const char *const *)y);
    case BF_STRS:
    case BF_MAP:
        return lists_equal(*(const char *const *const *)x, *(const char *const *const *)y);
    case BF_JSON:
        return *(json_t *const *)x == *(json_t *const *)y ||
               json_equal(*(json_t *const *)x, *(json_t *const *)y);
    case BF_OBJ:
    case BF_TEXT:
    case BF_QUERY:
        return fields_equal(f->sub, a, b);
    case BF_ARRAY:
        return arrays_equal(f, a, b);
    case BF_MODIFY:
        return modify_equal(a, b);
    default:
        return memcmp(x, y, sizes[f->kind]) == 0;
    }
}

static bool fields_equal(const struct bridge_schema *schema, const void *a, const void *b)
{
    for (size_t i = 0; i < schema->n_fields; i++)
        if (!field_equal(&schema->fields[i], a, b))
            tap_fail(__FILE__, __LINE__, "%s differs", schema->fields[i].key);
    return true;
}

/* --- both ways ----------------------------------------------------------------------------------
 */

static struct bridge_header load_frame(const char *name, enum bridge_side receiver, uint32_t type,
                                       uint64_t id, struct vector *v)
{
    struct bridge_header h = { 0 };
    uint8_t again[BRIDGE_HEADER_BYTES];
    struct err err = ERR_INIT;

    vector_load(name, v);
    ASSERT_EQ(crc32_of(v->bytes, v->len), v->crc);
    ASSERT_OK(bridge_header_decode(v->bytes, receiver, BRIDGE_MAX_RESPONSE, &h, &err), err);
    ASSERT_EQ(h.type, type);
    ASSERT_EQ(h.id, id);
    ASSERT_EQ(h.size, v->len);
    bridge_header_encode(&h, again);
    ASSERT(memcmp(again, v->bytes, sizeof(again)) == 0);
    return h;
}

static void assert_bytes(const struct sbuf *got, const struct vector *want)
{
    if (got->len != want->len || memcmp(got->data, want->bytes, want->len) != 0)
        tap_fail(__FILE__, __LINE__, "encoded %zu bytes, expected %zu: %.*s", got->len, want->len,
                 (int)(got->len - BRIDGE_HEADER_BYTES), got->data + BRIDGE_HEADER_BYTES);
}

static void request_both_ways(const char *name, const struct bridge_request *want, uint64_t id)
{
    AUTO(vector_release) struct vector v = { 0 };
    AUTO(bridge_request_release) struct bridge_request got = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_request base = *want;
    struct err err = ERR_INIT;

    load_frame(name, BRIDGE_SIDE_GUEST, want->type, id, &v);
    ASSERT_OK(bridge_request_encode(want, id, &out, &err), err);
    assert_bytes(&out, &v);

    ASSERT_OK(bridge_request_decode(want->type, v.bytes + BRIDGE_HEADER_BYTES,
                                    v.len - BRIDGE_HEADER_BYTES, &got, &err),
              err);
    base.activity_id = BRIDGE_NULL_ID;
    ASSERT_EQ(got.type, want->type);
    ASSERT(fields_equal(&bridge_request_base, &got, &base));
    ASSERT(fields_equal(bridge_message_find(want->type)->request, &got, want));
}

static void response_both_ways(const char *name, const struct bridge_response *response,
                               uint64_t id)
{
    AUTO(vector_release) struct vector v = { 0 };
    AUTO(bridge_response_release) struct bridge_response got = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_response want = *response;
    uint32_t type = bridge_response_type(want.type);
    struct err err = ERR_INIT;

    want.activity_id = BRIDGE_NULL_ID;
    load_frame(name, BRIDGE_SIDE_HOST, type, id, &v);
    bridge_response_encode(&want, id, BRIDGE_MAX_RESPONSE, &out);
    assert_bytes(&out, &v);

    ASSERT_OK(bridge_response_decode(want.type, v.bytes + BRIDGE_HEADER_BYTES,
                                     v.len - BRIDGE_HEADER_BYTES, &got, &err),
              err);
    ASSERT_EQ(got.type, type);
    ASSERT(fields_equal(&bridge_response_base, &got, &want));
    if (want.result == BRIDGE_HR_OK)
        ASSERT(fields_equal(bridge_message_find(type)->reply, &got, &want));
}

static json_t *parse(const char *text)
{
    struct err err = ERR_INIT;
    json_t *json = NULL;

    ASSERT_OK(js_parse(text, strlen(text), 1 << 20, &json, &err), err);
    return json;
}

/* --- the vectors ---------------------------------------------------------------------------------
 */

TEST(vector_negreq)
{
    request_both_ways("NEGREQ",
                      &(struct bridge_request){ .type = BRIDGE_NEGOTIATE_PROTOCOL,
                                                .negotiate = { .minimum = 4, .maximum = 4 } },
                      0);
}

TEST(vector_negresp)
{
    response_both_ways(
        "NEGRESP",
        &(struct bridge_response){ .type = BRIDGE_NEGOTIATE_PROTOCOL,
                                   .negotiate = { .version = 4,
                                                  .caps = { .os = "Linux",
                                                            .namespace_add = true,
                                                            .signal_process = true,
                                                            .dump_stacks = true,
                                                            .delete_container_state = true } } },
        0);
}

static struct bridge_request modify(enum bridge_action action, enum bridge_resource resource)
{
    return (struct bridge_request){ .type = BRIDGE_MODIFY_SETTINGS,
                                    .container_id = BRIDGE_NULL_ID,
                                    .modify = { .action = action, .resource = resource } };
}

TEST(vector_netadd)
{
    struct bridge_request r = modify(BRIDGE_ADD, BRIDGE_RES_NETWORK);
    struct guest_ip ip = { "10.240.0.7", 24 };
    struct guest_route route = { .destination = "0.0.0.0/0", .next_hop = "10.240.0.1" };

    r.modify.network = (struct bridge_network){
        .namespace_id = NET_NS,
        .id = "9a1d5c7e-2b34-4f60-8a9b-1c2d3e4f5a6b",
        .mac = "00-15-5D-0A-14-1E",
        .dns_search = "default.svc.cluster.local,svc.cluster.local",
        .dns_servers = "10.0.0.10",
        .ips = &ip,
        .n_ips = 1,
        .routes = &route,
        .n_routes = 1,
    };
    request_both_ways("NETADD", &r, 1);
}

TEST(vector_mvdro)
{
    struct bridge_request r = modify(BRIDGE_ADD, BRIDGE_RES_MAPPED_VIRTUAL_DISK);

    r.modify.disk = (struct guest_disk){
        .mount_path = "/run/mounts/scsi/m0", .lun = 1, .read_only = true, .options = LIST("ro")
    };
    request_both_ways("MVDRO", &r, 2);
}

TEST(vector_ok)
{
    response_both_ways("OK", &(struct bridge_response){ .type = BRIDGE_MODIFY_SETTINGS }, 2);
}

TEST(vector_mvdrw)
{
    struct bridge_request r = modify(BRIDGE_ADD, BRIDGE_RES_MAPPED_VIRTUAL_DISK);

    r.modify.disk = (struct guest_disk){
        .mount_path = "/run/gcs/c/" ID_5A, .lun = 2, .ensure_filesystem = true, .filesystem = "ext4"
    };
    request_both_ways("MVDRW", &r, 3);
}

TEST(vector_cl)
{
    struct bridge_request r = modify(BRIDGE_ADD, BRIDGE_RES_COMBINED_LAYERS);
    struct bridge_layer layer = { .path = "/run/mounts/scsi/m0" };

    r.modify.layers =
        (struct bridge_layers){ .container_id = ID_5A,
                                .root_path = "/run/gcs/c/" ID_5A "/rootfs",
                                .layers = &layer,
                                .n_layers = 1,
                                .scratch_path = "/run/gcs/c/" ID_5A "/scratch/" ID_5A };
    request_both_ways("CL", &r, 4);
}

TEST(vector_create)
{
    AUTO(json_decref) json_t *spec = parse(pause_spec);

    request_both_ways("CREATE",
                      &(struct bridge_request){
                          .type = BRIDGE_CREATE,
                          .container_id = ID_5A,
                          .create = { .schema = { 2, 1 },
                                      .bundle_path = "/run/gcs/c/" ID_5A,
                                      .spec = spec,
                                      .scratch_path = "/run/gcs/c/" ID_5A "/scratch/" ID_5A } },
                      5);
}

TEST(vector_createresp)
{
    response_both_ways("CREATERESP", &(struct bridge_response){ .type = BRIDGE_CREATE }, 5);
}

TEST(vector_start)
{
    request_both_ways("START",
                      &(struct bridge_request){ .type = BRIDGE_START, .container_id = ID_5A }, 6);
}

TEST(vector_execinit)
{
    request_both_ways(
        "EXECINIT",
        &(struct bridge_request){ .type = BRIDGE_EXECUTE_PROCESS,
                                  .container_id = ID_5A,
                                  .exec = { .want_out = true,
                                            .want_err = true,
                                            .ports = { .out = 1073741825, .err = 1073741826 } } },
        7);
}

TEST(vector_execresp)
{
    response_both_ways(
        "EXECRESP", &(struct bridge_response){ .type = BRIDGE_EXECUTE_PROCESS, .process_id = 312 },
        7);
}

TEST(vector_wait)
{
    request_both_ways(
        "WAIT",
        &(struct bridge_request){ .type = BRIDGE_WAIT_FOR_PROCESS,
                                  .container_id = ID_5A,
                                  .wait = { .pid = 312, .timeout_ms = BRIDGE_WAIT_FOREVER } },
        8);
}

TEST(vector_exec)
{
    AUTO(json_decref) json_t *process = parse(exec_process);

    request_both_ways(
        "EXEC",
        &(struct bridge_request){ .type = BRIDGE_EXECUTE_PROCESS,
                                  .container_id = ID_C7,
                                  .exec = { .want_in = true,
                                            .want_out = true,
                                            .oci_process = process,
                                            .ports = { .in = 1073741829, .out = 1073741830 } } },
        21);
}

TEST(vector_resize)
{
    request_both_ways("RESIZE",
                      &(struct bridge_request){ .type = BRIDGE_RESIZE_CONSOLE,
                                                .container_id = ID_C7,
                                                .resize = { .pid = 388, .rows = 40, .cols = 120 } },
                      23);
}

TEST(vector_signal)
{
    request_both_ways("SIGNAL",
                      &(struct bridge_request){ .type = BRIDGE_SIGNAL_PROCESS,
                                                .container_id = ID_C7,
                                                .signal = { .pid = 388, .signal = 15 } },
                      24);
}

TEST(vector_err)
{
    struct bridge_response r = { .type = BRIDGE_SIGNAL_PROCESS,
                                 .result = BRIDGE_HR_NO_CONTAINER,
                                 .error_message = "HRESULT: 0xc037010e" };

    response_both_ways("ERR", &r, 24);
}

TEST(vector_err_is_made_from_the_code_alone)
{
    AUTO(vector_release) struct vector v = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };

    vector_load("ERR", &v);
    bridge_response_encode(&(struct bridge_response){ .type = BRIDGE_SIGNAL_PROCESS,
                                                      .activity_id = BRIDGE_NULL_ID,
                                                      .result = BRIDGE_HR_NO_CONTAINER },
                           24, BRIDGE_MAX_RESPONSE, &out);
    assert_bytes(&out, &v);
}

TEST(vector_getp)
{
    request_both_ways("GETP",
                      &(struct bridge_request){ .type = BRIDGE_GET_PROPERTIES,
                                                .container_id = ID_C7,
                                                .query = { LIST(BRIDGE_PROPERTY_STATISTICS) } },
                      25);
}

TEST(vector_getpresp)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };
    AUTO_FREE char *again = NULL;
    struct err err = ERR_INIT;

    response_both_ways(
        "GETPRESP",
        &(struct bridge_response){ .type = BRIDGE_GET_PROPERTIES, .properties = metrics_text }, 25);
    /* The text itself, through its struct: a number above 2^63 stays what it is. */
    ASSERT_OK(bridge_properties_decode(metrics_text, &p, &err), err);
    again = bridge_properties_encode(&p);
    ASSERT_STR(again, metrics_text);
}

TEST(vector_waitresp)
{
    response_both_ways(
        "WAITRESP", &(struct bridge_response){ .type = BRIDGE_WAIT_FOR_PROCESS, .exit_code = 137 },
        8);
}

TEST(vector_ntf)
{
    AUTO(vector_release) struct vector v = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_notification want = { .container_id = ID_5A,
                                        .activity_id = BRIDGE_NULL_ID,
                                        .type = BRIDGE_NOTIFY_FORCED_EXIT };
    struct err err = ERR_INIT;

    load_frame("NTF", BRIDGE_SIDE_HOST, BRIDGE_CONTAINER_NOTIFICATION, 0, &v);
    ASSERT_OK(bridge_notification_encode(&want, &out, &err), err);
    assert_bytes(&out, &v);
}

TEST(vector_ext)
{
    request_both_ways(
        "EXT",
        &(struct bridge_request){ .type = BRIDGE_EXECUTE_PROCESS,
                                  .container_id = BRIDGE_NULL_ID,
                                  .exec = { .args = LIST("/bin/ls", "-l", "/run/gcs"),
                                            .cwd = "/",
                                            .env = LIST("PATH=/usr/sbin:/usr/bin:/sbin:/bin"),
                                            .want_out = true,
                                            .ports = { .out = 1073741831 } } },
        26);
}

TEST(vector_scsirm)
{
    struct bridge_request r = modify(BRIDGE_REMOVE, BRIDGE_RES_SCSI_DEVICE);

    r.modify.scsi_device.lun = 1;
    request_both_ways("SCSIRM", &r, 31);
}

TEST(vector_del)
{
    request_both_ways(
        "DEL",
        &(struct bridge_request){ .type = BRIDGE_DELETE_CONTAINER_STATE, .container_id = ID_5A },
        32);
}

/* --- negative vectors
 * ----------------------------------------------------------------------------- */

static int decode_bad(const char *name, enum bridge_side side, struct bridge_header *ret,
                      struct err *err)
{
    AUTO(vector_release) struct vector v = { 0 };

    vector_load(name, &v);
    ASSERT_EQ(v.len, BRIDGE_HEADER_BYTES);
    return bridge_header_decode(v.bytes, side, BRIDGE_MAX_RESPONSE, ret, err);
}

TEST(vector_of_size_15_is_refused_by_both_sides)
{
    struct bridge_header h;
    struct err err = ERR_INIT;

    ASSERT_FAIL(decode_bad("BAD_SIZE15", BRIDGE_SIDE_HOST, &h, &err), err, ERR_INVALID);
    ASSERT_FAIL(decode_bad("BAD_SIZE15", BRIDGE_SIDE_GUEST, &h, &err), err, ERR_INVALID);
}

TEST(vector_of_size_65537_is_refused_with_the_limit_of_hcsshim)
{
    struct bridge_header h;
    struct err err = ERR_INIT;

    ASSERT_FAIL(decode_bad("BAD_SIZE65537", BRIDGE_SIDE_HOST, &h, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "65537");
}

TEST(vector_with_an_empty_payload_has_a_good_header_and_no_json)
{
    AUTO(bridge_response_release) struct bridge_response r = { 0 };
    struct bridge_header h;
    struct err err = ERR_INIT;

    ASSERT_OK(decode_bad("BAD_EMPTY", BRIDGE_SIDE_HOST, &h, &err), err);
    ASSERT_EQ(h.id, 999);
    ASSERT_FAIL(bridge_response_decode(BRIDGE_MODIFY_SETTINGS, "", 0, &r, &err), err, ERR_INVALID);
}

TEST(vector_of_kind_4_is_refused_by_the_host_and_answered_by_the_guest)
{
    struct bridge_header h;
    struct err err = ERR_INIT;

    ASSERT_FAIL(decode_bad("BAD_KIND4", BRIDGE_SIDE_HOST, &h, &err), err, ERR_INVALID);
    ASSERT_OK(decode_bad("BAD_KIND4", BRIDGE_SIDE_GUEST, &h, &err), err);
    ASSERT_EQ(bridge_response_type(h.type), 0x20100101);
}
