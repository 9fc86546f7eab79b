/* The text of a ledger. First byte: odd adds the right checksum to each line, so that what lies
 * behind it is reached too. What is read and written again must read the same. */
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "fuzz/on_fiber.h"
#include "host/ledger/ledger_priv.h"
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct records {
    struct sbuf lines[512]; /* newest first */
    size_t n;
    uint64_t last_id;
};

static int collect(void *arg, const struct ledger_record *r)
{
    struct records *all = arg;

    if (all->n > 0 && r->id >= all->last_id)
        abort(); /* not newest first */
    if (strlen(r->what) > LEDGER_WHAT_MAX || (unsigned)r->kind >= LEDGER_KIND_COUNT)
        abort();
    if (all->n == sizeof(all->lines) / sizeof(all->lines[0]))
        return 1;
    sbuf_addf(&all->lines[all->n++], "+ %" PRIu64 " %s %s", r->id, ledger_kind_name(r->kind),
              r->what);
    all->last_id = r->id;
    return 0;
}

static void add_line(struct sbuf *out, const char *body, size_t len)
{
    sbuf_addf(out, "%08" PRIx32 " ", ledger_crc(body, len));
    sbuf_add(out, body, len);
    sbuf_addc(out, '\n');
}

static void with_checksums(const uint8_t *data, size_t size, struct sbuf *out)
{
    while (size > 0) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t len = end ? (size_t)(end - data) : size;

        add_line(out, (const char *)data, len);
        data += len + (end != NULL);
        size -= len + (end != NULL);
    }
}

static void release(struct records *all)
{
    for (size_t i = 0; i < all->n; i++)
        sbuf_release(&all->lines[i]);
    free(all);
}

static int parse(const struct sbuf *text, struct records *to, struct err *err)
{
    AUTO_FD int fd = memfd_create("ledger", MFD_CLOEXEC);

    if (fd < 0 || fd_write_full(fd, text->data, text->len) < 0)
        abort();
    return ledger_read_fd(fd, collect, to, err);
}

static void body(void *arg)
{
    const struct fuzz_input *in = arg;
    AUTO(sbuf_release) struct sbuf text = { 0 }, again = { 0 };
    struct records *first = mem_new(struct records), *second = mem_new(struct records);
    struct err err = ERR_INIT;

    if (in->size > 0 && in->data[0] % 2 == 1)
        with_checksums(in->data + 1, in->size - 1, &text);
    else if (in->size > 0)
        sbuf_add(&text, in->data + 1, in->size - 1);
    /* Damage is an error, but complete records are still returned. */
    (void)parse(&text, first, &err);
    for (size_t i = first->n; i-- > 0;)
        add_line(&again, first->lines[i].data, first->lines[i].len);
    if (parse(&again, second, &err) < 0)
        abort();
    if (second->n != first->n)
        abort();
    for (size_t i = 0; i < first->n; i++)
        if (!str_eq(first->lines[i].data, second->lines[i].data))
            abort();
    release(first);
    release(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(body, data, size);
}
