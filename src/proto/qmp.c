#include "proto/qmp.h"
#include "base/err.h"
#include <string.h>

/* --- the reader ------------------------------------------------------------------------------- */

void qmp_reader_init(struct qmp_reader *r, size_t max)
{
    *r = (struct qmp_reader){ .max = max };
}

void qmp_reader_release(struct qmp_reader *r)
{
    sbuf_release(&r->buf);
}

/* Keeps the first error; the buffered bytes are dropped. */
static int broken(struct qmp_reader *r, struct err *err)
{
    if (!r->broken) {
        r->broken = true;
        r->why = *err;
        sbuf_release(&r->buf);
        r->scanned = 0;
        r->depth = 0;
        r->complete = false;
    }
    *err = r->why;
    return -1;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void scan_char(struct qmp_reader *r, char c)
{
    if (r->in_escape) {
        r->in_escape = false;
    } else if (r->in_string) {
        r->in_escape = c == '\\';
        r->in_string = c != '"';
    } else if (c == '"') {
        r->in_string = true;
    } else if (c == '{' || c == '[') {
        r->depth++;
    } else if ((c == '}' || c == ']') && --r->depth == 0) {
        r->complete = true; /* js_parse checks whether the brackets match */
    }
}

/* Scans to the end of the first message. Reads each byte once. */
static int scan(struct qmp_reader *r, struct err *err)
{
    size_t blank = 0;

    if (r->complete)
        return 0;
    if (r->depth == 0) {
        while (blank < r->buf.len && is_blank(r->buf.data[blank]))
            blank++;
        sbuf_consume(&r->buf, blank);
        if (r->buf.len == 0)
            return 0;
        if (r->buf.data[0] != '{')
            return err_set(err, ERR_INVALID,
                           "invalid QMP: byte 0x%02x where a message should begin",
                           (unsigned char)r->buf.data[0]);
    }
    while (r->scanned < r->buf.len && !r->complete) {
        scan_char(r, r->buf.data[r->scanned++]);
        if (r->depth > JS_MAX_DEPTH)
            return err_set(err, ERR_INVALID, "invalid QMP: message is nested deeper than %u levels",
                           JS_MAX_DEPTH);
        if (r->scanned > r->max)
            return err_set(err, ERR_EXHAUSTED, "invalid QMP: message is longer than %zu bytes",
                           r->max);
    }
    return 0;
}

int qmp_reader_feed(struct qmp_reader *r, const void *data, size_t len, struct err *err)
{
    if (r->broken)
        return broken(r, err);
    sbuf_add(&r->buf, data, len);
    if (scan(r, err) < 0)
        return broken(r, err);
    return 0;
}

bool qmp_reader_at_boundary(const struct qmp_reader *r)
{
    return !r->broken && r->buf.len == 0;
}

/* --- messages --------------------------------------------------------------------------------- */

static int read_greeting(struct qmp_message *m, struct err *err)
{
    const json_t *version = NULL, *qemu = NULL;

    if (js_obj(m->root, "QMP", &m->data, err) < 0 ||
        js_obj(m->data, "version", &version, err) < 0 || js_obj(version, "qemu", &qemu, err) < 0 ||
        js_u32(qemu, "major", &m->major, err) < 0 || js_u32(qemu, "minor", &m->minor, err) < 0)
        return -1;
    return js_u32(qemu, "micro", &m->micro, err);
}

static int read_id(struct qmp_message *m, struct err *err)
{
    const json_t *id = json_object_get(m->root, "id");

    m->has_id = id && !json_is_null(id);
    return js_u64(m->root, "id", &m->id, err);
}

static int read_return(struct qmp_message *m, struct err *err)
{
    m->data = json_object_get(m->root, "return");
    return read_id(m, err);
}

static int read_error(struct qmp_message *m, struct err *err)
{
    m->error_class = m->error_desc = "";
    if (js_obj(m->root, "error", &m->data, err) < 0 ||
        js_str(m->data, "class", &m->error_class, err) < 0 ||
        js_str(m->data, "desc", &m->error_desc, err) < 0)
        return -1;
    return read_id(m, err);
}

static int read_event(struct qmp_message *m, struct err *err)
{
    m->event = "";
    if (js_str(m->root, "event", &m->event, err) < 0 || js_obj(m->root, "data", &m->data, err) < 0)
        return -1;
    return *m->event ? 0 : err_set(err, ERR_INVALID, "event without a name");
}

static const struct {
    const char *key;
    int (*read)(struct qmp_message *m, struct err *err);
} kinds[QMP_KIND_COUNT] = {
    [QMP_GREETING] = { "QMP", read_greeting },
    [QMP_RETURN] = { "return", read_return },
    [QMP_ERROR] = { "error", read_error },
    [QMP_EVENT] = { "event", read_event },
};

static int classify(struct qmp_message *m, struct err *err)
{
    for (unsigned i = 0; i < QMP_KIND_COUNT; i++) {
        if (json_object_get(m->root, kinds[i].key)) {
            m->kind = i;
            return kinds[i].read(m, err);
        }
    }
    return err_set(err, ERR_INVALID, "neither greeting, return, error nor event");
}

int qmp_reader_next(struct qmp_reader *r, bool *ret_have, struct qmp_message *ret, struct err *err)
{
    AUTO(qmp_message_release) struct qmp_message m = { 0 };

    if (r->broken || scan(r, err) < 0)
        return broken(r, err);
    if (!r->complete) {
        *ret_have = false;
        return 0;
    }
    if (js_parse(r->buf.data, r->scanned, r->max, &m.root, err) < 0 || classify(&m, err) < 0) {
        err_wrap(err, "QMP");
        return broken(r, err);
    }
    sbuf_consume(&r->buf, r->scanned);
    r->scanned = 0;
    r->complete = false;
    *ret = m;
    *ret_have = true;
    m.root = NULL;
    return 0;
}

void qmp_message_release(struct qmp_message *m)
{
    json_decref(m->root);
    *m = (struct qmp_message){ 0 };
}

/* Most of QEMU's errors are of one class; these few we go on from, and know by their words alone.
 */
static const struct {
    const char *command, *part;
    enum err_code code;
} worded[] = {
    { "closefd", "not found", ERR_NOT_FOUND },
    { "remove-fd", "", ERR_NOT_FOUND },
    { "blockdev-del", "find node", ERR_NOT_FOUND },
    { "device_del", "unplug", ERR_STATE },
    { "device_add", "resource busy", ERR_STATE },
    { "device_add", "Cannot allocate memory", ERR_EXHAUSTED },
    { "device_add", "uplicate", ERR_EXISTS },
    { "object-add", "uplicate", ERR_EXISTS },
};

int qmp_message_check(const struct qmp_message *m, const char *name, struct err *err)
{
    enum err_code code = ERR_UNKNOWN;
    AUTO_FREE char *words = NULL;

    if (m->kind != QMP_ERROR)
        return 0;
    if (str_eq(m->error_class, "DeviceNotFound"))
        code = ERR_NOT_FOUND;
    else if (str_eq(m->error_class, "CommandNotFound"))
        code = ERR_UNIMPLEMENTED;
    for (size_t i = 0; code == ERR_UNKNOWN && i < ARRAY_LEN(worded); i++)
        if (str_eq(name, worded[i].command) && strstr(m->error_desc, worded[i].part))
            code = worded[i].code;
    words = str_printable(*m->error_desc ? m->error_desc : m->error_class);
    return err_set(err, code, "%s: %s", name, words);
}

/* --- commands --------------------------------------------------------------------------------- */

void qmp_command(const char *name, const json_t *args, uint64_t id, struct sbuf *out)
{
    AUTO(jsw_release) struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    jsw_str(&w, "execute", name);
    if (args)
        jsw_value(&w, "arguments", args);
    jsw_u64(&w, "id", id);
    jsw_end_obj(&w);
    sbuf_add(out, w.out.data, w.out.len);
    sbuf_addc(out, '\n');
}
