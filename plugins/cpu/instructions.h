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
enum class Instructions { kPortable, kAvx2, kAvxVnni, kAvx512Vnni };
constexpr const char* kInstructionNames[] = {"portable", "avx2", "avx-vnni", "avx512-vnni"};

#define PEAGLE_X86_64 1
#define PEAGLE_AVX2 __attribute__((target("avx2,fma,f16c")))
// AVX-VNNI is AVX2 with products of bytes.  Compilers that do not know it leave it out.
#if defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11
#define PEAGLE_AVX_VNNI __attribute__((target("avxvnni,avx2,fma,f16c")))
#endif
#define PEAGLE_AVX512_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

inline bool machine_has(Instructions which) {
  constexpr unsigned kFma = 1u << 12, kOsSaves = 1u << 27, kF16c = 1u << 29;               // leaf 1, ECX
  constexpr unsigned kAvx2 = 1u << 5;                                                      // leaf 7, EBX
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;                  // F, DQ, BW, VL
  constexpr unsigned kVnni = 1u << 11;                                                     // leaf 7, ECX
  constexpr unsigned kAvxVnni = 1u << 4;                                                   // leaf 7, 1, EAX
  constexpr unsigned kSavedYmm = 0x6, kSavedZmm = 0xe6;                                    // of XCR0
  if (which == Instructions::kPortable) return true;
  unsigned a = 0, b = 0, basic = 0, d = 0, extended = 0, more = 0, further = 0;
  if (!__get_cpuid(1, &a, &b, &basic, &d) || (basic & kOsSaves) == 0) return false;
  if (!__get_cpuid_count(7, 0, &a, &extended, &more, &d)) return false;
  if (a < 1 || !__get_cpuid_count(7, 1, &further, &b, &a, &d)) further = 0;
  unsigned saved = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if ((basic & (kFma | kF16c)) != (kFma | kF16c) || (extended & kAvx2) == 0) return false;
  if ((saved & kSavedYmm) != kSavedYmm) return false;
  if (which == Instructions::kAvx2) return true;
#ifdef PEAGLE_AVX_VNNI
  if (which == Instructions::kAvxVnni) return (further & kAvxVnni) != 0;
#endif
  return which == Instructions::kAvx512Vnni && (extended & kAvx512) == kAvx512 && (more & kVnni) != 0 &&
         (saved & kSavedZmm) == kSavedZmm;
}
#elif defined(__aarch64__)
enum class Instructions { kPortable, kDotProduct };
constexpr const char* kInstructionNames[] = {"portable", "dotprod"};

#define PEAGLE_AARCH64 1
#define PEAGLE_DOT_PRODUCT __attribute__((target("arch=armv8.2-a+dotprod")))

inline bool machine_has(Instructions which) {
  if (which == Instructions::kPortable) return true;
#if defined(__linux__)
  constexpr unsigned long kHasDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kHasDotProduct) != 0;
#else
  return false;
#endif
}
#else
enum class Instructions { kPortable };
constexpr const char* kInstructionNames[] = {"portable"};

inline bool machine_has(Instructions) { return true; }
#endif

constexpr int kInstructionSets = int(sizeof kInstructionNames / sizeof *kInstructionNames);

// Loops over what lies in registers are unrolled, or it would lie in memory.
#ifdef __clang__
#define PEAGLE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PEAGLE_UNROLL _Pragma("GCC unroll 16")
#endif

// The best that the machine has, or what $PEAGLE_CPU_INSTRUCTIONS names.  Results are the same bits.
inline Instructions instructions() {
  const char* asked = std::getenv("PEAGLE_CPU_INSTRUCTIONS");
  const bool chooses = asked == nullptr || *asked == '\0';
  std::string here;
  for (int i = kInstructionSets - 1; i >= 0; i--) {
    if (!machine_has(Instructions(i))) continue;
    if (chooses || std::strcmp(asked, kInstructionNames[i]) == 0) return Instructions(i);
    here += (here.empty() ? "" : ", ") + std::string(kInstructionNames[i]);
  }
  refuse("PEAGLE_CPU_INSTRUCTIONS is %s, but this machine supports only %s", asked, here.c_str());
}

}  // namespace peagle
