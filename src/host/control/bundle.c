#include "host/control/bundle.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/offload.h"
#include "base/str.h"
#include "oci/spec.h"
#include <stdlib.h>

struct load {
    char *path, *text;
    size_t len;
};

static void load_free(void *arg)
{
    struct load *l = arg;

    if (!l)
        return;
    free(l->path);
    free(l->text);
    free(l);
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
    struct load *l = mem_new(struct load);
    void *arg = l;

    l->path = str_format("%s/config.json", bundle);
    int r = offload_run(ctx, load_file, &arg, load_free, why, err);
    l = arg; /* NULL if ctx has ended */
    if (r == 0) {
        *ret_text = TAKE_PTR(l->text);
        *ret_len = l->len;
    }
    load_free(l);
    return r;
}
