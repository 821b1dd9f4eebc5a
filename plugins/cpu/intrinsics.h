// Vector intrinsics. Separate from instructions.h, because translation units without intrinsics compile faster.

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
