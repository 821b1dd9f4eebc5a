// Which of a kernel's forms this machine runs.
//
// CPUID is read by hand: __builtin_cpu_supports of some builds of clang knows no more than the first words of it, and
// denies AVX-512 VNNI on machines that have it.  ARM machines are asked through their system.

#include "tensor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace peagle {

// From what every machine has to what few have.
#if defined(__x86_64__)
enum class Instructions { kPortable, kAvx2, kAvx512Vnni };
constexpr const char *kInstructionNames[] = {"portable", "avx2", "avx512-vnni"}, *kEvery = "portable, avx2, avx512-vnni";

#define PEAGLE_X86_64 1
#define PEAGLE_AVX2 __attribute__((target("avx2,fma,f16c")))
#define PEAGLE_AVX512_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

inline Instructions instructions_of_machine() {
  constexpr unsigned kFma = 1u << 12, kOsSaves = 1u << 27, kF16c = 1u << 29;               // leaf 1, ECX
  constexpr unsigned kAvx2 = 1u << 5;                                                      // leaf 7, EBX
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;                  // F, DQ, BW, VL
  constexpr unsigned kVnni = 1u << 11;                                                     // leaf 7, ECX
  constexpr unsigned kSavedYmm = 0x6, kSavedZmm = 0xe6;                                    // of XCR0
  unsigned a = 0, b = 0, basic = 0, d = 0, extended = 0, more = 0;
  if (!__get_cpuid(1, &a, &b, &basic, &d) || (basic & kOsSaves) == 0) return Instructions::kPortable;
  if (!__get_cpuid_count(7, 0, &a, &extended, &more, &d)) return Instructions::kPortable;
  unsigned saved = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  const bool has_avx2 = (basic & (kFma | kF16c)) == (kFma | kF16c) && (extended & kAvx2) != 0;
  if (!has_avx2 || (saved & kSavedYmm) != kSavedYmm) return Instructions::kPortable;
  const bool has_avx512 = (extended & kAvx512) == kAvx512 && (more & kVnni) != 0;
  return has_avx512 && (saved & kSavedZmm) == kSavedZmm ? Instructions::kAvx512Vnni : Instructions::kAvx2;
}
#elif defined(__aarch64__)
enum class Instructions { kPortable, kDotProduct };
constexpr const char *kInstructionNames[] = {"portable", "dotprod"}, *kEvery = "portable, dotprod";

#define PEAGLE_AARCH64 1
#define PEAGLE_DOT_PRODUCT __attribute__((target("arch=armv8.2-a+dotprod")))

inline Instructions instructions_of_machine() {
#if defined(__linux__)
  constexpr unsigned long kHasDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kHasDotProduct) != 0 ? Instructions::kDotProduct : Instructions::kPortable;
#else
  return Instructions::kPortable;
#endif
}
#else
enum class Instructions { kPortable };
constexpr const char *kInstructionNames[] = {"portable"}, *kEvery = "portable";

inline Instructions instructions_of_machine() { return Instructions::kPortable; }
#endif

// Loops over what lies in registers are unrolled, or it would lie in memory.
#ifdef __clang__
#define PEAGLE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PEAGLE_UNROLL _Pragma("GCC unroll 16")
#endif

// The best that the machine has, or what $PEAGLE_CPU_INSTRUCTIONS names.  Results are the same bits.
inline Instructions instructions() {
  const Instructions best = instructions_of_machine();
  const char* asked = std::getenv("PEAGLE_CPU_INSTRUCTIONS");
  if (asked == nullptr || *asked == '\0') return best;
  for (int i = 0; i <= int(best); i++) {
    if (std::strcmp(asked, kInstructionNames[i]) == 0) return Instructions(i);
  }
  refuse("PEAGLE_CPU_INSTRUCTIONS is %s; this machine runs %s and what comes before it of %s", asked,
         kInstructionNames[int(best)], kEvery);
}

}  // namespace peagle
