/* The strings that name a process's stdio: what is accepted is a path and whole pairs. */
#include "base/err.h"
#include "host/io/io_priv.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_FREE char *text = str_ndup((const char *)data, size);
    struct io_form f = { 0 };
    struct err err = ERR_INIT;

    if (io_form_parse(text, &f, &err) < 0) {
        if (err.code != ERR_INVALID && err.code != ERR_UNIMPLEMENTED)
            abort();
        return 0;
    }
    if ((f.kind == IO_NONE) != (f.path == NULL) || (f.path && f.path[0] != '/'))
        abort();
    if (f.kind == IO_STREAM ? f.args.n != 1 || !f.args.v[0][0]
                            : f.args.n % 2 != 0 || (f.args.n > 0 && !io_form_is_driver(&f)))
        abort();
    if (f.kind == IO_PATH && strcmp(f.path, text) != 0)
        abort();
    io_form_release(&f);
    return 0;
}
