/* Responses: HRESULTs as errors and back, and the promise that no frame of the guest is too long.
 */
#include "base/err.h"
#include "harness/tap.h"
#include "proto/bridge_priv.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIXED_ID "6e7f3f0c-4a57-4c55-9d2c-0b1f6b9f2a10"

static char *repeated(const char *unit, size_t times)
{
    struct sbuf b = { 0 };

    for (size_t i = 0; i < times; i++)
        sbuf_adds(&b, unit);
    return sbuf_take(&b);
}

/* Encodes, checks the frame against the limit, decodes again. */
static struct bridge_response through(const struct bridge_response *r, uint32_t max,
                                      size_t *ret_size)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_response got = { 0 };
    struct bridge_header h = { 0 };
    struct err err = ERR_INIT;

    bridge_response_encode(r, 3, max, &out);
    ASSERT_OK(bridge_header_decode((uint8_t *)out.data, BRIDGE_SIDE_HOST, max, &h, &err), err);
    ASSERT_EQ(h.size, out.len);
    ASSERT_EQ(h.id, 3);
    ASSERT_OK(bridge_response_decode(r->type, out.data + BRIDGE_HEADER_BYTES,
                                     out.len - BRIDGE_HEADER_BYTES, &got, &err),
              err);
    *ret_size = out.len;
    return got;
}

TEST(an_err_carries_its_hresult_through_wrapping_and_over_the_wire)
{
    struct bridge_request req = { .type = BRIDGE_SIGNAL_PROCESS, .activity_id = FIXED_ID };
    struct bridge_response resp = bridge_response_for(&req);
    struct err err = ERR_INIT;
    size_t size;

    ASSERT_EQ(bridge_err(&err, BRIDGE_HR_NOT_FOUND, "process %u", 77u), -1);
    err_wrap(&err, "signal");
    err_blame(&err, REASON_NOT_FOUND);
    ASSERT_EQ(err.code, ERR_NOT_FOUND);
    bridge_response_fail(&resp, &err);
    AUTO(bridge_response_release)
    struct bridge_response got = through(&resp, BRIDGE_MAX_RESPONSE, &size);
    ASSERT_EQ(got.result, BRIDGE_HR_NOT_FOUND);
    ASSERT_STR(got.activity_id, FIXED_ID);
    ASSERT_MSG(got.error_message, "signal: process 77");
    ASSERT_EQ(reason_parse(got.reason), REASON_NOT_FOUND);
}

TEST(an_err_without_hresult_is_a_plain_failure)
{
    struct err err = ERR_INIT;

    err_sys(&err, ENOENT, "open");
    ASSERT_EQ(bridge_hr(&err), BRIDGE_HR_FAIL);
    err_set(&err, ERR_DEADLINE, "late");
    ASSERT_EQ(bridge_hr(&err), BRIDGE_HR_FAIL);
}

TEST(every_hresult_becomes_a_code)
{
    static const struct {
        uint32_t hr;
        enum err_code code;
    } cases[] = {
        { BRIDGE_HR_NOT_IMPLEMENTED, ERR_UNIMPLEMENTED },
        { BRIDGE_HR_FAIL, ERR_UNKNOWN },
        { BRIDGE_HR_INVALID_ARGUMENT, ERR_INVALID },
        { BRIDGE_HR_INVALID_STATE, ERR_STATE },
        { BRIDGE_HR_HOST_INVALID_STATE, ERR_STATE },
        { BRIDGE_HR_TIMEOUT, ERR_DEADLINE },
        { BRIDGE_HR_INVALID_JSON, ERR_INVALID },
        { BRIDGE_HR_NO_CONTAINER, ERR_NOT_FOUND },
        { BRIDGE_HR_CONTAINER_EXISTS, ERR_EXISTS },
        { BRIDGE_HR_NOT_RUNNING, ERR_STATE },
        { 0x80370110, ERR_UNKNOWN },
        { 1, ERR_UNKNOWN }, /* a success code other than 0 */
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = ERR_INIT;

        ASSERT_FAIL(bridge_err(&err, cases[i].hr, "refused"), err, cases[i].code);
        ASSERT(err.sys < 0); /* never an errno */
    }
}

TEST(a_result_must_be_a_signed_number)
{
    AUTO(bridge_response_release) struct bridge_response r = { 0 };
    static const char unsigned_result[] = "{\"Result\":3224830222}";
    static const char signed_result[] = "{\"Result\":-1070137074}";
    struct err err = ERR_INIT;

    ASSERT_FAIL(
        bridge_response_decode(BRIDGE_START, unsigned_result, strlen(unsigned_result), &r, &err),
        err, ERR_INVALID);
    ASSERT_OK(bridge_response_decode(BRIDGE_START, signed_result, strlen(signed_result), &r, &err),
              err);
    ASSERT_EQ(r.result, BRIDGE_HR_NO_CONTAINER);
}

TEST(an_activity_id_that_is_not_a_guid_is_not_sent)
{
    static const char *const bad[] = { "",
                                       "x",
                                       "6e7f3f0c-4a57-4c55-9d2c-0b1f6b9f2a1",
                                       "6e7f3f0c-4a57-4c55-9d2c-0b1f6b9f2a100",
                                       "6e7f3f0cx4a57-4c55-9d2c-0b1f6b9f2a10",
                                       "6e7f3f0c-4a57-4c55-9d2c-0b1f6b9f2a1g" };
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO(sbuf_release) struct sbuf out = { 0 }, sent = { 0 };
        struct bridge_notification n = { .container_id = "c", .activity_id = bad[i], .type = "T" };

        bridge_response_encode(
            &(struct bridge_response){ .type = BRIDGE_START, .activity_id = bad[i] }, 0,
            BRIDGE_MAX_RESPONSE, &out);
        ASSERT_STR(out.data + BRIDGE_HEADER_BYTES, "{\"Result\":0}");
        ASSERT_OK(bridge_notification_encode(&n, &sent, &err), err);
        ASSERT_HAS(sent.data + BRIDGE_HEADER_BYTES, "\"ActivityId\":\"" BRIDGE_NULL_ID "\"");
    }
    ASSERT(bridge_is_guid("6E7F3F0C-4A57-4c55-9d2c-0b1f6b9f2a10"));
}

TEST(a_failure_has_no_keys_of_its_message)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    bridge_response_encode(&(struct bridge_response){ .type = BRIDGE_EXECUTE_PROCESS,
                                                      .result = BRIDGE_HR_FAIL,
                                                      .process_id = 7 },
                           0, BRIDGE_MAX_RESPONSE, &out);
    ASSERT(!strstr(out.data + BRIDGE_HEADER_BYTES, "ProcessId"));
}

TEST(empty_properties_are_an_empty_object)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    bridge_response_encode(&(struct bridge_response){ .type = BRIDGE_GET_PROPERTIES }, 0,
                           BRIDGE_MAX_RESPONSE, &out);
    ASSERT_STR(out.data + BRIDGE_HEADER_BYTES, "{\"Result\":0,\"Properties\":\"{}\"}");
}

/* What a byte costs differs widely: plain, escaped twice, six times, not UTF-8 at all. */
static const char *const units[] = {
    "a", "\"\\", "<&>", "\n\x01", "é€😀", "\xff\xc3", "\xe2\x80\xa8"
};

TEST(long_error_texts_are_cut_and_the_frame_uses_its_room)
{
    static const uint32_t limits[] = { 1024, 4096, BRIDGE_MAX_RESPONSE };

    for (size_t i = 0; i < ARRAY_LEN(units) * ARRAY_LEN(limits); i++) {
        AUTO_FREE char *text = repeated(units[i % ARRAY_LEN(units)], 100000);
        uint32_t max = limits[i / ARRAY_LEN(units)];
        size_t size;
        AUTO(bridge_response_release)
        struct bridge_response got =
            through(&(struct bridge_response){ .type = BRIDGE_MODIFY_SETTINGS,
                                               .activity_id = FIXED_ID,
                                               .result = BRIDGE_HR_FAIL,
                                               .error_message = text },
                    max, &size);

        ASSERT(size > max - 64);
        ASSERT_EQ(got.result, BRIDGE_HR_FAIL);
        ASSERT(str_ends(got.error_message, BRIDGE_CUT));
        ASSERT_STR(got.activity_id, FIXED_ID);
    }
}

TEST(an_error_text_that_just_fits_is_whole)
{
    size_t size = 0;

    for (size_t n = 32600; n < 32700; n++) {
        AUTO_FREE char *text = repeated("x", n);
        AUTO(bridge_response_release)
        struct bridge_response got = through(&(struct bridge_response){ .type = BRIDGE_START,
                                                                        .result = BRIDGE_HR_FAIL,
                                                                        .error_message = text },
                                             BRIDGE_MAX_RESPONSE, &size);
        bool cut = str_ends(got.error_message, BRIDGE_CUT);

        ASSERT(cut || strlen(got.error_message) == n);
        if (cut) {
            ASSERT(n > 32600); /* shorter ones came through whole */
            return;
        }
    }
    tap_fail(__FILE__, __LINE__, "nothing was cut");
}

TEST(long_stacks_are_cut_and_the_frame_uses_its_room)
{
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        AUTO_FREE char *text = repeated(units[i], 100000);
        size_t size, kept;
        AUTO(bridge_response_release)
        struct bridge_response got =
            through(&(struct bridge_response){ .type = BRIDGE_DUMP_STACKS, .stacks = text },
                    BRIDGE_MAX_RESPONSE, &size);

        ASSERT(size > BRIDGE_MAX_RESPONSE - 64);
        ASSERT_EQ(got.result, BRIDGE_HR_OK);
        ASSERT(str_ends(got.stacks, BRIDGE_CUT));
        kept = strlen(got.stacks) - strlen(BRIDGE_CUT);
        if (i != 5) /* what is not UTF-8 comes back as U+FFFD */
            ASSERT(strncmp(got.stacks, text, kept) == 0);
    }
}

TEST(long_properties_become_a_failure_with_their_size)
{
    AUTO_FREE char *text = repeated("\"", 40000);
    size_t size;
    AUTO(bridge_response_release)
    struct bridge_response got =
        through(&(struct bridge_response){ .type = BRIDGE_GET_PROPERTIES, .properties = text },
                BRIDGE_MAX_RESPONSE, &size);

    ASSERT_EQ(got.result, BRIDGE_HR_FAIL);
    ASSERT_HAS(got.error_message, "too long for a frame");
}

TEST(a_long_process_list_loses_its_end_and_stays_json)
{
    AUTO_FREE struct bridge_process *processes = mem_zalloc(100000 * sizeof(*processes));
    struct bridge_properties p = { .processes = processes, .n_processes = 100000 };
    AUTO_FREE char *text = NULL;
    AUTO(bridge_properties_release) struct bridge_properties got = { 0 };
    struct err err = ERR_INIT;
    size_t size;

    for (uint32_t i = 0; i < 100000; i++)
        processes[i].pid = UINT32_MAX - i;
    text = bridge_properties_encode(&p);
    AUTO(bridge_response_release)
    struct bridge_response r = through(&(struct bridge_response){ .type = BRIDGE_GET_PROPERTIES,
                                                                  .activity_id = FIXED_ID,
                                                                  .properties = text },
                                       BRIDGE_MAX_RESPONSE, &size);
    ASSERT_EQ(r.result, BRIDGE_HR_OK);
    ASSERT(size > BRIDGE_MAX_RESPONSE - 256);
    ASSERT_OK(bridge_properties_decode(r.properties, &got, &err), err);
    ASSERT(got.n_processes > 2000 && got.n_processes < 100000);
    for (size_t i = 0; i < got.n_processes; i++)
        ASSERT_EQ(got.processes[i].pid, processes[i].pid);
}

TEST(details_of_a_process_are_optional)
{
    static const char plain[] = "{\"ProcessList\":[{\"ProcessId\":355},{\"ProcessId\":388}]}";
    static const char full[] =
        "{\"ProcessList\":[{\"ProcessId\":388,\"Leader\":355,\"Name\":\"sleep\",\"AgeMs\":1,"
        "\"UserMs\":2,\"KernelMs\":3,\"DataKiB\":4,\"PrivateKiB\":5,\"SharedKiB\":6}]}";
    AUTO(bridge_properties_release) struct bridge_properties a = { 0 }, b = { 0 };
    AUTO_FREE char *again_a = NULL, *again_b = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(bridge_properties_decode(plain, &a, &err), err);
    ASSERT_EQ(a.n_processes, 2);
    ASSERT_EQ(a.processes[1].pid, 388);
    ASSERT_EQ(a.processes[1].leader, 0);
    ASSERT_STR(a.processes[1].name, "");
    ASSERT_STR(again_a = bridge_properties_encode(&a), plain);
    ASSERT_OK(bridge_properties_decode(full, &b, &err), err);
    ASSERT_EQ(b.processes[0].leader, 355);
    ASSERT_STR(b.processes[0].name, "sleep");
    ASSERT_EQ(b.processes[0].shared_kib, 6);
    ASSERT_STR(again_b = bridge_properties_encode(&b), full);
}

TEST(a_process_list_with_names_that_grow_stays_within_the_frame)
{
    AUTO_FREE struct bridge_process *processes = mem_zalloc(4096 * sizeof(*processes));
    struct bridge_properties p = { .processes = processes, .n_processes = 4096 };
    AUTO_FREE char *text = NULL;
    struct err err = ERR_INIT;
    size_t size;

    for (uint32_t i = 0; i < 4096; i++)
        processes[i] =
            (struct bridge_process){ .pid = i + 1, .name = i < 100 ? "a" : "\"\\\"\\\"\\\"\\\"<>" };
    text = bridge_properties_encode(&p);
    AUTO(bridge_response_release)
    struct bridge_response r =
        through(&(struct bridge_response){ .type = BRIDGE_GET_PROPERTIES, .properties = text },
                BRIDGE_MAX_RESPONSE, &size);
    ASSERT_EQ(r.result, BRIDGE_HR_OK);
    AUTO(bridge_properties_release) struct bridge_properties got = { 0 };
    ASSERT_OK(bridge_properties_decode(r.properties, &got, &err), err);
    ASSERT(got.n_processes > 400);
    ASSERT(size > BRIDGE_MAX_RESPONSE - 4096); /* their mean length is that of all */
}

TEST(a_text_is_cut_between_characters)
{
    /* Two bytes of escaped room for each é; the mark takes nine. */
    for (size_t budget = 0; budget < 40; budget++) {
        AUTO_FREE char *cut = bridge_text_cut("éééééééééé", budget);
        size_t len = strlen(cut);

        if (budget >= 20) {
            ASSERT_EQ(len, 20);
            continue;
        }
        ASSERT(str_ends(cut, BRIDGE_CUT));
        ASSERT_EQ((len - strlen(BRIDGE_CUT)) % 2, 0);
        ASSERT(len <= budget || len == strlen(BRIDGE_CUT));
    }
}

TEST(a_notification_that_is_too_long_is_refused)
{
    AUTO_FREE char *id = repeated("x", BRIDGE_MAX_RESPONSE);
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct err err = ERR_INIT;

    ASSERT_FAIL(bridge_notification_encode(
                    &(struct bridge_notification){ .container_id = id, .type = "T" }, &out, &err),
                err, ERR_EXHAUSTED);
    ASSERT_EQ(out.len, 0);
}

TEST(a_response_to_an_unknown_message_is_read_by_its_base)
{
    AUTO(bridge_response_release) struct bridge_response r = { 0 };
    static const char text[] = "{\"Result\":-2147467263,\"ErrorMessage\":\"no\"}";
    struct err err = ERR_INIT;

    ASSERT_OK(bridge_response_decode(0x10101001, text, strlen(text), &r, &err), err);
    ASSERT_EQ(r.result, BRIDGE_HR_NOT_IMPLEMENTED);
    ASSERT_STR(r.error_message, "no");
}
