// Keys and values of a cache as int8: of each position of a head a code for every number, and behind them two bytes, m
// and e, of the scale m * 2^e.  A number is code * m * 2^e, which a float holds exactly.
//
// The scale is the least of m = 64 .. 127 and any e with which the largest number is 127 at most; with it numbers are
// rounded to the nearest, ties to even.  Positions of less than 2^-90 all through are zeros, with m = 0; where a number is
// not finite m is -128, and all of them are NaN.

#include "elementary.h"
#include "instructions.h"
#include "intrinsics.h"

namespace peagle {

constexpr std::int64_t kScaleBytes = 2;

inline float scale_of(const std::int8_t* scale) {
  if (scale[0] < 0) return std::numeric_limits<float>::quiet_NaN();
  return float(scale[0]) * number_of(std::uint32_t(scale[1] + 127) << 23);
}

// `size` numbers of one position.
__attribute__((always_inline)) inline void to_codes(const float* __restrict numbers, std::int64_t size,
                                                    std::int8_t* __restrict codes) {
  constexpr std::uint32_t kLeast = (127u - 90u) << 23, kInfinity = 0x7f800000u;
  std::uint32_t top = 0;  // the bits of magnitudes are in their order, and those of NaN above all
  for (std::int64_t i = 0; i < size; i++) top = std::max(top, bits_of(numbers[i]) & 0x7fffffffu);
  std::int8_t* scale = codes + size;
  if (top < kLeast || top >= kInfinity) {
    std::fill_n(codes, size + kScaleBytes, std::int8_t(0));
    if (top >= kInfinity) scale[0] = -128;
    return;
  }
  const std::uint32_t quotient = bits_of(number_of(top) / 16129.0f);  // 127 * 127
  const std::uint32_t exponent = (quotient >> 23) + ((quotient & 0x7fffffu) != 0 ? 1u : 0u);
  const float power = number_of(exponent << 23), least = number_of(top) / (127.0f * power);
  int m = int(least);
  m = std::min(float(m) < least ? m + 1 : m, 127);
  scale[0] = std::int8_t(m);
  scale[1] = std::int8_t(int(exponent) - 127);
  const float unit = float(m) * power;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number, ties to even
  for (std::int64_t i = 0; i < size; i++) codes[i] = std::int8_t(bits_of(numbers[i] / unit + kRounder) & 0xffu);
}

// The positions of one head, one behind the other; `stride` numbers from one to the next.
struct PortableCodes {
  static void widen(const std::int8_t* codes, std::int64_t positions, std::int64_t size, std::int64_t stride,
                    float* numbers) {
    for (std::int64_t p = 0; p < positions; p++, codes += size + kScaleBytes, numbers += stride) {
      widen_from(codes, 0, size, scale_of(codes + size), numbers);
    }
  }
  static void narrow(const float* numbers, std::int64_t size, std::int8_t* codes) { to_codes(numbers, size, codes); }

  static void widen_from(const std::int8_t* codes, std::int64_t first, std::int64_t size, float scale, float* numbers) {
    for (std::int64_t i = first; i < size; i++) numbers[i] = float(codes[i]) * scale;
  }
};

#ifdef PEAGLE_X86_64
struct Avx512Codes {
  PEAGLE_AVX512_VNNI static void widen(const std::int8_t* codes, std::int64_t positions, std::int64_t size,
                                       std::int64_t stride, float* numbers) {
    for (std::int64_t p = 0; p < positions; p++, codes += size + kScaleBytes, numbers += stride) {
      const __m512 scale = _mm512_set1_ps(scale_of(codes + size));
      std::int64_t i = 0;
      for (; i + 16 <= size; i += 16) {
        const __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
        _mm512_storeu_ps(numbers + i, _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale));
      }
      if (i < size) PortableCodes::widen_from(codes, i, size, scale_of(codes + size), numbers);
    }
  }
  PEAGLE_AVX512_VNNI static void narrow(const float* numbers, std::int64_t size, std::int8_t* codes) {
    to_codes(numbers, size, codes);
  }
};

struct Avx2Codes {
  PEAGLE_AVX2 static void widen(const std::int8_t* codes, std::int64_t positions, std::int64_t size, std::int64_t stride,
                                float* numbers) {
    for (std::int64_t p = 0; p < positions; p++, codes += size + kScaleBytes, numbers += stride) {
      const __m256 scale = _mm256_set1_ps(scale_of(codes + size));
      std::int64_t i = 0;
      for (; i + 8 <= size; i += 8) {
        const __m256i whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
        _mm256_storeu_ps(numbers + i, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), scale));
      }
      if (i < size) PortableCodes::widen_from(codes, i, size, scale_of(codes + size), numbers);
    }
  }
  PEAGLE_AVX2 static void narrow(const float* numbers, std::int64_t size, std::int8_t* codes) {
    to_codes(numbers, size, codes);
  }
};
#endif

}  // namespace peagle
