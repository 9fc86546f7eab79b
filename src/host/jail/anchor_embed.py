#!/usr/bin/python3
"""Turns the anchor's program into a C array: anchor_embed.py PROGRAM OUTPUT."""
import sys

with open(sys.argv[1], "rb") as program:
    data = program.read()
with open(sys.argv[2], "w") as out:
    out.write("const unsigned char anchor_blob[] = {%s};\n" % ",".join(map(str, data)))
    out.write("const unsigned long anchor_blob_len = %d;\n" % len(data))
