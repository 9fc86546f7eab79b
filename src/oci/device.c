#include "oci/device.h"

#define OPTIONAL "lcow.optional"
#define LINK "lcow.link"
#define READ_ONLY "lcow.readonly"

void device_clear(json_t *device)
{
    json_object_del(device, OPTIONAL);
    json_object_del(device, LINK);
    json_object_del(device, READ_ONLY);
}

void device_set_optional(json_t *device)
{
    json_object_set_new(device, OPTIONAL, json_true());
}

bool device_is_optional(const json_t *device)
{
    return json_is_true(json_object_get(device, OPTIONAL));
}

void device_set_link(json_t *device, const char *link, bool read_only)
{
    json_object_set_new(device, LINK, json_string(link));
    json_object_set_new(device, READ_ONLY, json_boolean(read_only));
}

const char *device_link(const json_t *device, bool *ret_read_only)
{
    *ret_read_only = json_is_true(json_object_get(device, READ_ONLY));
    return json_string_value(json_object_get(device, LINK));
}
