#include "fixture/ttrpc_read.h"
#include "fixture/ttrpc_vectors.h"
#include "harness/tap.h"
#include <errno.h>
#include <string.h>

#define TASK_V2 "containerd.task.v2.Task"
#define TASK_V3 "containerd.task.v3.Task"
#define EVENTS "containerd.services.events.ttrpc.v1.Events"
#define STREAMING "containerd.services.streaming.v1.Streaming"
#define NAMESPACE_KEY "containerd-namespace-ttrpc"
#define SLICE(b) ((struct pb_slice){ (const uint8_t *)(b).data, (b).len })
#define BYTES(s) ((struct pb_slice){ (const uint8_t *)(s), sizeof(s) - 1 })

static struct ttrpc_frame load(const char *name, struct vector *v)
{
    struct ttrpc_frame f;
    size_t used;

    *v = vector_load(name);
    ASSERT_EQ(ttrpc_frame_decode(v->bytes, v->len, &f, &used), 0);
    ASSERT_EQ(used, v->len);
    return f;
}

/* The frame with this body is the vector. */
static void same_frame(const char *name, uint32_t stream, uint8_t type, uint8_t flags,
                       struct pb_slice body)
{
    uint8_t out[256];

    ASSERT(body.len <= sizeof(out) - TTRPC_HEADER_BYTES);
    ttrpc_header_encode(&(struct ttrpc_header){ (uint32_t)body.len, stream, type, flags }, out);
    if (body.len)
        memcpy(out + TTRPC_HEADER_BYTES, body.data, body.len);
    vector_same(name, out, TTRPC_HEADER_BYTES + body.len);
}

/* One request vector: the bytes give these fields, the fields give the bytes. */
static void request_vector(const char *name, uint32_t stream, uint8_t flags, const char *service,
                           const char *method, size_t payload_len, int64_t timeout, bool ns)
{
    AUTO(sbuf_release) struct sbuf metadata = { 0 }, body = { 0 };
    struct ttrpc_request r;
    struct pb_slice value;
    struct vector v;
    struct ttrpc_frame f = load(name, &v);

    ASSERT_EQ(f.stream, stream);
    ASSERT_EQ(f.type, TTRPC_REQUEST);
    ASSERT_EQ(f.flags, flags);
    ASSERT_EQ(ttrpc_request_decode(f.body, &r), 0);
    ASSERT(pb_slice_is(r.service, service));
    ASSERT(pb_slice_is(r.method, method));
    ASSERT_EQ(r.payload.len, payload_len);
    ASSERT_EQ(r.timeout_nano, timeout);
    ASSERT_EQ(ttrpc_metadata_get(f.body, "Containerd-Namespace-TTRPC", &value), ns);
    if (ns) {
        ASSERT(pb_slice_is(value, "default"));
        ttrpc_put_metadata(&metadata, NAMESPACE_KEY, "default");
    }
    r.metadata = SLICE(metadata);
    ttrpc_put_request(&body, &r);
    same_frame(name, stream, TTRPC_REQUEST, flags, SLICE(body));
}

TEST(request_vectors_in_both_directions)
{
    request_vector("T1", 1, 0, TASK_V2, "Connect", 4, 0, true);
    request_vector("T3", 3, 0, TASK_V3, "Kill", 8, 10000000000, true);
    request_vector("T7", 1, 0, EVENTS, "Forward", 96, 5000000000, true);
    request_vector("T8", 1, TTRPC_OPEN, STREAMING, "Stream", 0, 0, false);
}

static void response_vector(const char *name, uint32_t stream, uint32_t code, const char *message,
                            size_t payload_len)
{
    AUTO(sbuf_release) struct sbuf body = { 0 };
    struct ttrpc_response r;
    struct vector v;
    struct ttrpc_frame f = load(name, &v);

    ASSERT_EQ(f.stream, stream);
    ASSERT_EQ(f.type, TTRPC_RESPONSE);
    ASSERT_EQ(f.flags, 0);
    ASSERT_EQ(ttrpc_response_decode(f.body, &r), 0);
    ASSERT_EQ(r.code, code);
    ASSERT(pb_slice_is(r.message, message));
    ASSERT_EQ(r.payload.len, payload_len);
    ttrpc_put_response(&body, &r);
    same_frame(name, stream, TTRPC_RESPONSE, 0, SLICE(body));
}

TEST(response_vectors_in_both_directions)
{
    response_vector("T2", 1, 0, "", 6);
    response_vector("T4", 3, 0, "", 0);
    response_vector("T5", 5, 5, "process already finished: not found", 0);
    response_vector("T6", 7, 12, "service containerd.task.v9.Task", 0);
}

TEST(data_vectors_in_both_directions)
{
    static const struct {
        const char *name;
        size_t len;
        uint8_t flags;
    } data[] = { { "T9", 58, 0 },
                 { "T10", 0, 0 },
                 { "T11", 46, 0 },
                 { "T12", 39, 0 },
                 { "T13", 0, TTRPC_CLOSED | TTRPC_NO_DATA } };

    for (size_t i = 0; i < ARRAY_LEN(data); i++) {
        struct vector v;
        struct ttrpc_frame f = load(data[i].name, &v);

        ASSERT_EQ(f.stream, 1);
        ASSERT_EQ(f.type, TTRPC_DATA);
        ASSERT_EQ(f.flags, data[i].flags);
        ASSERT_EQ(f.body.len, data[i].len);
        same_frame(data[i].name, f.stream, f.type, f.flags, f.body);
    }
}

TEST(unknown_fields_are_skipped_in_any_order_and_the_last_wins)
{
    /* 9: fixed64, 2: "Old", 12: bytes, 4: varint 5, 10: fixed32, 2: "New", 1 as a varint, 1: "S" */
    static const char body[] = "\x49"
                               "12345678"
                               "\x12\x03Old"
                               "\x62\x02xx"
                               "\x20\x05"
                               "\x55"
                               "1234"
                               "\x12\x03New"
                               "\x08\x07"
                               "\x0a\x01S";
    struct ttrpc_request r;

    ASSERT_EQ(ttrpc_request_decode(BYTES(body), &r), 0);
    ASSERT(pb_slice_is(r.service, "S"));
    ASSERT(pb_slice_is(r.method, "New"));
    ASSERT_EQ(r.timeout_nano, 5);
}

TEST(a_negative_timeout_takes_ten_bytes)
{
    AUTO(sbuf_release) struct sbuf body = { 0 };
    struct ttrpc_request r = { .timeout_nano = -4 }, again;

    ttrpc_put_request(&body, &r);
    ASSERT_EQ(body.len, 11);
    ASSERT_EQ(ttrpc_request_decode(SLICE(body), &again), 0);
    ASSERT_EQ(again.timeout_nano, -4);
}

TEST(broken_envelopes_are_refused)
{
    static const struct pb_slice bad[] = {
        BYTES("\x0a"),                                             /* no length */
        BYTES("\x0a\x05xx"),                                       /* cut off */
        BYTES("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),     /* a length of 2^64 - 1 */
        BYTES("\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), /* eleven bytes */
        BYTES("\x00\x00"),                                         /* field 0 */
        BYTES("\x0b\x0c"),                                         /* a group */
        BYTES("\x0e"),                                             /* wire type 6 */
        BYTES("\x49"
              "1234567"),      /* seven of eight bytes */
        BYTES("\x0a\x01\xff"), /* service is not UTF-8 */
        BYTES("\x12\x02M\0"),  /* a NUL */
    };
    struct ttrpc_request r;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (ttrpc_request_decode(bad[i], &r) != -EBADMSG)
            tap_fail(__FILE__, __LINE__, "body %zu was taken", i);
}

TEST(a_success_may_have_an_explicit_code_0)
{
    static const char body[] = "\x0a\x02\x08\x00\x12\x01x";
    struct ttrpc_response r;

    ASSERT_EQ(ttrpc_response_decode(BYTES(body), &r), 0);
    ASSERT_EQ(r.code, 0);
    ASSERT_EQ(r.payload.len, 1);
}

TEST(an_error_carries_its_reason_and_a_success_does_not)
{
    struct ttrpc_response out = { .code = 5, .reason = pb_slice_of("NOT_FOUND") }, in;
    AUTO(sbuf_release) struct sbuf failed = { 0 }, done = { 0 };

    ttrpc_put_response(&failed, &out);
    ASSERT_EQ(ttrpc_response_decode(SLICE(failed), &in), 0);
    ASSERT(pb_slice_is(in.reason, "NOT_FOUND"));
    out.code = 0;
    ttrpc_put_response(&done, &out);
    ASSERT_EQ(done.len, 0);
}

TEST(a_status_message_becomes_valid_text_of_bounded_length)
{
    AUTO(sbuf_release) struct sbuf text = { 0 }, body = { 0 };
    struct ttrpc_response r;

    sbuf_add(&text, "a\xff\0b\xe2\x80", 6);
    for (int i = 0; i < 4000; i++)
        sbuf_adds(&text, "ü");
    ttrpc_put_response(&body, &(struct ttrpc_response){ .code = 5, .message = SLICE(text) });
    ASSERT_EQ(ttrpc_response_decode(SLICE(body), &r), 0);
    ASSERT_EQ(r.message.len, TTRPC_MESSAGE_MAX);
    ASSERT(memcmp(r.message.data, "a??b??ü", 8) == 0);
    ASSERT(pb_text_ok(r.message));
}
