#include "host/vmm/qemu/cmdline.h"
#include "base/err.h"
#include "base/str.h"
#include "host/vmm/vmm.h"
#include "proto/link.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

#define CODE_CACHE_MIN 8 /* MiB */

/* Bounds the cache of translated code; what is used of it is the pod's memory. When it is full, all
 * of it is thrown away and translated again, and translating, not running, is what emulation costs.
 * Measured with QEMU 10.0 and Debian's 6.1 on one vCPU: 16 MiB hold 28 600 blocks. A boot to "true"
 * needs fewer (0.72 s of CPU with 16 MiB, 0.70 with 64, 1.02 with 12); a container's start and end
 * need 65 000, which become 102 000 with 32 MiB (docs/decisions/0011). vCPUs share it. */
static unsigned tb_size_mib(const struct vm_doc *doc, const struct qemu_host *host)
{
    if (host->code_cache_mib > 0 && host->form != QEMU_TEMPLATE) /* whose clones may have others */
        return host->code_cache_mib < CODE_CACHE_MIN ? CODE_CACHE_MIN : host->code_cache_mib;
    if (host->form == QEMU_CLONE)
        return host->vcpus <= 2 ? 40 : 64;
    return doc->max_cpus == 1 ? 32 : 64;
}

/* One vCPU is emulated by one thread, and so are those that it may get later: with a thread for
 * each, QEMU 10 aborts when one is added and the code cache has no free region for it. It is
 * cheaper, too: nothing has to be atomic. */
static const char *tcg_threads(const struct vm_doc *doc, const struct qemu_host *host)
{
    unsigned cpus = host->form == QEMU_CLONE ? host->vcpus : doc->cpus;

    return cpus == 1 ? "single" : "multi";
}

static int check_log_level(const char *level, struct err *err)
{
    for (const char *p = level; p && *p; p++)
        if (!islower((unsigned char)*p))
            return err_set(err, ERR_INVALID,
                           "invalid log level \"%s\" of the agent: must be a word", level);
    return 0;
}

int qemu_doc_check(const struct vm_doc *doc, struct err *err)
{
    if (!doc->id || !*doc->id || strlen(doc->id) > 200)
        return err_set(err, ERR_INVALID, "invalid VM id: must be 1–200 bytes");
    if (!doc->run_dir || doc->run_dir[0] != '/')
        return err_set(err, ERR_INVALID, "VM %s: the runtime directory is not an absolute path",
                       doc->id);
    if (!doc->kernel || !doc->initrd)
        return err_set(err, ERR_INVALID, "VM %s: the kernel or the initrd is missing", doc->id);
    const struct {
        const char *what;
        uint32_t value, min, max;
    } bounds[] = {
        { "memory in MiB", doc->memory_mib, QEMU_MEMORY_MIN_MIB, QEMU_MEMORY_MAX_MIB },
        { "number of vCPUs", doc->cpus, 1, QEMU_CPUS_MAX },
        { "most vCPUs", doc->max_cpus, doc->cpus, QEMU_CPUS_MAX },
        { "number of SCSI controllers", doc->scsi_controllers, 0, QEMU_SCSI_MAX },
        { "number of PCI ports", doc->pci_ports, 0, QEMU_PORTS_MAX },
        { "most memory in MiB", doc->max_memory_mib, doc->max_memory_mib ? doc->memory_mib : 0,
          QEMU_MEMORY_MAX_MIB },
    };
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++)
        if (bounds[i].value < bounds[i].min || bounds[i].value > bounds[i].max)
            return err_set(err, ERR_INVALID, "VM %s: invalid %s %u: must be %u–%u", doc->id,
                           bounds[i].what, bounds[i].value, bounds[i].min, bounds[i].max);
    return check_log_level(doc->agent_log_level, err) < 0 ? err_wrap(err, "VM %s", doc->id) : 0;
}

/* What saves time under emulation, as measured (docs/reference/qemu-uvm.md §2). With hardware
 * virtualization the kernel finds out by itself, and its mitigations matter. */
static void add_emulation_args(struct sbuf *b, const struct vm_doc *doc,
                               const struct qemu_host *host)
{
    sbuf_adds(b, " no_timer_check noreplace-smp mitigations=off nokaslr cryptomgr.notests psi=0"
                 " initcall_blacklist=load_system_certificate_list,crypto_kdf108_init,"
                 "init_kprobe_trace");
    /* The guest's TSC is the host's, the same on all vCPUs. Where there may be several the kernel
     * does not believe that and reads the HPET instead: each look at the clock is a system call
     * and an exit to QEMU then. */
    if (host->tsc_khz > 0)
        sbuf_addf(b, " tsc=reliable tsc_early_khz=%u", host->tsc_khz);
    /* Unknown, or not even the host relies on it. The guest could only calibrate it by itself,
     * which is wrong by any factor when the host is busy. */
    else
        sbuf_adds(b, " tsc=unstable");
    /* Only with one vCPU for good: others would have no one-shot timer. */
    if (doc->max_cpus == 1)
        sbuf_adds(b, " nolapic_timer");
}

char *qemu_kernel_args(const struct vm_doc *doc, const struct qemu_host *host)
{
    struct sbuf b = { 0 };

    /* The console is captured: the first line shows that the kernel runs, notices and worse are
     * the end of an error report. earlycon shows what goes wrong before the UART's driver; it
     * comes after loglevel, or it prints everything up to there. */
    sbuf_adds(&b, "loglevel=6 earlycon=uart8250,io,0x3f8,115200n8 console=ttyS0 panic=-1"
                  " random.trust_cpu=on memhp_default_state=online");
    /* Debian's list without the modules that need a policy, which no program loads here: AppArmor,
     * TOMOYO, SELinux and Smack. */
    sbuf_adds(&b, " lsm=landlock,lockdown,yama,integrity,bpf");
    /* ACPI hot-plugs into the bridge (tried); the bridge's own controller only complains. */
    sbuf_adds(&b, " initcall_blacklist=shpcd_init");
    /* Room to grow beyond 4 GiB makes the kernel set 64 MiB aside for devices that cannot reach
     * that far; none of ours is like that. */
    if (doc->max_memory_mib > doc->memory_mib)
        sbuf_adds(&b, " swiotlb=noforce");
    if (host->emulated)
        add_emulation_args(&b, doc, host);
    sbuf_addf(&b, " rdinit=/init lcow.host=%s lcow.loglevel=%s", doc->vsock ? "vsock" : "tcp",
              doc->agent_log_level ? doc->agent_log_level : "info");
    if (doc->shape.kernel_args && *doc->shape.kernel_args)
        sbuf_addf(&b, " %s", doc->shape.kernel_args);
    return sbuf_take(&b);
}

/* In QEMU's option strings a comma is written twice. */
static char *quote(const char *s)
{
    struct sbuf b = { 0 };

    for (; *s; s++) {
        if (*s == ',')
            sbuf_addc(&b, ',');
        sbuf_addc(&b, *s);
    }
    return sbuf_take(&b);
}

/* An option and its value. */
__attribute__((format(printf, 3, 4))) static void add(struct strv *out, const char *option,
                                                      const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *value = str_vformat(fmt, ap);
    va_end(ap);
    strv_add(out, option);
    strv_add(out, value);
}

/* Of a VM that starts cold. */
static void add_cold_memory(const struct vm_doc *doc, struct strv *out)
{
    const struct vm_shape *shape = &doc->shape;
    const char *prealloc = shape->backed ? ",prealloc=on" : "";
    AUTO(sbuf_release) struct sbuf prefer = { 0 };

    sbuf_adds(&prefer, "");
    for (unsigned i = 0; i < 64; i++)
        if (shape->host_nodes >> i & 1)
            sbuf_addf(&prefer, "%s,host-nodes=%u", prefer.len ? "" : ",policy=preferred", i);
    if (shape->n_numa == 0)
        add(out, "-object", "memory-backend-ram,id=mem0,size=%uM%s%s", doc->memory_mib, prealloc,
            prefer.data);
    for (unsigned i = 0, cpu = 0; i < shape->n_numa; cpu += shape->numa[i++].cpus) {
        const struct vm_numa *n = &shape->numa[i];
        AUTO_FREE char *bind = n->host_node == VM_NUMA_ANY
                                   ? str_dup(prefer.data)
                                   : str_format(",policy=bind,host-nodes=%u", n->host_node);

        add(out, "-object", "memory-backend-ram,id=mem%u,size=%uM%s%s", i, n->memory_mib, prealloc,
            bind);
        add(out, "-numa", "node,nodeid=%u,memdev=mem%u,cpus=%u-%u", i, i, cpu, cpu + n->cpus - 1);
    }
}

/* A clone maps the file privately and has it open for reading only; rom=off, since the mapping is
 * written to all the same. QEMU before 8.2 cannot do that. */
static void add_memory(const struct vm_doc *doc, const struct qemu_host *host, struct strv *out)
{
    if (host->form == QEMU_TEMPLATE)
        add(out, "-object",
            "memory-backend-file,id=mem0,size=%uM,mem-path=/proc/self/fd/%d,share=on",
            doc->memory_mib, QEMU_FD_RAM);
    if (host->form == QEMU_COLD)
        add_cold_memory(doc, out);
    if (host->form != QEMU_CLONE)
        return;
    add(out, "-object",
        "memory-backend-file,id=mem0,size=%uM,mem-path=" QEMU_JAIL_RAM
        ",share=off,readonly=on,rom=off",
        doc->memory_mib);
    add(out, "-incoming", "defer");
}

/* Of the device; 0: none. */
static uint32_t grow_mib(const struct vm_doc *doc)
{
    uint32_t more =
        doc->max_memory_mib > doc->memory_mib ? doc->max_memory_mib - doc->memory_mib : 0;

    return (more + QEMU_GROW_MIB - 1) / QEMU_GROW_MIB * QEMU_GROW_MIB;
}

static void add_machine(const struct vm_doc *doc, const struct qemu_host *host, struct strv *out)
{
    uint32_t max = grow_mib(doc) ? doc->memory_mib + grow_mib(doc) : 0;
    const struct vm_shape *shape = &doc->shape;
    AUTO_FREE char *low = shape->low_mmio_mib
                              ? str_format(",max-ram-below-4g=%uM", 4096 - shape->low_mmio_mib)
                              : str_dup("");

    add(out, "-machine", "q35%s,sata=off,smbus=off,vmport=off,usb=off%s",
        shape->n_numa ? "" : ",memory-backend=mem0", low);
    if (shape->high_mmio_mib)
        add(out, "-global", "q35-pcihost.pci-hole64-size=%uM", shape->high_mmio_mib);
    if (host->emulated)
        add(out, "-accel", "tcg,thread=%s,tb-size=%u", tcg_threads(doc, host),
            tb_size_mib(doc, host));
    else
        add(out, "-accel", "kvm");
    /* Emulated, a string instruction moves one element at a time: without these two the guest
     * copies by eight bytes instead of one. */
    add(out, "-cpu", "%s%s", host->emulated ? "max,-la57,-erms,-fsrm" : "host",
        doc->nested ? "" : ",-svm,-vmx");
    add(out, "-smp", "%u,maxcpus=%u", doc->cpus, doc->max_cpus);
    if (max)
        add(out, "-m", "%uM,slots=4,maxmem=%uM", doc->memory_mib, max);
    else
        add(out, "-m", "%uM", doc->memory_mib);
    add_memory(doc, host, out);
}

static void add_boot(const struct vm_doc *doc, const struct qemu_host *host, struct strv *out)
{
    AUTO_FREE char *append = qemu_kernel_args(doc, host);

    add(out, "-kernel", QEMU_JAIL_KERNEL);
    add(out, "-initrd", QEMU_JAIL_INITRD);
    add(out, "-append", "%s", append);
    add(out, "-fw_cfg", "name=" LINK_BOOT_FILE ",file=" QEMU_JAIL_FW_CFG);
}

static void add_channels(const struct vm_doc *doc, const struct qemu_host *host, struct strv *out)
{
    add(out, "-chardev", "socket,id=qmp,fd=%d", QEMU_FD_QMP);
    add(out, "-mon", "chardev=qmp,mode=control");
    add(out, "-chardev", "socket,id=console,fd=%d", QEMU_FD_CONSOLE);
    add(out, "-serial", "chardev:console");
    if (doc->vsock) {
        add(out, "-device", "vhost-vsock-pci,id=link0,vhostfd=%d,guest-cid=%u", QEMU_FD_LINK,
            host->cid);
        return;
    }
    add(out, "-netdev", "tap,id=link,fd=%d", QEMU_FD_LINK);
    /* Both ends know each other's address: a clone does not announce itself. */
    add(out, "-device",
        "virtio-net-pci,id=link0,netdev=link,mac=" LINK_GUEST_MAC ",romfile=,guest_announce=off");
}

/* As qemu_devices.c adds one, with nothing behind it yet. */
static void add_disk(const struct vm_doc *doc, struct strv *out)
{
    add(out, "-blockdev", "driver=null-co,node-name=nothing,read-zeroes=on,size=%llu",
        (unsigned long long)doc->disk_mib << 20);
    add(out, "-blockdev", "driver=raw,node-name=disk-0-0,file=nothing,read-only=off,discard=unmap");
    add(out, "-device",
        "scsi-hd,id=sd-0-0,bus=scsi0.0,channel=0,scsi-id=0,lun=0,drive=disk-0-0,"
        "serial=sd-0-0,rotation_rate=1,werror=report,rerror=report");
}

static void add_devices(const struct vm_doc *doc, struct strv *out)
{
    for (unsigned i = 0; i < doc->scsi_controllers; i++)
        add(out, "-device", "virtio-scsi-pci,id=scsi%u", i);
    if (doc->scsi_controllers > 0 && doc->disk_mib > 0)
        add_disk(doc, out);
    add(out, "-fsdev",
        "local,id=shares,path=" QEMU_JAIL_SHARES ",security_model=none,multidevs=remap");
    add(out, "-device", "virtio-9p-pci,fsdev=shares,mount_tag=lcow");
    /* 31 slots for what is hot-added later; a bridge cannot be. */
    add(out, "-device", "pcie-pci-bridge,id=hp");
    for (unsigned i = 0; i < doc->pci_ports; i++)
        add(out, "-device", "pcie-root-port,id=port%u,bus=pcie.0,addr=0x%x,chassis=%u,slot=%u", i,
            QEMU_PORT_SLOT + i, i + 1, i + 1);
    if (grow_mib(doc) > 0) {
        add(out, "-object", "memory-backend-ram,id=grow,size=%uM,reserve=off", grow_mib(doc));
        add(out, "-device", "virtio-mem-pci,id=grow0,memdev=grow,block-size=%uM,requested-size=0",
            QEMU_GROW_MIB);
    }
}

void qemu_cmdline(const struct vm_doc *doc, const char *program, const struct qemu_host *host,
                  struct strv *out)
{
    AUTO_FREE char *name = quote(doc->id);

    strv_add(out, program);
    add(out, "-name", "guest=%s,debug-threads=on", name);
    if (doc->uuid)
        add(out, "-uuid", "%s", doc->uuid);
    strv_add(out, "-nodefaults");
    strv_add(out, "-no-user-config");
    strv_add(out, "-no-reboot");
    add(out, "-display", "none");
    add(out, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    add_machine(doc, host, out);
    add_boot(doc, host, out);
    add_channels(doc, host, out);
    add_devices(doc, out);
}
