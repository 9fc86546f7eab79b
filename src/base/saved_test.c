/* saved_test.c - what is written is read back; what is damaged is refused. */
#include "base/err.h"
#include "base/saved.h"
#include "base/str.h"
#include "harness/tap.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum color { RED, GREEN, COLOR_COUNT };

struct wheel {
    uint32_t size;
    char *maker;
};

struct car {
    bool fast;
    uint64_t miles;
    int64_t height;
    int slope;
    uint16_t doors;
    enum color color;
    char *name, *nickname, *none;
    char plate[8];
    uint8_t key[4];
    struct strv owners;
    struct sbuf notes;
    struct wheel wheels[4];
    size_t n_wheels;
    int fd;
};

static void car_saved(struct saved *s, struct car *c)
{
    saved_bool(s, 1, &c->fast);
    saved_u64(s, 2, &c->miles);
    saved_i64(s, 3, &c->height);
    saved_int(s, 4, &c->slope);
    saved_u16(s, 5, &c->doors);
    SAVED_ENUM(s, 6, c->color, COLOR_COUNT);
    saved_str(s, 7, &c->name);
    saved_str(s, 8, &c->nickname);
    saved_str(s, 9, &c->none);
    saved_text(s, 10, c->plate, sizeof(c->plate));
    saved_bytes(s, 11, c->key, sizeof(c->key));
    saved_strv(s, 12, &c->owners);
    saved_sbuf(s, 13, &c->notes);
    c->n_wheels = saved_count(s, 14, c->n_wheels);
    for (size_t i = 0; i < c->n_wheels; i++) {
        if (!saved_open(s, 14))
            return;
        saved_u32(s, 1, &c->wheels[i].size);
        saved_str(s, 2, &c->wheels[i].maker);
        saved_close(s);
    }
    saved_fd(s, 15, "the garage", &c->fd);
}

static void car_release(struct car *c)
{
    free(c->name);
    free(c->nickname);
    free(c->none);
    strv_release(&c->owners);
    free(c->notes.data);
    for (size_t i = 0; i < 4; i++)
        free(c->wheels[i].maker);
}

static struct car a_car(void)
{
    struct car c = { .fast = true,
                     .miles = UINT64_MAX,
                     .height = -7,
                     .slope = -1,
                     .doors = 65535,
                     .color = GREEN,
                     .name = str_dup("Herbie"),
                     .nickname = str_dup(""),
                     .plate = "OFP 857",
                     .key = { 1, 0, 2, 0 },
                     .n_wheels = 2,
                     .fd = -1 };

    strv_add(&c.owners, "Jim");
    strv_add(&c.owners, "");
    sbuf_add(&c.notes, "a\0b", 3);
    c.wheels[0] = (struct wheel){ 17, str_dup("front") };
    c.wheels[1] = (struct wheel){ 18, NULL };
    return c;
}

/* The document of c. Caller frees. */
static struct sbuf document(struct car *c)
{
    AUTO(saved_free) struct saved *s = saved_writer();
    struct sbuf copy = { 0 };
    struct err err = ERR_INIT;
    const void *data;
    size_t len;

    car_saved(s, c);
    ASSERT_OK(saved_finish(s, &data, &len, &err), err);
    sbuf_add(&copy, data, len);
    return copy;
}

static int read_back(const struct sbuf *doc, struct car *c, struct err *err)
{
    AUTO(saved_free) struct saved *s = NULL;

    if (saved_reader(doc->data, doc->len, &s, err) < 0)
        return -1;
    car_saved(s, c);
    return saved_check(s, err);
}

TEST(what_is_written_is_read_back)
{
    struct car c = a_car(), d = { .fd = -1 };
    AUTO(sbuf_release) struct sbuf doc = document(&c);
    struct err err = ERR_INIT;

    d.none = str_dup("an old value");
    ASSERT_OK(read_back(&doc, &d, &err), err);
    ASSERT(d.fast && d.miles == UINT64_MAX && d.height == -7 && d.slope == -1 && d.doors == 65535);
    ASSERT_EQ(d.color, GREEN);
    ASSERT_STR(d.name, "Herbie");
    ASSERT_STR(d.nickname, "");
    ASSERT(d.none == NULL);
    ASSERT_STR(d.plate, "OFP 857");
    ASSERT(memcmp(d.key, c.key, sizeof(d.key)) == 0);
    ASSERT_EQ(d.owners.n, 2);
    ASSERT_STR(d.owners.v[0], "Jim");
    ASSERT_STR(d.owners.v[1], "");
    ASSERT(d.notes.len == 3 && memcmp(d.notes.data, "a\0b", 3) == 0);
    ASSERT_EQ(d.n_wheels, 2);
    ASSERT_EQ(d.wheels[1].size, 18);
    ASSERT_STR(d.wheels[0].maker, "front");
    ASSERT(d.wheels[1].maker == NULL);
    ASSERT_EQ(d.fd, -1);
    car_release(&c);
    car_release(&d);
}

TEST(every_damaged_byte_and_every_cut_is_noticed)
{
    struct car c = a_car();
    AUTO(sbuf_release) struct sbuf doc = document(&c);

    for (size_t i = 0; i < doc.len; i++) {
        struct car d = { .fd = -1 };
        struct err err = ERR_INIT;
        struct sbuf cut = { doc.data, i, 0 };

        doc.data[i] ^= 0x10;
        ASSERT_FAIL(read_back(&doc, &d, &err), err, ERR_INVALID);
        ASSERT_EQ(err.reason, REASON_SAVED_STATE);
        doc.data[i] ^= 0x10;
        err_clear(&err);
        ASSERT_FAIL(read_back(&cut, &d, &err), err, ERR_INVALID);
        car_release(&d);
    }
    car_release(&c);
}

TEST(a_state_that_is_not_one_is_refused_and_nothing_is_read_after_it)
{
    struct car c = a_car(), d = { .fd = -1, .n_wheels = 3 };
    struct err err = ERR_INIT;

    c.color = COLOR_COUNT;

    AUTO(sbuf_release) struct sbuf doc = document(&c);

    ASSERT_FAIL(read_back(&doc, &d, &err), err, ERR_INVALID);
    ASSERT(d.name == NULL);
    ASSERT_EQ(d.n_wheels, 0);
    car_release(&c);
    car_release(&d);
}

TEST(a_field_that_the_reader_does_not_know_is_skipped_and_one_that_lacks_keeps_its_value)
{
    AUTO(saved_free) struct saved *w = saved_writer(), *r = NULL;
    uint32_t old = 1, new = 2, missing = 7;
    struct err err = ERR_INIT;
    const void *data;
    size_t len;

    saved_u32(w, 1, &old);
    saved_u32(w, 99, &new);
    ASSERT_OK(saved_finish(w, &data, &len, &err), err);
    ASSERT_OK(saved_reader(data, len, &r, &err), err);
    old = 0;
    saved_u32(r, 1, &old);
    saved_u32(r, 2, &missing);
    ASSERT_OK(saved_check(r, &err), err);
    ASSERT_EQ(old, 1);
    ASSERT_EQ(missing, 7);
}

TEST(a_descriptor_must_be_the_same_file)
{
    struct car c = a_car(), d = { .fd = -1 }, e = { .fd = -1 };
    struct err err = ERR_INIT;
    int other = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    c.fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    AUTO(sbuf_release) struct sbuf doc = document(&c);

    ASSERT_OK(read_back(&doc, &d, &err), err);
    ASSERT_EQ(d.fd, c.fd);
    ASSERT_EQ(dup2(other, c.fd), c.fd);
    ASSERT_FAIL(read_back(&doc, &e, &err), err, ERR_INVALID);
    close(c.fd);
    err_clear(&err);
    ASSERT_FAIL(read_back(&doc, &e, &err), err, ERR_INVALID);
    close(other);
    car_release(&c);
    car_release(&d);
    car_release(&e);
}

TEST(descriptors_survive_an_exec_only_while_they_are_kept)
{
    AUTO(saved_free) struct saved *s = saved_writer();
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct err err = ERR_INIT;

    saved_fd(s, 1, "it", &fd);
    ASSERT_OK(saved_keep_fds(s, true, &err), err);
    ASSERT_EQ(fcntl(fd, F_GETFD), 0);
    ASSERT_OK(saved_keep_fds(s, false, &err), err);
    ASSERT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
}

TEST(a_descriptor_that_was_closed_does_not_leave_the_others_open_for_children)
{
    AUTO(saved_free) struct saved *s = saved_writer();
    int first = open("/dev/null", O_RDWR | O_CLOEXEC),
        second = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct err err = ERR_INIT;

    saved_fd(s, 1, "first", &first);
    saved_fd(s, 2, "second", &second);
    ASSERT_OK(saved_keep_fds(s, true, &err), err);
    close(first);
    ASSERT_OK(saved_keep_fds(s, false, &err), err);
    ASSERT_EQ(fcntl(second, F_GETFD), FD_CLOEXEC);
    ASSERT_EQ(saved_keep_fds(s, true, &err), -1);
    close(second);
}
