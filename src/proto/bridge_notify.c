/* The container notification, and the text inside a GetProperties response. */
#include "base/err.h"
#include "proto/bridge_priv.h"
#include <string.h>

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
                       "container notification of %zu bytes is beyond the %u allowed", w.out.len,
                       BRIDGE_MAX_RESPONSE);
    bridge_frame_add(out, BRIDGE_CONTAINER_NOTIFICATION, 0, &w, BRIDGE_NO_LINE_FEED);
    return 0;
}

/* What of a response is not the text, generously: base, ActivityId, key. */
#define PROPERTIES_OVERHEAD (BRIDGE_HEADER_BYTES + 128u)
/* The longest a process adds to the escaped text: {\"ProcessId\":4294967295}, */
#define PROCESS_MAX_BYTES 29u

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
        len = bridge_escaped_len(w.out.data, w.out.len) + PROPERTIES_OVERHEAD;
        if (len <= BRIDGE_MAX_RESPONSE || p.n_processes == 0)
            return jsw_take(&w, &len);
        over = (len - BRIDGE_MAX_RESPONSE) / PROCESS_MAX_BYTES + 1;
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
