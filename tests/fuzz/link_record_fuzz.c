/* The two records of the link. 40 bytes are a preface, 128 a boot block; what we accept we write
 * back the same. */
#include "fuzz/on_fiber.h"
#include "proto/link.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void preface(const uint8_t *data)
{
    uint8_t again[LINK_PREFACE_BYTES];
    struct link_preface p;

    if (link_preface_decode(data, &p) < 0)
        return;
    link_preface_encode(&p, again);
    if (memcmp(again, data, sizeof(again)) != 0 || !link_token_equal(p.token, data + 4))
        abort();
}

static void boot(const uint8_t *data)
{
    uint8_t again[LINK_BOOT_BYTES];
    struct link_boot b;

    if (link_boot_decode(data, &b) < 0)
        return;
    link_boot_encode(&b, again);
    if (memcmp(again, data, sizeof(again)) != 0)
        abort();
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;

    if (in->size >= LINK_PREFACE_BYTES)
        preface(in->data);
    if (in->size >= LINK_BOOT_BYTES)
        boot(in->data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
