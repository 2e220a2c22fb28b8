"""Damage to a file of a store."""


def flip(path, offset):
    """Changes one bit of the byte at this offset."""
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 0x10]))
