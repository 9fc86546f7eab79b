#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/config/config.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int parse(struct config *c, const char *text, struct err *err)
{
    return config_parse(c, "x.conf", text, strlen(text), NULL, err);
}

/* Expects a refusal whose message has both parts. */
static void refused(const char *text, const char *part, const char *other)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT(parse(&c, text, &err) < 0);
    ASSERT_MSG_HAS(err.msg, part);
    ASSERT_MSG_HAS(err.msg, other);
}

/* An upgrade may come from a version that has more keys, or go to one. */
TEST(a_saved_configuration_may_have_unknown_keys_but_no_invalid_values)
{
    static const char more[] = "[vm]\ncpus = 3\nnot_invented_yet = 5\n[not there]\nx = 1\n";
    static const char bad[] = "[vm]\nnot_invented_yet = 5\ncpus = many\n";
    AUTO(config_release) struct config c = { 0 };
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT_OK(config_parse_saved(&c, "saved", more, sizeof(more) - 1, &err), err);
    ASSERT_EQ(c.cpus, 3);
    ASSERT_FAIL(config_parse_saved(&c, "saved", bad, sizeof(bad) - 1, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "saved:3: cpus = many");
}

TEST(defaults_are_complete)
{
    AUTO(config_release) struct config c;

    config_init(&c);
    ASSERT(!c.allow_emulation);
    ASSERT_EQ(c.memory_mib, 256);
    ASSERT_EQ(c.cpus, 1);
    ASSERT_EQ(c.vm_uid_base, 2000000000);
    ASSERT_EQ(c.vm_uid_count, 4096);
    ASSERT_STR(c.run_root, "/run/lcow");
    ASSERT_STR(c.scratch_dir, "/var/lib/lcow");
    ASSERT_EQ(c.scratch_mib, 10240);
    ASSERT_EQ(c.scratch_quota_mib, 0);
    ASSERT(c.use_template && c.rootfs == CONFIG_ROOTFS_AUTO);
    ASSERT_STR(c.template_dir, "/var/lib/lcow/templates");
    ASSERT_STR(c.qemu, "qemu-system-x86_64");
    ASSERT(c.image_dir != NULL);
    ASSERT_EQ(c.log_level, LOG_WARN);
}

TEST(every_key_is_read)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT_OK(parse(&c,
                    "# comment\n[vm]\nallow_emulation = yes\nmemory_mib=512 ; inline\n"
                    "  cpus = 4\nboot_timeout_s: 9\nqemu = /opt/qemu\nimage_dir = /img\n"
                    "\r\n[host]\nrun_root = /tmp/r\nvm_uid_base = 70000\nvm_uid_count = 7\n"
                    "log_level = debug\nscratch_dir = /big\nscratch_mib = 2048\n"
                    "scratch_quota_mib = 64\n"
                    "template_dir = /t\n[vm]\nrootfs = shared\ntemplate = off",
                    &err),
              err);
    ASSERT(c.allow_emulation);
    ASSERT_EQ(c.memory_mib, 512);
    ASSERT_EQ(c.cpus, 4);
    ASSERT_EQ(c.boot_timeout_s, 9);
    ASSERT_STR(c.scratch_dir, "/big");
    ASSERT(c.rootfs == CONFIG_ROOTFS_SHARED && !c.use_template);
    ASSERT_STR(c.template_dir, "/t");
    ASSERT_EQ(c.scratch_mib, 2048);
    ASSERT_EQ(c.scratch_quota_mib, 64);
    ASSERT_STR(c.qemu, "/opt/qemu");
    ASSERT_STR(c.image_dir, "/img");
    ASSERT_STR(c.run_root, "/tmp/r");
    ASSERT_EQ(c.vm_uid_base, 70000);
    ASSERT_EQ(c.vm_uid_count, 7);
    ASSERT_EQ(c.log_level, LOG_DEBUG);
}

TEST(the_error_for_an_unknown_key_names_the_line_and_the_nearest_key)
{
    refused("[vm]\n\nalow_emulation = true\n", "x.conf:3: unknown key alow_emulation",
            "did you mean allow_emulation?");
    refused("[vm]\nzzzzzzzzzzzzz = true\n", "x.conf:2: unknown key", "zzzz");
}

TEST(the_error_for_an_unknown_section_names_the_nearest_section)
{
    refused("[hots]\nrun_rot = /x\n", "x.conf:2: unknown section [hots]", "did you mean [host]?");
}

TEST(the_error_for_a_key_in_the_wrong_section_names_the_right_one)
{
    refused("[host]\ncpus = 1\n", "key cpus belongs to section [vm]", "not to [host]");
}

TEST(sections_may_be_left_out)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT_OK(parse(&c, "run_root = /r\nallow_emulation = true\n", &err), err);
    ASSERT_STR(c.run_root, "/r");
    ASSERT(c.allow_emulation);
    refused("alow_emulation = true\n", "x.conf:1: unknown key", "did you mean allow_emulation?");
}

TEST(the_error_for_a_bad_value_names_file_line_key_value_and_range)
{
    refused("[vm]\nmemory_mib = 1\n", "x.conf:2: memory_mib = 1:", "must be 128–1048576");
    refused("[vm]\nmemory_mib = abc\n", "memory_mib = abc:", "must be 128–");
    refused("[vm]\nmemory_mib = -256\n", "memory_mib = -256:", "must be 128–");
    refused("[vm]\nmemory_mib = 99999999999999999999\n", "memory_mib", "must be 128–");
    refused("[vm]\nmemory_mib =\n", "memory_mib = :", "must be 128–");
    refused("[vm]\nallow_emulation = maybe\n", "allow_emulation = maybe:", "true or false");
    refused("[vm]\nimage_dir = img\n", "image_dir = img:", "absolute path");
    refused("[vm]\nqemu = ./qemu\n", "qemu = ./qemu:", "program's name");
    refused("[vm]\ntemplate = on\n", "template = on:", "off or auto");
    refused("[vm]\nrootfs = x\n", "rootfs = x:", "auto, scratch or shared");
    refused("[host]\nlog_level = loud\n", "log_level = loud:", "trace, debug");
}

TEST(comments_blanks_and_long_lines_are_read)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;
    char text[4096], words[3001];

    memset(words, 'a', sizeof(words) - 1);
    words[sizeof(words) - 1] = '\0';
    snprintf(text, sizeof(text),
             "\xef\xbb\xbf# first\r\n ; second\n\t[vm]  ; third\n  cpus\t=  2 ;fourth\r\n"
             "memory_mib:512\n[host]\nallow_annotations = %s;b ; fifth\nrun_root=/a=b:c",
             words);
    config_init(&c);
    ASSERT_OK(parse(&c, text, &err), err);
    ASSERT_EQ(c.cpus, 2);
    ASSERT_EQ(c.memory_mib, 512);
    ASSERT_EQ(strlen(c.allow_annotations), sizeof(words) + 1);
    ASSERT_STR(c.run_root, "/a=b:c");
}

TEST(an_invalid_line_is_refused_with_its_number)
{
    refused("[vm]\nwhat is this\n", "x.conf:2:", "invalid line: must be [section] or key = value");
    refused("[vm\ncpus = 1\n", "x.conf:1:", "invalid line: must be [section] or key = value");
    refused("cpus ; = 1\n", "x.conf:1:", "invalid line: must be [section] or key = value");

    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT_FAIL(config_parse(&c, "x.conf", "[vm]\ncpus\0 = 2\n", 15, NULL, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "x.conf:2:");
}

TEST(a_printed_configuration_reads_back_the_same)
{
    AUTO(config_release) struct config a, b;
    AUTO(sbuf_release) struct sbuf out = { 0 }, again = { 0 };
    struct err err = ERR_INIT;

    config_init(&a);
    ASSERT_OK(parse(&a, "[vm]\ncpus = 3\nallow_emulation = on\n[host]\nrun_root = /r\n", &err),
              err);
    config_print(&a, NULL, true, &out);
    config_init(&b);
    ASSERT_OK(config_parse(&b, "printed", out.data, out.len, NULL, &err), err);
    config_print(&b, NULL, true, &again);
    ASSERT_STR(out.data, again.data);
    ASSERT_HAS(out.data, "\ncpus = 3\n");
    for (const char *line = out.data; *line; line += strcspn(line, "\n") + 1)
        ASSERT(strcspn(line, "\n") <= 80 || str_starts(line, "image_dir"));
}

TEST(later_drop_ins_override_earlier_ones_by_name)
{
    TEMPDIR(p);
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    AUTO_FREE char *path = str_format("%s/l.conf", p.dir), *sub = str_format("%s.d", path);
    AUTO_FREE char *a = str_format("%s/10.conf", sub), *b = str_format("%s/20.conf", sub);
    AUTO_FREE char *ignored = str_format("%s/30.conf.bak", sub);

    config_init(&c);
    ASSERT_FAIL(config_load(&c, path, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, path);
    ASSERT_EQ(mkdir(sub, 0700), 0);
    ASSERT_EQ(file_write(path, "[vm]\ncpus=2\nmemory_mib=300\n", 27, 0600), 0);
    ASSERT_EQ(file_write(b, "[vm]\ncpus=5\n", 12, 0600), 0);
    ASSERT_EQ(file_write(a, "[vm]\ncpus=4\n", 12, 0600), 0);
    ASSERT_EQ(file_write(ignored, "[vm]\ncpus=6\n", 12, 0600), 0);
    ASSERT_OK(config_load(&c, path, &err), err);
    ASSERT_EQ(c.cpus, 5);
    ASSERT_EQ(c.memory_mib, 300);
    ASSERT_EQ(file_write(a, "[vm]\ncpu=4\n", 11, 0600), 0);
    ASSERT_FAIL(config_load(&c, path, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "10.conf:2: unknown key cpu; did you mean cpus?");
}

static void report_of(struct config *c, const char *text, struct config_report *report)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "l.conf");
    struct err err = ERR_INIT;

    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
    config_init(c);
    ASSERT_OK(config_read_file(c, path, report, &err), err);
    ASSERT_STR(report->files.v[0], path);
}

TEST(a_report_contains_every_error_with_its_line)
{
    AUTO(config_release) struct config c;
    AUTO(config_report_release) struct config_report r = { 0 };

    report_of(&c,
              "[vm]\nwhat\ncpus = 0\nalow_emulation = 1\n[hots]\nx = 1\n[vm\nmemory_mib = 300\n"
              "  key ; = 5\n",
              &r);
    ASSERT_EQ(r.errors.n, 7);
    ASSERT_MSG_HAS(r.errors.v[0], ":2: invalid line: must be [section] or key = value");
    ASSERT_MSG_HAS(r.errors.v[1], ":3: cpus = 0: must be 1–64");
    ASSERT_MSG_HAS(r.errors.v[2], ":4: unknown key alow_emulation; did you mean allow_emulation?");
    ASSERT_MSG_HAS(r.errors.v[3], ":6: unknown section [hots]; did you mean [host]?");
    ASSERT_MSG_HAS(r.errors.v[4], ":7: invalid line: must be [section] or key = value");
    ASSERT_MSG_HAS(r.errors.v[5], ":8: key memory_mib belongs to section [vm], not to [hots]");
    ASSERT_MSG_HAS(r.errors.v[6], ":9: invalid line: must be [section] or key = value");
}

TEST(a_report_names_the_origin_of_each_value)
{
    AUTO(config_release) struct config c;
    AUTO(config_report_release) struct config_report r = { 0 };
    AUTO(sbuf_release) struct sbuf text = { 0 }, json = { 0 }, plain = { 0 };
    struct err err = ERR_INIT;

    report_of(&c, "cpus = 2\n\ncpus = 3\n", &r);
    ASSERT_EQ(r.errors.n, 0);
    config_print(&c, &r, false, &text);
    ASSERT_HAS(text.data, ":3\n");
    ASSERT_HAS(text.data, "\nmemory_mib = 256                        ; default\n");
    ASSERT_OK(config_parse(&c, "printed", text.data, text.len, NULL, &err), err);
    config_print_json(&c, &r, &json);
    ASSERT_HAS(json.data,
               "{\"section\":\"vm\",\"key\":\"cpus\",\"value\":\"3\",\"origin\":\"/tmp/");
    config_print(&c, NULL, false, &plain);
    ASSERT_HAS(plain.data, "\ncpus = 3\n");
}

TEST(contradicting_keys_are_reported)
{
    AUTO(config_release) struct config c;
    AUTO(config_report_release) struct config_report r = { 0 };
    struct err err = ERR_INIT;

    config_init(&c);
    config_check(&c, &r);
    ASSERT_EQ(r.errors.n, 0);
    ASSERT_OK(parse(&c,
                    "max_memory_mib = 200\nmax_cpus = 2\ncpus = 3\nvm_uid_base = 4294900000\n"
                    "vm_uid_count = 65536\n",
                    &err),
              err);
    c.vm_uid_base = 4294960000u;
    config_check(&c, &r);
    ASSERT_EQ(r.errors.n, 3);
    ASSERT_MSG_HAS(r.errors.v[0], "must not exceed max_memory_mib = 200");
    ASSERT_MSG_HAS(r.errors.v[1], "must not exceed max_cpus = 2");
    ASSERT_MSG_HAS(r.errors.v[2], "vm_uid_base");
}

TEST(the_reference_page_has_every_key)
{
    AUTO(sbuf_release) struct sbuf page = { 0 }, plain = { 0 };
    AUTO(config_release) struct config c;

    config_init(&c);
    config_print_markdown(&page);
    config_print(&c, NULL, false, &plain);
    for (const char *line = plain.data; *line; line += strcspn(line, "\n") + 1) {
        AUTO_FREE char *title = str_format("\n### %.*s\n", (int)strcspn(line, " \n"), line);

        if (*line != '[' && *line != '\n')
            ASSERT_HAS(page.data, title);
    }
}
