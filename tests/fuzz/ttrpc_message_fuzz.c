/* A message as a client of the shim, or its parent, may send it. First byte: which; then its
 * bytes. What we take we can write, and what we wrote we read as the same. */
#include "api/bootstrap.pb-c.h"
#include "api/cri.pb-c.h"
#include "api/events.pb-c.h"
#include "api/forward.pb-c.h"
#include "api/runhcs.pb-c.h"
#include "api/sandbox.pb-c.h"
#include "api/shimdiag.pb-c.h"
#include "api/task.pb-c.h"
#include "fuzz/on_fiber.h"
#include "proto/pb.h"
#include <string.h>

#define SLICE(b) ((struct pb_slice){ (const uint8_t *)(b).data, (b).len })
#define LIMIT (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const types[] = {
    &create_task_request__descriptor,
    &exec_process_request__descriptor,
    &update_task_request__descriptor,
    &kill_request__descriptor,
    &pids_response__descriptor,
    &create_sandbox_request__descriptor,
    &sandbox_status_response__descriptor,
    &forward_request__descriptor,
    &task_create__descriptor,
    &bootstrap__bootstrap_params__descriptor,
    &runhcs__options__descriptor,
    &cri__pod_sandbox_config__descriptor,
    &diag__exec_process_request__descriptor,
    &any__descriptor,
};

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    const ProtobufCMessageDescriptor *type = types[in->data[0] % ARRAY_LEN(types)];
    AUTO(sbuf_release) struct sbuf once = { 0 }, twice = { 0 };
    AUTO(pb_free) void *msg = NULL, *again = NULL;
    size_t bytes;

    if (pb_unpack(type, (struct pb_slice){ in->data + 1, in->size - 1 }, LIMIT, &msg, &bytes) < 0)
        return;
    if (bytes > LIMIT || pb_pack(msg, &once) < 0)
        abort();
    if (pb_unpack(type, SLICE(once), 2 * LIMIT, &again, NULL) < 0 || pb_pack(again, &twice) < 0)
        abort();
    if (once.len != twice.len || (once.len > 0 && memcmp(once.data, twice.data, once.len) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return size == 0 ? 0 : fuzz_on_fiber(fuzz, data, size);
}
