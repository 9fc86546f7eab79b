/* io_save.c - TO WRITE */
#include "base/saved.h"
#include "host/io/io.h"

void io_saved(struct saved *s, uint32_t field, struct loop *loop, const struct io_spec *spec,
              struct io **io)
{
    saved_fail(s, "stdio cannot be saved");
}
