/* A disk that is full as long as the file that FULL_DISK names exists: files beside that one, and below, take nothing more.
 *
 * FULL_DISK_FILE limits this to files whose name holds it. The first write that meets the full disk is taken by half, as a disk does whose last block is filled; all others fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_full(int descriptor) {
    const char *full = getenv("FULL_DISK"), *only = getenv("FULL_DISK_FILE");
    char link[64], path[4096];
    ssize_t length;
    size_t folder;
    if (!full || access(full, F_OK)) return 0;
    folder = strrchr(full, '/') - full + 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return length > (ssize_t)folder && !strncmp(path, full, folder) && (!only || strstr(path, only));
}

ssize_t write(int descriptor, const void *bytes, size_t count) {
    ssize_t (*real)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    static int was_full = 0;
    if (!is_full(descriptor)) return real(descriptor, bytes, count);
    if (!was_full++ && count > 1) return real(descriptor, bytes, count / 2);
    errno = ENOSPC;
    return -1;
}
