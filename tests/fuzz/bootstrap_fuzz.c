/* stdin of `start`, and the ids that come with it: neither form may do harm, and an address that is
 * made of what was read fits into a socket's name. */
#include "base/err.h"
#include "fuzz/on_fiber.h"
#include "host/rpc/rpc_sock.h"
#include "host/shim/bootstrap.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    const uint8_t *data = in->data;
    size_t size = in->size;
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    AUTO(sbuf_release) struct sbuf answer = { 0 };
    AUTO_FREE char *address = NULL;
    struct err err = ERR_INIT;

    if (bootstrap_parse(data, size, "default", "c1", &b, &err) < 0) {
        if (err.code != ERR_INVALID && err.code != ERR_UNIMPLEMENTED)
            abort();
        return;
    }
    if (bootstrap_address(b.socket_dir, b.grpc_address ? b.grpc_address : "", "default", "c1",
                          &address, &err) < 0)
        return;
    if (strlen(address) > strlen("unix://") + RPC_PATH_MAX)
        abort();
    bootstrap_answer(&b, "2", "", address, &answer);
    if (answer.len == 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
