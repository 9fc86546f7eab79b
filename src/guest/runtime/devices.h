/* devices.h - the VM's device nodes, for rewrite_spec(). */
#pragma once

struct rewrite_env;

/* Sets the functions that look devices up. They read /dev and /sys and never wait. */
void devices_env(struct rewrite_env *env);
