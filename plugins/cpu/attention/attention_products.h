// The two products of attention: queries with keys, and shares with values, for sixteen positions at a time.
//
// Every path does the same.  A score: sixteen sums over the numbers i, i + 16, i + 32, .. of a head, each in order and
// fused, then halves are added: i and i + 8, i + 4, i + 2, i + 1.  A number of the output: fused, position by position.
// No operation sees two queries.  Heads are filled up with zeros to whole vectors of sixteen numbers.

#include "elementary.h"
#include "instructions.h"
#include "intrinsics.h"

namespace peagle {

constexpr int kVector = 16;  // numbers of a head that are summed side by side, and positions that are scored at once

// Keys or values of sixteen positions; `stride` numbers from one to the next.
struct Positions {
  const float* numbers;
  std::int64_t stride;
  int vectors;  // of a head
};

struct PortableProducts {
  // scores[row][0 .. 15], rows `stride` apart
  static void score(const float* const* queries, int rows, const Positions& keys, float scale, float* scores,
                    int stride) {
    for (int row = 0; row < rows; row++) {
      for (int p = 0; p < kVector; p++) {
        const float *q = queries[row], *k = keys.numbers + p * keys.stride;
        float sums[kVector] = {};
        for (int v = 0; v < keys.vectors; v++) {
          for (int i = 0; i < kVector; i++) sums[i] = __builtin_fmaf(q[v * kVector + i], k[v * kVector + i], sums[i]);
        }
        scores[row * stride + p] = halved(sums) * scale;
      }
    }
  }
  // The largest of whole vectors of numbers; NaN is none.
  static float largest(const float* numbers, int count) {
    float tops[kVector];
    std::fill_n(tops, kVector, -std::numeric_limits<float>::infinity());
    for (int i = 0; i < count; i++) tops[i % kVector] = larger(numbers[i], tops[i % kVector]);
    for (int half = kVector / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; i++) tops[i] = larger(tops[i + half], tops[i]);
    }
    return tops[0];
  }
  static float total(const float* numbers, int count) {
    float sums[kVector] = {};
    for (int i = 0; i < count; i++) sums[i % kVector] = sums[i % kVector] + numbers[i];
    return halved(sums);
  }

  static void widen(const std::uint16_t* halves, std::int64_t count, float* numbers) {
    for (std::int64_t i = 0; i < count; i++) numbers[i] = widened(halves[i]);
  }
  static void narrow(const float* numbers, std::int64_t count, std::uint16_t* halves) {
    for (std::int64_t i = 0; i < count; i++) halves[i] = narrowed(numbers[i]);
  }

  // sums[row] += share * value for the positions first .. last - 1; rows of shares and of sums lie strides apart.
  template <int kRows>
  static void mix(const float* shares, int share_stride, const Positions& values, int first, int last, float* sums,
                  int sum_stride) {
    for (int row = 0; row < kRows; row++) {
      for (int p = first; p < last; p++) {
        const float share = shares[row * share_stride + p], *v = values.numbers + p * values.stride;
        float* sum = sums + row * sum_stride;
        for (int i = 0; i < values.vectors * kVector; i++) sum[i] = __builtin_fmaf(share, v[i], sum[i]);
      }
    }
  }

 private:
  static float larger(float a, float b) { return a > b ? a : b; }
  static float halved(float* sums) {
    for (int half = kVector / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; i++) sums[i] = sums[i] + sums[i + half];
    }
    return sums[0];
  }
};

#ifdef PEAGLE_AARCH64
// Every ARM processor of 64 bits converts float16.  Sums are left to the compiler's vectors.
struct ArmProducts : PortableProducts {
  static void widen(const std::uint16_t* halves, std::int64_t count, float* numbers) {
    std::int64_t i = 0;
    for (; i + 4 <= count; i += 4) vst1q_f32(numbers + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + i))));
    PortableProducts::widen(halves + i, count - i, numbers + i);
  }
  static void narrow(const float* numbers, std::int64_t count, std::uint16_t* halves) {
    std::int64_t i = 0;
    for (; i + 4 <= count; i += 4) vst1_u16(halves + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(numbers + i))));
    PortableProducts::narrow(numbers + i, count - i, halves + i);
  }
};
#endif

#ifdef PEAGLE_X86_64
struct Avx512Products {
  static void score(const float* const* queries, int rows, const Positions& keys, float scale, float* scores,
                    int stride) {
    const bool is_dense = keys.stride == std::int64_t(keys.vectors) * kVector;
    if (keys.vectors == 4 && is_dense) return score_vectors<4>(queries, rows, keys, scale, scores, stride);
    if (keys.vectors == 8 && is_dense) return score_vectors<8>(queries, rows, keys, scale, scores, stride);
    score_vectors<0>(queries, rows, keys, scale, scores, stride);
  }

  PEAGLE_AVX512_VNNI static void widen(const std::uint16_t* halves, std::int64_t count, float* numbers) {
    std::int64_t i = 0;
    for (; i + kVector <= count; i += kVector) {
      _mm512_storeu_ps(numbers + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + i))));
    }
    PortableProducts::widen(halves + i, count - i, numbers + i);
  }
  PEAGLE_AVX512_VNNI static void narrow(const float* numbers, std::int64_t count, std::uint16_t* halves) {
    std::int64_t i = 0;
    for (; i + kVector <= count; i += kVector) {
      const __m256i nearest = _mm512_cvtps_ph(_mm512_loadu_ps(numbers + i), _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves + i), nearest);
    }
    PortableProducts::narrow(numbers + i, count - i, halves + i);
  }

  PEAGLE_AVX512_VNNI static float largest(const float* numbers, int count) {
    __m512 top = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (int i = 0; i < count; i += kVector) top = _mm512_max_ps(_mm512_loadu_ps(numbers + i), top);
    __m256 eight = _mm256_max_ps(_mm512_extractf32x8_ps(top, 1), _mm512_castps512_ps256(top));
    __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    four = _mm_max_ps(_mm_movehl_ps(four, four), four);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(four), four));
  }
  PEAGLE_AVX512_VNNI static float total(const float* numbers, int count) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < count; i += kVector) sum = _mm512_add_ps(sum, _mm512_loadu_ps(numbers + i));
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  template <int kRows>
  PEAGLE_AVX512_VNNI static void mix(const float* shares, int share_stride, const Positions& values, int first,
                                     int last, float* sums, int sum_stride) {
    int v = 0;
    for (; v + 2 <= values.vectors; v += 2) mix_vectors<kRows, 2>(shares, share_stride, values, v, first, last, sums, sum_stride);
    if (v < values.vectors) mix_vectors<kRows, 1>(shares, share_stride, values, v, first, last, sums, sum_stride);
  }

 private:
  template <int kVectors>
  PEAGLE_AVX512_VNNI static void score_vectors(const float* const* queries, int rows, const Positions& keys,
                                               float scale, float* scores, int stride) {
    const int vectors = kVectors > 0 ? kVectors : keys.vectors;
    // A constant where it can be: sixteen addresses would take the place of sums in registers.
    const std::int64_t step = kVectors > 0 ? kVectors * kVector : keys.stride;
    for (int row = 0; row < rows; row++) {
      __m512 sums[kVector];
      PEAGLE_UNROLL for (int p = 0; p < kVector; p++) sums[p] = _mm512_setzero_ps();
      for (int v = 0; v < vectors; v++) {
        const __m512 q = _mm512_loadu_ps(queries[row] + v * kVector);
        const float* k = keys.numbers + v * kVector;
        PEAGLE_UNROLL for (int p = 0; p < kVector; p++) sums[p] = _mm512_fmadd_ps(q, _mm512_loadu_ps(k + p * step), sums[p]);
      }
      _mm512_storeu_ps(scores + row * stride, _mm512_mul_ps(totals(sums), _mm512_set1_ps(scale)));
    }
  }

  // The sum of each of sixteen vectors.
  PEAGLE_AVX512_VNNI static __m512 totals(const __m512* sums) {
    __m512 quarter[4];  // of the positions p, p + 4, p + 8, p + 12 four numbers each
    PEAGLE_UNROLL for (int p = 0; p < 4; p++) {
      const __m512 first = eights(sums[p], sums[p + 4]), second = eights(sums[p + 8], sums[p + 12]);
      quarter[p] = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
    }
    const __m512 even = twos(quarter[0], quarter[1]), odd = twos(quarter[2], quarter[3]);
    return _mm512_add_ps(_mm512_shuffle_ps(even, odd, 0x88), _mm512_shuffle_ps(even, odd, 0xdd));
  }
  PEAGLE_AVX512_VNNI static __m512 eights(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  PEAGLE_AVX512_VNNI static __m512 twos(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }

  template <int kRows, int kVectors>
  PEAGLE_AVX512_VNNI static void mix_vectors(const float* shares, int share_stride, const Positions& values, int from,
                                             int first, int last, float* sums, int sum_stride) {
    __m512 total[kRows][kVectors];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) {
        total[row][v] = _mm512_loadu_ps(sums + row * sum_stride + (from + v) * kVector);
      }
    }
    for (int p = first; p < last; p++) {
      const float* numbers = values.numbers + p * values.stride + from * kVector;
      __m512 value[kVectors];
      PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) value[v] = _mm512_loadu_ps(numbers + v * kVector);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m512 share = _mm512_set1_ps(shares[row * share_stride + p]);
        PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) total[row][v] = _mm512_fmadd_ps(share, value[v], total[row][v]);
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) {
        _mm512_storeu_ps(sums + row * sum_stride + (from + v) * kVector, total[row][v]);
      }
    }
  }
};

struct Avx2Products {
  PEAGLE_AVX2 static void score(const float* const* queries, int rows, const Positions& keys, float scale,
                                float* scores, int stride) {
    if (keys.vectors == 4) return score_vectors<4>(queries, rows, keys, scale, scores, stride);
    if (keys.vectors == 8) return score_vectors<8>(queries, rows, keys, scale, scores, stride);
    score_vectors<0>(queries, rows, keys, scale, scores, stride);
  }

  PEAGLE_AVX2 static void widen(const std::uint16_t* halves, std::int64_t count, float* numbers) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(numbers + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i))));
    }
    PortableProducts::widen(halves + i, count - i, numbers + i);
  }
  PEAGLE_AVX2 static void narrow(const float* numbers, std::int64_t count, std::uint16_t* halves) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m128i nearest = _mm256_cvtps_ph(_mm256_loadu_ps(numbers + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + i), nearest);
    }
    PortableProducts::narrow(numbers + i, count - i, halves + i);
  }

  PEAGLE_AVX2 static float largest(const float* numbers, int count) {
    __m256 low = _mm256_set1_ps(-std::numeric_limits<float>::infinity()), high = low;
    for (int i = 0; i < count; i += kVector) {
      low = _mm256_max_ps(_mm256_loadu_ps(numbers + i), low);
      high = _mm256_max_ps(_mm256_loadu_ps(numbers + i + 8), high);
    }
    const __m256 eight = _mm256_max_ps(high, low);
    __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    four = _mm_max_ps(_mm_movehl_ps(four, four), four);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(four), four));
  }
  PEAGLE_AVX2 static float total(const float* numbers, int count) {
    __m256 low = _mm256_setzero_ps(), high = low;
    for (int i = 0; i < count; i += kVector) {
      low = _mm256_add_ps(low, _mm256_loadu_ps(numbers + i));
      high = _mm256_add_ps(high, _mm256_loadu_ps(numbers + i + 8));
    }
    const __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  template <int kRows>
  PEAGLE_AVX2 static void mix(const float* shares, int share_stride, const Positions& values, int first, int last,
                              float* sums, int sum_stride) {
    for (int half = 0; half < 2 * values.vectors; half += 2) {
      __m256 total[kRows][2];
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        PEAGLE_UNROLL for (int i = 0; i < 2; i++) total[row][i] = _mm256_loadu_ps(sums + row * sum_stride + (half + i) * 8);
      }
      for (int p = first; p < last; p++) {
        const float* numbers = values.numbers + p * values.stride + half * 8;
        const __m256 low = _mm256_loadu_ps(numbers), high = _mm256_loadu_ps(numbers + 8);
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          const __m256 share = _mm256_set1_ps(shares[row * share_stride + p]);
          total[row][0] = _mm256_fmadd_ps(share, low, total[row][0]);
          total[row][1] = _mm256_fmadd_ps(share, high, total[row][1]);
        }
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        PEAGLE_UNROLL for (int i = 0; i < 2; i++) _mm256_storeu_ps(sums + row * sum_stride + (half + i) * 8, total[row][i]);
      }
    }
  }

 private:
  // Three queries at a time where that goes: each number of a key is loaded once for them, and there are as many sums as
  // registers hold.
  template <int kVectors>
  PEAGLE_AVX2 static void score_vectors(const float* const* queries, int rows, const Positions& keys, float scale,
                                        float* scores, int stride) {
    int row = 0;
    for (; rows - row > 4 || rows - row == 3; row += 3) {
      score_rows<kVectors, 3>(queries + row, keys, scale, scores + row * stride, stride);
    }
    for (; rows - row > 1; row += 2) score_rows<kVectors, 2>(queries + row, keys, scale, scores + row * stride, stride);
    if (row < rows) score_rows<kVectors, 1>(queries + row, keys, scale, scores + row * stride, stride);
  }
  template <int kVectors, int kRows>
  PEAGLE_AVX2 static void score_rows(const float* const* queries, const Positions& keys, float scale, float* scores,
                                     int stride) {
    for (int p = 0; p < kVector; p += 8) {
      __m256 sums[4][kRows];
      PEAGLE_UNROLL for (int n = 0; n < 4; n++) {
        fours<kVectors, kRows>(queries, keys, p + n, sums[n]);
        __asm__ volatile("" ::: "memory");  // or queries would be kept on the stack from one to the next
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 even = twos(sums[0][row], sums[1][row]), odd = twos(sums[2][row], sums[3][row]);
        const __m256 eight = _mm256_add_ps(_mm256_shuffle_ps(even, odd, 0x88), _mm256_shuffle_ps(even, odd, 0xdd));
        _mm256_storeu_ps(scores + row * stride + p, _mm256_mul_ps(eight, _mm256_set1_ps(scale)));
      }
    }
  }
  // Four sums of position p in the lower half, and four of p + 4 in the upper.
  template <int kVectors, int kRows>
  __attribute__((always_inline)) PEAGLE_AVX2 static void fours(const float* const* queries, const Positions& keys, int p,
                                                               __m256* sums) {
    const int vectors = kVectors > 0 ? kVectors : keys.vectors;
    const float *first = keys.numbers + p * keys.stride, *second = first + 4 * keys.stride;
    __m256 low[kRows][2], high[kRows][2];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int i = 0; i < 2; i++) low[row][i] = high[row][i] = _mm256_setzero_ps();
    }
    for (int v = 0; v < vectors; v++) {
      const float *k = first + v * kVector, *l = second + v * kVector;
      const __m256 first_low = held(k), second_low = held(l);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 q = held(queries[row] + v * kVector);
        low[row][0] = _mm256_fmadd_ps(q, first_low, low[row][0]);
        low[row][1] = _mm256_fmadd_ps(q, second_low, low[row][1]);
      }
      const __m256 first_high = held(k + 8), second_high = held(l + 8);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 q = held(queries[row] + v * kVector + 8);
        high[row][0] = _mm256_fmadd_ps(q, first_high, high[row][0]);
        high[row][1] = _mm256_fmadd_ps(q, second_high, high[row][1]);
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      const __m256 a = _mm256_add_ps(low[row][0], high[row][0]), b = _mm256_add_ps(low[row][1], high[row][1]);
      sums[row] = _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
    }
  }
  // Loaded once, where compilers would load anew for each use.
  PEAGLE_AVX2 static __m256 held(const float* numbers) {
    __m256 result = _mm256_loadu_ps(numbers);
    __asm__("" : "+x"(result));
    return result;
  }
  PEAGLE_AVX2 static __m256 twos(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
};
#endif

}  // namespace peagle
