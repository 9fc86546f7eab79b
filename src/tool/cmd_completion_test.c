#include "base/str.h"
#include "harness/tap.h"
#include "tool/cmd_completion.h"
#include <string.h>

static char *script(const char *shell)
{
    struct sbuf out = { 0 };

    ASSERT(completion_print(shell, &out));
    return sbuf_take(&out);
}

/* The line of a script that begins with this. */
static const char *line_of(const char *text, const char *begin)
{
    const char *at = strstr(text, begin);

    ASSERT(at != NULL);
    return at;
}

TEST(every_command_and_option_is_in_every_script)
{
    static const char *const shells[] = { "bash", "zsh", "fish" };

    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        AUTO_FREE char *text = script(shells[i]);

        for (const struct args_cmd *const *c = tool_commands; *c; c++) {
            const struct args_cmd *const *s = (*c)->subs;

            ASSERT_HAS(text, (*c)->name);
            for (; s && *s; s++)
                ASSERT_HAS(text, (*s)->name);
            for (size_t n = 0; n < (*c)->opts.n; n++) {
                const struct args_opt *o = &(*c)->opts.v[n];
                AUTO_FREE char *name = str_format(i == 2 ? "-l %s" : "--%s", o->name);

                if (!o->hidden)
                    ASSERT_HAS(text, name);
            }
        }
    }
}

TEST(other_shells_are_refused)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    ASSERT(!completion_print("tcsh", &out));
    ASSERT_EQ(out.len, 0);
}

TEST(quotes_in_texts_do_no_harm)
{
    AUTO_FREE char *fish = script("fish");

    for (const char *line = line_of(fish, "complete -c lcow -n"); *line;) {
        size_t n = strcspn(line, "\n"), quotes = 0;

        for (size_t i = 0; i < n; i++)
            quotes += line[i] == '\'' && (i == 0 || line[i - 1] != '\\');
        ASSERT_EQ(quotes % 2, 0);
        line += n + (line[n] == '\n');
    }
}
