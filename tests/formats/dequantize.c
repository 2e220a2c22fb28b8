/* Blocks from stdin, floats to stdout: `dequantize TYPE ELEMENTS`, TYPE the file's number. For
 * compare_gguf.py. */
#include "formats/gguf.h"
#include "formats/quant.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: dequantize TYPE ELEMENTS <blocks >floats\n");
        return 2;
    }
    uint32_t type = (uint32_t)strtoul(argv[1], NULL, 10);
    size_t n = strtoul(argv[2], NULL, 10);
    size_t bytes = (size_t)fmt_type_bytes(type, n);
    int status = 1;
    void *blocks = malloc(bytes + 1);
    float *values = malloc(n * sizeof *values + 1);

    if (bytes == 0 || blocks == NULL || values == NULL) {
        fprintf(stderr, "dequantize: type %u, %zu elements: bad size\n", type, n);
        goto out;
    }
    if (fread(blocks, 1, bytes, stdin) != bytes || getchar() != EOF) {
        fprintf(stderr, "dequantize: stdin has not exactly %zu bytes\n", bytes);
        goto out;
    }
    int rc = fmt_dequantize(type, blocks, n, values);
    if (rc != FMT_OK) {
        fprintf(stderr, "dequantize: %s\n", fmt_strerror(rc));
        goto out;
    }
    if (fwrite(values, sizeof *values, n, stdout) == n)
        status = 0;
out:
    free(blocks);
    free(values);
    return status;
}
