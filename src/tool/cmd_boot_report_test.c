#include "base/json.h"
#include "base/str.h"
#include "harness/tap.h"
#include "tool/cmd_boot.h"
#include <stdio.h>
#include <string.h>

#define MS UINT64_C(1000000)

/* A boot that reaches its stages after 10, 20 … ms times speed. */
static void fill(struct boot_result *r, const char *id, unsigned reached, unsigned speed)
{
    *r = (struct boot_result){ .origin = 1000 * MS, .stage = reached, .emulated = true };
    snprintf(r->id, sizeof(r->id), "%s", id);
    snprintf(r->vmm_version, sizeof(r->vmm_version), "10.0.2");
    for (unsigned i = VM_STAGE_SPAWNED; i <= reached; i++) {
        r->stage_at[i] = r->origin + i * speed * 10 * MS;
        timeline_add(&r->timeline, TRACK_HOST, vm_stage_name(i), r->stage_at[i], r->stage_at[i]);
    }
    timeline_add(&r->timeline, TRACK_VMM, "firmware", r->origin + 5 * MS, r->origin + 9 * MS);
    r->ended = r->origin + 100 * speed * MS;
}

static void fits(const char *text)
{
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        if (strcspn(line, "\n") > 80)
            tap_fail(__FILE__, __LINE__, "too wide: %.*s", (int)strcspn(line, "\n"), line);
    }
}

TEST(the_report_of_a_failed_boot_has_stage_time_cause_remedy_and_console)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct boot_result r;

    fill(&r, "b-1", VM_STAGE_KERNEL, 32);
    err_set(&r.err, ERR_UNAVAILABLE, "the VMM ended: killed");
    r.next = "look at the console";
    r.console = "line one\nKernel panic\n";
    boot_report_failure(&r, &out);
    ASSERT_MSG(out.data, "lcow: error at stage 'kernel' after 3.20s: the VMM ended: killed\n"
                         "try: look at the console\n"
                         "last lines of the VM's console:\n"
                         "    line one\n"
                         "    Kernel panic\n");
}

TEST(long_lines_of_the_console_are_folded)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    char console[301];
    struct boot_result r;

    memset(console, 'x', sizeof(console) - 1);
    console[sizeof(console) - 1] = '\0';
    fill(&r, "b-1", VM_STAGE_KERNEL, 32);
    err_set(&r.err, ERR_DEADLINE, "no answer");
    r.console = console;
    boot_report_failure(&r, &out);
    fits(out.data);
    ASSERT_HAS(out.data, "\n    xxxx");
    ASSERT_HAS(out.data, "\n      xxxx");
}

TEST(only_the_last_lines_of_the_console_are_shown)
{
    for (int n = 1; n <= 30; n++) {
        AUTO(sbuf_release) struct sbuf out = { 0 }, console = { 0 };
        struct boot_result r;
        int shown = n < 12 ? n : 12;

        for (int i = 1; i <= n; i++)
            sbuf_addf(&console, "line %d%s", i, i == n && n % 2 ? "" : "\n");
        fill(&r, "b-1", VM_STAGE_KERNEL, 32);
        err_set(&r.err, ERR_DEADLINE, "no answer");
        r.console = console.data;
        boot_report_failure(&r, &out);
        AUTO_FREE char *first = str_format("console:\n    line %d\n", n - shown + 1);
        AUTO_FREE char *last = str_format("    line %d\n", n);

        ASSERT_HAS(out.data, first);
        ASSERT(str_ends(out.data, last));
    }
}

TEST(a_panic_is_shown_from_its_first_line_on)
{
    AUTO(sbuf_release) struct sbuf out = { 0 }, console = { 0 };
    struct boot_result r;

    sbuf_adds(&console, "before\n[    8.0] Kernel panic - not syncing: why\n");
    for (int i = 1; i <= 30; i++)
        sbuf_addf(&console, "register %d\n", i);
    fill(&r, "b-1", VM_STAGE_KERNEL, 32);
    err_set(&r.err, ERR_UNAVAILABLE, "the guest kernel panicked");
    r.console = console.data;
    boot_report_failure(&r, &out);
    ASSERT_HAS(out.data,
               "console:\n    [    8.0] Kernel panic - not syncing: why\n    register 1\n");
    ASSERT(str_ends(out.data, "    register 11\n"));
}

TEST(a_vm_that_never_ran_has_no_stage)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct boot_result r;

    fill(&r, "b-1", VM_STAGE_NONE, 1);
    err_set(&r.err, ERR_STATE, "create the VM: KVM does not work here");
    boot_report_failure(&r, &out);
    ASSERT_MSG_HAS(out.data, "error: create the VM: KVM does not work here\n");
    ASSERT(!strstr(out.data, "try:"));
}

TEST(clones_are_a_table_of_their_own_with_the_ratio)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct boot_result r[3];

    fill(&r[0], "b-00000000", VM_STAGE_NEGOTIATED, 10);
    fill(&r[1], "b-11111111", VM_STAGE_NEGOTIATED, 1);
    fill(&r[2], "b-22222222", VM_STAGE_NEGOTIATED, 1);
    r[1].clone = r[2].clone = true;
    boot_report_repeat(r, 3, &out);
    fits(out.data);
    ASSERT_HAS(out.data, "clone, ms ");
    ASSERT_HAS(out.data, "a clone is ready 10.0 times sooner: 50 ms against 500 ms (medians)\n");
}

TEST(statistics_of_a_stage_count_the_boots_that_reached_it)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct boot_result r[4];

    fill(&r[0], "b-00000000", VM_STAGE_NEGOTIATED, 3);
    fill(&r[1], "b-11111111", VM_STAGE_NEGOTIATED, 1);
    fill(&r[2], "b-22222222", VM_STAGE_KERNEL, 2);
    fill(&r[3], "b-33333333", VM_STAGE_NEGOTIATED, 4);
    boot_report_repeat(r, 4, &out);
    fits(out.data);
    ASSERT_HAS(out.data, "cold, ms      spawned     kernel       init      agent negotiated       "
                         "gone\n");
    ASSERT_HAS(out.data, "b-22222222       20.0       40.0          -          -          -      "
                         "200.0\n");
    ASSERT_HAS(out.data, "min              10.0       20.0       30.0       40.0       50.0      "
                         "100.0\n");
    ASSERT_HAS(out.data, "median           25.0       50.0       90.0      120.0      150.0      "
                         "250.0\n");
    ASSERT_HAS(out.data, "max              40.0       80.0      120.0      160.0      200.0      "
                         "400.0\n");
}

TEST(json_is_one_object_with_every_field)
{
    struct image image = { .release = "6.1.0-9-amd64" };
    struct tool_opts opts = { .memory_mib = 256, .cpus = 2 };
    struct boot_result r;
    static const char *const keys[] = { "id",         "exit_code", "stages", "spans",
                                        "accel",      "emulated",  "kernel", "qemu_version",
                                        "memory_mib", "cpus",      "stdin",  "duration_ms" };

    fill(&r, "b-1", VM_STAGE_NEGOTIATED, 1);
    r.ran = true;
    r.code = 7;
    AUTO(json_decref) json_t *v = boot_report_json(&r, &opts, &image);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (!json_object_get(v, keys[i]))
            tap_fail(__FILE__, __LINE__, "no %s", keys[i]);
    }
    ASSERT_EQ(json_integer_value(json_object_get(v, "exit_code")), 7);
    ASSERT_EQ(json_array_size(json_object_get(v, "stages")), 5);
    ASSERT_STR(json_string_value(json_object_get(v, "accel")), "tcg");
    ASSERT(!json_object_get(v, "error"));
}

TEST(a_failure_in_json_carries_stage_and_message)
{
    struct image image = { .release = "6.1" };
    struct tool_opts opts = { 0 };
    struct boot_result r;

    fill(&r, "b-1", VM_STAGE_INIT, 1);
    err_set(&r.err, ERR_DEADLINE, "no answer");
    r.code = 125;
    AUTO(json_decref) json_t *v = boot_report_json(&r, &opts, &image);
    AUTO_FREE char *text = js_text(v, 0);

    ASSERT_HAS(text, "\"error\":{\"stage\":\"init\",\"message\":");
}

TEST(stages_are_bars_of_the_timeline_and_not_marks)
{
    AUTO(sbuf_release) struct sbuf text = { 0 }, svg = { 0 };
    struct boot_result r;

    fill(&r, "b-1", VM_STAGE_NEGOTIATED, 1);
    boot_report_timeline(&r, false, &text);
    fits(text.data);
    ASSERT_HAS(text.data, "boot b-1: ready after 50 ms\nQEMU 10.0.2, emulation (no KVM)\n");
    ASSERT_HAS(text.data, "\nstage  kernel ");
    ASSERT(!strstr(text.data, "\nhost   kernel "));
    ASSERT_HAS(text.data, "\nvmm    firmware ");
    boot_report_timeline(&r, true, &svg);
    ASSERT(str_starts(svg.data, "<svg "));
}
