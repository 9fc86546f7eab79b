/* stats_test.c - the guest's numbers as containerd's messages; ids. */
#include "api/cgroups_v1.pb-c.h"
#include "api/cgroups_v2.pb-c.h"
#include "base/json.h"
#include "base/str.h"
#include "harness/tap.h"
#include "host/service/service.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"
#include <string.h>

/* docs/reference/gcs-protocol.md, GETPRESP */
#define GUEST                                                                                      \
    "{\"pids\":{\"current\":2,\"limit\":18446744073709551615},\"cpu\":{"                           \
    "\"usage\":{"                                                                                  \
    "\"total\":51234000,\"kernel\":20100000,\"user\":31134000},\"throttling\":{}},\"memory\":{"    \
    "\"cache\":4096,\"rss\":1048576,\"hierarchical_memory_limit\":268435456,\"usage\":{\"limit\":" \
    "268435456,\"usage\":1155072,\"max\":2203648},\"swap\":{},\"kernel\":{\"usage\":32768},"       \
    "\"kernel_tcp\":{}},\"blkio\":{},\"rdma\":{},\"memory_oom_control\":{}}"

static Any *convert(const char *json, bool v2)
{
    AUTO(json_decref) json_t *metrics = NULL;
    Any *any = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(js_parse(json, strlen(json), 1 << 20, &metrics, &err), err);
    ASSERT_OK(stats_from_guest(metrics, v2, &any, &err), err);
    return any;
}

TEST(on_a_v1_host_the_numbers_keep_their_names)
{
    AUTO(pb_free) Any *any = convert(GUEST, false);
    AUTO(pb_free) Cgroups1__Metrics *m = NULL;

    ASSERT_STR(any->type_url, "io.containerd.cgroups.v1.Metrics");
    ASSERT_EQ(pb_any_unpack(any, &cgroups1__metrics__descriptor, (void **)&m), 0);
    ASSERT_EQ(m->pids->current, 2);
    ASSERT(m->pids->limit == UINT64_MAX);
    ASSERT_EQ(m->cpu->usage->total, 51234000);
    ASSERT_EQ(m->memory->usage->usage, 1155072);
    ASSERT_EQ(m->memory->usage->max, 2203648);
    ASSERT_EQ(m->memory->kernel->usage, 32768);
}

TEST(on_a_v2_host_the_numbers_are_converted_to_v2)
{
    AUTO(pb_free) Any *any = convert(GUEST, true);
    AUTO(pb_free) Cgroups2__Metrics *m = NULL;

    ASSERT_STR(any->type_url, "io.containerd.cgroups.v2.Metrics");
    ASSERT_EQ(pb_any_unpack(any, &cgroups2__metrics__descriptor, (void **)&m), 0);
    ASSERT_EQ(m->pids->current, 2);
    ASSERT(m->pids->limit == UINT64_MAX);
    ASSERT_EQ(m->cpu->usage_usec, 51234);
    ASSERT_EQ(m->cpu->user_usec, 31134);
    ASSERT_EQ(m->cpu->system_usec, 20100);
    ASSERT_EQ(m->memory->anon, 1048576);
    ASSERT_EQ(m->memory->file, 4096);
    ASSERT_EQ(m->memory->usage, 1155072);
    ASSERT_EQ(m->memory->usage_limit, 268435456);
    ASSERT_EQ(m->memory->max_usage, 2203648);
    ASSERT(m->memory->swap_limit == UINT64_MAX); /* unlimited is not zero */
    ASSERT(m->io && m->memory_events);
}

TEST(what_version_1_has_no_place_for_is_taken_from_the_guests_v2)
{
    AUTO(pb_free)
    Any *any =
        convert("{\"memory\":{\"rss\":9,\"usage\":{\"usage\":7}},\"blkio\":{"
                "\"io_service_bytes_recursive\":[{\"op\":\"Read\",\"major\":8,\"value\":4096}]},"
                "\"v2\":{\"cpu\":{\"psi\":{\"some\":{\"avg10\":1.5,\"avg60\":0,\"total\":77}}},"
                "\"memory\":{\"slab\":17,\"psi\":{\"full\":{\"avg10\":0.25}}},"
                "\"io\":{\"usage\":[{\"major\":1}],\"psi\":{\"some\":{\"total\":3}}},"
                "\"memory_events\":{\"max\":3,\"oom\":2,\"oom_kill\":1,\"oom_group_kill\":1}}}",
                true);
    AUTO(pb_free) Cgroups2__Metrics *m = NULL;

    ASSERT_EQ(pb_any_unpack(any, &cgroups2__metrics__descriptor, (void **)&m), 0);
    ASSERT_EQ(m->memory->anon, 9);
    ASSERT_EQ(m->memory->usage, 7);
    ASSERT_EQ(m->memory->slab, 17);
    ASSERT(m->memory->psi->full->avg10 == 0.25 && !m->memory->psi->some);
    ASSERT(m->cpu->psi->some->avg10 == 1.5);
    ASSERT_EQ(m->cpu->psi->some->total, 77);
    ASSERT_EQ(m->io->n_usage, 1);
    ASSERT_EQ(m->io->usage[0]->rbytes, 4096);
    ASSERT_EQ(m->io->psi->some->total, 3);
    ASSERT_EQ(m->memory_events->max, 3);
    ASSERT_EQ(m->memory_events->oom, 2);
    ASSERT_EQ(m->memory_events->oom_kill, 1);
    ASSERT_EQ(m->memory_events->oom_group_kill, 1);
}

TEST(oom_kills_faults_and_throttling_are_reported)
{
    AUTO(pb_free)
    Any *any = convert(
        "{\"memory\":{\"total_inactive_file\":5,\"total_pg_fault\":6,\"total_pg_maj_fault\":7},"
        "\"cpu\":{\"throttling\":{\"periods\":1,\"throttled_periods\":2,\"throttled_time\":3000}},"
        "\"memory_oom_control\":{\"oom_kill\":4}}",
        true);
    AUTO(pb_free) Cgroups2__Metrics *m = NULL;

    ASSERT_EQ(pb_any_unpack(any, &cgroups2__metrics__descriptor, (void **)&m), 0);
    ASSERT_EQ(m->memory->inactive_file, 5);
    ASSERT_EQ(m->memory->pgfault, 6);
    ASSERT_EQ(m->memory->pgmajfault, 7);
    ASSERT_EQ(m->cpu->nr_periods, 1);
    ASSERT_EQ(m->cpu->nr_throttled, 2);
    ASSERT_EQ(m->cpu->throttled_usec, 3);
    ASSERT_EQ(m->memory_events->oom_kill, 4);
}

TEST(totals_that_the_guest_leaves_out_are_those_without_it)
{
    AUTO(pb_free)
    Any *any =
        convert("{\"memory\":{\"cache\":1,\"rss\":2,\"total_rss\":3,\"unevictable\":4}}", false);
    AUTO(pb_free) Cgroups1__Metrics *m = NULL;

    ASSERT_EQ(pb_any_unpack(any, &cgroups1__metrics__descriptor, (void **)&m), 0);
    ASSERT_EQ(m->memory->total_cache, 1);
    ASSERT_EQ(m->memory->total_rss, 3);
    ASSERT_EQ(m->memory->total_unevictable, 4);
}

TEST(messages_that_ctr_reads_without_checking_are_always_present)
{
    AUTO(pb_free) Any *v1 = convert("{}", false), *v2 = convert("{}", true);
    AUTO(pb_free) Cgroups1__Metrics *m1 = NULL;
    AUTO(pb_free) Cgroups2__Metrics *m2 = NULL;

    ASSERT_EQ(pb_any_unpack(v1, &cgroups1__metrics__descriptor, (void **)&m1), 0);
    ASSERT(m1->pids && m1->cpu && m1->cpu->usage && m1->cpu->throttling && m1->memory);
    ASSERT(m1->memory->usage && m1->memory->swap && m1->memory_oom_control && m1->blkio);
    ASSERT_EQ(pb_any_unpack(v2, &cgroups2__metrics__descriptor, (void **)&m2), 0);
    ASSERT(m2->pids && m2->cpu && m2->memory && m2->io && m2->memory_events);
}

TEST(traffic_is_reported_by_interface)
{
    static const char text[] =
        "{\"network\":[{\"name\":\"eth0\",\"rx_bytes\":7,\"tx_dropped\":2}]}";
    AUTO(pb_free) Any *one = convert(text, false), *two = convert(text, true);
    AUTO(pb_free) Cgroups1__Metrics *v1 = NULL;
    AUTO(pb_free) Cgroups2__Metrics *v2 = NULL;

    ASSERT_EQ(pb_any_unpack(one, &cgroups1__metrics__descriptor, (void **)&v1), 0);
    ASSERT_EQ(pb_any_unpack(two, &cgroups2__metrics__descriptor, (void **)&v2), 0);
    ASSERT_EQ(v1->n_network, 1);
    ASSERT_EQ(v2->n_network, 1);
    ASSERT_STR(v2->network[0]->name, "eth0");
    ASSERT_EQ(v1->network[0]->rx_bytes, 7);
    ASSERT_EQ(v2->network[0]->rx_bytes, 7);
    ASSERT_EQ(v2->network[0]->tx_dropped, 2);
}

TEST(reads_and_writes_are_summed_by_device)
{
    AUTO(pb_free)
    Any *any = convert(
        "{\"blkio\":{\"io_service_bytes_recursive\":[{\"op\":\"Read\",\"major\":8,\"value\":10},"
        "{\"op\":\"Write\",\"major\":8,\"value\":20},{\"op\":\"Sync\",\"major\":8,\"value\":30},"
        "{\"op\":\"read\",\"major\":9,\"value\":1}],"
        "\"io_serviced_recursive\":[{\"op\":\"Read\",\"major\":8,\"value\":2}]}}",
        true);
    AUTO(pb_free) Cgroups2__Metrics *m = NULL;

    ASSERT_EQ(pb_any_unpack(any, &cgroups2__metrics__descriptor, (void **)&m), 0);
    ASSERT_EQ(m->io->n_usage, 2);
    ASSERT_EQ(m->io->usage[0]->rbytes, 10);
    ASSERT_EQ(m->io->usage[0]->wbytes, 20);
    ASSERT_EQ(m->io->usage[0]->rios, 2);
    ASSERT_EQ(m->io->usage[1]->rbytes, 1);
}

TEST(a_hostile_guest_gets_an_error_that_names_the_place)
{
    static const struct {
        const char *json, *part;
    } bad[] = {
        { "[]", "not an object" },
        { "{\"pids\":7}", "pids" },
        { "{\"pids\":{\"current\":-1}}", "current" },
        { "{\"pids\":{\"current\":1.5}}", "current" },
        { "{\"cpu\":{\"usage\":{\"per_cpu\":[1,\"x\"]}}}", "per_cpu" },
        { "{\"cpu\":{\"usage\":{\"per_cpu\":{}}}}", "per_cpu" },
        { "{\"hugetlb\":[7]}", "hugetlb" },
        { "{\"hugetlb\":[{\"pagesize\":7}]}", "pagesize" },
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO(json_decref) json_t *metrics = json_loads(bad[i].json, 0, NULL);
        Any *any = NULL;
        struct err err = ERR_INIT;

        ASSERT_FAIL(stats_from_guest(metrics, i % 2, &any, &err), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, bad[i].part);
        ASSERT(!any);
    }
}

#define TEN "1234567890"
#define SEVENTY TEN TEN TEN TEN TEN TEN TEN

TEST(ids_that_are_not_names_are_refused)
{
    static const char *const good[] = { "a", "c1", "a.b-c_d", "0", (SEVENTY "123456") };
    static const char *const bad[] = { "",
                                       "..",
                                       "a/b",
                                       "a b",
                                       "-a",
                                       ".a",
                                       "a.",
                                       "a_",
                                       "a..b",
                                       "a.-b",
                                       "a\n",
                                       "\xc3\xa4",
                                       (SEVENTY "1234567") };

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct err err = ERR_INIT;

        ASSERT_OK(service_check_id("container id", good[i], &err), err);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = ERR_INIT;

        ASSERT_FAIL(service_check_id("container id", bad[i], &err), err, ERR_INVALID);
        ASSERT_HAS(err.msg, "container id");
    }
}
