#include "host/control/bundle.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/offload.h"
#include "base/str.h"
#include "oci/spec.h"
#include <stdlib.h>

struct load {
    const char *path;
    char *text;
    size_t len;
};

static void load_drop(void *arg)
{
    free(((struct load *)arg)->text);
}

static int load_file(void *arg, struct err *err)
{
    struct load *l = arg;
    int r = file_read_all(l->path, SPEC_MAX_BYTES, &l->text, &l->len);

    return r < 0 ? err_sys(err, -r, "read %s", l->path) : 0;
}

int bundle_read(struct ctx *ctx, const char *bundle, const char *why, char **ret_text,
                size_t *ret_len, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/config.json", bundle);
    struct load l = { .path = path };

    if (OFFLOAD(ctx, load_file, &l, 1, load_drop, why, err) < 0)
        return -1;
    *ret_text = l.text;
    *ret_len = l.len;
    return 0;
}
