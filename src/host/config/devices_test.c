#include "base/err.h"
#include "base/str.h"
#include "harness/tap.h"
#include "host/config/config.h"
#include "host/config/devices.h"
#include "host/jail/pci.h"
#include "oci/spec.h"

#include <stdio.h>
#include <string.h>

static const struct pci_function functions[] = {
    { "0000:03:00.0", 0x8086, 0x1572, "vfio-pci", "12" },
    { "0000:03:00.1", 0x8086, 0x1572, "i40e", "12" },
    { "0000:04:00.0", 0x10de, 0x20b0, "vfio-pci", "12" },
    { "0000:05:00.0", 0x10de, 0x20b0, "", "13" },
    { "0000:06:00.0", 0x10de, 0x20b0, "vfio-pci", "14", "0000:06:00.1", "snd_hda_intel" },
    { "0000:07:00.0", 0x10de, 0x20b0, "vfio-pci" },
};

static int find(const char *name, struct pci_function *ret, struct err *err)
{
    char address[PCI_ADDRESS_MAX];

    if (pci_address(name, address) < 0)
        return err_set(err, ERR_INVALID, "no address");
    for (size_t i = 0; i < ARRAY_LEN(functions); i++)
        if (str_eq(functions[i].address, address)) {
            *ret = functions[i];
            return 0;
        }
    return err_set(err, ERR_NOT_FOUND, "no device");
}

/* A host with vfio's own node, a group 12 of two functions, and another device. */
static int vfio(uint32_t major, uint32_t minor, struct strv *ret, struct err *err)
{
    if (major == 10 && minor == 196)
        return 1;
    if (major != 511)
        return 0;
    if (minor == 9)
        return err_set(err, ERR_NOT_FOUND, "vfio group 9 has no PCI function");
    strv_add(ret, "0000:03:00.0");
    strv_add(ret, "0000:04:00.0");
    return 1;
}

static size_t left; /* of linux.devices */

/* allow: allow_devices. Then the value of "annotations" in the spec, or members beside it. */
static int read_spec(const char *allow, const char *rest, struct strv *ret, struct err *err)
{
    AUTO_FREE char *text = str_format("{\"ociVersion\":\"1.0.2\",\"process\":{\"args\":[\"x\"],"
                                      "\"cwd\":\"/\"},\"root\":{\"path\":\"rootfs\"},%s%s}",
                                      strstr(rest, "\"linux\"") ? "" : "\"linux\":{},", rest);
    AUTO(config_release) struct config c;
    AUTO(spec_free) struct spec *spec = NULL;
    struct err none = ERR_INIT;
    int r;

    config_init(&c);
    free(c.allow_devices);
    c.allow_devices = str_dup(allow);
    ASSERT_OK(spec_parse(text, strlen(text), &spec, &none), none);
    r = devices_read(&c, spec, find, vfio, ret, err);
    left = json_array_size(js_get(js_get(spec_json(spec), "linux"), "devices"));
    return r;
}

static void expect(const char *allow, const char *rest, const char *want)
{
    AUTO(strv_release) struct strv got = { 0 };
    AUTO(sbuf_release) struct sbuf text = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(read_spec(allow, rest, &got, &err), err);
    for (size_t i = 0; i < got.n; i++)
        sbuf_addf(&text, "%s%s", i ? " " : "", got.v[i]);
    ASSERT_STR(text.data ? text.data : "", want);
}

static void refuse(const char *allow, const char *rest, enum err_code code, const char *words)
{
    AUTO(strv_release) struct strv got = { 0 };
    struct err err = ERR_INIT;

    ASSERT_FAIL(read_spec(allow, rest, &got, &err), err, code);
    ASSERT_MSG_HAS(err.msg, words);
}

#define ONE(value) "\"annotations\":{\"io.lcow.device/a\":\"" value "\"}"

TEST(without_a_request_there_are_no_devices)
{
    expect("", "\"annotations\":{\"io.lcow.memory_mib\":\"512\"}", "");
    expect("0000:03:00.0", "\"annotations\":{}", "");
}

TEST(annotations_and_windows_devices_can_request_allowed_devices)
{
    expect("0000:03:00.0", ONE("3:0.0"), "0000:03:00.0");
    expect("03:00.0", ONE("0000:03:00.0"), "0000:03:00.0");
    expect("10DE:20b0", ONE("0000:04:00.0"), "0000:04:00.0");
    expect("10de:20b0,0000:03:00.0",
           "\"windows\":{\"devices\":[{\"id\":\"04:00.0\",\"idType\":\"gpu\"},"
           "{\"id\":\"03:00.0\",\"idType\":\"vpci-instance-id\"}]},"
           "\"annotations\":{\"io.lcow.device/again\":\"04:00.0\"}",
           "0000:04:00.0 0000:03:00.0");
}

TEST(a_device_that_is_not_in_allow_devices_is_refused)
{
    refuse("", ONE("03:00.0"), ERR_PERMISSION, "allow_devices");
    refuse("0000:04:00.0", ONE("03:00.0"), ERR_PERMISSION, "0000:03:00.0 (8086:1572)");
    refuse("8086:1571", ONE("03:00.0"), ERR_PERMISSION, "io.lcow.device/a");
}

/* Only their own names in allow_devices enable them. */
TEST(test_devices_are_refused_unless_named)
{
    refuse("", ONE("test:edu"), ERR_PERMISSION, "allow_devices");
    refuse("0000:0000 test:nvme 0000:03:00.0", ONE("test:edu"), ERR_PERMISSION, "test:edu");
    expect("test:edu", ONE("test:edu"), "test:edu");
    refuse("test:disk", ONE("test:disk"), ERR_INVALID, "no address");
}

TEST(a_device_that_the_host_uses_is_refused_with_the_remedy)
{
    refuse("8086:1572", ONE("03:00.1"), ERR_STATE, "i40e");
    refuse("8086:1572", ONE("03:00.1"), ERR_STATE, "driverctl set-override 0000:03:00.1 vfio-pci");
    refuse("10de:20b0", ONE("05:00.0"), ERR_STATE, "no driver");
}

TEST(a_device_whose_group_the_host_uses_is_refused_with_the_remedy)
{
    refuse("10de:20b0", ONE("06:00.0"), ERR_STATE,
           "PCI device 0000:06:00.0 shares IOMMU group 14 with 0000:06:00.1, which is bound to "
           "driver snd_hda_intel");
    refuse("10de:20b0", ONE("06:00.0"), ERR_STATE, "driverctl set-override 0000:06:00.1 vfio-pci");
}

TEST(a_device_without_an_iommu_is_refused_with_the_remedy)
{
    refuse("10de:20b0", ONE("07:00.0"), ERR_STATE, "intel_iommu=on");
}

#define NODE(path, major, minor)                                                                   \
    "{\"path\":\"" path "\",\"type\":\"c\",\"major\":" major ",\"minor\":" minor "}"
#define RULE(major, minor)                                                                         \
    "{\"allow\":true,\"type\":\"c\",\"major\":" major ",\"minor\":" minor ",\"access\":\"rwm\"}"
#define NODES(nodes, rules)                                                                        \
    "\"linux\":{\"devices\":[" nodes "],\"resources\":{\"devices\":[" rules "]}}"

/* CDI and --device write a node and a rule with its number. */
TEST(a_vfio_group_stands_for_all_of_its_functions)
{
    const char *spec = NODES(NODE("/dev/vfio/vfio", "10", "196") "," NODE(
                                 "/dev/vfio/12", "511", "0") "," NODE("/dev/fuse", "10", "229"),
                             RULE("10", "196") "," RULE("511", "0") "," RULE("10", "229"));

    expect("8086:1572 10de:20b0", spec, "0000:03:00.0 0000:04:00.0");
    ASSERT_EQ(left, 1); /* /dev/fuse is the VM's */
    refuse("8086:1572", spec, ERR_PERMISSION,
           "device /dev/vfio/12: PCI device 0000:04:00.0 (10de:20b0) is not in allow_devices");
    refuse("8086:1572", NODES(NODE("/dev/vfio/9", "511", "9"), RULE("511", "9")), ERR_NOT_FOUND,
           "device /dev/vfio/9: vfio group 9 has no PCI function");
}

TEST(vfio_nodes_of_a_privileged_container_are_not_requests)
{
    expect("", NODES(NODE("/dev/vfio/12", "511", "0"), "{\"allow\":true,\"access\":\"rwm\"}"), "");
    ASSERT_EQ(left, 1); /* optional in the VM */
}

TEST(invalid_requests_are_refused)
{
    refuse("", ONE("/etc/passwd"), ERR_INVALID, "io.lcow.device/a");
    refuse("", ONE("09:00.0"), ERR_NOT_FOUND, "io.lcow.device/a");
    refuse("",
           "\"annotations\":{},\"windows\":{\"devices\":[{\"id\":\"03:00.0\",\"idType\":\"usb\"}]}",
           ERR_INVALID, "usb");
    refuse("", "\"annotations\":{},\"windows\":{\"devices\":[{\"idType\":\"vpci\"}]}", ERR_INVALID,
           "windows.devices[0]");
}

TEST(entries_of_allow_devices_are_checked)
{
    static const char *const good[] = { "03:00.0", "0000:03:00.0", "8086:1572", "test:edu",
                                        "test:nvme" };
    static const char *const bad[] = { "", "*", "8086:*", "test:", "test:*", "8086", "03:00" };

    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        ASSERT(devices_word_ok(good[i], strlen(good[i])));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ASSERT(!devices_word_ok(bad[i], strlen(bad[i])));
}
