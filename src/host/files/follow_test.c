#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "host/files/follow.h"
#include "host/jail/mountinfo.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE "20 1 8:1 / /vol rw - ext4 /dev/sda rw\n"

/* A look at a table of this text. */
static void look(struct follow *f, const char *text)
{
    AUTO(mountinfo_list_release) struct mountinfo_list table = { 0 };
    int fd = memfd_create("table", MFD_CLOEXEC);

    ASSERT(fd >= 0 && fd_write_full(fd, text, strlen(text)) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    ASSERT_EQ(mountinfo_below(fd, f->source, f->mount, &table), 0);
    follow_look(f, &table);
}

/* "POINT+" new, "POINT-" gone, "POINT=" shown, "POINT!" left out; what was new is shown then. */
static void is(struct follow *f, const char *expected)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };

    for (size_t i = 0; i < f->n; i++) {
        struct follow_mount *m = &f->v[i];

        sbuf_addf(&b, "%s%s%s", i ? " " : "", follow_below(f, m),
                  !m->there     ? "-"
                  : m->left_out ? "!"
                  : m->shown    ? "="
                                : "+");
        m->shown = true;
    }
    ASSERT_STR(b.len ? b.data : "", expected);
    follow_sweep(f);
}

static struct follow below(const char *source)
{
    return (struct follow){ .source = str_dup(source), .mount = 20 };
}

TEST(mounts_below_the_source_come_and_go_and_others_do_not_count)
{
    AUTO(follow_release) struct follow f = below("/vol/data");

    look(&f, BASE
         "30 20 0:40 / /vol/other rw - tmpfs t rw\n31 20 0:41 / /vol/database rw - tmpfs t rw\n");
    is(&f, "");
    look(&f, BASE "32 20 0:42 / /vol/data/a\\040b rw - tmpfs t rw\n"
                  "33 20 0:43 / /vol/data rw - tmpfs t rw\n"
                  "34 99 0:44 / /vol/data/hidden rw - tmpfs t rw\n");
    is(&f, "/a b+ +");
    look(&f, BASE "32 20 0:42 / /vol/data/a\\040b rw - tmpfs t rw\n");
    is(&f, "/a b= -");
    look(&f, BASE);
    is(&f, "/a b-");
}

TEST(a_nested_mount_comes_after_what_it_is_mounted_on_whatever_the_order_of_the_table)
{
    AUTO(follow_release) struct follow f = below("/vol");

    look(&f, "31 32 0:41 / /vol/a/b rw - tmpfs t rw\n32 20 0:42 / /vol/a rw - tmpfs t rw\n" BASE
             "33 31 0:43 / /vol/a/b rw - tmpfs t rw\n");
    is(&f, "/a+ /a/b+ /a/b+");
    look(&f, "32 20 0:42 / /vol/a rw - tmpfs t rw\n" BASE);
    is(&f, "/a= /a/b- /a/b-");
}

/* The kernel gives the id of a mount that is gone to the next. */
TEST(another_mount_with_the_same_id_and_place_is_another_mount)
{
    AUTO(follow_release) struct follow f = below("/vol");

    look(&f, BASE "30 20 0:40 / /vol/a rw - tmpfs t rw\n");
    is(&f, "/a+");
    look(&f, BASE "30 20 0:41 / /vol/a rw - tmpfs t rw\n");
    is(&f, "/a- /a+");
    look(&f, BASE "30 20 0:41 /sub /vol/a rw - tmpfs t rw\n");
    is(&f, "/a- /a+");
    look(&f, BASE "30 20 0:41 /sub /vol/moved rw - tmpfs t rw\n");
    is(&f, "/a- /moved+");
    /* The same of the mount that the source is in. */
    look(&f, "20 1 8:2 / /vol rw - ext4 /dev/sdb rw\n30 20 0:41 /sub /vol/moved rw - tmpfs t rw\n");
    is(&f, "/moved-");
}

TEST(with_late_only_what_comes_after_the_first_look_counts)
{
    AUTO(follow_release) struct follow f = below("/vol");

    f.late = true;
    look(&f, BASE "30 20 0:40 / /vol/a rw - tmpfs t rw\n");
    is(&f, "/a!");
    look(&f, BASE "30 20 0:40 / /vol/a rw - tmpfs t rw\n31 30 0:41 / /vol/a/in rw - tmpfs t rw\n"
                  "32 20 0:42 / /vol/b rw - tmpfs t rw\n");
    is(&f, "/a! /a/in! /b+");
}

TEST(the_number_of_mounts_is_bounded)
{
    AUTO(follow_release) struct follow f = below("/vol");
    AUTO(sbuf_release) struct sbuf table = { 0 };

    sbuf_adds(&table, BASE);
    for (unsigned i = 0; i < FOLLOW_MAX + 7; i++)
        sbuf_addf(&table, "%u 20 0:%u / /vol/%u rw - tmpfs t rw\n", 100 + i, 100 + i, i);
    look(&f, table.data);
    ASSERT_EQ(f.n, FOLLOW_MAX);
    ASSERT_EQ(f.too_many, 7);
    look(&f, BASE);
    follow_sweep(&f);
    ASSERT_EQ(f.n, 0);
    ASSERT_EQ(f.too_many, 0);
}

TEST(below_the_root_of_all_everything_counts)
{
    AUTO(follow_release) struct follow f = below("/");

    look(&f, "20 1 8:1 / / rw - ext4 /dev/sda rw\n21 20 0:5 / /dev rw - devtmpfs d rw\n"
             "22 21 0:6 / /dev/shm rw - tmpfs s rw\n");
    is(&f, "/dev+ /dev/shm+");
}
