/* Responses: completed and made to fit on the guest's side, read with care on the host's. */
#include "base/err.h"
#include "proto/bridge_priv.h"
#include <stdio.h>
#include <string.h>

/* The length of the character at s as jsw writes it with JSW_HTML. *ret_len: its length in s. */
static size_t escaped_char(const char *s, size_t left, size_t *ret_len)
{
    uint32_t c = 0;
    size_t n = str_utf8(s, left, &c);

    *ret_len = n ? n : 1;
    if (n == 1 && c && strchr("\"\\\b\f\n\r\t", (int)c))
        return 2;
    if (n == 0 || c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x2028 || c == 0x2029)
        return 6;
    return n;
}

static size_t escaped_len(const char *s, size_t len)
{
    size_t total = 0, n;

    for (size_t at = 0; at < len; at += n)
        total += escaped_char(s + at, len - at, &n);
    return total;
}

char *bridge_text_cut(const char *s, size_t budget)
{
    size_t len = strlen(s), mark = sizeof(BRIDGE_CUT) - 1, used = 0, keep = 0, n;
    char *cut;

    for (size_t at = 0; at < len; at += n) {
        used += escaped_char(s + at, len - at, &n);
        if (used > budget)
            break;
        if (used + mark <= budget)
            keep = at + n;
    }
    if (used <= budget)
        return str_dup(s);
    cut = mem_alloc(keep + mark + 1);
    memcpy(cut, s, keep);
    memcpy(cut + keep, BRIDGE_CUT, mark + 1);
    return cut;
}

bool bridge_is_guid(const char *s)
{
    if (!s || strlen(s) != 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;

        if (hyphen ? s[i] != '-' : !strchr("0123456789abcdefABCDEF", s[i]))
            return false;
    }
    return true;
}

int bridge_notification_encode(const struct bridge_notification *notification, struct sbuf *out,
                               struct err *err)
{
    struct bridge_notification n = *notification;
    AUTO(jsw_release) struct jsw w = { 0 };

    if (!bridge_is_guid(n.activity_id))
        n.activity_id = BRIDGE_NULL_ID;
    jsw_init(&w, JSW_HTML);
    jsw_obj(&w, NULL);
    bridge_fields_encode(&w, &bridge_notification_schema, &n);
    jsw_end_obj(&w);
    if (w.out.len > BRIDGE_MAX_RESPONSE - BRIDGE_HEADER_BYTES)
        return err_set(err, ERR_EXHAUSTED,
                       "container notification is too long: %zu bytes, at most %u", w.out.len,
                       BRIDGE_MAX_RESPONSE);
    bridge_frame_add(out, BRIDGE_CONTAINER_NOTIFICATION, 0, &w, BRIDGE_NO_LINE_FEED);
    return 0;
}

/* An upper bound for the rest of a response: base, ActivityId, key. */
#define PROPERTIES_OVERHEAD (BRIDGE_HEADER_BYTES + 128u)

char *bridge_properties_encode(const struct bridge_properties *properties)
{
    struct bridge_properties p = *properties;

    for (;;) {
        AUTO(jsw_release) struct jsw w = { 0 };
        size_t len, over;

        jsw_init(&w, JSW_HTML);
        jsw_obj(&w, NULL);
        bridge_fields_encode(&w, &bridge_properties_schema, &p);
        jsw_end_obj(&w);
        if (p.n_processes == 0)
            return jsw_take(&w, &len);
        len = escaped_len(w.out.data, w.out.len) + PROPERTIES_OVERHEAD;
        if (len <= BRIDGE_MAX_RESPONSE)
            return jsw_take(&w, &len);
        /* Estimates by the mean length; repeats if the remaining ones are longer. */
        over = (len - BRIDGE_MAX_RESPONSE) / (len / p.n_processes + 1) + 1;
        p.n_processes -= over < p.n_processes ? over : p.n_processes;
    }
}

int bridge_properties_decode(const char *text, struct bridge_properties *ret, struct err *err)
{
    AUTO(bridge_mem_free) struct bridge_mem *mem = bridge_mem_new();
    struct bridge_properties p = { 0 };
    const json_t *root;

    bridge_fields_default(&bridge_properties_schema, &p);
    if (bridge_text_parse(mem, text, strlen(text), &root, err) < 0 ||
        bridge_fields_decode(mem, root, &bridge_properties_schema, &p, err) < 0)
        return err_wrap(err, "Properties");
    *ret = p;
    ret->mem = TAKE_PTR(mem);
    return 0;
}

void bridge_properties_release(struct bridge_properties *p)
{
    bridge_mem_free(p->mem);
    *p = (struct bridge_properties){ 0 };
}

struct bridge_response bridge_response_for(const struct bridge_request *r)
{
    return (struct bridge_response){ .type = r->type, .activity_id = r->activity_id };
}

void bridge_response_fail(struct bridge_response *r, const struct err *err)
{
    r->result = bridge_hr(err);
    r->error_message = err->msg;
    r->reason = err->reason == REASON_NONE ? NULL : reason_name(err->reason);
}

/* One error record, as the original's guest writes it where it knows no place in its source. */
static void encode_failure(const struct bridge_response *r, struct jsw *w)
{
    jsw_arr(w, "ErrorRecords");
    jsw_obj(w, NULL);
    jsw_i64(w, "Result", (int32_t)r->result);
    jsw_str(w, "Message", r->error_message);
    jsw_str(w, "ModuleName", "gcs");
    jsw_str(w, "FileName", "");
    jsw_u64(w, "Line", UINT32_MAX);
    jsw_end_obj(w);
    jsw_end_arr(w);
}

static void encode_response(const struct bridge_response *r, struct jsw *w)
{
    const struct bridge_message *message = bridge_message_find(bridge_response_type(r->type));

    jsw_release(w);
    jsw_init(w, JSW_HTML);
    jsw_obj(w, NULL);
    bridge_fields_encode(w, &bridge_response_base, r);
    if (r->result != BRIDGE_HR_OK)
        encode_failure(r, w);
    else if (message)
        bridge_fields_encode(w, message->reply, r);
    jsw_end_obj(w);
}

/* The text appears twice. */
static void cut_failure(struct bridge_response *r, size_t max, struct jsw *w)
{
    const char *message = r->error_message;
    AUTO_FREE char *cut = NULL;
    size_t keys = sizeof("\"ErrorMessage\":\"\",");

    r->error_message = "";
    encode_response(r, w);
    cut = bridge_text_cut(message, (max - w->out.len - keys) / 2);
    r->error_message = cut;
    encode_response(r, w);
}

static void cut_stacks(struct bridge_response *r, size_t max, struct jsw *w)
{
    const char *stacks = r->stacks;
    AUTO_FREE char *cut = NULL;

    r->stacks = "";
    encode_response(r, w);
    cut = bridge_text_cut(stacks, max - w->out.len);
    r->stacks = cut;
    encode_response(r, w);
}

void bridge_response_encode(const struct bridge_response *response, uint64_t id, uint32_t max,
                            struct sbuf *out)
{
    struct bridge_response r = *response;
    uint32_t type = bridge_response_type(r.type);
    AUTO(jsw_release) struct jsw w = { 0 };
    char text[96];
    size_t room = max - BRIDGE_HEADER_BYTES;

    if (!bridge_is_guid(r.activity_id))
        r.activity_id = NULL;
    if (r.result != BRIDGE_HR_OK && (!r.error_message || !*r.error_message)) {
        bridge_hr_text(r.result, text);
        r.error_message = text;
    }
    if (r.result == BRIDGE_HR_OK && type == bridge_response_type(BRIDGE_GET_PROPERTIES) &&
        (!r.properties || !*r.properties))
        r.properties = "{}"; /* hcsshim crashes on an empty text */
    encode_response(&r, &w);
    if (w.out.len > room && r.n_spans > 0) {
        r.n_spans = 0;
        encode_response(&r, &w);
    }
    if (w.out.len > room && r.result == BRIDGE_HR_OK &&
        type == bridge_response_type(BRIDGE_DUMP_STACKS) && r.stacks)
        cut_stacks(&r, room, &w);
    if (w.out.len > room && r.result == BRIDGE_HR_OK) {
        snprintf(text, sizeof(text), "the response is too long for a frame: %zu bytes, at most %u",
                 w.out.len, max);
        r.result = BRIDGE_HR_FAIL;
        r.error_message = text;
        encode_response(&r, &w);
    }
    if (w.out.len > room)
        cut_failure(&r, room, &w);
    bridge_frame_add(out, type, id, &w, BRIDGE_NO_LINE_FEED);
}

static int decode_response(uint32_t request_type, const char *payload, size_t len,
                           struct bridge_response *ret, struct err *err)
{
    const struct bridge_message *message = bridge_message_find(request_type);
    const json_t *root;

    if (bridge_text_parse(ret->mem, payload, len, &root, err) < 0)
        return -1;
    bridge_fields_default(&bridge_response_base, ret);
    if (message)
        bridge_fields_default(message->reply, ret);
    if (bridge_fields_decode(ret->mem, root, &bridge_response_base, ret, err) < 0)
        return -1;
    return message ? bridge_fields_decode(ret->mem, root, message->reply, ret, err) : 0;
}

int bridge_response_decode(uint32_t request_type, const void *payload, size_t len,
                           struct bridge_response *ret, struct err *err)
{
    struct bridge_response r = { .type = bridge_response_type(request_type),
                                 .mem = bridge_mem_new() };

    if (decode_response(request_type, payload, len, &r, err) < 0) {
        bridge_mem_free(r.mem);
        return err_wrap(err, "%s response", bridge_message_name(request_type));
    }
    *ret = r;
    return 0;
}

void bridge_response_release(struct bridge_response *r)
{
    bridge_mem_free(r->mem);
    *r = (struct bridge_response){ 0 };
}
