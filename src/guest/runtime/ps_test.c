#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "guest/runtime/ps.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void make(const char *proc, uint32_t pid, const char *name, uint32_t parent)
{
    AUTO_FREE char *dir = str_format("%s/%u", proc, pid);
    AUTO_FREE char *stat_path = str_format("%s/stat", dir);
    AUTO_FREE char *statm_path = str_format("%s/statm", dir);
    /* 3 state, 4 parent, 14 user, 15 kernel, 22 start */
    AUTO_FREE char *stat =
        str_format("%u (%s) S %u 1 1 0 -1 4194304 100 0 0 0 200 300 0 0 20 0 1 0 "
                   "1000 9999 55 18446744073709551615 1\n",
                   pid, name, parent);
    const char *statm = "500 100 60 10 0 70 0\n";

    ASSERT_EQ(dir_make(dir, 0755), 0);
    ASSERT_EQ(file_write(stat_path, stat, strlen(stat), 0644), 0);
    ASSERT_EQ(file_write(statm_path, statm, strlen(statm), 0644), 0);
}

static bool led(const void *arg, uint32_t pid)
{
    for (const uint32_t *l = arg; *l; l++)
        if (*l == pid)
            return true;
    return false;
}

/* n entries; caller frees. */
static struct ps_entry *list(const char *proc, const uint32_t *pids, size_t n_pids,
                             const uint32_t *leaders, size_t *ret_n)
{
    AUTO_FREE uint32_t *copy = mem_dup(pids, (n_pids + 1) * sizeof(*pids));
    struct ps_entry *v = NULL;

    ps_list(&(struct ps_opts){ .proc = proc, .is_leader = led, .arg = leaders }, copy, n_pids, &v,
            ret_n);
    return v;
}

TEST(each_process_has_its_name_times_memory_and_the_exec_that_it_comes_from)
{
    TEMPDIR(p);
    static const uint32_t pids[] = { 30, 10, 11, 31, 20, 32, 0 }, leaders[] = { 20, 31, 0 };
    size_t n = 0;

    make(p.dir, 10, "init", 1);
    make(p.dir, 11, "child", 10);
    make(p.dir, 20, "exec", 1);
    make(p.dir, 30, "grandchild", 20);
    make(p.dir, 31, "nested", 30); /* nearest counts */
    make(p.dir, 32, "below", 31);
    ASSERT_EQ(file_write(tempdir_path(&p, "uptime"), "25.50 3.00\n", 11, 0644), 0);

    AUTO_FREE struct ps_entry *v = list(p.dir, pids, 6, leaders, &n);
    static const struct {
        uint32_t pid, leader;
    } want[] = { { 10, 0 }, { 11, 0 }, { 20, 20 }, { 30, 20 }, { 31, 31 }, { 32, 31 } };

    ASSERT_EQ(n, 6);
    for (size_t i = 0; i < n; i++) {
        ASSERT_EQ(v[i].pid, want[i].pid);
        ASSERT_EQ(v[i].leader, want[i].leader);
    }
    uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK), kib = (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    ASSERT_STR(v[3].name, "grandchild");
    ASSERT_EQ(v[3].user_ms, 200 * 1000 / hz);
    ASSERT_EQ(v[3].kernel_ms, 300 * 1000 / hz);
    ASSERT_EQ(v[3].age_ms, 25500 - 1000 * 1000 / hz);
    ASSERT_EQ(v[3].data_kib, 70 * kib);
    ASSERT_EQ(v[3].shared_kib, 60 * kib);
    ASSERT_EQ(v[3].private_kib, 40 * kib);
}

TEST(a_name_can_hold_anything)
{
    TEMPDIR(p);
    static const uint32_t pids[] = { 10, 11, 12, 0 }, none[] = { 0 };
    size_t n = 0;

    make(p.dir, 10, ") S 7 (", 1);
    make(p.dir, 11, "\x1b[2J\xff\"\\ \n", 10);
    make(p.dir, 12, "much longer than the kernel allows", 10);

    AUTO_FREE struct ps_entry *v = list(p.dir, pids, 3, none, &n);

    ASSERT_EQ(n, 3);
    ASSERT_STR(v[0].name, ") S 7 (");
    ASSERT_EQ(v[0].parent, 1);
    ASSERT_STR(v[1].name, "?[2J?\"\\ ?");
    ASSERT_STR(v[2].name, "much longer tha");
}

TEST(what_is_gone_twice_there_or_unreadable_is_left_out)
{
    TEMPDIR(p);
    static const uint32_t pids[] = { 12, 10, 10, 99, 13, 0 }, none[] = { 0 };
    size_t n = 0;

    make(p.dir, 10, "a", 1);
    make(p.dir, 12, "b", 10);
    ASSERT_EQ(dir_make(tempdir_path(&p, "13"), 0755), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "13/stat"), "13 (x)", 6, 0644), 0);

    AUTO_FREE struct ps_entry *v = list(p.dir, pids, 5, none, &n);

    ASSERT_EQ(n, 2);
    ASSERT_EQ(v[0].pid, 10);
    ASSERT_EQ(v[1].pid, 12);
    AUTO_FREE struct ps_entry *empty = list(p.dir, pids, 0, none, &n);
    ASSERT(empty && n == 0);
}

TEST(parents_in_a_ring_do_not_hold_it_up)
{
    TEMPDIR(p);
    static const uint32_t pids[] = { 10, 11, 12, 13, 0 }, leaders[] = { 13, 0 };
    size_t n = 0;

    make(p.dir, 10, "a", 12);
    make(p.dir, 11, "b", 10);
    make(p.dir, 12, "c", 11);
    make(p.dir, 13, "d", 13);

    AUTO_FREE struct ps_entry *v = list(p.dir, pids, 4, leaders, &n);

    ASSERT_EQ(n, 4);
    for (size_t i = 0; i < 3; i++)
        ASSERT_EQ(v[i].leader, 0);
    ASSERT_EQ(v[3].leader, 13);
}

TEST(a_long_list_has_leaders_and_no_details)
{
    TEMPDIR(p);
    uint32_t pids[PS_DETAILS_MAX + 2] = { 0 };
    static const uint32_t leaders[] = { 1001, 0 };
    size_t n = 0;

    for (uint32_t i = 0; i <= PS_DETAILS_MAX; i++) { /* a chain */
        pids[i] = 1000 + i;
        make(p.dir, pids[i], "x", pids[i] - 1);
    }

    AUTO_FREE struct ps_entry *v = list(p.dir, pids, PS_DETAILS_MAX + 1, leaders, &n);

    ASSERT_EQ(n, PS_DETAILS_MAX + 1);
    ASSERT_EQ(v[0].leader, 0);
    ASSERT_EQ(v[n - 1].leader, 1001);
    ASSERT_STR(v[n - 1].name, "");
    ASSERT_EQ(v[n - 1].user_ms, 0);
}

TEST(this_process_is_as_the_kernel_says)
{
    uint32_t self = (uint32_t)getpid();
    const uint32_t none[] = { 0 }, pids[] = { self, 0 };
    size_t n = 0;

    AUTO_FREE struct ps_entry *v = list("/proc", pids, 1, none, &n);

    ASSERT_EQ(n, 1);
    ASSERT_EQ(v[0].parent, (uint32_t)getppid());
    ASSERT(v[0].private_kib + v[0].shared_kib > 0);
    ASSERT(v[0].age_ms < 600 * 1000);
}
