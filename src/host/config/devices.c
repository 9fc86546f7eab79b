#include "host/config/devices.h"
#include "base/err.h"
#include "base/str.h"
#include "host/config/config.h"
#include "host/jail/pci.h"
#include "oci/document.h"
#include "oci/spec.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define BLANKS " \t,"

/* What QEMU emulates, for tests of everything around a device. */
static bool is_test(const char *name)
{
    return str_eq(name, "test:edu") || str_eq(name, "test:nvme");
}

/* --- what is allowed --- */

/* "8086:1572" */
static bool is_model(const char *word)
{
    for (int i = 0; i < 9; i++)
        if (i == 4 ? word[i] != ':' : !isxdigit((unsigned char)word[i]))
            return false;
    return word[9] == '\0';
}

bool devices_word_ok(const char *word, size_t len)
{
    AUTO_FREE char *copy = str_ndup(word, len);
    char address[PCI_ADDRESS_MAX];

    return is_test(copy) || is_model(copy) || pci_address(copy, address) == 0;
}

static bool matches(const char *word, const struct pci_function *f)
{
    char address[PCI_ADDRESS_MAX], model[10];

    if (is_model(word)) {
        snprintf(model, sizeof(model), "%04x:%04x", f->vendor, f->device);
        return !is_test(f->address) && strcasecmp(word, model) == 0;
    }
    if (pci_address(word, address) == 0)
        return str_eq(address, f->address);
    return str_eq(word, f->address); /* test:edu or test:nvme */
}

static bool allowed(const struct config *c, const struct pci_function *f)
{
    for (const char *at = c->allow_devices + strspn(c->allow_devices, BLANKS); *at;) {
        size_t n = strcspn(at, BLANKS);
        AUTO_FREE char *word = str_ndup(at, n);

        if (matches(word, f))
            return true;
        at += n + strspn(at + n, BLANKS);
    }
    return false;
}

/* --- what is asked for --- */

static int take(const struct config *c, const char *name,
                int (*find)(const char *name, struct pci_function *ret, struct err *err),
                struct strv *ret, struct err *err)
{
    struct pci_function f = { 0 };

    if (is_test(name))
        snprintf(f.address, sizeof(f.address), "%s", name);
    else if (find(name, &f, err) < 0)
        return -1;
    if (!allowed(c, &f))
        return err_because(
            err, REASON_DEVICE_NOT_ALLOWED, ERR_PERMISSION,
            "PCI device %s (%04x:%04x) is not in allow_devices of the configuration; "
            "add it there",
            f.address, f.vendor, f.device);
    if (!is_test(name) && !str_eq(f.driver, PCI_DRIVER))
        return err_because(err, REASON_DEVICE_IN_USE, ERR_STATE,
                           "PCI device %s %s%s, not to " PCI_DRIVER
                           "; bind it with: driverctl set-override %s " PCI_DRIVER,
                           f.address, f.driver[0] ? "is bound to driver " : "is bound to no driver",
                           f.driver, f.address);
    if (!is_test(name) && !f.group[0])
        return err_because(
            err, REASON_DEVICE_NO_IOMMU, ERR_STATE,
            "PCI device %s has no IOMMU group; turn the IOMMU on: in the firmware, and "
            "by the kernel's option intel_iommu=on",
            f.address);
    if (f.rival[0])
        return err_because(
            err, REASON_DEVICE_IN_USE, ERR_STATE,
            "PCI device %s shares IOMMU group %s with %s, which is bound to driver %s; "
            "bind that to " PCI_DRIVER " too: driverctl set-override %s " PCI_DRIVER,
            f.address, f.group, f.rival, f.rival_driver, f.rival);
    for (size_t i = 0; i < ret->n; i++)
        if (str_eq(ret->v[i], f.address))
            return 0;
    if (ret->n == DEVICES_MAX)
        return err_set(err, ERR_EXHAUSTED, "a container can have at most %d PCI devices",
                       DEVICES_MAX);
    strv_add(ret, f.address);
    return 0;
}

static bool is_type(const char *type)
{
    return str_eq(type, "vpci-instance-id") || str_eq(type, "vpci") || str_eq(type, "gpu");
}

/* Returns 1 if the device is a vfio node. */
static int take_node(const struct config *c, const struct document_device *d,
                     int (*find)(const char *name, struct pci_function *ret, struct err *err),
                     int (*vfio)(uint32_t major, uint32_t minor, struct strv *ret, struct err *err),
                     struct strv *ret, struct err *err)
{
    AUTO(strv_release) struct strv functions = { 0 };
    int r = d->type == 'c' && d->asked ? vfio(d->major, d->minor, &functions, err) : 0;

    for (size_t i = 0; r > 0 && i < functions.n; i++)
        if (take(c, functions.v[i], find, ret, err) < 0)
            r = -1;
    return r < 0 ? err_wrap(err, "device %.128s", d->path) : r;
}

int devices_read(const struct config *c, const struct spec *s,
                 int (*find)(const char *name, struct pci_function *ret, struct err *err),
                 int (*vfio)(uint32_t major, uint32_t minor, struct strv *ret, struct err *err),
                 struct strv *ret, struct err *err)
{
    json_t *list = js_get(js_get(spec_json(s), "windows"), "devices"), *item;
    json_t *annotations = js_get(spec_json(s), "annotations");
    const char *key;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const char *id = json_string_value(js_get(item, "id"));
        const char *type = json_string_value(js_get(item, "idType"));

        if (!id || !is_type(type))
            return err_set(err, ERR_INVALID,
                           "windows.devices[%zu] must have an id, and an idType of "
                           "vpci-instance-id, vpci or gpu, not \"%.64s\"",
                           i, type ? type : "");
        if (take(c, id, find, ret, err) < 0)
            return err_wrap(err, "windows.devices[%zu]", i);
    }
    json_object_foreach(annotations, key, item)
    {
        if (!str_starts(key, DEVICES_ANNOTATION))
            continue;
        if (!json_is_string(item))
            return err_set(err, ERR_INVALID, "annotation %.128s is not a string", key);
        if (take(c, json_string_value(item), find, ret, err) < 0)
            return err_wrap(err, "annotation %.128s", key);
    }
    list = js_get(js_get(spec_json(s), "linux"), "devices");
    json_array_foreach(list, i, item)
    {
        struct document_device d;
        int r = document_device(s, item, &d, err) < 0 ? -1 : take_node(c, &d, find, vfio, ret, err);

        if (r < 0)
            return -1;
        if (r > 0)
            json_array_remove(list, i--);
    }
    return 0;
}
