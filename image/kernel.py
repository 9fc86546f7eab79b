"""Makes a vmlinux for PVH boot from a packaged kernel.

QEMU starts an uncompressed ELF kernel directly (it looks for the Xen note PHYS32_ENTRY), which
saves the guest from unpacking itself: seconds, under emulation. The ELF file is then rewritten
with only what a loader needs: Debian's has 30 MB of zeros and symbols.
"""

import lzma
import struct
import zlib

_PAGE = 4096
_PT_LOAD, _PT_NOTE = 1, 4
_XEN_ELFNOTE_PHYS32_ENTRY = 18

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")


class KernelError(Exception):
    """The kernel image has an unsupported format."""


def extract(bzimage):
    """The ELF file inside a bzImage (Documentation/x86/boot.rst, protocol 2.08 and later)."""
    if len(bzimage) < 0x250 or bzimage[0x202:0x206] != b"HdrS":
        raise KernelError("not a bzImage: the boot header is missing")
    version, = struct.unpack_from("<H", bzimage, 0x206)
    if version < 0x208:
        raise KernelError(f"unsupported boot protocol {version:#x}: must be 2.08 or later")
    setup_sectors = bzimage[0x1F1] or 4
    offset, length = struct.unpack_from("<II", bzimage, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = bzimage[start:start + length]
    if len(payload) != length:
        raise KernelError("the bzImage is truncated")

    elf = _decompress(payload)
    size, = struct.unpack("<I", payload[-4:])  # appended by the kernel's build
    if len(elf) != size or elf[:4] != b"\x7fELF":
        raise KernelError(f"the payload is not the expected {size} bytes of ELF")
    return elf


def _decompress(payload):
    if payload.startswith(b"\xfd7zXZ\0"):
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    elif payload.startswith(b"\x1f\x8b"):
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    else:
        raise KernelError(f"unsupported compression (starts with {payload[:4].hex()}); "
                          "XZ and gzip are supported")
    try:
        return unpacker.decompress(payload)
    except (lzma.LZMAError, zlib.error) as error:
        raise KernelError(f"the payload is damaged: {error}") from error


def trim(elf):
    """The same program without sections, and without the zeros that end its segments."""
    ehdr = list(_EHDR.unpack_from(elf))
    phoff, phentsize, phnum = ehdr[5], ehdr[9], ehdr[10]
    headers = [list(_PHDR.unpack_from(elf, phoff + i * phentsize)) for i in range(phnum)]
    loads = [h for h in headers if h[0] == _PT_LOAD]
    notes = [h for h in headers if h[0] == _PT_NOTE]
    if not any(_has_pvh_entry(elf[n[2]:n[2] + n[5]]) for n in notes):
        raise KernelError("the kernel has no PVH entry point (CONFIG_PVH)")

    position = _EHDR.size + _PHDR.size * (len(loads) + len(notes))
    body, moved = [], []  # moved: old start, old end, distance
    for load in loads:
        offset, size = load[2], load[5]
        data = elf[offset:offset + size].rstrip(b"\0")
        padding = -position % _PAGE
        body += [bytes(padding), data]
        position += padding
        moved.append((offset, offset + size, position - offset))
        load[2], load[5] = position, len(data)  # p_memsz stays: the loader zeroes the rest
        position += len(data)
    for note in notes:
        distance = [d for start, end, d in moved if start <= note[2] < end]
        if not distance:
            raise KernelError("a note of the kernel lies outside its segments")
        note[2] += distance[0]

    ehdr[5] = _EHDR.size
    ehdr[6] = ehdr[11] = ehdr[12] = ehdr[13] = 0  # no section headers
    ehdr[9], ehdr[10] = _PHDR.size, len(loads) + len(notes)
    table = b"".join(_PHDR.pack(*header) for header in loads + notes)
    trimmed = _EHDR.pack(*ehdr) + table + b"".join(body)
    if not any(_has_pvh_entry(trimmed[n[2]:n[2] + n[5]]) for n in notes):
        raise KernelError("the PVH note was lost while trimming")
    return trimmed


def _has_pvh_entry(notes):
    at = 0
    while at + _NOTE.size <= len(notes):
        name_size, desc_size, kind = _NOTE.unpack_from(notes, at)
        at += _NOTE.size
        if notes[at:at + name_size] == b"Xen\0" and kind == _XEN_ELFNOTE_PHYS32_ENTRY:
            return True
        at += (name_size + 3 & ~3) + (desc_size + 3 & ~3)
    return False
