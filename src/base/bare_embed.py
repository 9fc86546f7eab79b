#!/usr/bin/python3
"""Turns a program without a C library into a C array: bare_embed.py PROGRAM OUTPUT NAME."""
import sys

with open(sys.argv[1], "rb") as program:
    data = program.read()
with open(sys.argv[2], "w") as out:
    out.write("const unsigned char %s_blob[] = {%s};\n" % (sys.argv[3], ",".join(map(str, data))))
    out.write("const unsigned long %s_blob_len = %d;\n" % (sys.argv[3], len(data)))
