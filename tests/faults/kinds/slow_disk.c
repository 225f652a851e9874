/* An fsync that waits as long as the file that SLOW_DISK names exists: what a network file system does whose server is away.
 *
 * Each call that had to wait adds a byte to a second file, whose name ends in .stalled.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void count(const char *away) {
    char name[4096];
    FILE *file;
    snprintf(name, sizeof name, "%s.stalled", away);
    if ((file = fopen(name, "a"))) { fputc('.', file); fclose(file); }
}

int fsync(int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    const char *away = getenv("SLOW_DISK");
    if (away && access(away, F_OK) == 0) {
        while (access(away, F_OK) == 0) usleep(20000);
        count(away);
    }
    return real(descriptor);
}
