/* saved.c - documents of saved state: protobuf fields, nested messages, a checksum over all. */
#include "base/saved.h"
#include "base/err.h"
#include "base/reason.h"
#include "base/sha256.h"
#include "base/str.h"
#include "base/stream.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_MAX 16
#define VARINT_MAX 10
#define HEADER_MAGIC "LCOWSAV1" /* then the checksum in hex, then the document */
#define HEADER_BYTES (8 + SHA256_HEX_SIZE - 1)

enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };
enum { DOC_VERSION = 1, DOC_OLDEST = 2, DOC_BODY = 3 };
enum { FD_NUMBER = 1, FD_DEV = 2, FD_INO = 3, FD_MODE = 4, FD_MEMORY = 5 };

struct entry {
    uint32_t field;
    bool used;
    bool is_bytes;
    uint64_t value; /* or the length */
    const uint8_t *data;
};

/* A message that is open. */
struct level {
    struct sbuf out;
    uint32_t field; /* of its parent */
    struct entry *entries;
    size_t n, cap, next; /* next: where the search begins */
};

struct saved {
    bool reads;
    struct level levels[DEPTH_MAX];
    unsigned depth;
    int *fds; /* named by the document */
    size_t n_fds, fds_cap;
    struct stream **memory; /* streams without a descriptor */
    size_t n_memory, memory_cap;
    struct saved *from; /* saved_hand_over; borrows */
    struct sbuf whole;
    bool failed;
    struct err err;
};

static struct level *top(struct saved *s)
{
    return &s->levels[s->depth];
}

void saved_fail(struct saved *s, const char *fmt, ...)
{
    va_list ap;

    if (s->failed)
        return;
    s->failed = true;

    va_start(ap, fmt);
    AUTO_FREE char *text = str_vformat(fmt, ap);
    va_end(ap);
    (void)err_because(&s->err, REASON_SAVED_STATE, s->reads ? ERR_INVALID : ERR_STATE, "%s: %s",
                      s->reads ? "saved state" : "save the state", text);
}

int saved_check(const struct saved *s, struct err *err)
{
    if (!s->failed)
        return 0;
    *err = s->err;
    return -1;
}

bool saved_reads(const struct saved *s)
{
    return s->reads;
}

/* --- writing --- */

static void put_varint(struct sbuf *b, uint64_t v)
{
    uint8_t bytes[VARINT_MAX];
    size_t n = 0;

    do
        bytes[n++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
    while (v >>= 7);
    sbuf_add(b, bytes, n);
}

static void put_number(struct saved *s, uint32_t field, uint64_t v)
{
    put_varint(&top(s)->out, (uint64_t)field << 3 | WIRE_VARINT);
    put_varint(&top(s)->out, v);
}

static void put_bytes(struct saved *s, uint32_t field, const void *data, size_t len)
{
    put_varint(&top(s)->out, (uint64_t)field << 3 | WIRE_BYTES);
    put_varint(&top(s)->out, len);
    sbuf_add(&top(s)->out, data, len);
}

struct saved *saved_writer(void)
{
    return mem_new(struct saved);
}

int saved_finish(struct saved *s, const void **ret, size_t *ret_len, struct err *err)
{
    struct sbuf body = s->levels[0].out;
    char sum[SHA256_HEX_SIZE];

    if (s->depth != 0)
        saved_fail(s, "a message was not closed");
    if (body.len > SAVED_MAX_BYTES)
        saved_fail(s, "%zu bytes are more than the limit of %u", body.len, SAVED_MAX_BYTES);
    if (saved_check(s, err) < 0)
        return -1;
    s->levels[0].out = (struct sbuf){ 0 };
    put_number(s, DOC_VERSION, SAVED_VERSION);
    put_number(s, DOC_OLDEST, SAVED_OLDEST);
    put_bytes(s, DOC_BODY, body.data ? body.data : "", body.len);
    free(body.data);
    sha256_of(top(s)->out.data, top(s)->out.len, sum);
    s->whole.len = 0;
    sbuf_adds(&s->whole, HEADER_MAGIC);
    sbuf_adds(&s->whole, sum);
    sbuf_add(&s->whole, top(s)->out.data, top(s)->out.len);
    *ret = s->whole.data;
    *ret_len = s->whole.len;
    return 0;
}

int saved_keep_fds(struct saved *s, bool keep, struct err *err)
{
    for (size_t i = 0; i < s->n_fds; i++)
        if (fcntl(s->fds[i], F_SETFD, keep ? 0 : FD_CLOEXEC) < 0 && (keep || errno != EBADF))
            return err_sys(err, errno, "keep descriptor %d", s->fds[i]);
    return 0;
}

/* --- reading --- */

/* The number of bytes, 0: not a varint. */
static size_t get_varint(const uint8_t *p, size_t len, uint64_t *ret)
{
    uint64_t v = 0;

    for (size_t i = 0; i < len && i < VARINT_MAX; i++) {
        v |= (uint64_t)(p[i] & 0x7f) << (7 * i);
        if (!(p[i] & 0x80)) {
            *ret = v;
            return i + 1;
        }
    }
    return 0;
}

/* Makes the table of a message's fields. */
static int split(struct level *l, const uint8_t *p, size_t len)
{
    l->n = l->next = 0;
    while (len > 0) {
        uint64_t tag, value;
        size_t n = get_varint(p, len, &tag);
        size_t m = n ? get_varint(p + n, len - n, &value) : 0;
        struct entry e = { .field = (uint32_t)(tag >> 3) };

        if (m == 0 || tag >> 3 == 0 || tag >> 3 > UINT32_MAX)
            return -EBADMSG;
        p += n + m;
        len -= n + m;
        e.value = value;
        switch (tag & 7) {
        case WIRE_VARINT:
            break;
        case WIRE_BYTES:
            if (value > len)
                return -EBADMSG;
            e.is_bytes = true;
            e.data = p;
            p += value;
            len -= value;
            break;
        default:
            return -EBADMSG;
        }
        l->entries = mem_grow(l->entries, l->n, &l->cap, sizeof(*l->entries));
        l->entries[l->n++] = e;
    }
    return 0;
}

/* Fields are mostly read in the order in which they were written, so the search begins behind the
 * last one that was found. NULL: there is none, or there was an error. */
static struct entry *find(struct saved *s, uint32_t field, bool is_bytes)
{
    struct level *l = top(s);

    if (s->failed)
        return NULL;
    for (size_t i = 0; i < l->n; i++) {
        struct entry *e = &l->entries[(l->next + i) % l->n];

        if (e->used || e->field != field)
            continue;
        if (e->is_bytes != is_bytes) {
            saved_fail(s, "field %u has the wrong type", field);
            return NULL;
        }
        e->used = true;
        l->next = (size_t)(e - l->entries) + 1;
        return e;
    }
    return NULL;
}

int saved_reader(const void *data, size_t len, struct saved **ret, struct err *err)
{
    AUTO(saved_free) struct saved *s = mem_new(struct saved);
    const uint8_t *p = data;
    char sum[SHA256_HEX_SIZE];
    uint32_t version = 0, oldest = 0;
    struct entry *body;

    s->reads = true;
    if (len < HEADER_BYTES || memcmp(p, HEADER_MAGIC, 8) != 0)
        return err_because(err, REASON_SAVED_STATE, ERR_INVALID,
                           "saved state: not a document of lcow");
    sha256_of(p + HEADER_BYTES, len - HEADER_BYTES, sum);
    if (memcmp(sum, p + 8, SHA256_HEX_SIZE - 1) != 0 ||
        split(top(s), p + HEADER_BYTES, len - HEADER_BYTES) < 0)
        return err_because(err, REASON_SAVED_STATE, ERR_INVALID,
                           "saved state: the document is cut or damaged");
    saved_u32(s, DOC_VERSION, &version);
    saved_u32(s, DOC_OLDEST, &oldest);
    if (version < SAVED_OLDEST || oldest > SAVED_VERSION)
        return err_because(
            err, REASON_SAVED_STATE, ERR_INVALID,
            "saved state: version %u (readable from %u on); this program reads %d–%d", version,
            oldest, SAVED_OLDEST, SAVED_VERSION);
    body = find(s, DOC_BODY, true);
    if (!body || split(top(s), body->data, body->value) < 0)
        return err_because(err, REASON_SAVED_STATE, ERR_INVALID,
                           "saved state: the document is cut or damaged");
    *ret = TAKE_PTR(s);
    return 0;
}

void saved_free(struct saved *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < DEPTH_MAX; i++) {
        free(s->levels[i].out.data);
        free(s->levels[i].entries);
    }
    free(s->whole.data);
    free(s->fds);
    free(s->memory);
    free(s);
}

/* --- numbers --- */

static uint64_t number(struct saved *s, uint32_t field, uint64_t v, uint64_t max)
{
    struct entry *e;

    if (!s->reads) {
        put_number(s, field, v);
        return v;
    }
    e = find(s, field, false);
    if (!e)
        return v;
    if (e->value > max) {
        saved_fail(s, "field %u is %" PRIu64 ", more than %" PRIu64, field, e->value, max);
        return v;
    }
    return e->value;
}

void saved_bool(struct saved *s, uint32_t field, bool *v)
{
    *v = number(s, field, *v, 1) != 0;
}

void saved_u8(struct saved *s, uint32_t field, uint8_t *v)
{
    *v = (uint8_t)number(s, field, *v, UINT8_MAX);
}

void saved_u16(struct saved *s, uint32_t field, uint16_t *v)
{
    *v = (uint16_t)number(s, field, *v, UINT16_MAX);
}

void saved_u32(struct saved *s, uint32_t field, uint32_t *v)
{
    *v = (uint32_t)number(s, field, *v, UINT32_MAX);
}

void saved_u64(struct saved *s, uint32_t field, uint64_t *v)
{
    *v = number(s, field, *v, UINT64_MAX);
}

/* As protobuf's int32 and int64: ten bytes if negative. */
void saved_i64(struct saved *s, uint32_t field, int64_t *v)
{
    *v = (int64_t)number(s, field, (uint64_t)*v, UINT64_MAX);
}

void saved_int(struct saved *s, uint32_t field, int *v)
{
    int64_t wide = *v;

    saved_i64(s, field, &wide);
    if (wide < INT32_MIN || wide > INT32_MAX)
        saved_fail(s, "field %u is not a 32-bit number", field);
    else
        *v = (int)wide;
}

void saved_size(struct saved *s, uint32_t field, size_t *v)
{
    *v = number(s, field, *v, SIZE_MAX);
}

unsigned saved_enum(struct saved *s, uint32_t field, unsigned v, unsigned count)
{
    return (unsigned)number(s, field, v, count - 1);
}

/* --- bytes --- */

void saved_str(struct saved *s, uint32_t field, char **v)
{
    struct entry *e;

    if (!s->reads) {
        if (*v)
            put_bytes(s, field, *v, strlen(*v));
        return;
    }
    e = find(s, field, true);
    if (s->failed)
        return;
    free(*v);
    *v = e ? str_ndup((const char *)e->data, e->value) : NULL;
}

void saved_text(struct saved *s, uint32_t field, char *buf, size_t size)
{
    struct entry *e;

    if (!s->reads) {
        put_bytes(s, field, buf, strnlen(buf, size));
        return;
    }
    e = find(s, field, true);
    if (!e)
        return;
    if (e->value >= size) {
        saved_fail(s, "field %u has %" PRIu64 " bytes, more than %zu", field, e->value, size - 1);
        return;
    }
    memcpy(buf, e->data, e->value);
    buf[e->value] = '\0';
}

void saved_bytes(struct saved *s, uint32_t field, void *data, size_t len)
{
    struct entry *e;

    if (!s->reads) {
        put_bytes(s, field, data, len);
        return;
    }
    e = find(s, field, true);
    if (!e)
        return;
    if (e->value != len)
        saved_fail(s, "field %u has %" PRIu64 " bytes, not %zu", field, e->value, len);
    else
        memcpy(data, e->data, len);
}

void saved_sbuf(struct saved *s, uint32_t field, struct sbuf *b)
{
    struct entry *e;

    if (!s->reads) {
        if (b->len > 0)
            put_bytes(s, field, b->data, b->len);
        return;
    }
    e = find(s, field, true);
    if (s->failed)
        return;
    b->len = 0;
    if (e)
        sbuf_add(b, e->data, e->value);
}

void saved_strv(struct saved *s, uint32_t field, struct strv *v)
{
    struct entry *e;

    if (!s->reads) {
        for (size_t i = 0; i < v->n; i++)
            put_bytes(s, field, v->v[i], strlen(v->v[i]));
        return;
    }
    strv_release(v);
    *v = (struct strv){ 0 };
    while ((e = find(s, field, true))) {
        AUTO_FREE char *text = str_ndup((const char *)e->data, e->value);

        strv_add(v, text);
    }
}

/* --- messages --- */

size_t saved_count(struct saved *s, uint32_t field, size_t n)
{
    const struct level *l = top(s);
    size_t count = 0;

    if (!s->reads)
        return n;
    for (size_t i = 0; i < l->n && !s->failed; i++)
        count += l->entries[i].field == field && !l->entries[i].used;
    return count;
}

bool saved_open(struct saved *s, uint32_t field)
{
    struct entry *e = s->reads ? find(s, field, true) : NULL;

    if (s->reads && !e)
        return false;
    if (s->depth + 1 == DEPTH_MAX) {
        saved_fail(s, "messages are nested too deeply");
        return false;
    }
    s->depth++;
    top(s)->field = field;
    top(s)->out.len = 0;
    if (s->reads && split(top(s), e->data, e->value) < 0) {
        saved_fail(s, "message %u is damaged", field);
        top(s)->n = 0;
    }
    return true;
}

void saved_close(struct saved *s)
{
    struct level *l = top(s);

    s->depth--;
    if (!s->reads)
        put_bytes(s, l->field, l->out.data ? l->out.data : "", l->out.len);
}

/* --- descriptors --- */

static void note_fd(struct saved *s, int fd)
{
    s->fds = mem_grow(s->fds, s->n_fds, &s->fds_cap, sizeof(*s->fds));
    s->fds[s->n_fds++] = fd;
}

static void write_fd(struct saved *s, const char *what, int fd)
{
    struct stat st;
    uint64_t number = (uint64_t)fd, dev, ino;
    uint32_t mode;

    if (fstat(fd, &st) < 0) {
        saved_fail(s, "%s: descriptor %d: %s", what, fd, strerror(errno));
        return;
    }
    dev = st.st_dev;
    ino = st.st_ino;
    mode = st.st_mode & S_IFMT;
    saved_u64(s, FD_NUMBER, &number);
    saved_u64(s, FD_DEV, &dev);
    saved_u64(s, FD_INO, &ino);
    saved_u32(s, FD_MODE, &mode);
    note_fd(s, fd);
}

static void read_fd(struct saved *s, const char *what, int *ret)
{
    uint64_t number = UINT64_MAX, dev = 0, ino = 0;
    uint32_t mode = 0;
    struct stat st;

    saved_u64(s, FD_NUMBER, &number);
    saved_u64(s, FD_DEV, &dev);
    saved_u64(s, FD_INO, &ino);
    saved_u32(s, FD_MODE, &mode);
    if (s->failed)
        return;
    if (number > INT32_MAX || fstat((int)number, &st) < 0)
        saved_fail(s, "%s: descriptor %" PRIu64 " is not open", what, number);
    else if (st.st_dev != dev || st.st_ino != ino || (st.st_mode & S_IFMT) != mode)
        saved_fail(s, "%s: descriptor %" PRIu64 " is another file", what, number);
    else
        note_fd(s, *ret = (int)number);
}

void saved_fd(struct saved *s, uint32_t field, const char *what, int *fd)
{
    if (!s->reads && *fd < 0)
        return;
    if (s->reads)
        *fd = -1;
    if (!saved_open(s, field))
        return;
    if (s->reads)
        read_fd(s, what, fd);
    else
        write_fd(s, what, *fd);
    saved_close(s);
}

/* False: it has a descriptor. */
static bool memory_stream(struct saved *s, const char *what, struct stream **v)
{
    uint64_t index = s->reads ? UINT64_MAX : s->n_memory;

    saved_u64(s, FD_MEMORY, &index);
    if (!s->reads) {
        s->memory = mem_grow(s->memory, s->n_memory, &s->memory_cap, sizeof(struct stream *));
        s->memory[s->n_memory++] = *v;
    } else if (index == UINT64_MAX) {
        return false;
    } else if (s->from && index < s->from->n_memory) {
        *v = TAKE_PTR(s->from->memory[index]);
    } else {
        saved_fail(s, "%s: there is no stream %" PRIu64, what, index);
    }
    return true;
}

void saved_stream(struct saved *s, uint32_t field, const char *what, struct loop *loop,
                  struct stream **v)
{
    int fd = -1;

    if (!s->reads && !*v)
        return;
    if (s->reads)
        *v = NULL;
    if (!saved_open(s, field))
        return;
    if (!s->reads && (*v)->fd >= 0)
        write_fd(s, what, (*v)->fd);
    else if (!memory_stream(s, what, v))
        read_fd(s, what, &fd);
    saved_close(s);
    if (fd >= 0)
        *v = stream_from_fd(loop, fd);
}

void saved_hand_over(struct saved *reader, struct saved *writer)
{
    reader->from = writer;
}
