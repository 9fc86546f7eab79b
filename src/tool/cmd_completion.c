/* cmd_completion.c - `lcow completion`: a script for a shell, which calls `lcow completion words`
 * for the words that fit at the cursor. Parser, help and completion use the same tables. */
#include "tool/tool.h"
#include <string.h>

/* The output of `completion words` is "kind", then "word TAB explanation" lines. Kind is what else
 * fits: files, command (the words after --), or none. */
static const struct {
    const char *shell, *script;
} scripts[] = {
    { "bash", "# bash completion for lcow; made by: lcow completion bash\n"
              "_lcow() {\n"
              "    local cur=${COMP_WORDS[COMP_CWORD]} kind word words='' _\n"
              "    {\n"
              "        read -r kind\n"
              "        while IFS=$'\\t' read -r word _; do words+=\"$word \"; done\n"
              "    } < <(lcow completion words -- \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
              "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
              "    if [[ $kind == files && $cur != -* ]]; then\n"
              "        COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
              "    fi\n"
              "}\n"
              "complete -F _lcow lcow\n" },
    { "zsh", "#compdef lcow\n"
             "# made by: lcow completion zsh\n"
             "_lcow() {\n"
             "    local line\n"
             "    local -a lines choices options\n"
             "    lines=(\"${(@f)$(lcow completion words -- \"${(@)words[2,CURRENT]}\")}\")\n"
             "    for line in \"${(@)lines[2,-1]}\"; do\n"
             "        line=${line/$'\\t'/:}\n"
             "        if [[ $line == -* ]]; then options+=($line); else choices+=($line); fi\n"
             "    done\n"
             "    _describe 'command' choices\n"
             "    _describe -o 'option' options\n"
             "    case $lines[1] in\n"
             "    files) _files ;;\n"
             "    command)\n"
             "        line=${words[(i)--]}\n"
             "        ((CURRENT -= line))\n"
             "        words=(\"${(@)words[line+1,-1]}\")\n"
             "        _normal ;;\n"
             "    esac\n"
             "}\n"
             "_lcow \"$@\"\n" },
    { "fish", "# fish completion for lcow; made by: lcow completion fish\n"
              "function __lcow\n"
              "    set -l current (commandline -ct)\n"
              "    set -l lines (lcow completion words -- (commandline -opc)[2..-1] \"$current\")\n"
              "    if string match -q -- '-*' \"$current\"\n"
              "        string match -- '-*' $lines[2..-1]\n"
              "        return\n"
              "    end\n"
              "    string match -v -- '-*' $lines[2..-1]\n"
              "    test \"$lines[1]\" = none; or __fish_complete_path \"$current\"\n"
              "end\n"
              "complete -c lcow -f -a '(__lcow)'\n" },
};

static void offer(struct sbuf *out, const char *dashes, const char *word, const char *doc)
{
    size_t n = strcspn(doc, "\n;(");

    while (n > 0 && strchr(" .,:", doc[n - 1]))
        n--;
    sbuf_addf(out, "%s%s\t%.*s\n", dashes, word, (int)n, doc);
}

static void offer_options(struct sbuf *out, struct args_opts opts)
{
    for (size_t i = 0; i < opts.n; i++)
        if (!opts.v[i].hidden)
            offer(out, "--", opts.v[i].name, opts.v[i].doc);
}

/* True if the word after this option is its value. */
static bool takes_value(struct args_opts opts, const char *word)
{
    for (size_t i = 0; i < opts.n; i++) {
        const struct args_opt *o = &opts.v[i];
        const char letter[] = { '-', o->letter, '\0' };

        if ((o->kind == ARGS_STR || o->kind == ARGS_NUMBER) &&
            ((str_starts(word, "--") && str_eq(word + 2, o->name)) || str_eq(word, letter)))
            return true;
    }
    return false;
}

/* Prints what the last of the words may be. */
static void complete(char *const *words, int n, struct sbuf *out)
{
    static const struct args_cmd none = { 0 };
    const struct args_cmd *const *below = tool_commands, *c = &none;

    for (int i = 0; i < n - 1; i++) {
        if (str_eq(words[i], "--")) {
            sbuf_adds(out, "command\n");
            return;
        }
        if (takes_value(c->opts, words[i]) || takes_value(tool_global_opts, words[i])) {
            if (++i == n - 1) {
                sbuf_adds(out, "files\n");
                return;
            }
            continue;
        }
        for (const struct args_cmd *const *s = below; s && *s; s++) {
            if (str_eq(words[i], tool_last_word((*s)->name))) {
                c = *s;
                below = c->subs;
                break;
            }
        }
    }
    sbuf_adds(out, c->takes_words && c != &completion_command ? "files\n" : "none\n");
    for (const struct args_cmd *const *s = below; s && *s; s++)
        offer(out, "", tool_last_word((*s)->name), (*s)->summary);
    for (size_t i = 0; c == &completion_command && i < ARRAY_LEN(scripts); i++)
        offer(out, "", scripts[i].shell, "");
    offer(out, "--", "help", "print the help");
    if (c == &none)
        offer(out, "--", "version", "print the version");
    offer_options(out, c->opts);
    offer_options(out, tool_global_opts);
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    const char *shell = t->rest.n > 0 ? t->rest.argv[0] : NULL;

    if (str_eq(shell, "words") && t->rest.n > 1) {
        complete(t->rest.argv + 1, t->rest.n - 1, &t->out);
        return TOOL_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(scripts) && t->rest.n == 1; i++) {
        if (str_eq(shell, scripts[i].shell)) {
            sbuf_adds(&t->out, scripts[i].script);
            return TOOL_OK;
        }
    }
    return tool_fail(
        TOOL_USAGE, "the shell is missing: must be bash, zsh or fish; see: lcow completion --help");
}

const struct args_cmd completion_command = {
    .name = "completion",
    .summary = "Print a completion script for bash, zsh or fish.",
    .synopsis = "bash | zsh | fish",
    .text = "Exit code: 0; 2 if the command line is invalid.",
    .takes_words = true,
    .examples = ARGS_EXAMPLES(
        { "lcow completion bash > /usr/share/bash-completion/completions/lcow",
          "install it for all users" },
        { "source <(lcow completion bash)", "use it in this shell" },
        { "lcow completion fish > ~/.config/fish/completions/lcow.fish", "install it for fish" }),
    .bare = true,
    .run = run,
};
