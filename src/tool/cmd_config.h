/* cmd_config.h - what the files behind `lcow config` share. */
#pragma once
#include "base/str.h"
#include "tool/cmd_doctor.h"
#include "tool/tool.h"

struct sbuf;

extern const struct args_cmd config_check_command, config_containerd_command;

#define LCOW_TYPE "io.containerd.lcow.v2"

/* What is needed to print containerd's stanza. */
struct stanza {
    struct doctor_version containerd; /* 1.6 or later */
    const char *shim_path;            /* NULL: containerd finds it by its name */
    const char *config_path;          /* ours */
    bool config_exists;
    struct strv annotations; /* those with an effect under lcow's configuration */
    /* From the file to which the stanza will be appended, by stanza_read(). */
    bool has_file, has_runc, has_lcow, has_type; /* a runtime of LCOW_TYPE */
    bool is_default;                             /* lcow is the default runtime */
    unsigned file_version;                       /* 0: it has none */
};
/* Reads containerd's existing configuration, without comments. */
void stanza_read(const char *toml, struct stanza *s);
void stanza_print(const struct stanza *s, struct sbuf *out);

/* What is needed to print the RuntimeClass. */
struct runtimeclass {
    uint32_t guest_mib; /* of the VM's memory, for its kernel and agent */
    uint32_t vmm_mib;   /* QEMU's own; the maximum of the measured VMs */
    size_t n_measured;
    bool emulated; /* what to assume if none was measured */
};
void runtimeclass_print(const struct runtimeclass *r, struct sbuf *out);
/* From /proc/PID/smaps of a VMM: its proportional memory without the guest's. */
uint64_t runtimeclass_own_kib(const char *smaps);
