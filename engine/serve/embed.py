#!/usr/bin/env python3
"""Writes a C file that holds the bytes of a page: embed.py page.html page.c"""
import sys


def main(source, target):
    with open(source, "rb") as f:
        data = f.read()
    with open(target, "w", encoding="ascii") as f:
        f.write('#include "engine/serve/page.h"\n\nconst unsigned char eng_page_html[] = {\n')
        for i in range(0, len(data), 20):
            f.write("    " + " ".join(f"{b}," for b in data[i:i + 20]) + "\n")
        f.write(f"}};\nconst size_t eng_page_html_len = {len(data)};\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
