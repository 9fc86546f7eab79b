/* cmd_template.c - `lcow template`: saved VMs that others are cloned from. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/template/template.h"
#include "host/vmm/vmm.h"
#include "tool/lib/image.h"
#include "tool/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct template_opts {
    bool json, allow_emulation, again, all;
    uint32_t memory_mib;
};

#define AT(f) offsetof(struct template_opts, f)
#define JSON_OPT                                                                                   \
    {                                                                                              \
        "json", 0, ARGS_FLAG, NULL, AT(json), "print one JSON value on stdout instead"             \
    }

static const struct args_opt ls_table[] = { JSON_OPT };
static const struct args_opt build_table[] = {
    { "allow-emulation", 0, ARGS_FLAG, NULL, AT(allow_emulation),
      "for VMs by software emulation, if KVM does not work here" },
    { "again", 0, ARGS_FLAG, NULL, AT(again), "also if there is a good one" },
    { "memory", 'm', ARGS_NUMBER, "MIB", AT(memory_mib),
      "for VMs of this size; one template serves all up to 8 GiB, another those beyond",
      CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX, "MiB" },
    JSON_OPT,
};
static const struct args_opt rm_table[] = {
    { "all", 0, ARGS_FLAG, NULL, AT(all), "all of them" },
    JSON_OPT,
};

static const struct args_example examples[] = {
    { "lcow template build", "so that the first pod starts quickly, too" },
    { "lcow template ls", "which are there, and are they good?" },
    { "lcow template verify", "read them all and compare checksums" },
};

#define EXITS                                                                                      \
    "Exit code: 0; 1 if something is wrong with a template; 2 if this command line is wrong."

static const struct args_cmd cmd = {
    .name = "template",
    .summary = "Saved VMs that others are cloned from: build, list, check, remove.",
    .synopsis = "ls | show KEY | build | verify [KEY...] | rm KEY... | prune [options]",
    .text = "A template is a VM that was saved when its agent was ready. A VM that is cloned from "
            "it starts ten times sooner and shares its memory with the others. A template is built "
            "in the background after the first cold start, and again when kernel, QEMU, processor "
            "or configuration have changed, which also removes those that nobody uses any more; "
            "'template = off' turns them off.",
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};
static const struct args_cmd ls_cmd = {
    .name = "template ls",
    .summary = "List the templates with their state, and builds that failed.",
    .synopsis = "[options]",
    .text = EXITS,
    .opts = ls_table,
    .n_opts = ARRAY_LEN(ls_table)
};
static const struct args_cmd show_cmd = { .name = "template show",
                                          .summary = "Print what a template was made from.",
                                          .synopsis = "KEY [options]",
                                          .text = EXITS,
                                          .takes_words = true,
                                          .opts = ls_table,
                                          .n_opts = ARRAY_LEN(ls_table) };
static const struct args_cmd build_cmd = {
    .name = "template build",
    .summary = "Build the template for VMs of this configuration.",
    .synopsis = "[options]",
    .text =
        "A good one that is there stays. A clone of it is started before it is published: if its "
        "clock is off by more than 0.1 % or its kernel complains about clock or CPU, the "
        "template is thrown away. " EXITS,
    .opts = build_table,
    .n_opts = ARRAY_LEN(build_table),
};
static const struct args_cmd verify_cmd = {
    .name = "template verify",
    .summary = "Read templates and compare their checksums.",
    .synopsis = "[KEY...] [options]",
    .text = "Without KEY all of them. " EXITS,
    .takes_words = true,
    .opts = ls_table,
    .n_opts = ARRAY_LEN(ls_table),
};
static const struct args_cmd rm_cmd = {
    .name = "template rm",
    .summary = "Remove templates.",
    .synopsis = "KEY... | --all [options]",
    .text = "VMs that were cloned from them go on. " EXITS,
    .takes_words = true,
    .opts = rm_table,
    .n_opts = ARRAY_LEN(rm_table),
};

static const struct args_cmd prune_cmd = {
    .name = "template prune",
    .summary = "Remove templates that nobody uses any more.",
    .synopsis = "[options]",
    .text = "Those that no VM was started from for 14 days, and the longest unused while there are "
            "more than 4; prints their keys. A builder does the same. " EXITS,
    .opts = ls_table,
    .n_opts = ARRAY_LEN(ls_table),
};

/* --- one template --- */

static void print_json(struct jsw *w)
{
    AUTO_FREE char *text = jsw_take(w, NULL), *line = str_format("%s\n", text);

    tool_print(STDOUT_FILENO, line);
}

static void say_time(uint64_t wall_ns, char buf[32])
{
    time_t t = (time_t)(wall_ns / NS_PER_S);
    struct tm tm;

    snprintf(buf, 32, "-");
    if (gmtime_r(&t, &tm))
        strftime(buf, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static void say(const char *key, const struct template_info *i, const struct err *err)
{
    char when[32] = "-";

    if (i)
        say_time(i->created_ns, when);
    AUTO_FREE char *line =
        i ? str_format("%s  %s  QEMU %s  %s  %u..%u MiB  1..%u CPUs  good\n", key, when,
                       i->vmm_version, i->emulated ? "emulated" : "KVM", i->memory_mib,
                       i->max_memory_mib, i->max_cpus)
          : str_format("%s  bad: %s\n", key, err->msg);
    tool_print(STDOUT_FILENO, line);
}

static void say_json(const char *key, const struct template_info *i, const struct err *err,
                     struct jsw *w)
{
    jsw_obj(w, NULL);
    jsw_str(w, "key", key);
    jsw_bool(w, "good", i != NULL);
    if (i)
        template_info_write(i, w, "header");
    else
        jsw_str(w, "error", err->msg);
    jsw_end_obj(w);
}

/* How many there are. w: NULL for people. */
static size_t say_failures(struct tool *t, struct jsw *w)
{
    AUTO_FREE struct template_failure *all = NULL;
    size_t n = template_failures(t->config.template_dir, &all);

    for (size_t i = 0; i < n; i++) {
        char when[32];

        say_time(all[i].at_ns, when);
        AUTO_FREE char *text = str_format("its last build failed at %s (%u in a row): %s", when,
                                          all[i].count, all[i].why);
        struct err err = ERR_INIT;

        err_set(&err, ERR_DATA_LOSS, "%s", text);
        if (w)
            say_json(all[i].key, NULL, &err, w);
        else
            say(all[i].key, NULL, &err);
    }
    return n;
}

/* Looks at each key, cheaply or thoroughly, or at all with builds that failed; how many are bad. */
static int look(struct tool *t, char *const *keys, size_t n, bool thorough, bool json)
{
    const char *dir = t->config.template_dir;
    struct jsw w;
    int bad = 0;

    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    for (size_t k = 0; k < n; k++) {
        struct template tpl = { .ram_fd = -1, .state_fd = -1 };
        struct err err = ERR_INIT;
        int r = thorough ? template_verify(dir, keys[k], &tpl.info, &err)
                         : template_open(dir, keys[k], &tpl, &err);
        const struct template_info *i = r < 0 ? NULL : &tpl.info;

        bad += r < 0;
        if (json)
            say_json(keys[k], i, &err, &w);
        else
            say(keys[k], i, &err);
        template_close(&tpl);
    }
    if (!thorough)
        bad += (int)say_failures(t, json ? &w : NULL);
    jsw_end_arr(&w);
    if (json)
        print_json(&w);
    else
        jsw_release(&w);
    return bad ? TOOL_FAILED : TOOL_OK;
}

static int all_keys(struct tool *t, struct strv *ret)
{
    char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    struct err err = ERR_INIT;
    size_t n = 0;

    if (template_list(t->config.template_dir, &keys, &n, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    for (size_t i = 0; i < n; i++)
        strv_add(ret, keys[i]);
    free(keys);
    return TOOL_OK;
}

/* Keys of which there is nothing but a build that failed. */
static void failed_keys(struct tool *t, struct strv *ret)
{
    AUTO_FREE struct template_failure *all = NULL;
    size_t n = template_failures(t->config.template_dir, &all);

    for (size_t i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", t->config.template_dir, all[i].key);

        if (access(path, F_OK) < 0)
            strv_add(ret, all[i].key);
    }
}

/* --- the commands --- */

static int help(struct ctx *ctx, struct tool *t, char **argv)
{
    struct args_rest rest;
    int code;

    (void)ctx;
    if (!tool_begin(t, &cmd, NULL, argv, &rest, &code))
        return code;
    return tool_fail(TOOL_USAGE,
                     "which? ls, show, build, verify, rm or prune; see: lcow template --help");
}

static int ls(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(strv_release) struct strv keys = { 0 };
    struct template_opts o = { 0 };
    struct args_rest rest;
    int code;

    (void)ctx;
    if (!tool_begin(t, &ls_cmd, &o, argv, &rest, &code))
        return code;
    if ((code = all_keys(t, &keys)) != TOOL_OK)
        return code;
    return look(t, keys.v, keys.n, false, o.json);
}

static int show(struct ctx *ctx, struct tool *t, char **argv)
{
    struct template tpl = { .ram_fd = -1, .state_fd = -1 };
    struct template_opts o = { 0 };
    struct err err = ERR_INIT;
    struct args_rest rest;
    int code;

    (void)ctx;
    if (!tool_begin(t, &show_cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n != 1)
        return tool_fail(TOOL_USAGE, "one KEY is needed; see: lcow template ls");
    if (template_open(t->config.template_dir, rest.argv[0], &tpl, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    if (o.json) {
        struct jsw w;

        jsw_init(&w, JSW_PLAIN);
        template_info_write(&tpl.info, &w, NULL);
        print_json(&w);
    } else {
        say(tpl.info.key, &tpl.info, &err);
        AUTO_FREE char *sizes = str_format(
            "memory file %llu bytes, state file %llu bytes; made from:\n",
            (unsigned long long)tpl.info.ram.size, (unsigned long long)tpl.info.state.size);
        tool_print(STDOUT_FILENO, sizes);
        tool_print(STDOUT_FILENO, tpl.info.identity);
    }
    template_close(&tpl);
    return TOOL_OK;
}

static int verify(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(strv_release) struct strv keys = { 0 };
    struct template_opts o = { 0 };
    struct args_rest rest;
    int code;

    (void)ctx;
    if (!tool_begin(t, &verify_cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n > 0)
        return look(t, rest.argv, (size_t)rest.n, true, o.json);
    if ((code = all_keys(t, &keys)) != TOOL_OK)
        return code;
    return look(t, keys.v, keys.n, true, o.json);
}

static int rm(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(strv_release) struct strv keys = { 0 };
    struct template_opts o = { 0 };
    struct args_rest rest;
    struct jsw w;
    int code;

    (void)ctx;
    if (!tool_begin(t, &rm_cmd, &o, argv, &rest, &code))
        return code;
    if ((rest.n > 0) == o.all)
        return tool_fail(TOOL_USAGE, "say which: KEY..., or --all");
    for (int i = 0; i < rest.n; i++)
        strv_add(&keys, rest.argv[i]);
    if (o.all && (code = all_keys(t, &keys)) != TOOL_OK)
        return code;
    if (o.all)
        failed_keys(t, &keys);
    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    for (size_t i = 0; i < keys.n; i++) {
        struct err err = ERR_INIT;

        if (template_remove(t->config.template_dir, keys.v[i], &err) < 0)
            code = tool_fail(TOOL_FAILED, "%s", err.msg);
        else
            jsw_str(&w, NULL, keys.v[i]);
    }
    jsw_end_arr(&w);
    if (o.json)
        print_json(&w);
    else
        jsw_release(&w);
    return code;
}

static void pruned(void *arg, const char *key)
{
    struct jsw *w = arg;
    AUTO_FREE char *line = w ? NULL : str_format("%s\n", key);

    if (w)
        jsw_str(w, NULL, key);
    else
        tool_print(STDOUT_FILENO, line);
}

static int prune(struct ctx *ctx, struct tool *t, char **argv)
{
    struct template_opts o = { 0 };
    struct err err = ERR_INIT;
    struct args_rest rest;
    const char *dir;
    AUTO_FD int lock = -1;
    struct jsw w;
    int code;

    if (!tool_begin(t, &prune_cmd, &o, argv, &rest, &code))
        return code;
    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    dir = t->config.template_dir;
    if (template_lock(ctx, dir, false, &lock, &err) < 0 ||
        template_prune(dir, NULL, loop_wall(t->loop), pruned, o.json ? &w : NULL, &err) < 0)
        code = tool_fail(TOOL_FAILED, "%s", err.msg);
    jsw_end_arr(&w);
    if (o.json && code == TOOL_OK)
        print_json(&w);
    else
        jsw_release(&w);
    return code;
}

static int build(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(template_info_release) struct template_info info = { 0 };
    AUTO(image_free) struct image *image = NULL; /* its errors are the better ones */
    struct template_opts o = { 0 };
    struct err err = ERR_INIT;
    struct args_rest rest;
    bool made = false;
    int code;

    if (!tool_begin(t, &build_cmd, &o, argv, &rest, &code))
        return code;
    const struct template_build b = { .loop = t->loop,
                                      .config = &t->config,
                                      .build = t->backend->template_build,
                                      .vmm_new = t->backend->vmm_new,
                                      .guest_new = t->backend->guest_new,
                                      .memory_mib = o.memory_mib,
                                      .allow_emulation = o.allow_emulation,
                                      .wait = true,
                                      .again = o.again };
    if (image_open(t->config.image_dir, &image, &err) < 0 ||
        template_build(ctx, &b, &info, &made, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    if (o.json) {
        struct jsw w;

        jsw_init(&w, JSW_PLAIN);
        jsw_obj(&w, NULL);
        jsw_bool(&w, "made", made);
        template_info_write(&info, &w, "template");
        jsw_end_obj(&w);
        print_json(&w);
    } else {
        AUTO_FREE char *line = str_format("%s %s\n", info.key, made ? "built" : "is there already");

        tool_print(STDOUT_FILENO, line);
    }
    return TOOL_OK;
}

static const struct tool_command ls_command = { &ls_cmd, ls }, show_command = { &show_cmd, show },
                                 build_command = { &build_cmd, build },
                                 verify_command = { &verify_cmd, verify },
                                 rm_command = { &rm_cmd, rm },
                                 prune_command = { &prune_cmd, prune };
static const struct tool_command *const subs[] = {
    &ls_command, &show_command, &build_command, &verify_command, &rm_command, &prune_command, NULL
};
const struct tool_command template_command = { &cmd, help, subs };
