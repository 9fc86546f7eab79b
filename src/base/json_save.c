/* json_save.c - a JSON tree as a field of saved state: its text. */
#include "base/err.h"
#include "base/json.h"
#include "base/saved.h"
#include <stdlib.h>
#include <string.h>

void json_saved(struct saved *s, uint32_t field, json_t **v)
{
    AUTO_FREE char *text = *v && !saved_reads(s) ? js_text(*v, 0) : NULL;
    struct err err = ERR_INIT;

    saved_str(s, field, &text);
    if (!saved_reads(s))
        return;
    json_decref(TAKE_PTR(*v));
    if (text && js_parse(text, strlen(text), SAVED_MAX_BYTES, v, &err) < 0)
        saved_fail(s, "field %u: %s", field, err.msg);
}
