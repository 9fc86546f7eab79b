/* anchor_program.h - the anchor's program as bytes, made at build time from anchor_main.c. */
#pragma once

extern const unsigned char anchor_blob[];
extern const unsigned long anchor_blob_len;
