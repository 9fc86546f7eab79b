/* ttrpc_vectors.h - for tests: the byte vectors of containerd-contract.md §1.11 and §2.15, which
 * are in tests/golden/ttrpc as hexadecimal text. */
#pragma once
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "proto/pb_wire.h"
#include <stdio.h>
#include <stdlib.h>

struct vector {
    uint8_t bytes[256];
    size_t len;
};

static inline struct vector vector_load(const char *name)
{
    AUTO_FREE char *path = str_format("%s/%s.hex", TTRPC_VECTOR_DIR, name), *text = NULL;
    struct vector v = { .len = 0 };
    size_t len = 0;

    if (file_read_all(path, 4096, &text, &len) < 0)
        tap_fail(__FILE__, __LINE__, "cannot read %s", path);
    for (const char *p = text; *p && v.len < sizeof(v.bytes);) {
        unsigned byte;

        if (*p == '\n')
            p++;
        else if (sscanf(p, "%2x", &byte) == 1)
            v.bytes[v.len++] = (uint8_t)byte, p += 2;
        else
            tap_fail(__FILE__, __LINE__, "%s: not hexadecimal: %s", path, p);
    }
    return v;
}

static inline struct pb_slice vector_slice(const struct vector *v)
{
    return (struct pb_slice){ v->bytes, v->len };
}

/* The same bytes, or the test fails and shows both. */
static inline void vector_same(const char *name, const void *data, size_t len)
{
    struct vector v = vector_load(name);
    AUTO(sbuf_release) struct sbuf want = { 0 }, got = { 0 };

    for (size_t i = 0; i < v.len; i++)
        sbuf_addf(&want, "%02x", v.bytes[i]);
    for (size_t i = 0; i < len; i++)
        sbuf_addf(&got, "%02x", ((const uint8_t *)data)[i]);
    if (!str_eq(want.data, got.data))
        tap_fail(__FILE__, __LINE__, "%s\nwant %s\ngot  %s", name, want.data, got.data);
}
