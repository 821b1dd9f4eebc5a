// The two matrix products of attention, queries with keys and softmax weights with values, 16 positions at a time.
//
// Every instruction set performs the same operations in the same order. A score is a dot product in 16 lanes: lane i
// sums the elements i, i + 16, i + 32, ... of a head in order, with fused multiply-adds. The lanes are then reduced to
// 8, 4, 2 and 1. An output element accumulates its positions in order, with fused multiply-adds. No operation combines
// queries. Heads are padded with zeros to whole vectors of 16 elements.

#include "elementary.h"
#include "instructions.h"
#include "intrinsics.h"

namespace peagle {

constexpr int kVector = 16;  // lanes of a sum, and positions that are scored at once

// Keys or values of 16 positions, with `stride` elements between positions.
struct Positions {
  const float* numbers;
  std::int64_t stride;
  int vectors;  // per head
};

struct PortableProducts {
  // scores [rows, 16], with `stride` elements between rows.
  static void score(const float* const* queries, int rows, const Positions& keys, float scale, float* scores,
                    int stride) {
    for (int row = 0; row < rows; row++) {
      for (int p = 0; p < kVector; p++) {
        const float *q = queries[row], *k = keys.numbers + p * keys.stride;
        float sums[kVector] = {};
        for (int v = 0; v < keys.vectors; v++) {
          for (int i = 0; i < kVector; i++) sums[i] = __builtin_fmaf(q[v * kVector + i], k[v * kVector + i], sums[i]);
        }
        scores[row * stride + p] = reduce(sums) * scale;
      }
    }
  }
  // The maximum of whole vectors; ignores NaN.
  static float reduce_max(const float* numbers, int count) {
    float maxima[kVector];
    std::fill_n(maxima, kVector, -std::numeric_limits<float>::infinity());
    for (int i = 0; i < count; i++) maxima[i % kVector] = larger(numbers[i], maxima[i % kVector]);
    for (int half = kVector / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; i++) maxima[i] = larger(maxima[i + half], maxima[i]);
    }
    return maxima[0];
  }
  static float reduce_sum(const float* numbers, int count) {
    float sums[kVector] = {};
    for (int i = 0; i < count; i++) sums[i % kVector] = sums[i % kVector] + numbers[i];
    return reduce(sums);
  }

  static void widen(const std::uint16_t* halves, std::int64_t count, float* numbers) {
    for (std::int64_t i = 0; i < count; i++) numbers[i] = widened(halves[i]);
  }
  static void narrow(const float* numbers, std::int64_t count, std::uint16_t* halves) {
    for (std::int64_t i = 0; i < count; i++) halves[i] = narrowed(numbers[i]);
  }

  // sums[row] += weight * value for positions first .. last - 1. The strides are the elements between rows.
  template <int kRows>
  static void accumulate(const float* weights, int weight_stride, const Positions& values, int first, int last,
                         float* sums, int sum_stride) {
    for (int row = 0; row < kRows; row++) {
      for (int p = first; p < last; p++) {
        const float weight = weights[row * weight_stride + p], *v = values.numbers + p * values.stride;
        float* sum = sums + row * sum_stride;
        for (int i = 0; i < values.vectors * kVector; i++) sum[i] = __builtin_fmaf(weight, v[i], sum[i]);
      }
    }
  }

 private:
  static float larger(float a, float b) { return a > b ? a : b; }
  static float reduce(float* sums) {
    for (int half = kVector / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; i++) sums[i] = sums[i] + sums[i + half];
    }
    return sums[0];
  }
};

#ifdef PEAGLE_AARCH64
// Every AArch64 CPU converts float16. The compiler vectorizes the sums.
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
      const __m256i rounded = _mm512_cvtps_ph(_mm512_loadu_ps(numbers + i), _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves + i), rounded);
    }
    PortableProducts::narrow(numbers + i, count - i, halves + i);
  }

  PEAGLE_AVX512_VNNI static float reduce_max(const float* numbers, int count) {
    __m512 max = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (int i = 0; i < count; i += kVector) max = _mm512_max_ps(_mm512_loadu_ps(numbers + i), max);
    __m256 eight = _mm256_max_ps(_mm512_extractf32x8_ps(max, 1), _mm512_castps512_ps256(max));
    __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    four = _mm_max_ps(_mm_movehl_ps(four, four), four);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(four), four));
  }
  PEAGLE_AVX512_VNNI static float reduce_sum(const float* numbers, int count) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < count; i += kVector) sum = _mm512_add_ps(sum, _mm512_loadu_ps(numbers + i));
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  template <int kRows>
  PEAGLE_AVX512_VNNI static void accumulate(const float* weights, int weight_stride, const Positions& values, int first,
                                            int last, float* sums, int sum_stride) {
    int v = 0;
    for (; v + 4 <= values.vectors; v += 4) {
      accumulate_vectors<kRows, 4>(weights, weight_stride, values, v, first, last, sums, sum_stride);
    }
    for (; v < values.vectors; v++) {
      accumulate_vectors<kRows, 1>(weights, weight_stride, values, v, first, last, sums, sum_stride);
    }
  }

 private:
  // Two queries share each load of a key. More sums than those of eight positions would not fit in the registers.
  template <int kVectors>
  PEAGLE_AVX512_VNNI static void score_vectors(const float* const* queries, int rows, const Positions& keys,
                                               float scale, float* scores, int stride) {
    int row = 0;
    for (; row + 2 <= rows; row += 2) {
      score_rows<kVectors, 2>(queries + row, keys, scale, scores + row * stride, stride);
    }
    if (row < rows) score_rows<kVectors, 1>(queries + row, keys, scale, scores + row * stride, stride);
  }
  template <int kVectors, int kRows>
  __attribute__((always_inline)) PEAGLE_AVX512_VNNI static void score_rows(const float* const* queries,
                                                                           const Positions& keys, float scale,
                                                                           float* scores, int stride) {
    constexpr int kHalf = kVector / 2;
    const int vectors = kVectors > 0 ? kVectors : keys.vectors;
    // A constant stride gives constant offsets: 16 addresses would occupy registers that the sums need.
    const std::int64_t step = kVectors > 0 ? kVectors * kVector : keys.stride;
    __m512 pairs[kRows][kHalf];  // eight partial sums each of positions p and p + 4, for p < 4 and 8 <= p < 12
    PEAGLE_UNROLL for (int half = 0; half < 2; half++) {
      __m512 sums[kRows][kHalf];
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        PEAGLE_UNROLL for (int p = 0; p < kHalf; p++) sums[row][p] = _mm512_setzero_ps();
      }
      for (int v = 0; v < vectors; v++) {
        const float* k = keys.numbers + half * kHalf * step + v * kVector;
        __m512 q[kRows];
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) q[row] = _mm512_loadu_ps(queries[row] + v * kVector);
        PEAGLE_UNROLL for (int p = 0; p < kHalf; p++) {
          __m512 key = _mm512_loadu_ps(k + p * step);
          if (kRows > 1) asm("" : "+v"(key));  // compilers would load it again for each query
          PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[row][p] = _mm512_fmadd_ps(q[row], key, sums[row][p]);
        }
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        PEAGLE_UNROLL for (int p = 0; p < 4; p++) {
          pairs[row][half * 4 + p] = add_halves(sums[row][p], sums[row][p + 4]);
        }
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      _mm512_storeu_ps(scores + row * stride, _mm512_mul_ps(sum_pairs(pairs[row]), _mm512_set1_ps(scale)));
    }
  }

  // Element i of the result is the sum of the partial sums of position i.
  PEAGLE_AVX512_VNNI static __m512 sum_pairs(const __m512* pairs) {
    __m512 quarters[4];  // four partial sums each of positions p, p + 4, p + 8 and p + 12
    PEAGLE_UNROLL for (int p = 0; p < 4; p++) {
      quarters[p] = _mm512_add_ps(_mm512_shuffle_f32x4(pairs[p], pairs[p + 4], 0x88),
                                  _mm512_shuffle_f32x4(pairs[p], pairs[p + 4], 0xdd));
    }
    const __m512 even = add_pairs(quarters[0], quarters[1]), odd = add_pairs(quarters[2], quarters[3]);
    return _mm512_add_ps(_mm512_shuffle_ps(even, odd, 0x88), _mm512_shuffle_ps(even, odd, 0xdd));
  }
  // One shuffle and a masked addition: a processor executes two additions at once, but one shuffle.
  PEAGLE_AVX512_VNNI static __m512 add_halves(__m512 a, __m512 b) {
    const __m512 crossed = _mm512_shuffle_f32x4(a, b, 0x4e);
    return _mm512_mask_add_ps(_mm512_add_ps(a, crossed), 0xff00, b, crossed);
  }
  PEAGLE_AVX512_VNNI static __m512 add_pairs(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }

  template <int kRows, int kVectors>
  PEAGLE_AVX512_VNNI static void accumulate_vectors(const float* weights, int weight_stride, const Positions& values,
                                                    int from, int first, int last, float* sums, int sum_stride) {
    __m512 totals[kRows][kVectors];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) {
        totals[row][v] = _mm512_loadu_ps(sums + row * sum_stride + (from + v) * kVector);
      }
    }
    for (int p = first; p < last; p++) {
      const float* numbers = values.numbers + p * values.stride + from * kVector;
      __m512 value[kVectors];
      PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) value[v] = _mm512_loadu_ps(numbers + v * kVector);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m512 weight = _mm512_set1_ps(weights[row * weight_stride + p]);
        PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) {
          totals[row][v] = _mm512_fmadd_ps(weight, value[v], totals[row][v]);
        }
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int v = 0; v < kVectors; v++) {
        _mm512_storeu_ps(sums + row * sum_stride + (from + v) * kVector, totals[row][v]);
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
      const __m128i rounded = _mm256_cvtps_ph(_mm256_loadu_ps(numbers + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + i), rounded);
    }
    PortableProducts::narrow(numbers + i, count - i, halves + i);
  }

  PEAGLE_AVX2 static float reduce_max(const float* numbers, int count) {
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
  PEAGLE_AVX2 static float reduce_sum(const float* numbers, int count) {
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
  PEAGLE_AVX2 static void accumulate(const float* weights, int weight_stride, const Positions& values, int first,
                                     int last, float* sums, int sum_stride) {
    for (int half = 0; half < 2 * values.vectors; half += 2) {
      __m256 totals[kRows][2];
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        PEAGLE_UNROLL for (int i = 0; i < 2; i++) {
          totals[row][i] = _mm256_loadu_ps(sums + row * sum_stride + (half + i) * 8);
        }
      }
      for (int p = first; p < last; p++) {
        const float* numbers = values.numbers + p * values.stride + half * 8;
        const __m256 low = _mm256_loadu_ps(numbers), high = _mm256_loadu_ps(numbers + 8);
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          const __m256 weight = _mm256_set1_ps(weights[row * weight_stride + p]);
          totals[row][0] = _mm256_fmadd_ps(weight, low, totals[row][0]);
          totals[row][1] = _mm256_fmadd_ps(weight, high, totals[row][1]);
        }
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        PEAGLE_UNROLL for (int i = 0; i < 2; i++) {
          _mm256_storeu_ps(sums + row * sum_stride + (half + i) * 8, totals[row][i]);
        }
      }
    }
  }

 private:
  // Register blocking: up to three queries share each load of a key. More sums would not fit in the registers.
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
        score_position_pairs<kVectors, kRows>(queries, keys, p + n, sums[n]);
        __asm__ volatile("" ::: "memory");  // keeps GCC from spilling queries to reuse them in the next call
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 even = add_pairs(sums[0][row], sums[1][row]), odd = add_pairs(sums[2][row], sums[3][row]);
        const __m256 eight = _mm256_add_ps(_mm256_shuffle_ps(even, odd, 0x88), _mm256_shuffle_ps(even, odd, 0xdd));
        _mm256_storeu_ps(scores + row * stride + p, _mm256_mul_ps(eight, _mm256_set1_ps(scale)));
      }
    }
  }
  // Returns four partial sums of position p in the lower half, and four of position p + 4 in the upper half.
  template <int kVectors, int kRows>
  __attribute__((always_inline)) PEAGLE_AVX2 static void score_position_pairs(const float* const* queries,
                                                                              const Positions& keys, int p,
                                                                              __m256* sums) {
    const int vectors = kVectors > 0 ? kVectors : keys.vectors;
    const float *first = keys.numbers + p * keys.stride, *second = first + 4 * keys.stride;
    __m256 low[kRows][2], high[kRows][2];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int i = 0; i < 2; i++) low[row][i] = high[row][i] = _mm256_setzero_ps();
    }
    for (int v = 0; v < vectors; v++) {
      const float *k = first + v * kVector, *l = second + v * kVector;
      const __m256 first_low = load_once(k), second_low = load_once(l);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 q = load_once(queries[row] + v * kVector);
        low[row][0] = _mm256_fmadd_ps(q, first_low, low[row][0]);
        low[row][1] = _mm256_fmadd_ps(q, second_low, low[row][1]);
      }
      const __m256 first_high = load_once(k + 8), second_high = load_once(l + 8);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 q = load_once(queries[row] + v * kVector + 8);
        high[row][0] = _mm256_fmadd_ps(q, first_high, high[row][0]);
        high[row][1] = _mm256_fmadd_ps(q, second_high, high[row][1]);
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      const __m256 a = _mm256_add_ps(low[row][0], high[row][0]), b = _mm256_add_ps(low[row][1], high[row][1]);
      sums[row] = _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
    }
  }
  // Keeps a loaded vector in a register; otherwise compilers would load it again for each use.
  PEAGLE_AVX2 static __m256 load_once(const float* numbers) {
    __m256 result = _mm256_loadu_ps(numbers);
    __asm__("" : "+x"(result));
    return result;
  }
  PEAGLE_AVX2 static __m256 add_pairs(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
};
#endif

}  // namespace peagle
