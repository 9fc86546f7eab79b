/* `lcow completion`: completion for a shell, made from the tables that also make parser and help.
 */
#include "tool/cmd_completion.h"
#include "base/str.h"
#include <string.h>
#include <unistd.h>

#define DOC_MAX 64

/* ------------------------------------------------------------------ walking the tables */

typedef void visit_fn(struct sbuf *out, const struct args_cmd *c);

/* Commands, each before its sub-commands. */
static void each_command(struct sbuf *out, visit_fn *visit)
{
    for (const struct args_cmd *const *c = tool_commands; *c; c++) {
        visit(out, *c);
        for (const struct args_cmd *const *s = (*c)->subs; s && *s; s++)
            visit(out, *s);
    }
}

static const char *own_name(const struct args_cmd *c)
{
    const char *blank = strrchr(c->name, ' ');

    return blank ? blank + 1 : c->name;
}

static void add_name(struct sbuf *out, const struct args_cmd *c)
{
    sbuf_addf(out, " '%s'", c->name);
}

static void add_pattern(struct sbuf *out, const struct args_cmd *c)
{
    sbuf_addf(out, " | '%s'", c->name);
}

/* The next word is theirs. */
static bool takes_value(const struct args_opt *o)
{
    return !o->hidden && (o->kind == ARGS_STR || o->kind == ARGS_NUMBER);
}

static void add_value_options(struct sbuf *out, struct args_opts opts)
{
    for (size_t i = 0; i < opts.n; i++) {
        if (!takes_value(&opts.v[i]))
            continue;
        sbuf_addf(out, " --%s", opts.v[i].name);
        if (opts.v[i].letter)
            sbuf_addf(out, " -%c", opts.v[i].letter);
    }
}

static void add_values_of(struct sbuf *out, const struct args_cmd *c)
{
    add_value_options(out, c->opts);
}

/* Every option that takes the next word, for all commands, separated by `between`. */
static void add_all_values(struct sbuf *out, const char *between)
{
    AUTO(sbuf_release) struct sbuf words = { 0 };

    add_value_options(&words, tool_global_opts);
    each_command(&words, add_values_of);
    for (const char *at = words.data + 1; *at; at += strcspn(at, " "), at += *at == ' ')
        sbuf_addf(out, "%s%.*s", at == words.data + 1 ? "" : between, (int)strcspn(at, " "), at);
}

/* A short text within single quotes; colons mean something to zsh. */
static void add_doc(struct sbuf *out, const char *doc, const char *quote)
{
    size_t n = strcspn(doc, "\n;(");

    if (n > DOC_MAX)
        for (n = DOC_MAX; n > 1 && doc[n] != ' '; n--)
            ;
    while (n > 0 && strchr(" .,:", doc[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++) {
        if (doc[i] == '\'')
            sbuf_adds(out, quote);
        else
            sbuf_addc(out, doc[i] == ':' || doc[i] == '\\' ? ' ' : doc[i]);
    }
}

/* ------------------------------------------------------------------ bash */

static void bash_options(struct sbuf *out, struct args_opts opts)
{
    for (size_t i = 0; i < opts.n; i++) {
        if (!opts.v[i].hidden)
            sbuf_addf(out, " --%s", opts.v[i].name);
    }
}

static void bash_case(struct sbuf *out, const struct args_cmd *c)
{
    sbuf_addf(out, "    '%s') words='", c->name);
    for (const struct args_cmd *const *s = c->subs; s && *s; s++)
        sbuf_addf(out, "%s ", own_name(*s));
    if (c == &completion_command)
        sbuf_adds(out, "bash zsh fish ");
    sbuf_adds(out, "--help");
    bash_options(out, c->opts);
    bash_options(out, tool_global_opts);
    sbuf_addf(out, "'; files=%d ;;\n", c->takes_words && c != &completion_command);
}

static void print_bash(struct sbuf *out)
{
    sbuf_adds(out, "# bash completion for lcow; made by: lcow completion bash\n"
                   "_lcow() {\n"
                   "    local cur=${COMP_WORDS[COMP_CWORD]} command='' word words='' files=0 i\n"
                   "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                   "        word=${COMP_WORDS[i]}\n"
                   "        case $word in\n"
                   "        --) return ;;\n"
                   "        ");
    add_all_values(out, " | ");
    sbuf_adds(out, ")\n"
                   "            i=$((i + 1))\n"
                   "            if ((i == COMP_CWORD)); then\n"
                   "                COMPREPLY=($(compgen -f -- \"$cur\"))\n"
                   "                return\n"
                   "            fi ;;\n"
                   "        -*) ;;\n"
                   "        *)\n"
                   "            case \"${command:+$command }$word\" in\n"
                   "            lcow");
    each_command(out, add_pattern);
    sbuf_adds(out, ") command=${command:+$command }$word ;;\n"
                   "            esac ;;\n"
                   "        esac\n"
                   "    done\n"
                   "    case $command in\n"
                   "    '') words='");
    for (const struct args_cmd *const *c = tool_commands; *c; c++)
        sbuf_addf(out, "%s ", (*c)->name);
    sbuf_adds(out, "--help --version");
    bash_options(out, tool_global_opts);
    sbuf_adds(out, "' ;;\n");
    each_command(out, bash_case);
    sbuf_adds(out, "    esac\n"
                   "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                   "    if ((files)) && [[ $cur != -* ]]; then\n"
                   "        COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
                   "    fi\n"
                   "}\n"
                   "complete -F _lcow lcow\n");
}

/* ------------------------------------------------------------------ zsh */

static void zsh_options(struct sbuf *out, struct args_opts opts)
{
    for (size_t i = 0; i < opts.n; i++) {
        if (opts.v[i].hidden)
            continue;
        sbuf_addf(out, "            '--%s:", opts.v[i].name);
        add_doc(out, opts.v[i].doc, "'\\''");
        sbuf_adds(out, "'\n");
    }
}

static void zsh_command(struct sbuf *out, const struct args_cmd *c)
{
    sbuf_addf(out, "            '%s:", own_name(c));
    add_doc(out, c->summary, "'\\''");
    sbuf_adds(out, "'\n");
}

static void zsh_case(struct sbuf *out, const struct args_cmd *c)
{
    sbuf_addf(out, "    '%s')\n        choices=(\n", c->name);
    for (const struct args_cmd *const *s = c->subs; s && *s; s++)
        zsh_command(out, *s);
    if (c == &completion_command)
        sbuf_adds(out, "            bash\n            zsh\n            fish\n");
    sbuf_adds(out, "        )\n        options=(\n");
    zsh_options(out, c->opts);
    zsh_options(out, tool_global_opts);
    sbuf_addf(out, "        )\n        files=%d ;;\n", c->takes_words && c != &completion_command);
}

static void print_zsh(struct sbuf *out)
{
    sbuf_adds(out, "#compdef lcow\n"
                   "# made by: lcow completion zsh\n"
                   "_lcow() {\n"
                   "    local command='' word next files=0 i\n"
                   "    local -a choices options known\n"
                   "    known=(");
    each_command(out, add_name);
    sbuf_adds(out, ")\n"
                   "    for ((i = 2; i < CURRENT; i++)); do\n"
                   "        word=${words[i]}\n"
                   "        case $word in\n"
                   "        --) _normal; return ;;\n"
                   "        ");
    add_all_values(out, " | ");
    sbuf_adds(out, ")\n"
                   "            ((++i == CURRENT)) && { _files; return; } ;;\n"
                   "        -*) ;;\n"
                   "        *)\n"
                   "            next=\"${command:+$command }$word\"\n"
                   "            ((${known[(Ie)$next]})) && command=$next ;;\n"
                   "        esac\n"
                   "    done\n"
                   "    case $command in\n"
                   "    '')\n        choices=(\n");
    for (const struct args_cmd *const *c = tool_commands; *c; c++)
        zsh_command(out, *c);
    sbuf_adds(out, "        )\n        options=(\n            '--version:print the version'\n");
    zsh_options(out, tool_global_opts);
    sbuf_adds(out, "        ) ;;\n");
    each_command(out, zsh_case);
    sbuf_adds(out, "    esac\n"
                   "    options+=('--help:print the help')\n"
                   "    _describe 'command' choices\n"
                   "    _describe -o 'option' options\n"
                   "    ((files)) && _files\n"
                   "}\n"
                   "_lcow \"$@\"\n");
}

/* ------------------------------------------------------------------ fish */

static void fish_options(struct sbuf *out, const char *at, struct args_opts opts)
{
    for (size_t i = 0; i < opts.n; i++) {
        if (opts.v[i].hidden)
            continue;
        sbuf_addf(out, "complete -c lcow -n \"__lcow_at '%s'\" -l %s", at, opts.v[i].name);
        if (opts.v[i].letter)
            sbuf_addf(out, " -s %c", opts.v[i].letter);
        sbuf_addf(out, "%s -d '", takes_value(&opts.v[i]) ? " -r" : "");
        add_doc(out, opts.v[i].doc, "\\'");
        sbuf_adds(out, "'\n");
    }
}

static void fish_word(struct sbuf *out, const char *at, const struct args_cmd *c)
{
    sbuf_addf(out, "complete -c lcow -n \"__lcow_at '%s'\" -f -a %s -d '", at, own_name(c));
    add_doc(out, c->summary, "\\'");
    sbuf_adds(out, "'\n");
}

static void fish_command(struct sbuf *out, const struct args_cmd *c)
{
    for (const struct args_cmd *const *s = c->subs; s && *s; s++)
        fish_word(out, c->name, *s);
    fish_options(out, c->name, c->opts);
    fish_options(out, c->name, tool_global_opts);
    if (!c->takes_words)
        sbuf_addf(out, "complete -c lcow -n \"__lcow_at '%s'\" -f\n", c->name);
}

static void print_fish(struct sbuf *out)
{
    sbuf_adds(out, "# fish completion for lcow; made by: lcow completion fish\n"
                   "function __lcow_at\n"
                   "    set -l known");
    each_command(out, add_name);
    sbuf_adds(out, "\n"
                   "    set -l command ''\n"
                   "    set -l skip 0\n"
                   "    for word in (commandline -opc)[2..-1]\n"
                   "        if test $skip = 1\n"
                   "            set skip 0\n"
                   "            continue\n"
                   "        end\n"
                   "        switch $word\n"
                   "            case --\n"
                   "                return 1\n"
                   "            case ");
    add_all_values(out, " ");
    sbuf_adds(out, "\n"
                   "                set skip 1\n"
                   "            case '-*'\n"
                   "                continue\n"
                   "            case '*'\n"
                   "                set -l next (string trim -- \"$command $word\")\n"
                   "                contains -- $next $known; and set command $next\n"
                   "        end\n"
                   "    end\n"
                   "    test \"$command\" = \"$argv[1]\"\n"
                   "end\n"
                   "complete -c lcow -l help -s h -d 'print the help'\n"
                   "complete -c lcow -n \"__lcow_at ''\" -f -l version -d 'print the version'\n");
    for (const struct args_cmd *const *c = tool_commands; *c; c++)
        fish_word(out, "", *c);
    fish_options(out, "", tool_global_opts);
    each_command(out, fish_command);
    sbuf_adds(out, "complete -c lcow -n \"__lcow_at completion\" -f -a 'bash zsh fish'\n");
}

/* ------------------------------------------------------------------ the command */

bool completion_print(const char *shell, struct sbuf *out)
{
    static const struct {
        const char *name;
        void (*print)(struct sbuf *out);
    } shells[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "fish", print_fish } };

    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        if (str_eq(shell, shells[i].name)) {
            shells[i].print(out);
            return true;
        }
    }
    return false;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    if (t->rest.n != 1 || !completion_print(t->rest.argv[0], &t->out))
        return tool_fail(TOOL_USAGE,
                         "which shell? bash, zsh or fish (see: lcow completion --help)");
    return TOOL_OK;
}

const struct args_cmd completion_command = {
    .name = "completion",
    .summary = "Print a completion script for bash, zsh or fish.",
    .synopsis = "bash | zsh | fish",
    .text = "Exit code: 0; 2 if this command line is wrong.",
    .takes_words = true,
    .examples = ARGS_EXAMPLES(
        { "lcow completion bash > /usr/share/bash-completion/completions/lcow", "for all users" },
        { "source <(lcow completion bash)", "in this shell" },
        { "lcow completion fish > ~/.config/fish/completions/lcow.fish", "the same for fish" }),
    .bare = true,
    .run = run,
};
