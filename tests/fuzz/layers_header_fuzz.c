/* The header of a layer image. First byte: odd puts the right checksum in front, so that what lies
 * behind it is reached too. What is read and written again must read the same. */
#include "base/err.h"
#include "base/sha256.h"
#include "base/str.h"
#include "host/files/layers.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void with_checksum(const uint8_t *data, size_t size, struct sbuf *out)
{
    char hex[SHA256_HEX_SIZE];
    struct sha256 s;

    sha256_init(&s);
    sha256_add(&s, data, size);
    sha256_hex(&s, hex);
    sbuf_addf(out, "%s\n", hex);
    sbuf_add(out, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };
    AUTO(layers_info_release) struct layers_info info = { 0 }, again = { 0 };
    struct err err = ERR_INIT;
    size_t len;

    if (size == 0)
        return 0;
    if (data[0] % 2 == 1)
        with_checksum(data + 1, size - 1, &text);
    else
        sbuf_add(&text, data + 1, size - 1);
    if (layers_header_parse(text.data ? text.data : "", text.len, &info, &err) < 0)
        return 0;
    AUTO_FREE char *written = layers_header_format(&info, &len);
    if (layers_header_parse(written, len, &again, &err) < 0 || !str_eq(info.key, again.key) ||
        !str_eq(info.identity, again.identity) || info.size != again.size ||
        !str_eq(info.sha256, again.sha256))
        abort();
    return 0;
}
