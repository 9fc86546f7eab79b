/* in_root.h - runs a program of the VM inside another root: the VM's static tools see a container's
 * files as the container does, whatever symlinks are there and whatever it lacks itself. */
#pragma once

/* Replaces this process; argv[0] is the name that program is told. Returns only on failure: the
 * exit status, all is said on stderr. */
int in_root_exec(const char *root, const char *program, char **argv);
