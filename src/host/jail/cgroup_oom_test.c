/* A tree of v2 as the kernel shows it, in a directory. */
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/cgroup_oom.h"

#include <string.h>
#include <unistd.h>

#define SCOPE "kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope"
#define POD "kubepods.slice/kubepods-pod1.slice"

static void put(struct tempdir *t, const char *dir, const char *name, const char *text)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);

    ASSERT_EQ(file_write(tempdir_path(t, path), text, strlen(text), 0600), 0);
}

static void put_events(struct tempdir *t, const char *dir, unsigned local_oom, unsigned kills)
{
    AUTO_FREE char *all = str_format("low 0\nhigh 0\nmax 40\noom %u\noom_kill %u\n"
                                     "oom_group_kill 0\n",
                                     local_oom, kills),
                   *local = str_format("low 0\nhigh 0\nmax 40\noom %u\noom_kill 0\n", local_oom);

    put(t, dir, "memory.events", all);
    put(t, dir, "memory.events.local", local);
}

static void begin(struct tempdir *t, struct oom_watch *w)
{
    ASSERT_EQ(dir_make(tempdir_path(t, SCOPE), 0755), 0);
    put_events(t, "kubepods.slice", 0, 7);
    put_events(t, POD, 2, 3); /* from an earlier container */
    put(t, POD, "memory.max", "268435456\n");
    put(t, POD, "memory.pressure",
        "some avg10=55.00 avg60=9.00 avg300=1.00 total=1\n"
        "full avg10=41.27 avg60=8.00 avg300=1.00 total=1\n");
    put_events(t, SCOPE, 0, 0);
    put(t, SCOPE, "memory.max", "max\n");
    oom_watch_begin_on(w, t->dir, "0::/" SCOPE "\n");
}

static void expect(struct oom_watch *w, bool hit, const char *why)
{
    AUTO_FREE char *got = NULL;

    ASSERT_EQ(oom_watch_hit(w, &got), hit);
    ASSERT_STR(got, why);
    oom_watch_release(w);
}

TEST(a_kill_without_a_rise_of_the_count_is_not_the_oom_killers)
{
    TEMPDIR(t);
    struct oom_watch w;

    begin(&t, &w);
    put_events(&t, POD, 3, 4); /* of another container in the pod */
    expect(&w, false, "");
}

TEST(the_limit_above_that_was_reached_is_named_with_events_and_pressure)
{
    TEMPDIR(t);
    struct oom_watch w;

    begin(&t, &w);
    put_events(&t, SCOPE, 0, 1);
    put_events(&t, POD, 3, 4);
    expect(&w, true,
           "cgroup kubepods-pod1.slice reached its memory limit of 256 MiB (memory.events: max 40, "
           "oom 3, oom_kill 4, stalled 41.27 % of the last 10 s)");
}

TEST(without_a_limit_that_was_reached_the_host_had_no_memory)
{
    TEMPDIR(t);
    struct oom_watch w;

    begin(&t, &w);
    put_events(&t, SCOPE, 0, 1);
    expect(&w, true, "the host ran out of memory; no cgroup limit was reached");
}

TEST(a_scope_that_has_gone_is_looked_at_from_above)
{
    TEMPDIR(t);
    struct oom_watch w, other;

    begin(&t, &w);
    oom_watch_begin_on(&other, t.dir, "0::/" SCOPE "\n");
    ASSERT_EQ(dir_remove(tempdir_path(&t, SCOPE)), 0);
    expect(&other, false, "");
    put_events(&t, POD, 3, 4);
    expect(&w, true,
           "cgroup kubepods-pod1.slice reached its memory limit of 256 MiB (memory.events: max 40, "
           "oom 3, oom_kill 4, stalled 41.27 % of the last 10 s)");
}

TEST(in_v1_the_count_alone_shows_an_oom_kill)
{
    TEMPDIR(t);
    struct oom_watch w, none;

    ASSERT_EQ(dir_make(tempdir_path(&t, "memory/a"), 0755), 0);
    put(&t, "memory/a", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    oom_watch_begin_on(&w, t.dir, "9:cpu:/b\n4:memory:/a\n0::/c\n");
    put(&t, "memory/a", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
    expect(&w, true, "");
    oom_watch_begin_on(&w, t.dir, "4:memory:/a\n");
    expect(&w, false, "");
    oom_watch_begin_on(&none, t.dir, "4:memory:/missing\n");
    expect(&none, false, "");
    oom_watch_begin_on(&none, t.dir, "");
    expect(&none, false, "");
}

TEST(long_paths_are_watched_too)
{
    TEMPDIR(t);
    struct oom_watch w;
    AUTO_FREE char *name = mem_zalloc(201), *dir = NULL, *line = NULL;

    memset(name, 'x', 200);
    dir = str_format("%s.slice/%s-%s.slice", name, name, "a");
    line = str_format("0::/%s\n", dir);
    ASSERT_EQ(dir_make(tempdir_path(&t, dir), 0755), 0);
    put_events(&t, dir, 0, 0);
    oom_watch_begin_on(&w, t.dir, line);
    put_events(&t, dir, 0, 1);
    expect(&w, true, "the host ran out of memory; no cgroup limit was reached");
}
