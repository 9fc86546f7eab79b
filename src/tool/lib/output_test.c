#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "tool/lib/output.h"
#include "tool/lib/reading.h"
#include <fcntl.h>
#include <string.h>

static void put(const char *dir, const char *name, const char *text)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);

    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

static void add(struct outputs *o, const char *text, int64_t at_ns)
{
    AUTO(json_decref) json_t *doc = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(js_parse(text, strlen(text), 4096, &doc, &err), err);
    outputs_add(o, &(struct line){ .doc = doc, .at_ns = at_ns });
}

TEST(times_with_and_without_an_offset_are_read)
{
    ASSERT_EQ(line_time("1970-01-01T00:00:01.5Z"), 1500000000);
    ASSERT_EQ(line_time("1970-01-01T01:00:01.500000001+01:00"), 1500000001);
    ASSERT_EQ(line_time("1969-12-31T23:30:01-00:30"), 1000000000);
    ASSERT_EQ(line_time("yesterday"), 0);
    ASSERT_EQ(line_time("9999-12-31T23:59:59Z"), 0); /* more than there are nanoseconds */
}

TEST(only_complete_lines_of_this_pod_are_read_from_a_cri_log)
{
    TEMPDIR(temp);
    struct outputs *o = outputs_new("ns", "p");
    struct lines l = { 0 };

    AUTO_FREE char *sub = str_format("%s/web", temp.dir);
    AUTO_FREE char *pod =
        str_format("{\"cid\":\"p\",\"pod-id\":\"p\",\"log-directory\":\"%s\"}", temp.dir);

    ASSERT_EQ(dir_make(sub, 0700), 0);
    put(sub, "0.log", "1970-01-01T00:00:05Z stdout F of a pod before\n");
    put(sub, "1.log",
        "1970-01-01T00:00:11Z stdout P begin, \n1970-01-01T00:00:12Z stderr F bad\x1b[31m\n"
        "1970-01-01T00:00:13Z stdout F end\nrubbish\n1970-01-01T00:00:21Z stdout F again\n"
        "1970-01-01T00:00:22Z stdout F no end yet");
    add(o, pod, 9000000000);
    add(o, "{\"cid\":\"a\",\"pod-id\":\"p\",\"name\":\"web\",\"stdout\":\"/fifo\"}", 10000000000);
    add(o, "{\"cid\":\"b\",\"pod-id\":\"p\",\"name\":\"web\",\"stdout\":\"/fifo\"}", 20000000000);
    outputs_more(o, -1, &l);
    ASSERT_EQ(l.n, 3);
    ASSERT_STR(l.v[0].text, "bad?[31m");
    ASSERT_STR(json_string_value(json_object_get(l.v[0].doc, "stream")), "stderr");
    ASSERT_STR(l.v[1].text, "begin, end");
    ASSERT_STR(json_string_value(json_object_get(l.v[1].doc, "cid")), "a");
    ASSERT_STR(l.v[1].time, "1970-01-01T00:00:13.000000000Z");
    ASSERT_STR(l.v[2].text, "again");
    ASSERT_STR(json_string_value(json_object_get(l.v[2].doc, "cid")), "b");
    lines_release(&l);
    outputs_more(o, -1, &l);
    ASSERT_EQ(l.n, 0);
    lines_release(&l);
    outputs_free(o);
}

static void tell(struct outputs *o, const char *text)
{
    AUTO(json_decref) json_t *doc = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(js_parse(text, strlen(text), 4096, &doc, &err), err);
    outputs_tell(o, doc);
}

TEST(output_belongs_to_the_container_instance_that_wrote_it)
{
    TEMPDIR(temp);
    struct outputs *o = outputs_new("ns", "p");
    struct lines l = { 0 };

    AUTO_FREE char *pod =
        str_format("{\"id\":\"p\",\"pod\":\"p\",\"log_directory\":\"%s\"}", temp.dir);

    put(temp.dir, "web\x1b.log",
        "1970-01-01T00:00:11Z stdout F first\n1970-01-01T00:00:21Z stdout F second\n");
    tell(o, pod);
    /* The shim knows of the one that lives, and only its journal of the one before. */
    tell(o, "{\"id\":\"b\",\"pod\":\"p\",\"name\":\"web\\u001b\",\"stdout\":\"/fifo\"}");
    add(o, "{\"cid\":\"a\",\"pod-id\":\"p\",\"name\":\"web\\u001b\",\"stdout\":\"/fifo\"}",
        10000000000);
    add(o, "{\"cid\":\"b\",\"pod-id\":\"p\",\"name\":\"web\\u001b\",\"stdout\":\"/fifo\"}",
        20000000000);
    outputs_more(o, -1, &l);
    ASSERT_EQ(l.n, 2);
    ASSERT_STR(json_string_value(json_object_get(l.v[0].doc, "cid")), "a");
    ASSERT_STR(json_string_value(json_object_get(l.v[1].doc, "cid")), "b");
    ASSERT_STR(json_string_value(json_object_get(l.v[1].doc, "container")), "web?");
    lines_release(&l);
    outputs_free(o);
}

TEST(a_truncated_file_is_read_from_its_start)
{
    TEMPDIR(temp);
    struct outputs *o = outputs_new("ns", "p");
    struct lines l = { 0 };

    AUTO_FREE char *path = str_format("%s/out", temp.dir);
    AUTO_FREE char *c =
        str_format("{\"cid\":\"a\",\"pod-id\":\"a\",\"stdout\":\"file://%s\"}", path);

    put(temp.dir, "out", "one of many words\n");
    add(o, c, 1);
    outputs_more(o, -1, &l);
    ASSERT_EQ(l.n, 1);
    lines_release(&l);

    AUTO_FD int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);

    ASSERT_EQ(fd_write_full(fd, "two\n", 4), 0);
    outputs_more(o, -1, &l);
    ASSERT_EQ(l.n, 1);
    ASSERT_STR(l.v[0].text, "two");
    lines_release(&l);
    outputs_free(o);
}

TEST(output_of_a_container_that_was_being_created_is_found_later)
{
    TEMPDIR(temp);
    struct outputs *o = outputs_new("ns", "a");
    struct lines l = { 0 };
    AUTO(json_decref)
    json_t *creating = json_pack("{ss,ss,sn}", "id", "a", "pod", "a", "stdout");
    AUTO_FREE char *c =
        str_format("{\"cid\":\"a\",\"pod-id\":\"a\",\"stdout\":\"file://%s/out\"}", temp.dir);

    put(temp.dir, "out", "hello\n");
    outputs_tell(o, creating);
    add(o, c, 1);
    outputs_more(o, -1, &l);
    ASSERT_EQ(l.n, 1);
    lines_release(&l);
    outputs_free(o);
}

TEST(output_to_a_fifo_or_log_driver_is_not_available)
{
    AUTO(sbuf_release) struct sbuf said = { 0 };
    struct outputs *o = outputs_new("ns", "p");

    add(o, "{\"cid\":\"a\",\"pod-id\":\"a\",\"stdout\":\"/run/fifo\"}", 1);
    add(o, "{\"cid\":\"b\",\"pod-id\":\"b\",\"stdout\":\"file:///x\"}", 1);
    add(o, "{\"cid\":\"c\",\"pod-id\":\"c\",\"stdout\":\"\"}", 1);
    add(o, "{\"cid\":\"d\",\"pod-id\":\"d\",\"stdout\":\"binary:///l\"}", 1);
    add(o, "{\"cid\":\"e\",\"pod-id\":\"e\",\"stdout\":\"binary-v2:///l\"}", 1);
    outputs_untold(o, NULL, &said);
    ASSERT_STR(said.data,
               "lcow has no copy of the output of a: it was written to its client (a FIFO)\n"
               "lcow has no copy of the output of d: it was written to its log driver\n"
               "lcow has no copy of the output of e: it was written to its log driver\n");
    outputs_free(o);
}
