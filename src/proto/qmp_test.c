#include "base/err.h"
#include "harness/tap.h"
#include "proto/qmp.h"
#include <string.h>

static const char stream_text[] =
    "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 3, \"minor\": 2, \"major\": 10}, \"package\": "
    "\"Debian 1:10.0.2\"}, \"capabilities\": [\"oob\"]}}\r\n"
    "{\"return\": {}, \"id\": 1}\r\n"
    "{\"timestamp\": {\"seconds\": 1763, \"microseconds\": 42}, \"event\": \"DEVICE_DELETED\", "
    "\"data\": {\"device\": \"}]\\\"{\\\\\", \"path\": \"/machine\"}}\r\n"
    "{\"id\": 18446744073709551615, \"error\": {\"class\": \"GenericError\", \"desc\": \"no "
    "[disk\"}}\n"
    "{\"return\": [{\"status\": \"running\"}, {}], \"id\": 2}";

static void check_message(const struct qmp_message *m, unsigned index)
{
    const char *device = NULL;
    struct err err = ERR_INIT;

    switch (index) {
    case 0:
        ASSERT_EQ(m->kind, QMP_GREETING);
        ASSERT(m->major == 10 && m->minor == 2 && m->micro == 3);
        break;
    case 1:
        ASSERT_EQ(m->kind, QMP_RETURN);
        ASSERT(m->has_id && m->id == 1 && json_is_object(m->data));
        break;
    case 2:
        ASSERT_EQ(m->kind, QMP_EVENT);
        ASSERT_STR(m->event, "DEVICE_DELETED");
        ASSERT_OK(js_str(m->data, "device", &device, &err), err);
        ASSERT_STR(device, "}]\"{\\");
        break;
    case 3:
        ASSERT_EQ(m->kind, QMP_ERROR);
        ASSERT(m->has_id && m->id == UINT64_MAX);
        ASSERT_STR(m->error_class, "GenericError");
        ASSERT_STR(m->error_desc, "no [disk");
        break;
    case 4:
        ASSERT_EQ(m->kind, QMP_RETURN);
        ASSERT(m->id == 2 && json_array_size(m->data) == 2);
        break;
    }
}

/* Reads what there is; returns how many messages came so far. */
static unsigned drain(struct qmp_reader *r, unsigned n)
{
    struct err err = ERR_INIT;

    for (;;) {
        AUTO(qmp_message_release) struct qmp_message m = { 0 };
        bool have;

        ASSERT_OK(qmp_reader_next(r, &have, &m, &err), err);
        if (!have)
            return n;
        check_message(&m, n++);
    }
}

TEST(messages_come_out_whole_wherever_the_stream_is_cut)
{
    size_t len = strlen(stream_text);

    for (size_t cut = 0; cut <= len; cut++) {
        AUTO(qmp_reader_release) struct qmp_reader r;
        struct err err = ERR_INIT;
        unsigned n;

        qmp_reader_init(&r, QMP_MAX_MESSAGE);
        ASSERT_OK(qmp_reader_feed(&r, stream_text, cut, &err), err);
        n = drain(&r, 0);
        ASSERT_OK(qmp_reader_feed(&r, stream_text + cut, len - cut, &err), err);
        ASSERT_EQ(drain(&r, n), 5);
        ASSERT(qmp_reader_at_boundary(&r));
    }
}

TEST(messages_come_out_whole_byte_by_byte)
{
    AUTO(qmp_reader_release) struct qmp_reader r;
    struct err err = ERR_INIT;
    unsigned n = 0;

    qmp_reader_init(&r, QMP_MAX_MESSAGE);
    for (const char *p = stream_text; *p; p++) {
        ASSERT_OK(qmp_reader_feed(&r, p, 1, &err), err);
        n = drain(&r, n);
    }
    ASSERT_EQ(n, 5);
}

TEST(a_half_message_is_not_a_boundary)
{
    AUTO(qmp_reader_release) struct qmp_reader r;
    struct err err = ERR_INIT;

    qmp_reader_init(&r, QMP_MAX_MESSAGE);
    ASSERT(qmp_reader_at_boundary(&r));
    ASSERT_OK(qmp_reader_feed(&r, " \r\n", 3, &err), err);
    ASSERT(qmp_reader_at_boundary(&r));
    ASSERT_OK(qmp_reader_feed(&r, "{\"ret", 5, &err), err);
    ASSERT_EQ(drain(&r, 0), 0);
    ASSERT(!qmp_reader_at_boundary(&r));
}

/* Feeds, then reads: one of the two must fail, with this code, and go on failing. */
static void assert_broken(const char *text, size_t len, size_t max, enum err_code code)
{
    AUTO(qmp_reader_release) struct qmp_reader r;
    struct qmp_message m = { 0 };
    struct err err = ERR_INIT, again = ERR_INIT;
    bool have;

    qmp_reader_init(&r, max);
    if (qmp_reader_feed(&r, text, len, &err) == 0)
        ASSERT_FAIL(qmp_reader_next(&r, &have, &m, &err), err, code);
    ASSERT_EQ(err.code, code);
    ASSERT_MSG_HAS(err.msg, "QMP");
    ASSERT_FAIL(qmp_reader_feed(&r, "{\"return\":{}}", 13, &again), again, code);
    ASSERT_STR(again.msg, err.msg);
    ASSERT_FAIL(qmp_reader_next(&r, &have, &m, &again), again, code);
    ASSERT(!qmp_reader_at_boundary(&r));
}

TEST(an_invalid_byte_is_a_permanent_error)
{
    static const char *const bad[] = {
        "x",
        "[]",
        "}",
        "\"\"",
        "1",
        "\xff",
        "{]",
        "{}",
        "{\"a\":1}",
        "{\"return\":}",
        "{\"return\":{},\"id\":\"7\"}",
        "{\"return\":{},\"id\":-1}",
        "{\"return\":{},\"id\":1.5}",
        "{\"error\":1}",
        "{\"error\":{\"class\":1}}",
        "{\"event\":1}",
        "{\"event\":\"\"}",
        "{\"event\":\"X\",\"data\":1}",
        "{\"QMP\":[]}",
        "{\"QMP\":{\"version\":{\"qemu\":{\"major\":-1}}}}",
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_broken(bad[i], strlen(bad[i]), QMP_MAX_MESSAGE, ERR_INVALID);
    assert_broken("\0", 1, QMP_MAX_MESSAGE, ERR_INVALID);
}

TEST(invalid_bytes_behind_a_message_do_not_hide_the_message)
{
    AUTO(qmp_reader_release) struct qmp_reader r;
    AUTO(qmp_message_release) struct qmp_message m = { 0 };
    struct qmp_message none;
    struct err err = ERR_INIT;
    bool have = false;

    qmp_reader_init(&r, QMP_MAX_MESSAGE);
    ASSERT_OK(qmp_reader_feed(&r, "{\"return\":7}x", 13, &err), err);
    ASSERT_OK(qmp_reader_next(&r, &have, &m, &err), err);
    ASSERT(have && m.kind == QMP_RETURN && !m.has_id);
    ASSERT_EQ(json_integer_value(m.data), 7);
    ASSERT_FAIL(qmp_reader_next(&r, &have, &none, &err), err, ERR_INVALID);
}

TEST(a_message_may_be_as_long_as_the_limit_and_not_longer)
{
    static const char head[] = "{\"return\":\"", tail[] = "\"}";

    for (size_t len = 62; len <= 66; len++) {
        AUTO(sbuf_release) struct sbuf text = { 0 };

        sbuf_adds(&text, head);
        while (text.len < len - strlen(tail))
            sbuf_addc(&text, 'x');
        sbuf_adds(&text, tail);
        if (len <= 64) {
            AUTO(qmp_reader_release) struct qmp_reader r;
            AUTO(qmp_message_release) struct qmp_message m = { 0 };
            struct err err = ERR_INIT;
            bool have = false;

            qmp_reader_init(&r, 64);
            ASSERT_OK(qmp_reader_feed(&r, text.data, text.len, &err), err);
            ASSERT_OK(qmp_reader_next(&r, &have, &m, &err), err);
            ASSERT(have);
        } else {
            assert_broken(text.data, text.len, 64, ERR_EXHAUSTED);
        }
    }
}

TEST(an_endless_message_is_refused_at_the_limit)
{
    AUTO(qmp_reader_release) struct qmp_reader r;
    struct err err = ERR_INIT;
    size_t fed = 0;

    qmp_reader_init(&r, QMP_MAX_MESSAGE);
    ASSERT_OK(qmp_reader_feed(&r, "{\"return\":\"", 11, &err), err);
    while (fed < 2 * QMP_MAX_MESSAGE) {
        static const char chunk[4096] = "";

        if (qmp_reader_feed(&r, chunk, sizeof(chunk), &err) < 0)
            break;
        fed += sizeof(chunk);
    }
    ASSERT_EQ(err.code, ERR_EXHAUSTED);
    ASSERT(fed <= QMP_MAX_MESSAGE);
    ASSERT_EQ(r.buf.cap, 0); /* what was buffered is given back */
}

TEST(a_message_that_is_too_deep_is_refused_before_it_ends)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };

    sbuf_adds(&text, "{\"return\":");
    for (int i = 0; i < 100000; i++)
        sbuf_addc(&text, '[');
    assert_broken(text.data, text.len, QMP_MAX_MESSAGE, ERR_INVALID);
}

TEST(an_event_without_data_or_clock_is_fine)
{
    AUTO(qmp_reader_release) struct qmp_reader r;
    AUTO(qmp_message_release) struct qmp_message m = { 0 };
    static const char text[] =
        "{\"event\":\"STOP\",\"timestamp\":{\"seconds\":-1,\"microseconds\":-1}}";
    struct err err = ERR_INIT;
    bool have = false;

    qmp_reader_init(&r, QMP_MAX_MESSAGE);
    ASSERT_OK(qmp_reader_feed(&r, text, strlen(text), &err), err);
    ASSERT_OK(qmp_reader_next(&r, &have, &m, &err), err);
    ASSERT(have && !m.data);
}

TEST(errors_of_qemu_become_errs)
{
    static const struct {
        const char *class, *desc, *want;
        enum err_code code;
    } cases[] = {
        { "GenericError", "Could not open", "device_add: Could not open", ERR_UNKNOWN },
        { "DeviceNotFound", "Device 'x' not found", "device_add: Device 'x' not found",
          ERR_NOT_FOUND },
        { "CommandNotFound", "", "device_add: CommandNotFound", ERR_UNIMPLEMENTED },
        { "GenericError", "\033[2Jgone", "device_add: ?[2Jgone", ERR_UNKNOWN },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qmp_message m = { .kind = QMP_ERROR,
                                 .error_class = cases[i].class,
                                 .error_desc = cases[i].desc };
        struct err err = ERR_INIT;

        ASSERT_FAIL(qmp_message_check(&m, "device_add", &err), err, cases[i].code);
        ASSERT_STR(err.msg, cases[i].want);
    }
    ASSERT_EQ(qmp_message_check(&(struct qmp_message){ .kind = QMP_RETURN }, "x", NULL), 0);
}

/* The words of QEMU 7.2 to 10. Nobody else looks at them. */
TEST(errors_of_qemu_that_we_go_on_from_have_a_code)
{
    static const struct {
        const char *command, *desc;
        enum err_code code;
    } cases[] = {
        { "closefd", "File descriptor named 'x' not found", ERR_NOT_FOUND },
        { "remove-fd", "File descriptor set with ID '7' not found", ERR_NOT_FOUND },
        { "blockdev-del", "Failed to find node with node-name='disk-0-1'", ERR_NOT_FOUND },
        { "device_del", "Device sd-0-1 is already in the process of unplug", ERR_STATE },
        { "device_add", "Duplicate device ID 'scsi1'", ERR_EXISTS },
        { "object-add", "attempt to add duplicate property 'limit' to object", ERR_EXISTS },
        { "device_add", "Bus 'hp' not found", ERR_UNKNOWN },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qmp_message m = { .kind = QMP_ERROR,
                                 .error_class = "GenericError",
                                 .error_desc = cases[i].desc };
        struct err err = ERR_INIT;

        ASSERT_FAIL(qmp_message_check(&m, cases[i].command, &err), err, cases[i].code);
    }
}

TEST(commands_carry_their_arguments_and_id)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    AUTO(json_decref) json_t *args = json_pack("{ss,sb}", "driver", "virtio-<net>", "on", 1);

    qmp_command("qmp_capabilities", NULL, 0, &out);
    qmp_command("device_add", args, UINT64_MAX, &out);
    ASSERT_STR(out.data, "{\"execute\":\"qmp_capabilities\",\"id\":0}\n"
                         "{\"execute\":\"device_add\",\"arguments\":{\"driver\":\"virtio-<net>\","
                         "\"on\":true},\"id\":18446744073709551615}\n");
}
