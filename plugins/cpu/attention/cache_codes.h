// KV caches in int8. Each position of a head has one code per element, followed by the two bytes m and e of its scale
// m * 2^e. The value is code * m * 2^e, which float32 represents exactly.
//
// The scale is the smallest with m in 64 .. 127 for which no code exceeds 127. Values are rounded to nearest, ties to
// even. If all magnitudes of a position are below 2^-90, its codes and m are 0. If a value is NaN or infinite, m is
// -128, and the whole position reads as NaN.

#include "elementary.h"
#include "instructions.h"
#include "intrinsics.h"

namespace peagle {

constexpr std::int64_t kScaleBytes = 2;

inline float scale_of(const std::int8_t* scale) {
  if (scale[0] < 0) return std::numeric_limits<float>::quiet_NaN();
  return float(scale[0]) * number_of(std::uint32_t(scale[1] + 127) << 23);
}

// Quantizes the `size` elements of one position.
__attribute__((always_inline)) inline void quantize_position(const float* __restrict numbers, std::int64_t size,
                                                             std::int8_t* __restrict codes) {
  constexpr std::uint32_t kMinBits = (127u - 90u) << 23, kInfinityBits = 0x7f800000u;
  std::uint32_t max_bits = 0;  // the bits of floats compare like their magnitudes; NaN is above infinity
  for (std::int64_t i = 0; i < size; i++) max_bits = std::max(max_bits, bits_of(numbers[i]) & 0x7fffffffu);
  std::int8_t* scale_bytes = codes + size;
  if (max_bits < kMinBits || max_bits >= kInfinityBits) {
    std::fill_n(codes, size + kScaleBytes, std::int8_t(0));
    if (max_bits >= kInfinityBits) scale_bytes[0] = -128;
    return;
  }
  const std::uint32_t quotient = bits_of(number_of(max_bits) / 16129.0f);  // 127 * 127
  const std::uint32_t exponent = (quotient >> 23) + ((quotient & 0x7fffffu) != 0 ? 1u : 0u);
  const float power = number_of(exponent << 23), multiplier = number_of(max_bits) / (127.0f * power);
  int m = int(multiplier);
  m = std::min(float(m) < multiplier ? m + 1 : m, 127);
  scale_bytes[0] = std::int8_t(m);
  scale_bytes[1] = std::int8_t(int(exponent) - 127);
  const float scale = float(m) * power;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  for (std::int64_t i = 0; i < size; i++) codes[i] = std::int8_t(bits_of(numbers[i] / scale + kRounder) & 0xffu);
}

// Converts contiguous cached positions of one head to rows of float32, with `stride` elements between rows, and back.
struct PortableCodes {
  static void widen(const std::int8_t* codes, std::int64_t positions, std::int64_t size, std::int64_t stride,
                    float* numbers) {
    for (std::int64_t p = 0; p < positions; p++, codes += size + kScaleBytes, numbers += stride) {
      widen_from(codes, 0, size, scale_of(codes + size), numbers);
    }
  }
  static void narrow(const float* numbers, std::int64_t size, std::int8_t* codes) {
    quantize_position(numbers, size, codes);
  }

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
        const __m512i integers = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
        _mm512_storeu_ps(numbers + i, _mm512_mul_ps(_mm512_cvtepi32_ps(integers), scale));
      }
      if (i < size) PortableCodes::widen_from(codes, i, size, scale_of(codes + size), numbers);
    }
  }
  PEAGLE_AVX512_VNNI static void narrow(const float* numbers, std::int64_t size, std::int8_t* codes) {
    quantize_position(numbers, size, codes);
  }
};

struct Avx2Codes {
  PEAGLE_AVX2 static void widen(const std::int8_t* codes, std::int64_t positions, std::int64_t size,
                                std::int64_t stride, float* numbers) {
    for (std::int64_t p = 0; p < positions; p++, codes += size + kScaleBytes, numbers += stride) {
      const __m256 scale = _mm256_set1_ps(scale_of(codes + size));
      std::int64_t i = 0;
      for (; i + 8 <= size; i += 8) {
        const __m256i integers = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
        _mm256_storeu_ps(numbers + i, _mm256_mul_ps(_mm256_cvtepi32_ps(integers), scale));
      }
      if (i < size) PortableCodes::widen_from(codes, i, size, scale_of(codes + size), numbers);
    }
  }
  PEAGLE_AVX2 static void narrow(const float* numbers, std::int64_t size, std::int8_t* codes) {
    quantize_position(numbers, size, codes);
  }
};
#endif

}  // namespace peagle
