/* The guest's statistics. First byte: the host's cgroup mode; then JSON. What is accepted has all
 * that ctr reads without asking, and decodes as what it says it is. */
#include "api/cgroups_v1.pb-c.h"
#include "api/cgroups_v2.pb-c.h"
#include "base/err.h"
#include "base/json.h"
#include "fuzz/on_fiber.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    const uint8_t *data = in->data;
    size_t size = in->size;
    AUTO(json_decref) json_t *metrics = NULL;
    AUTO(pb_free) Any *any = NULL;
    AUTO(pb_free) Cgroups1__Metrics *v1 = NULL;
    AUTO(pb_free) Cgroups2__Metrics *v2 = NULL;
    struct err err = ERR_INIT;

    if (size == 0)
        return;
    if (js_parse((const char *)data + 1, size - 1, size, &metrics, &err) < 0)
        return;
    if (stats_from_guest(metrics, data[0] & 1, &any, &err) < 0) {
        if (any || err.code == ERR_NONE)
            abort();
    } else if (data[0] & 1) {
        if (pb_any_unpack(any, &cgroups2__metrics__descriptor, (void **)&v2) < 0 || !v2->cpu ||
            !v2->memory || !v2->pids)
            abort();
    } else if (pb_any_unpack(any, &cgroups1__metrics__descriptor, (void **)&v1) < 0 ||
               !v1->memory->usage || !v1->cpu->usage) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
