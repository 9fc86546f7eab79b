/* Bytes from QEMU. First byte: the size of the pieces they come in. The same messages must come
 * out of pieces and of one block, and the same error if any. */
#include "base/err.h"
#include "fuzz/on_fiber.h"
#include "proto/qmp.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_MAX_MESSAGE 4096 /* so that the limit is met */

static void add_text(struct sbuf *out, const char *text)
{
    sbuf_adds(out, text ? text : "-");
    sbuf_addc(out, '\n');
}

/* What was read, in words: kinds, ids, contents. */
static void describe(const struct qmp_message *m, struct sbuf *out)
{
    AUTO(jsw_release) struct jsw w = { 0 };

    jsw_init(&w, JSW_PLAIN);
    jsw_value(&w, NULL, m->root);
    sbuf_addf(out, "%d %d %llu ", (int)m->kind, m->has_id, (unsigned long long)m->id);
    sbuf_add(out, w.out.data, w.out.len);
    add_text(out, m->event);
    add_text(out, m->error_class);
    add_text(out, m->error_desc);
}

static int drain(struct qmp_reader *r, struct sbuf *out, struct err *err)
{
    for (;;) {
        AUTO(qmp_message_release) struct qmp_message m = { 0 };
        bool have = false;

        if (qmp_reader_next(r, &have, &m, err) < 0)
            return -1;
        if (!have)
            return 0;
        describe(&m, out);
        (void)qmp_message_check(&m, "command", err);
    }
}

static void run(const uint8_t *data, size_t size, size_t piece, struct sbuf *out)
{
    AUTO(qmp_reader_release) struct qmp_reader r;
    struct err err = ERR_INIT;

    qmp_reader_init(&r, FUZZ_MAX_MESSAGE);
    for (size_t at = 0; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;

        if (qmp_reader_feed(&r, data + at, n, &err) < 0 || drain(&r, out, &err) < 0) {
            add_text(out, err.msg);
            return;
        }
    }
    sbuf_addf(out, "end %d\n", qmp_reader_at_boundary(&r));
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    AUTO(sbuf_release) struct sbuf whole = { 0 }, pieces = { 0 };

    run(in->data + 1, in->size - 1, in->size, &whole);
    run(in->data + 1, in->size - 1, in->data[0] + 1u, &pieces);
    if (whole.len != pieces.len || (whole.len && memcmp(whole.data, pieces.data, whole.len) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return size ? fuzz_on_fiber(fuzz, data, size) : 0;
}
