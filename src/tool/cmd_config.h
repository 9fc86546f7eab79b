/* cmd_config.h - what the files behind `lcow config` share. */
#pragma once
#include "base/str.h"
#include "tool/cmd_doctor.h"
#include "tool/tool.h"

struct sbuf;

extern const struct args_cmd config_check_command, config_containerd_command;

#define LCOW_TYPE "io.containerd.lcow.v2"

/* What containerd's configuration needs so that it knows the runtime. */
struct stanza {
    struct doctor_version containerd; /* 1.6 or later */
    const char *shim_path;            /* NULL: containerd finds it by its name */
    const char *config_path;          /* ours */
    bool config_exists;
    struct strv annotations; /* that our configuration takes */
    /* Of the file that it will be appended to, by stanza_read(). */
    bool has_file, has_runc, has_lcow, has_type; /* a runtime of LCOW_TYPE */
    bool is_default;                             /* of pods that name none */
    unsigned file_version;                       /* 0: it tells none */
};
/* containerd's configuration as it is. Comments do not count. */
void stanza_read(const char *toml, struct stanza *s);
void stanza_print(const struct stanza *s, struct sbuf *out);

/* What Kubernetes needs. */
struct runtimeclass {
    uint32_t guest_mib; /* of the VM's memory, for its kernel and agent */
    uint32_t vmm_mib;   /* QEMU's own; the most of those that were measured */
    size_t n_measured;
};
void runtimeclass_print(const struct runtimeclass *r, struct sbuf *out);
/* /proc/PID/smaps of a VMM: its share of memory without the guest's. */
uint64_t runtimeclass_own_kib(const char *smaps);
