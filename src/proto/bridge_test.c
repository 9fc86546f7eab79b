/* The bridge codec beyond the vectors: limits, Go's JSON rules, HRESULTs, cutting. */
#include "base/err.h"
#include "base/fd.h"
#include "harness/tap.h"
#include "proto/bridge_priv.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define NULL_BASE "\"ContainerId\":\"c\",\"ActivityId\":\"" BRIDGE_NULL_ID "\""

static int decode(uint32_t type, const char *text, struct bridge_request *ret, struct err *err)
{
    return bridge_request_decode(type, text, strlen(text), ret, err);
}

/* Decodes, expects success. */
static struct bridge_request decoded(uint32_t type, const char *text)
{
    struct bridge_request r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(decode(type, text, &r, &err), err);
    return r;
}

/* Decodes, expects this HRESULT. */
static void assert_refused(uint32_t type, const char *text, uint32_t hr)
{
    AUTO(bridge_request_release) struct bridge_request r = { 0 };
    struct err err = ERR_INIT;

    if (decode(type, text, &r, &err) == 0)
        tap_fail(__FILE__, __LINE__, "accepted: %s", text);
    if (bridge_hr(&err) != hr)
        tap_fail(__FILE__, __LINE__, "0x%08x, expected 0x%08x: %s: %s", bridge_hr(&err), hr, text,
                 err.msg);
}

static const char *payload(const struct sbuf *frame)
{
    return frame->data + BRIDGE_HEADER_BYTES;
}

/* --- examples of the reference ------------------------------------------------------------------
 */

static char *next_example(char **save, uint32_t *type)
{
    char *line;

    do
        line = strtok_r(NULL, "\n", save);
    while (line && line[0] == '#');
    if (!line)
        return NULL;
    *type = (uint32_t)strtoul(line, &line, 16);
    return line + 1;
}

static char *load_examples(const char *file)
{
    AUTO_FREE char *path = str_format("%s/%s", VECTOR_DIR, file);
    char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(path, 1 << 20, &text, &len), 0);
    return text;
}

TEST(every_printed_request_survives_decode_and_encode)
{
    /* The shim never sends these; the guest decodes only what it needs to refuse them. */
    const unsigned never_sent = 1u << BRIDGE_RES_VPMEM_DEVICE | 1u << BRIDGE_RES_SECURITY_POLICY |
                                1u << BRIDGE_RES_SECURITY_POLICY_FRAGMENT;
    AUTO_FREE char *text = load_examples("requests.txt");
    char *save = NULL, *line = strtok_r(text, "\n", &save);
    struct err err = ERR_INIT;
    unsigned n = 0, resources = 0;
    uint32_t type;

    while ((line = next_example(&save, &type))) {
        AUTO(bridge_request_release) struct bridge_request r = { 0 };
        AUTO(sbuf_release) struct sbuf out = { 0 };
        AUTO_FREE char *want = str_format("%s\n", line);

        ASSERT_OK(decode(type, line, &r, &err), err);
        ASSERT_OK(bridge_request_encode(&r, n++, &out, &err), err);
        if (type != BRIDGE_MODIFY_SETTINGS || !(1u << r.modify.resource & never_sent))
            ASSERT_STR(payload(&out), want);
        if (type == BRIDGE_MODIFY_SETTINGS)
            resources |= 1u << r.modify.resource;
    }
    ASSERT_EQ(n, 31);
    ASSERT_EQ(resources, (1u << BRIDGE_RES_COUNT) - 1);
}

TEST(every_printed_response_survives_decode_and_encode)
{
    AUTO_FREE char *text = load_examples("responses.txt");
    char *save = NULL, *line = strtok_r(text, "\n", &save);
    struct err err = ERR_INIT;
    unsigned n = 0;
    uint32_t type;

    while ((line = next_example(&save, &type))) {
        AUTO(bridge_response_release) struct bridge_response r = { 0 };
        AUTO(sbuf_release) struct sbuf out = { 0 };

        ASSERT_OK(bridge_response_decode(type, line, strlen(line), &r, &err), err);
        bridge_response_encode(&r, n++, BRIDGE_MAX_RESPONSE, &out);
        ASSERT_STR(payload(&out), line);
    }
    ASSERT_EQ(n, 7);
}

/* --- frames --------------------------------------------------------------------------------------
 */

TEST(header_size_must_be_within_its_limits)
{
    static const struct {
        uint32_t size, max;
        bool ok;
    } cases[] = {
        { 0, BRIDGE_MAX_RECEIVE, false },
        { 15, BRIDGE_MAX_RECEIVE, false },
        { 16, BRIDGE_MAX_RECEIVE, true },
        { BRIDGE_MAX_RESPONSE, BRIDGE_MAX_RESPONSE, true },
        { BRIDGE_MAX_RESPONSE + 1, BRIDGE_MAX_RESPONSE, false },
        { BRIDGE_MAX_RESPONSE + 1, BRIDGE_MAX_RECEIVE, true },
        { BRIDGE_MAX_RECEIVE, BRIDGE_MAX_RECEIVE, true },
        { BRIDGE_MAX_RECEIVE + 1, BRIDGE_MAX_RECEIVE, false },
        { BRIDGE_MAX_REQUEST, BRIDGE_MAX_REQUEST, true },
        { BRIDGE_MAX_REQUEST + 1, BRIDGE_MAX_REQUEST, false },
        { UINT32_MAX, BRIDGE_MAX_REQUEST, false },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct bridge_header h = { 0x20100201, cases[i].size, UINT64_MAX - 1 }, got = { 0 };
        uint8_t bytes[BRIDGE_HEADER_BYTES];
        struct err err = ERR_INIT;

        bridge_header_encode(&h, bytes);
        for (unsigned side = BRIDGE_SIDE_HOST; side <= BRIDGE_SIDE_GUEST; side++) {
            if (!cases[i].ok) {
                ASSERT_FAIL(bridge_header_decode(bytes, side, cases[i].max, &got, &err), err,
                            ERR_INVALID);
                continue;
            }
            ASSERT_OK(bridge_header_decode(bytes, side, cases[i].max, &got, &err), err);
            ASSERT(got.type == h.type && got.size == h.size && got.id == h.id);
        }
    }
}

TEST(host_takes_responses_and_the_one_notification_only)
{
    static const struct {
        uint32_t type;
        bool ok;
    } cases[] = {
        { 0x20100101, true },  { 0x2fffffff, true },  { 0x30100101, true },  { 0x30100201, false },
        { 0x10100101, false }, { 0x00100101, false }, { 0x40100101, false }, { UINT32_MAX, false },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct bridge_header h = { cases[i].type, 16, 0 }, got;
        uint8_t bytes[BRIDGE_HEADER_BYTES];
        struct err err = ERR_INIT;

        bridge_header_encode(&h, bytes);
        ASSERT_EQ(bridge_header_decode(bytes, BRIDGE_SIDE_HOST, 64, &got, &err) == 0, cases[i].ok);
        ASSERT_OK(bridge_header_decode(bytes, BRIDGE_SIDE_GUEST, 64, &got, &err), err);
    }
}

TEST(messages_have_names)
{
    ASSERT_STR(bridge_message_name(BRIDGE_EXECUTE_PROCESS), "ExecuteProcess");
    ASSERT_STR(bridge_message_name(bridge_response_type(BRIDGE_CREATE)), "Create");
    ASSERT_STR(bridge_message_name(BRIDGE_CONTAINER_NOTIFICATION), "ContainerNotification");
    ASSERT_STR(bridge_message_name(0x10101001), "unknown");
    ASSERT_STR(bridge_message_name(0x40100101), "unknown");
    ASSERT_STR(bridge_resource_name(BRIDGE_RES_NETWORK), "Network");
}

TEST(request_beyond_the_limit_is_not_encoded)
{
    AUTO_FREE char *big = mem_alloc(BRIDGE_MAX_REQUEST);
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_request r = { .type = BRIDGE_START, .container_id = big };
    struct err err = ERR_INIT;
    struct bridge_header h;

    memset(big, 'x', BRIDGE_MAX_REQUEST);
    big[BRIDGE_MAX_REQUEST - 1] = '\0';
    ASSERT_FAIL(bridge_request_encode(&r, 0, &out, &err), err, ERR_EXHAUSTED);
    ASSERT_EQ(out.len, 0);
    big[BRIDGE_MAX_REQUEST - 200] = '\0';
    ASSERT_OK(bridge_request_encode(&r, 0, &out, &err), err);
    ASSERT_OK(
        bridge_header_decode((uint8_t *)out.data, BRIDGE_SIDE_GUEST, BRIDGE_MAX_REQUEST, &h, &err),
        err);
    ASSERT_EQ(h.size, out.len);
}

TEST(only_requests_are_encoded_as_requests)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct err err = ERR_INIT;

    ASSERT_FAIL(
        bridge_request_encode(&(struct bridge_request){ .type = 0x20100101 }, 0, &out, &err), err,
        ERR_INVALID);
    ASSERT_FAIL(
        bridge_request_encode(&(struct bridge_request){ .type = 0x10ffff01 }, 0, &out, &err), err,
        ERR_INVALID);
}

/* --- Go's JSON rules
 * ------------------------------------------------------------------------------- */

TEST(keys_match_in_any_letter_case_and_the_exact_one_wins)
{
    AUTO(bridge_request_release)
    struct bridge_request a = decoded(BRIDGE_WAIT_FOR_PROCESS,
                                      "{\"containerid\":\"x\",\"PROCESSID\":7,\"timeoutinms\":8}");
    AUTO(bridge_request_release)
    struct bridge_request b = decoded(BRIDGE_WAIT_FOR_PROCESS, "{\"ProcessId\":1,\"processid\":2}");

    ASSERT_STR(a.container_id, "x");
    ASSERT_EQ(a.wait.pid, 7);
    ASSERT_EQ(a.wait.timeout_ms, 8);
    ASSERT_EQ(b.wait.pid, 1);
}

TEST(null_leaves_the_default_and_unknown_keys_are_ignored)
{
    AUTO(bridge_request_release)
    struct bridge_request r =
        decoded(BRIDGE_WAIT_FOR_PROCESS,
                "{\"ContainerId\":null,\"ProcessId\":null,\"Other\":[{}],\"TimeoutInMs\":5}\n");

    ASSERT_STR(r.container_id, "");
    ASSERT_EQ(r.wait.pid, 0);
    ASSERT_EQ(r.wait.timeout_ms, 5);
}

TEST(the_last_duplicate_wins)
{
    AUTO(bridge_request_release)
    struct bridge_request r = decoded(BRIDGE_WAIT_FOR_PROCESS, "{\"ProcessId\":1,\"ProcessId\":2}");

    ASSERT_EQ(r.wait.pid, 2);
}

TEST(a_payload_of_null_is_an_empty_object)
{
    AUTO(bridge_request_release) struct bridge_request r = decoded(BRIDGE_START, "null");

    ASSERT_STR(r.container_id, "");
}

TEST(numbers_must_be_plain_integers_in_range)
{
    static const char *const bad[] = {
        "4.0", "1e3", "-1", "4294967296", "\"4\"", "true", "18446744073709551616"
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO_FREE char *text = str_format("{\"MinimumVersion\":%s}", bad[i]);

        assert_refused(BRIDGE_NEGOTIATE_PROTOCOL, text, BRIDGE_HR_INVALID_JSON);
    }
    assert_refused(BRIDGE_RESIZE_CONSOLE, "{\"Height\":65536}", BRIDGE_HR_INVALID_JSON);
}

TEST(what_is_not_an_object_is_invalid_json)
{
    static const char *const bad[] = { "",     "{",    "[]",   "1",      "\"x\"",
                                       "{}{}", "{} x", "\xff", "{\"a\"}" };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_refused(BRIDGE_START, bad[i], BRIDGE_HR_INVALID_JSON);
}

TEST(wrong_types_are_invalid_json_and_name_the_key)
{
    AUTO(bridge_request_release) struct bridge_request r = { 0 };
    struct err err = ERR_INIT;

    assert_refused(BRIDGE_START, "{\"ContainerId\":1}", BRIDGE_HR_INVALID_JSON);
    assert_refused(BRIDGE_EXECUTE_PROCESS, "{\"Settings\":[]}", BRIDGE_HR_INVALID_JSON);
    assert_refused(BRIDGE_EXECUTE_PROCESS,
                   "{\"Settings\":{\"ProcessParameters\":\"{\\\"CommandArgs\\\":[1]}\"}}",
                   BRIDGE_HR_INVALID_JSON);
    assert_refused(BRIDGE_EXECUTE_PROCESS,
                   "{\"Settings\":{\"ProcessParameters\":\"{\\\"Environment\\\":{\\\"A\\\":1}}\"}}",
                   BRIDGE_HR_INVALID_JSON);
    ASSERT_FAIL(decode(BRIDGE_RESIZE_CONSOLE, "{\"Width\":\"x\"}", &r, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "Width");
    ASSERT_HAS(err.msg, "ResizeConsole");
}

TEST(a_nul_inside_a_string_is_refused)
{
    assert_refused(BRIDGE_START, "{\"ContainerId\":\"a\\u0000b\"}", BRIDGE_HR_INVALID_JSON);
    assert_refused(
        BRIDGE_EXECUTE_PROCESS,
        "{\"Settings\":{\"ProcessParameters\":\"{\\\"CommandArgs\\\":[\\\"a\\\\u0000b\\\"]}\"}}",
        BRIDGE_HR_INVALID_JSON);
}

/* --- requests
 * ---------------------------------------------------------------------------------------- */

TEST(unknown_types_are_not_implemented_but_their_ids_are_read)
{
    static const uint32_t types[] = { BRIDGE_UPDATE_CONTAINER,
                                      BRIDGE_LIFECYCLE_NOTIFICATION,
                                      BRIDGE_MODIFY_SERVICE_SETTINGS,
                                      0x10101001,
                                      0x20100101,
                                      0x30100101,
                                      0x40100101,
                                      0 };

    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        AUTO(bridge_request_release) struct bridge_request r = { 0 };
        AUTO(sbuf_release) struct sbuf out = { 0 };
        struct bridge_response resp;
        struct err err = ERR_INIT;

        ASSERT_FAIL(decode(types[i], "{" NULL_BASE "}", &r, &err), err, ERR_UNIMPLEMENTED);
        ASSERT_EQ(bridge_hr(&err), BRIDGE_HR_NOT_IMPLEMENTED);
        ASSERT_STR(r.container_id, "c");
        resp = bridge_response_for(&r);
        bridge_response_fail(&resp, &err);
        bridge_response_encode(&resp, 9, BRIDGE_MAX_RESPONSE, &out);
        ASSERT_HAS(payload(&out), "{\"Result\":-2147467263,\"ActivityId\":\"" BRIDGE_NULL_ID "\"");
        ASSERT_EQ((uint8_t)out.data[3] >> 4, BRIDGE_KIND_RESPONSE);
        assert_refused(types[i], "rubbish", BRIDGE_HR_NOT_IMPLEMENTED);
    }
}

TEST(create_without_a_spec_or_with_an_old_schema_is_refused)
{
    static const char *const bad[] = {
        "{}",
        "{\"ContainerConfig\":\"\"}",
        "{\"ContainerConfig\":null}",
        "{\"ContainerConfig\":\"{\"}",
        "{\"ContainerConfig\":{}}",
        "{\"ContainerConfig\":\"{\\\"SchemaVersion\\\":{\\\"Major\\\":2,\\\"Minor\\\":1}}\"}",
        "{\"ContainerConfig\":\"{\\\"OciSpecification\\\":{}}\"}",
        ("{\"ContainerConfig\":\"{\\\"SchemaVersion\\\":{\\\"Major\\\":2},"
         "\\\"OciSpecification\\\":{}}\"}"),
        ("{\"ContainerConfig\":\"{\\\"SchemaVersion\\\":{\\\"Major\\\":2,\\\"Minor\\\":1},"
         "\\\"OciSpecification\\\":[]}\"}"),
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_refused(BRIDGE_CREATE, bad[i], BRIDGE_HR_INVALID_JSON);
}

TEST(exec_without_parameters_is_refused)
{
    assert_refused(BRIDGE_EXECUTE_PROCESS, "{}", BRIDGE_HR_INVALID_JSON);
    assert_refused(BRIDGE_EXECUTE_PROCESS, "{\"Settings\":null}", BRIDGE_HR_INVALID_JSON);
    assert_refused(BRIDGE_EXECUTE_PROCESS, "{\"Settings\":{\"ProcessParameters\":\"\"}}",
                   BRIDGE_HR_INVALID_JSON);
}

TEST(an_empty_query_asks_for_nothing)
{
    AUTO(bridge_request_release) struct bridge_request a = decoded(BRIDGE_GET_PROPERTIES, "{}");
    AUTO(bridge_request_release)
    struct bridge_request b = decoded(BRIDGE_GET_PROPERTIES, "{\"Query\":\"\"}");

    ASSERT(!a.query.types[0]);
    ASSERT(!b.query.types[0]);
    assert_refused(BRIDGE_GET_PROPERTIES, "{\"Query\":\"x\"}", BRIDGE_HR_INVALID_JSON);
}

TEST(exec_carries_everything_it_can)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    AUTO(bridge_request_release) struct bridge_request got = { 0 };
    struct bridge_request r = { .type = BRIDGE_EXECUTE_PROCESS,
                                .container_id = BRIDGE_NULL_ID,
                                .exec = { .command_line = "sh -c 'a < b'",
                                          .args = LIST("sh", "", "<&>"),
                                          .env = LIST("Z=1", "A=b=c", "EMPTY=", "BARE", "A=last"),
                                          .terminal = true,
                                          .in_vm = true } };
    struct err err = ERR_INIT;

    ASSERT_OK(bridge_request_encode(&r, 1, &out, &err), err);
    /* Inner texts escape < > &, keys of maps are sorted, the last duplicate stays. */
    ASSERT_HAS(payload(&out), "\\\"CommandLine\\\":\\\"sh -c 'a \\\\u003c b'\\\"");
    ASSERT_HAS(payload(&out), "\\\"Environment\\\":{\\\"A\\\":\\\"last\\\",\\\"BARE\\\":\\\"\\\","
                              "\\\"EMPTY\\\":\\\"\\\",\\\"Z\\\":\\\"1\\\"}");
    ASSERT_HAS(payload(&out), "\"VsockStdioRelaySettings\":{}");
    ASSERT_OK(decode(r.type, payload(&out), &got, &err), err);
    ASSERT_STR(got.exec.args[1], "");
    ASSERT_STR(got.exec.args[2], "<&>");
    ASSERT(!got.exec.args[3]);
    ASSERT_STR(got.exec.env[0], "A=last");
    ASSERT_STR(got.exec.env[3], "Z=1");
    ASSERT(got.exec.in_vm && got.exec.terminal && !got.exec.oci_process);
}

TEST(the_outer_text_of_the_host_leaves_html_alone_and_that_of_the_guest_does_not)
{
    AUTO(sbuf_release) struct sbuf host = { 0 }, guest = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(bridge_request_encode(
                  &(struct bridge_request){ .type = BRIDGE_START, .container_id = "<&>" }, 0, &host,
                  &err),
              err);
    ASSERT_HAS(payload(&host), "\"<&>\"");
    bridge_response_encode(&(struct bridge_response){ .type = BRIDGE_DUMP_STACKS, .stacks = "<&>" },
                           0, BRIDGE_MAX_RESPONSE, &guest);
    ASSERT_HAS(payload(&guest), "\"\\u003c\\u0026\\u003e\"");
}

TEST(a_signal_of_zero_is_left_out_and_read_back_as_zero)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    AUTO(bridge_request_release) struct bridge_request got = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(bridge_request_encode(
                  &(struct bridge_request){ .type = BRIDGE_SIGNAL_PROCESS, .signal = { .pid = 9 } },
                  0, &out, &err),
              err);
    ASSERT(!strstr(payload(&out), "Options"));
    ASSERT_OK(decode(BRIDGE_SIGNAL_PROCESS, payload(&out), &got, &err), err);
    ASSERT_EQ(got.signal.signal, 0);
    ASSERT_EQ(got.signal.pid, 9);
}

static void assert_modify_refused(const char *request, uint32_t hr)
{
    AUTO_FREE char *text = str_format("{" NULL_BASE ",\"Request\":%s}", request);

    assert_refused(BRIDGE_MODIFY_SETTINGS, text, hr);
}

TEST(modify_refuses_what_a_resource_does_not_have)
{
    assert_refused(BRIDGE_MODIFY_SETTINGS, "{" NULL_BASE "}", BRIDGE_HR_INVALID_JSON);
    assert_modify_refused("{}", BRIDGE_HR_FAIL);
    assert_modify_refused("{\"ResourceType\":\"network\",\"Settings\":{}}", BRIDGE_HR_FAIL);
    assert_modify_refused("{\"ResourceType\":\"HvSocket\",\"Settings\":{}}", BRIDGE_HR_FAIL);
    assert_modify_refused("{\"ResourceType\":\"Network\",\"RequestType\":\"Eat\",\"Settings\":{}}",
                          BRIDGE_HR_FAIL);
    assert_modify_refused("{\"ResourceType\":\"SCSIDevice\",\"Settings\":{}}", BRIDGE_HR_FAIL);
    assert_modify_refused(
        "{\"ResourceType\":\"VPCIDevice\",\"RequestType\":\"Remove\",\"Settings\":{}}",
        BRIDGE_HR_FAIL);
    assert_modify_refused("{\"ResourceType\":\"PodCgroupMemoryLimit\"}", BRIDGE_HR_FAIL);
    assert_modify_refused("{\"ResourceType\":\"Network\"}", BRIDGE_HR_INVALID_JSON);
    assert_modify_refused("{\"ResourceType\":\"Network\",\"Settings\":null}",
                          BRIDGE_HR_INVALID_JSON);
    assert_modify_refused("{\"ResourceType\":\"MappedVirtualDisk\",\"Settings\":{\"Lun\":256}}",
                          BRIDGE_HR_INVALID_JSON);
    assert_modify_refused("{\"ResourceType\":\"Network\",\"Settings\":{\"Routes\":[1]}}",
                          BRIDGE_HR_INVALID_JSON);
}

TEST(modify_without_a_request_type_adds_and_absent_settings_are_zero)
{
    AUTO(bridge_request_release)
    struct bridge_request r =
        decoded(BRIDGE_MODIFY_SETTINGS, "{" NULL_BASE ",\"Request\":{\"ResourceType\":\"Network\","
                                        "\"Settings\":{\"Routes\":[null,{\"NextHop\":\"a\"}]}}}");

    ASSERT_EQ(r.modify.action, BRIDGE_ADD);
    ASSERT_EQ(r.modify.resource, BRIDGE_RES_NETWORK);
    ASSERT_STR(r.modify.network.mac, "");
    ASSERT_EQ(r.modify.network.n_ips, 0);
    ASSERT(r.modify.network.ips);
    ASSERT_EQ(r.modify.network.n_routes, 2);
    ASSERT_STR(r.modify.network.routes[0].next_hop, "");
    ASSERT_STR(r.modify.network.routes[1].next_hop, "a");
}

/* {"SchemaVersion":…,"OciSpecification":{"a":[[[…]]]}} with this many brackets, as a payload. */
static char *deep_create(unsigned brackets)
{
    AUTO(sbuf_release) struct sbuf inner = { 0 };
    AUTO(jsw_release) struct jsw w = { 0 };

    sbuf_adds(&inner, "{\"SchemaVersion\":{\"Major\":2,\"Minor\":1},\"OciSpecification\":{\"a\":");
    for (unsigned i = 0; i < brackets; i++)
        sbuf_addc(&inner, '[');
    for (unsigned i = 0; i < brackets; i++)
        sbuf_addc(&inner, ']');
    sbuf_adds(&inner, "}}");
    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    jsw_str(&w, "ContainerConfig", inner.data);
    jsw_end_obj(&w);
    return jsw_take(&w, NULL);
}

TEST_FIBER(the_deepest_spec_that_is_accepted_fits_a_fibers_stack)
{
    AUTO_FREE char *deepest = deep_create(JS_MAX_DEPTH - 2),
                   *deeper = deep_create(JS_MAX_DEPTH - 1);
    AUTO(bridge_request_release) struct bridge_request r = decoded(BRIDGE_CREATE, deepest);
    AUTO(bridge_request_release) struct bridge_request again = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(bridge_request_encode(&r, 0, &out, &err), err);
    ASSERT_OK(decode(BRIDGE_CREATE, payload(&out), &again, &err), err);
    ASSERT(json_equal((json_t *)r.create.spec, (json_t *)again.create.spec));
    assert_refused(BRIDGE_CREATE, deeper, BRIDGE_HR_INVALID_JSON);
}
