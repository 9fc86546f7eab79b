/* disks_fixture.h - for tests of disks in a real VM: images on the host, and the controller with
 * its real guest. */
#pragma once
#include "base/child.h"
#include "fixture/device_fixture.h"
#include "host/device/scsi.h"
#include "vm/vm_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

struct disks_fixture {
    struct vm_fixture vm;
    struct scsi *scsi;
};

static inline void disks_start(struct ctx *ctx, struct disks_fixture *r)
{
    vm_fixture_start(ctx, &r->vm);
    r->scsi = scsi_new(r->vm.vmm, r->vm.guest, SCSI_CONTROLLERS_MAX);
}

static inline void disks_finish(struct disks_fixture *r)
{
    ASSERT_EQ(scsi_used_slots(r->scsi), 0);
    ASSERT_EQ(scsi_lost_slots(r->scsi), 0);
    scsi_free(r->scsi);
    vm_fixture_finish(&r->vm);
}

/* A line of shell on the host, in the test's directory. */
static inline void disks_host(struct disks_fixture *r, const char *line)
{
    AUTO_FREE char *whole = str_format("cd %s && { %s; }", r->vm.temp.dir, line);
    const char *const argv[] = { "/bin/sh", "-ec", whole, NULL };
    struct ctx limited = ctx_with_timeout(&r->vm.root, FIXTURE_CALL_NS);
    AUTO(child_free) struct child *c = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(child_spawn(&limited, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT_OK(child_wait(&limited, c, &status, &err), err);
    if (status != 0)
        tap_fail(__FILE__, __LINE__, "%s: status %d", line, status);
}

static inline uint64_t disks_reserve(struct disks_fixture *r, const char *file, bool read_only,
                                     struct guest_disk mount)
{
    struct ctx limited = ctx_with_timeout(&r->vm.root, FIXTURE_CALL_NS);
    const char *path = tempdir_path(&r->vm.temp, file);
    AUTO_FD int fd = open(path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    const struct scsi_disk disk = { .host_path = path, .fd = fd, .read_only = read_only };
    struct err err = ERR_INIT;
    uint64_t id;

    ASSERT(fd >= 0);
    ASSERT_OK(scsi_reserve(&limited, r->scsi, &disk, &mount, &id, &err), err);
    return id;
}

/* Caller frees the path. */
static inline char *disks_map(struct disks_fixture *r, uint64_t id)
{
    struct ctx limited = ctx_with_timeout(&r->vm.root, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;
    char *path = NULL;

    ASSERT_OK(scsi_map(&limited, r->scsi, id, &path, &err), err);
    return path;
}

static inline void disks_unmap(struct disks_fixture *r, uint64_t id)
{
    struct ctx limited = ctx_with_timeout(&r->vm.root, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;

    ASSERT_OK(scsi_unmap(&limited, r->scsi, id, &err), err);
}

/* Mapping fails with these words, and giving it back works all the same. */
static inline void disks_map_fails(struct disks_fixture *r, uint64_t id, const char *words)
{
    struct ctx limited = ctx_with_timeout(&r->vm.root, FIXTURE_CALL_NS);
    AUTO_FREE char *path = NULL;
    struct err err = ERR_INIT;

    ASSERT_EQ(scsi_map(&limited, r->scsi, id, &path, &err), -1);
    ASSERT_HAS(err.msg, words);
    disks_unmap(r, id);
}

/* Shell in the guest with $d for the path. */
static inline void disks_guest(struct disks_fixture *r, const char *path, const char *line,
                               const char *want)
{
    AUTO_FREE char *whole = str_format("d=%s; %s", path, line);

    vm_fixture_expect(&r->vm, whole, want);
}

/* reserve, map, look, unmap. */
static inline void disks_look(struct disks_fixture *r, const char *file, bool read_only,
                              struct guest_disk mount, const char *line, const char *want)
{
    uint64_t id = disks_reserve(r, file, read_only, mount);
    AUTO_FREE char *path = disks_map(r, id);

    disks_guest(r, path, line, want);
    disks_unmap(r, id);
}
