/* Responses: completed and made to fit on the guest's side, read with care on the host's. */
#include "base/err.h"
#include "proto/bridge_priv.h"
#include <stdio.h>
#include <string.h>

struct bridge_response bridge_response_for(const struct bridge_request *r)
{
    return (struct bridge_response){ .type = r->type, .activity_id = r->activity_id };
}

void bridge_response_fail(struct bridge_response *r, const struct err *err)
{
    r->result = bridge_hr(err);
    r->error_message = err->msg;
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
        r.properties = "{}"; /* hcsshim dies of an empty text */
    encode_response(&r, &w);
    if (w.out.len > room && r.result == BRIDGE_HR_OK &&
        type == bridge_response_type(BRIDGE_DUMP_STACKS) && r.stacks)
        cut_stacks(&r, room, &w);
    if (w.out.len > room && r.result == BRIDGE_HR_OK) {
        snprintf(text, sizeof(text), "the response of %zu bytes does not fit into a frame of %u",
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
