/* cmd_completion.h - completion scripts, for the command and its test. */
#pragma once
#include "tool/tool.h"

struct sbuf;

/* bash, zsh or fish; false: another one. */
bool completion_print(const char *shell, struct sbuf *out);
