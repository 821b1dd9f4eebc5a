// Instruction sets: detection at run time, and the target attributes of functions.
//
// On x86, the code reads CPUID itself: in some builds of clang, __builtin_cpu_supports evaluates only the first words
// and misses AVX-512 VNNI. On ARM, the operating system provides the feature bits.

#include "tensor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace peagle {

// In ascending order: each machine uses the last one that it supports.
#if defined(__x86_64__)
enum class Instructions { kPortable, kAvx2, kAvxVnni, kAvx512Vnni };
constexpr const char* kInstructionNames[] = {"portable", "avx2", "avx-vnni", "avx512-vnni"};

#define PEAGLE_X86_64 1
#define PEAGLE_AVX2 __attribute__((target("avx2,fma,f16c")))
// AVX-VNNI is AVX2 with 8-bit dot products. Older compilers do not support it.
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
  constexpr unsigned kSavedYmm = 0x6, kSavedZmm = 0xe6;                                    // XCR0
  if (which == Instructions::kPortable) return true;
  unsigned eax = 0, b = 0, leaf1_ecx = 0, d = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_1_eax = 0;
  if (!__get_cpuid(1, &eax, &b, &leaf1_ecx, &d) || (leaf1_ecx & kOsSaves) == 0) return false;
  if (!__get_cpuid_count(7, 0, &eax, &leaf7_ebx, &leaf7_ecx, &d)) return false;
  if (eax < 1 || !__get_cpuid_count(7, 1, &leaf7_1_eax, &b, &eax, &d)) leaf7_1_eax = 0;
  unsigned xcr0 = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
  if ((leaf1_ecx & (kFma | kF16c)) != (kFma | kF16c) || (leaf7_ebx & kAvx2) == 0) return false;
  if ((xcr0 & kSavedYmm) != kSavedYmm) return false;
  if (which == Instructions::kAvx2) return true;
#ifdef PEAGLE_AVX_VNNI
  if (which == Instructions::kAvxVnni) return (leaf7_1_eax & kAvxVnni) != 0;
#endif
  return which == Instructions::kAvx512Vnni && (leaf7_ebx & kAvx512) == kAvx512 && (leaf7_ecx & kVnni) != 0 &&
         (xcr0 & kSavedZmm) == kSavedZmm;
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

// For loops over arrays of registers: without full unrolling, compilers would keep the arrays in memory.
#ifdef __clang__
#define PEAGLE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PEAGLE_UNROLL _Pragma("GCC unroll 16")
#endif

// Returns the instruction set that $PEAGLE_CPU_INSTRUCTIONS names, otherwise the best of this machine. All give
// bit-identical results.
inline Instructions instructions() {
  const char* requested = std::getenv("PEAGLE_CPU_INSTRUCTIONS");
  const bool is_automatic = requested == nullptr || *requested == '\0';
  std::string supported;
  for (int i = kInstructionSets - 1; i >= 0; i--) {
    if (!machine_has(Instructions(i))) continue;
    if (is_automatic || std::strcmp(requested, kInstructionNames[i]) == 0) return Instructions(i);
    supported += (supported.empty() ? "" : ", ") + std::string(kInstructionNames[i]);
  }
  refuse("PEAGLE_CPU_INSTRUCTIONS is %s, but this machine supports only %s", requested, supported.c_str());
}

}  // namespace peagle
