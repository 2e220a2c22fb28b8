/* Runs a fuzz target once over files and folders of files: a regression test that needs no fuzzer. */
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The buffer is exactly as large as the file, so that a sanitizer sees the first byte beyond. */
static int replay_file(const char *path, size_t size)
{
    int rc = -1;
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(size > 0 ? size : 1);
    if (file != NULL && data != NULL && fread(data, 1, size, file) == size)
        rc = LLVMFuzzerTestOneInput(data, size);
    else
        fprintf(stderr, "replay: cannot read %s\n", path);
    if (file != NULL)
        fclose(file);
    free(data);
    return rc;
}

/* Returns the number of files, or -1. */
static long replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "replay: no %s\n", path);
        return -1;
    }
    if (!S_ISDIR(st.st_mode))
        return replay_file(path, (size_t)st.st_size) == 0 ? 1 : -1;

    long total = 0;
    struct dirent *entry;
    DIR *folder = opendir(path);
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char inner[4096];
        if (entry->d_name[0] == '.' ||
            (size_t)snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= sizeof inner)
            continue;
        long n = replay(inner);
        if (n < 0) {
            total = -1;
            break;
        }
        total += n;
    }
    if (folder != NULL)
        closedir(folder);
    return total;
}

int main(int argc, char **argv)
{
    long total = 0;
    for (int i = 1; i < argc; i++) {
        long n = replay(argv[i]);
        if (n < 0)
            return 1;
        total += n;
    }
    printf("%ld files\n", total);
    return total > 0 ? 0 : 1;
}
