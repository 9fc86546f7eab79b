#include "base/str.h"
#include "harness/tap.h"
#include "tool/lib/args.h"
#include <string.h>

struct opts {
    bool tty, keep, json_flag;
    uint32_t memory;
    const char *config;
    struct args_optional timeline, json;
};
static const char *const suffixes[] = { ".svg", ".txt", NULL };
#define AT(f) offsetof(struct opts, f)
static const struct args_opt table[] = {
    { "tty", 't', ARGS_FLAG, NULL, AT(tty), "terminal" },
    { "keep", 'k', ARGS_FLAG, NULL, AT(keep), "keep it" },
    { "memory", 'm', ARGS_NUMBER, "MIB", AT(memory), "memory", 128, 4096, "MiB" },
    { "timeline", 0, ARGS_OPTIONAL, "FILE", AT(timeline), "picture", .suffixes = suffixes },
    { "json", 0, ARGS_OPTIONAL, "FILE", AT(json), "json" },
    { "secret", 0, ARGS_FLAG, NULL, AT(json_flag), "not shown", .hidden = true },
};
static const struct args_opt global[] = {
    { "config", 0, ARGS_STR, "FILE", AT(config), "configuration" },
};
static const struct args_cmd cmd = {
    .name = "boot",
    .summary = "Boots.",
    .synopsis = "[options] [-- CMD…]",
    .opts = ARGS_TABLE(table),
    .takes_command = true,
    .examples = ARGS_EXAMPLES({ "lcow boot", "a shell" }),
};

static int run(struct opts *o, struct args_rest *rest, struct err *err, const char *const *words)
{
    static char *argv[16]; /* outlives the literal of the caller, which rest points into */
    size_t n = 0;

    do
        argv[n] = (char *)words[n];
    while (words[n++]);
    *o = (struct opts){ 0 };
    return args_parse(&cmd, (struct args_opts)ARGS_TABLE(global), o, argv, rest, err);
}
#define RUN(...)                                                                                   \
    run(&o, &rest, &err, (const char *const[]){ "boot", __VA_ARGS__ __VA_OPT__(, ) NULL })
#define SETUP                                                                                      \
    struct opts o;                                                                                 \
    struct args_rest rest;                                                                         \
    struct err err = ERR_INIT

TEST(values_come_joined_or_in_the_next_word)
{
    SETUP;
    ASSERT_EQ(RUN("--memory", "512", "--config=a.conf", "--tty"), 0);
    ASSERT_EQ(o.memory, 512);
    ASSERT_STR(o.config, "a.conf");
    ASSERT(o.tty && !o.keep);
    ASSERT_EQ(RUN("--memory=513"), 0);
    ASSERT_EQ(o.memory, 513);
    ASSERT_EQ(RUN("--config="), -1);
    ASSERT_MSG_HAS(err.msg, "--config: the FILE is empty");
}

TEST(the_error_for_a_number_out_of_range_names_the_bound)
{
    SETUP;
    ASSERT_FAIL(RUN("--memory", "1"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "--memory 1: must be at least 128 MiB");
    ASSERT_FAIL(RUN("--memory", "5000"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "--memory 5000: must be at most 4096 MiB");
    ASSERT_FAIL(RUN("--memory", "99999999999999999999999"), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "at most 4096 MiB");
}

TEST(a_value_that_is_not_a_number_is_refused)
{
    SETUP;
    const char *const bad[] = { "abc", "", "12x", "0x200", " 200", "+200", "2e3" };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ASSERT_FAIL(RUN("--memory", bad[i]), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, "must be 128–4096 MiB");
    }
    ASSERT_FAIL(RUN("--memory=-200"), err, ERR_INVALID);
}

TEST(missing_values_are_named)
{
    SETUP;
    ASSERT_FAIL(RUN("--memory"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "--memory needs a value: --memory MIB");
    ASSERT_FAIL(RUN("--memory", "--tty"), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "--memory needs a value");
    ASSERT_FAIL(RUN("--config", "--", "ls"), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "--config needs a value");
    ASSERT_FAIL(RUN("--tty=yes"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "--tty does not take a value");
}

TEST(single_letters_can_be_combined)
{
    SETUP;
    ASSERT_EQ(RUN("-tk"), 0);
    ASSERT(o.tty && o.keep);
    ASSERT_EQ(RUN("-tm200"), 0);
    ASSERT(o.tty);
    ASSERT_EQ(o.memory, 200);
    ASSERT_EQ(RUN("-m", "300", "-k"), 0);
    ASSERT_EQ(o.memory, 300);
    ASSERT(o.keep);
    ASSERT_FAIL(RUN("-tx"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "unknown option -x in -tx");
}

TEST(two_dashes_end_the_options)
{
    SETUP;
    ASSERT_EQ(RUN("-t", "--", "ls", "-k", "--", "--memory"), 0);
    ASSERT(o.tty && !o.keep);
    ASSERT_EQ(rest.n, 4);
    ASSERT_STR(rest.argv[0], "ls");
    ASSERT_STR(rest.argv[2], "--");
    ASSERT_STR(rest.argv[3], "--memory");
    ASSERT(rest.argv[4] == NULL);
    ASSERT_EQ(RUN("--"), 0);
    ASSERT_EQ(rest.n, 0);
    ASSERT_FAIL(RUN("-t", "ls"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "unexpected 'ls'; a command follows --: lcow boot -- ls");
}

TEST(unknown_options_name_the_nearest)
{
    SETUP;
    ASSERT_FAIL(RUN("--memroy", "512"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "unknown option --memroy; did you mean --memory?");
    ASSERT_FAIL(RUN("--kep=3"), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "did you mean --keep?");
    ASSERT_FAIL(RUN("--confg"), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "did you mean --config?");
    ASSERT_FAIL(RUN("--zzzzzzzz"), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "unknown option --zzzzzzzz");
    ASSERT_FAIL(RUN("--secre"), err, ERR_INVALID);
    ASSERT(!strstr(err.msg, "did you mean --secret"));
}

TEST(optional_values_work_in_all_three_forms)
{
    SETUP;
    ASSERT_EQ(RUN("--timeline", "--tty"), 0);
    ASSERT(o.timeline.given && !o.timeline.value && o.tty);
    ASSERT_EQ(RUN("--timeline"), 0);
    ASSERT(o.timeline.given && !o.timeline.value);
    ASSERT_EQ(RUN("--timeline", "a.svg"), 0);
    ASSERT_STR(o.timeline.value, "a.svg");
    ASSERT_EQ(RUN("--timeline=b.txt", "--", "ls"), 0);
    ASSERT_STR(o.timeline.value, "b.txt");
    ASSERT_EQ(rest.n, 1);
    ASSERT_EQ(RUN("--timeline", "--", "ls"), 0);
    ASSERT(!o.timeline.value);
    ASSERT_FAIL(RUN("--timeline", "uname"), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "must end with .svg or .txt (a command follows --)");
    ASSERT_FAIL(RUN("--timeline="), err, ERR_INVALID);
    ASSERT_FAIL(RUN("--json", "x"), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "unexpected 'x'");
    ASSERT_EQ(RUN("--json=x"), 0);
    ASSERT_STR(o.json.value, "x");
}

TEST(help_ignores_the_following_words)
{
    SETUP;
    ASSERT_EQ(RUN("--help", "--nonsense"), ARGS_HELP);
    ASSERT_EQ(RUN("-th"), ARGS_HELP);
    ASSERT_EQ(RUN("--", "--help"), 0);
}

TEST(leading_options_stop_at_the_command)
{
    struct opts o = { 0 };
    struct err err = ERR_INIT;
    const struct args_opts opts = ARGS_TABLE(global), none = { 0 };
    char *words[] = { "lcow", "--config", "c", "boot", "--tty", NULL };
    int next = 0;

    ASSERT_EQ(args_parse_leading(none, opts, &o, words, &next, &err), 0);
    ASSERT_EQ(next, 3);
    ASSERT_STR(o.config, "c");
    words[1] = "--cnfig";
    ASSERT_FAIL(args_parse_leading(none, opts, &o, words, &next, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "did you mean --config?");
}

TEST(help_shows_options_within_the_columns)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    args_help(&cmd, (struct args_opts)ARGS_TABLE(global), &out);
    ASSERT_HAS(out.data, "usage: lcow boot [options] [-- CMD…]\n");
    ASSERT_HAS(out.data, "  -m, --memory MIB");
    ASSERT_HAS(out.data, "      --timeline[=FILE]");
    ASSERT_HAS(out.data, "lcow boot\n      a shell");
    ASSERT(!strstr(out.data, "secret"));
}

TEST(wrapping_keeps_the_right_margin)
{
    AUTO(sbuf_release) struct sbuf out = { 0 }, text = { 0 };

    for (int i = 0; i < 60; i++)
        sbuf_addf(&text, "word%d ", i * i * i);
    args_row(&out, "name", text.data, 20);
    for (const char *line = out.data; *line;) {
        size_t n = strcspn(line, "\n");

        ASSERT(n <= ARGS_COLUMNS);
        ASSERT(line == out.data || n > 40);
        ASSERT(line == out.data || str_starts(line, "                        word"));
        line += n + 1;
    }
}

TEST(words_may_stand_anywhere_if_the_command_takes_them)
{
    static const struct args_cmd words = { .name = "check",
                                           .opts = ARGS_TABLE(table),
                                           .takes_words = true };
    struct opts o = { 0 };
    const struct args_opts no_global = { 0 };
    char *argv[] = { "check", "a", "--memory", "512", "b", "-t", "--", "-c", "d", NULL };
    struct args_rest rest;
    struct err err = ERR_INIT;

    ASSERT_EQ(args_parse(&words, no_global, &o, argv, &rest, &err), 0);
    ASSERT_EQ(rest.n, 4);
    ASSERT_STR(rest.argv[0], "a");
    ASSERT_STR(rest.argv[1], "b");
    ASSERT_STR(rest.argv[2], "-c");
    ASSERT_STR(rest.argv[3], "d");
    ASSERT(rest.argv[4] == NULL);
    ASSERT_EQ(o.memory, 512);
    ASSERT(o.tty);

    char *none[] = { "check", "-k", NULL };

    ASSERT_EQ(args_parse(&words, no_global, &o, none, &rest, &err), 0);
    ASSERT_EQ(rest.n, 0);
    ASSERT(rest.argv[0] == NULL);
}
