// The names of vector instructions.  A unit that does not write them itself compiles faster without.

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
