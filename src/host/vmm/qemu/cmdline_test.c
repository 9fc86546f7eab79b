#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "host/vmm/qemu/cmdline.h"
#include "host/vmm/vmm.h"

#include <stdlib.h>
#include <string.h>

static struct vm_doc doc_of(unsigned cpus)
{
    return (struct vm_doc){ .id = "demo@vm",
                            .run_dir = "/run/lcow/default/demo",
                            .kernel = "/usr/share/lcow/vmlinux",
                            .initrd = "/usr/share/lcow/initrd.cpio",
                            .memory_mib = 256,
                            .cpus = cpus,
                            .max_cpus = cpus,
                            .uid_base = 60000,
                            .uid_count = 10,
                            .scsi_controllers = 1 };
}

static char *text_of(const struct vm_doc *doc, const struct qemu_host *host)
{
    AUTO(strv_release) struct strv args = { 0 };
    struct sbuf text = { 0 };

    qemu_cmdline(doc, "/usr/bin/qemu-system-x86_64", host, &args);
    for (size_t i = 0; i < args.n; i++)
        sbuf_addf(&text, "%s\n", args.v[i]);
    return sbuf_take(&text);
}

/* UPDATE_GOLDEN=1 writes what is generated instead: look at the difference in git. */
static void golden(const char *name, const struct vm_doc *doc, const struct qemu_host *host)
{
    const char *dir = getenv("GOLDEN_DIR");
    AUTO_FREE char *path = str_format("%s/%s.args", dir ? dir : "tests/golden/qemu", name),
                   *have = text_of(doc, host), *want = NULL;
    size_t len;

    if (getenv("UPDATE_GOLDEN"))
        ASSERT_EQ(file_write(path, have, strlen(have), 0644), 0);
    ASSERT_EQ(file_read_all(path, 1 << 20, &want, &len), 0);
    ASSERT_STR(have, want);
}

TEST(one_vcpu_under_emulation_is_as_recorded)
{
    struct vm_doc doc = doc_of(1);

    golden("tcg-1cpu", &doc, &(struct qemu_host){ .emulated = true, .tsc_khz = 2299998 });
}

/* A clone is its template but for where the memory comes from. */
TEST(template_and_clone_are_as_recorded)
{
    struct vm_doc doc = doc_of(1);

    doc.memory_mib = 128;
    doc.max_memory_mib = 128 + 32768;
    doc.max_cpus = 4;
    doc.disk_mib = 10240;
    struct qemu_host host = { .emulated = true, .tsc_khz = 2299998, .form = QEMU_TEMPLATE };
    golden("template", &doc, &host);
    host.form = QEMU_CLONE;
    host.vcpus = 1;
    golden("clone", &doc, &host);
}

TEST(a_link_over_vsock_is_as_recorded)
{
    struct vm_doc doc = doc_of(1);

    doc.vsock = true;
    golden("vsock", &doc, &(struct qemu_host){ .cid = 4711 });
}

TEST(the_code_cache_is_as_configured_but_not_the_templates)
{
    struct vm_doc doc = doc_of(1);
    struct qemu_host host = { .emulated = true, .form = QEMU_CLONE, .vcpus = 1 };

    host.code_cache_mib = 20;
    for (int form = QEMU_COLD; form <= QEMU_CLONE; form++) {
        host.form = (enum qemu_form)form;
        AUTO_FREE char *args = text_of(&doc, &host);
        ASSERT_EQ(strstr(args, ",tb-size=20\n") != NULL, form != QEMU_TEMPLATE);
    }
    host.code_cache_mib = 1; /* QEMU would do nothing but translate */
    AUTO_FREE char *args = text_of(&doc, &host);
    ASSERT_HAS(args, ",tb-size=8\n");
}

TEST(four_vcpus_under_emulation_are_as_recorded)
{
    struct vm_doc doc = doc_of(4);

    doc.scsi_controllers = 4;
    doc.pci_ports = 2;
    doc.max_memory_mib = 2048;
    doc.agent_log_level = "debug";
    golden("tcg-4cpus", &doc, &(struct qemu_host){ .emulated = true });
}

TEST(hardware_virtualization_is_as_recorded)
{
    struct vm_doc doc = doc_of(2);

    doc.max_cpus = 8;
    doc.scsi_controllers = 0;
    golden("kvm", &doc, &(struct qemu_host){ .tsc_khz = 2299998 });
}

TEST(a_vms_shape_is_numbers_and_checked_words)
{
    struct vm_doc doc = doc_of(4);
    struct qemu_host host = { 0 };

    doc.uuid = "12345678-facb-41e6-bd58-64006a7986d3";
    doc.shape = (struct vm_shape){ .backed = true,
                                   .low_mmio_mib = 3000,
                                   .high_mmio_mib = 65536,
                                   .kernel_args = "nosmt psi=1",
                                   .host_nodes = 5,
                                   .n_numa = 2,
                                   .numa = { { 1, 56, 1 }, { 3, 200, VM_NUMA_ANY } } };
    AUTO_FREE char *nodes = text_of(&doc, &host);
    ASSERT_HAS(nodes, "\n-uuid\n12345678-facb-41e6-bd58-64006a7986d3\n");
    ASSERT_HAS(nodes, "\nq35,sata=off,smbus=off,vmport=off,usb=off,max-ram-below-4g=1096M\n");
    ASSERT_HAS(nodes, "\nq35-pcihost.pci-hole64-size=65536M\n");
    ASSERT_HAS(nodes, "\nmemory-backend-ram,id=mem0,size=56M,prealloc=on,policy=bind,"
                      "host-nodes=1\n-numa\nnode,nodeid=0,memdev=mem0,cpus=0-0\n");
    ASSERT_HAS(nodes, "\nmemory-backend-ram,id=mem1,size=200M,prealloc=on,policy=preferred,"
                      "host-nodes=0,host-nodes=2\n-numa\nnode,nodeid=1,memdev=mem1,cpus=1-3\n");
    ASSERT_HAS(nodes, " lcow.loglevel=info nosmt psi=1\n");
    doc.shape.n_numa = 0;
    AUTO_FREE char *flat = text_of(&doc, &host);
    ASSERT_HAS(flat, "\nmemory-backend-ram,id=mem0,size=256M,prealloc=on,policy=preferred,"
                     "host-nodes=0,host-nodes=2\n");
    ASSERT(!strstr(flat, "-numa"));
}

TEST(the_lapic_timer_stays_when_vcpus_can_be_added)
{
    struct vm_doc doc = doc_of(1);
    struct qemu_host host = { .emulated = true };

    AUTO_FREE char *fixed = qemu_kernel_args(&doc, &host);
    doc.max_cpus = 2;
    AUTO_FREE char *growing = qemu_kernel_args(&doc, &host);
    ASSERT_HAS(fixed, " nolapic_timer");
    ASSERT(!strstr(growing, "nolapic_timer"));
}

TEST(a_tsc_is_relied_on_only_with_its_frequency)
{
    struct vm_doc doc = doc_of(1);
    struct qemu_host host = { .emulated = true };
    AUTO_FREE char *doubted = qemu_kernel_args(&doc, &host);

    ASSERT_HAS(doubted, " tsc=unstable ");
    ASSERT(!strstr(doubted, "tsc=reliable"));
    ASSERT(!strstr(doubted, "tsc_early_khz"));
    host.tsc_khz = 2299998;
    AUTO_FREE char *trusted = qemu_kernel_args(&doc, &host);
    ASSERT_HAS(trusted, " tsc=reliable tsc_early_khz=2299998 ");
    ASSERT(!strstr(trusted, "tsc=unstable"));
}

TEST(a_comma_in_the_id_does_not_become_an_option)
{
    struct vm_doc doc = doc_of(1);

    doc.id = "a,process=evil";
    AUTO_FREE char *text = text_of(&doc, &(struct qemu_host){ .emulated = true });
    ASSERT_HAS(text, "guest=a,,process=evil,debug-threads=on\n");
}

TEST(values_that_cannot_work_are_named_with_their_bounds)
{
    struct err err = ERR_INIT;
    struct vm_doc good = doc_of(2), doc;

    ASSERT_OK(qemu_doc_check(&good, &err), err);
    doc = good, doc.memory_mib = 1;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "invalid memory in MiB 1: must be 128–");
    doc = good, doc.cpus = 0;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.cpus = 3;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.max_cpus = 65;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.pci_ports = 15;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.scsi_controllers = 5;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.max_memory_mib = 255;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.agent_log_level = "info init=/bin/sh";
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.run_dir = "relative";
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
    doc = good, doc.kernel = NULL;
    ASSERT_FAIL(qemu_doc_check(&doc, &err), err, ERR_INVALID);
}

TEST(virtualization_is_offered_to_the_guest_only_if_configured)
{
    struct vm_doc doc = doc_of(1);

    for (int emulated = 0; emulated < 2; emulated++) {
        const struct qemu_host host = { .emulated = emulated };

        doc.nested = false;
        AUTO_FREE char *plain = text_of(&doc, &host);
        ASSERT_HAS(plain, ",-svm,-vmx\n");
        doc.nested = true;
        AUTO_FREE char *nested = text_of(&doc, &host);
        ASSERT(!strstr(nested, "svm") && !strstr(nested, "vmx"));
    }
}
