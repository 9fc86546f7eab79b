#include "base/str.h"
#include "guest/runtime/metrics.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

TEST(every_field_is_translated_to_version_1)
{
    const struct metrics_files f = {
        .memory_current = "1155072\n",
        .memory_max = "268435456\n",
        .memory_peak = "2203648\n",
        .memory_stat = "anon 1\nfile 2\nkernel_stack 3\nsock 4\nanon_thp 5\nfile_mapped 6\n"
                       "file_dirty 7\nfile_writeback 8\npgfault 9\npgmajfault 10\n"
                       "inactive_anon 11\nactive_anon 12\ninactive_file 13\nactive_file 14\n"
                       "unevictable 15\nshmem 16\n",
        .memory_events = "low 1\noom 7\noom_kill 2\noom_group_kill 9\n",
        .swap_current = "20\n",
        .swap_max = "30\n",
        .swap_peak = "25\n",
        .cpu_stat = "usage_usec 51234\nuser_usec 31134\nsystem_usec 20100\nnr_periods 4\n"
                    "nr_throttled 3\nthrottled_usec 2\n",
        .pids_current = "2\n",
        .pids_max = "max\n",
        .io_stat = "8:16 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n"
                   "8:0 \n9:1 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n",
        .cpu_pressure = "some avg10=1.50 avg60=0.00 avg300=0.00 total=77\n",
        .memory_pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
                           "full avg10=0.25 avg60=0.00 avg300=0.00 total=5\n",
    };
    AUTO_FREE char *json = metrics_json(&f, true);

    ASSERT_STR(json,
               "{\"pids\":{\"current\":2,\"limit\":18446744073709551615},"
               "\"cpu\":{\"usage\":{\"total\":51234000,\"kernel\":20100000,\"user\":31134000},"
               "\"throttling\":{\"periods\":4,\"throttled_periods\":3,\"throttled_time\":2000}},"
               "\"memory\":{\"cache\":2,\"rss\":1,\"rss_huge\":5,\"mapped_file\":6,\"dirty\":7,"
               "\"writeback\":8,\"pg_fault\":9,\"pg_maj_fault\":10,\"inactive_anon\":11,"
               "\"active_anon\":12,\"inactive_file\":13,\"active_file\":14,\"unevictable\":15,"
               "\"hierarchical_memory_limit\":268435456,\"hierarchical_swap_limit\":30,"
               "\"total_cache\":2,\"total_rss\":1,\"total_rss_huge\":5,\"total_mapped_file\":6,"
               "\"total_dirty\":7,\"total_writeback\":8,\"total_pg_fault\":9,"
               "\"total_pg_maj_fault\":10,\"total_inactive_anon\":11,\"total_active_anon\":12,"
               "\"total_inactive_file\":13,\"total_active_file\":14,\"total_unevictable\":15,"
               "\"usage\":{\"limit\":268435456,\"usage\":1155072,\"max\":2203648},"
               "\"swap\":{\"limit\":30,\"usage\":20,\"max\":25},\"kernel\":{\"usage\":3},"
               "\"kernel_tcp\":{\"usage\":4}},\"blkio\":{\"io_service_bytes_recursive\":["
               "{\"op\":\"Read\",\"major\":8,\"minor\":16,\"value\":4096},"
               "{\"op\":\"Write\",\"major\":8,\"minor\":16},"
               "{\"op\":\"Read\",\"major\":9,\"minor\":1,\"value\":1},"
               "{\"op\":\"Write\",\"major\":9,\"minor\":1,\"value\":2}],"
               "\"io_serviced_recursive\":["
               "{\"op\":\"Read\",\"major\":8,\"minor\":16,\"value\":1},"
               "{\"op\":\"Write\",\"major\":8,\"minor\":16},"
               "{\"op\":\"Read\",\"major\":9,\"minor\":1,\"value\":3},"
               "{\"op\":\"Write\",\"major\":9,\"minor\":1,\"value\":4}]},\"rdma\":{},"
               "\"memory_oom_control\":{\"oom_kill\":2},\"v2\":{"
               "\"cpu\":{\"psi\":{\"some\":{\"avg10\":1.5,\"avg60\":0,\"avg300\":0,"
               "\"total\":77}}},"
               "\"memory\":{\"shmem\":16,\"psi\":{"
               "\"some\":{\"avg10\":0,\"avg60\":0,\"avg300\":0},"
               "\"full\":{\"avg10\":0.25,\"avg60\":0,\"avg300\":0,\"total\":5}}},"
               "\"io\":{},"
               "\"memory_events\":{\"low\":1,\"oom\":7,\"oom_kill\":2,"
               "\"oom_group_kill\":9}}}");
}

TEST(totals_are_left_out_if_they_are_not_wanted)
{
    const struct metrics_files f = { .memory_stat = "anon 1\nfile 2\n" };
    AUTO_FREE char *json = metrics_json(&f, false);

    ASSERT_HAS(json, "\"memory\":{\"cache\":2,\"rss\":1,\"usage\"");
    ASSERT(!strstr(json, "total_"));
}

TEST(missing_files_leave_their_numbers_out)
{
    const struct metrics_files f = { 0 };
    AUTO_FREE char *json = metrics_json(&f, true);

    ASSERT_STR(json, "{\"pids\":{},\"cpu\":{\"usage\":{},\"throttling\":{}},"
                     "\"memory\":{\"usage\":{},\"swap\":{},\"kernel\":{},\"kernel_tcp\":{}},"
                     "\"blkio\":{},\"rdma\":{},\"memory_oom_control\":{}}");
}

TEST(a_key_is_a_whole_word)
{
    const struct metrics_files f = { .memory_stat = "file_mapped 6\nanon_thp 5\nfile" };
    AUTO_FREE char *json = metrics_json(&f, true);

    ASSERT(!strstr(json, "\"cache\"") && !strstr(json, "\"rss\":"));
    ASSERT_HAS(json, "\"mapped_file\":6");
}

TEST(huge_times_do_not_wrap)
{
    const struct metrics_files f = { .cpu_stat = "usage_usec 18446744073709551615\n" };
    AUTO_FREE char *json = metrics_json(&f, true);

    ASSERT_HAS(json, "\"total\":18446744073709551615");
}

TEST(a_cgroup_is_read_by_its_directory)
{
    AUTO(metrics_close) struct metrics *m = NULL;
    AUTO_FREE char *json = NULL, *again = NULL;
    struct err err = ERR_INIT;
    TEMPDIR(p);

    ASSERT_FAIL(metrics_open(tempdir_path(&p, "none"), &m, &err), err, ERR_NOT_FOUND);
    ASSERT_EQ(file_write(tempdir_path(&p, "pids.current"), "3\n", 2, 0644), 0);
    ASSERT_OK(metrics_open(p.dir, &m, &err), err);
    ASSERT_OK(metrics_read(m, true, &json, &err), err);
    ASSERT_HAS(json, "\"pids\":{\"current\":3}");
    ASSERT_EQ(file_write(tempdir_path(&p, "pids.current"), "41\n", 3, 0644), 0);
    ASSERT_OK(metrics_read(m, true, &again, &err), err);
    ASSERT_HAS(again, "\"pids\":{\"current\":41}");
}

TEST(files_that_cannot_be_opened_are_an_error_and_not_left_out)
{
    AUTO(metrics_close) struct metrics *m = NULL;
    struct err err = ERR_INIT, second = ERR_INIT;
    struct rlimit old, none = { 0 };
    TEMPDIR(p);

    ASSERT_EQ(file_write(tempdir_path(&p, "pids.current"), "3\n", 2, 0644), 0);
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    none.rlim_max = old.rlim_max;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    int r = metrics_open(p.dir, &m, &err);
    int free_fd = dup(2); /* fails: the limit is 0 */
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    ASSERT(r < 0 && free_fd < 0 && err.reason == REASON_TOO_MANY_FILES);

    /* Room for the directory, but not for its files. */
    int next = dup(2);
    ASSERT(next >= 0);
    close(next);
    none.rlim_cur = (rlim_t)next + 1;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    r = metrics_open(p.dir, &m, &second);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    ASSERT(r < 0 && second.reason == REASON_TOO_MANY_FILES);
}
