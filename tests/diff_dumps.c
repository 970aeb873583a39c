/* diff_dumps.c - finds the first difference between two runs: make build/tests/diff_dumps, then
 *     build/tests/diff_dumps A B [tolerance]
 * compares two directories that --dump wrote, in the order of the forward pass. Stops at the first
 * tensor that differs. Exits with 0 when none differs. */
#include <stdlib.h>

#include "tests/lib/dump_diff.h"

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: diff_dumps FOLDER FOLDER [TOLERANCE]\n");
        return 2;
    }
    double tolerance = argc == 4 ? strtod(argv[3], NULL) : 0;
    return dump_diff(argv[1], argv[2], tolerance, stdout) ? 0 : 1;
}
