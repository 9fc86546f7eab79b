#include "base/json.h"
#include "harness/tap.h"
#include "tool/cmd_ps.h"
#include "tool/tool.h"
#include <string.h>

/* The line of a VM in this document. Caller frees. */
static char *line_of(struct ctx *ctx, const char *doc, const char *version)
{
    struct tool t = { .loop = ctx->loop };
    struct shim one = { .ns = "n", .id = "pod1", .version = (char *)version };
    const struct shims all = { .v = &one, .n = 1 };
    struct err err = ERR_INIT;

    if (doc)
        ASSERT_OK(js_parse(doc, strlen(doc), 4096, &one.doc, &err), err);
    else
        err_set(&one.why, ERR_DEADLINE, "it does not answer");
    ps_table(&t, &all);
    AUTO_FREE char *text = sbuf_take(&t.out);
    json_decref(one.doc);
    return str_dup(strchr(text, '\n') + 1);
}

TEST_VIRTUAL(ps_marks_emulation_and_a_vm_without_its_log)
{
    AUTO_FREE char *plain = line_of(ctx, "{\"vm\":{\"state\":\"Running\",\"pid\":7}}", NULL);
    AUTO_FREE char *marked = line_of(ctx,
                                     "{\"vm\":{\"state\":\"Running\",\"pid\":7,"
                                     "\"emulated\":true,\"log_lost\":true}}",
                                     NULL);
    AUTO_FREE char *silent = line_of(ctx, NULL, NULL);

    ASSERT_HAS(plain, "Running ");
    ASSERT(!strstr(plain, "no guest log"));
    ASSERT_HAS(marked, "Running*");
    ASSERT_HAS(marked, "-  no guest log\n");
    ASSERT_MSG_HAS(silent, "no answer: it does not answer\n");
}

TEST_VIRTUAL(ps_shows_the_version_of_each_shim_and_marks_those_that_are_not_of_the_installed_one)
{
    static const char doc[] = "{\"vm\":{\"state\":\"Running\",\"pid\":7}}";
    AUTO_FREE char *same = line_of(ctx, doc, LCOW_VERSION);
    AUTO_FREE char *revision = line_of(ctx, doc, LCOW_VERSION "-1");

    ASSERT_HAS(same, "  shim " LCOW_VERSION "\n");
    ASSERT_HAS(revision, "  shim " LCOW_VERSION "-1 (installed: " LCOW_VERSION ")\n");
}
