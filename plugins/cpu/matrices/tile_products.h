// Products of rounded rows with one tile of a packed matrix.
//
// Whatever the instructions, the rows at once and the threads, an output is made by the same operations in the same
// order: for each block the integer sum of codes times codes, which is exact, then a multiply-add of it, scaled, in
// float32.  No operation sees two rows.  So a row's bits depend on that row and the weights, and on nothing else.
// (-ffp-contract=off: a compiler must not fuse what is written as two operations.)

#include "instructions.h"
#include "packed_weights.h"
#include "rounded_rows.h"

namespace peagle {

// Rows of the input whose products with one tile are made together, and where they go: y[row, 0 .. columns - 1].
struct Rows {
  const RoundedRows::Block* first;  // block b of a row: first[b * step + row]
  std::int64_t step, blocks;
  float* y;
  std::int64_t stride;
  int columns;
};

template <int kRows>
void store(const Rows& rows, int row, const float* sums, int from, int count) {
  const int left = rows.columns - from < count ? rows.columns - from : count;
  if (left > 0) std::memcpy(rows.y + row * rows.stride + from, sums, std::size_t(left) * sizeof(float));
}

template <Format kFormat, int kRows>
struct Portable {
  static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    for (int row = 0; row < kRows; row++) {
      float sums[kTile] = {};
      for (std::int64_t b = 0; b < rows.blocks; b++) {
        const RoundedRows::Block& x = rows.first[b * rows.step + row];
        const std::uint8_t* codes = weights.block_codes(at, b);
        for (int n = 0; n < kTile; n++) {
          std::int32_t whole = 0;
          for (int k = 0; k < kBlock; k++) whole += weights.code(codes, n, k) * x.codes[k];
          float value = float(whole);
          if (kFormat != Format::kInt8) value = value * widened(weights.block_scales(at, b)[n]);
          sums[n] = __builtin_fmaf(value, x.scale, sums[n]);
          if (kFormat == Format::kQ4_1) {
            sums[n] = __builtin_fmaf(widened(weights.block_scales(at, b)[kTile + n]), x.shift, sums[n]);
          }
        }
      }
      if (kFormat == Format::kInt8) {
        for (int n = 0; n < kTile; n++) sums[n] = sums[n] * weights.row_scales(at)[n];
      }
      store<kRows>(rows, row, sums, 0, kTile);
    }
  }
};

#ifdef PEAGLE_X86_64
inline std::int32_t four_codes(const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, sizeof four);
  return four;
}

constexpr int kAhead = 4096;  // bytes of codes fetched early: in a pass they come from memory, and once

template <Format kFormat, int kRows>
struct Avx512Vnni {
  PEAGLE_AVX512_VNNI static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    __m512 sums[kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[row] = _mm512_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      constexpr int kLoads = code_bytes(kFormat) / kGroupBytes;
      __m512i codes[kGroups];
      const std::uint8_t* packed = weights.block_codes(at, b);
      PEAGLE_UNROLL for (int i = 0; i < kLoads; i++) {
        _mm_prefetch(reinterpret_cast<const char*>(packed + i * kGroupBytes + kAhead), _MM_HINT_T0);
        codes[i] = _mm512_loadu_si512(packed + i * kGroupBytes);
      }
      if (has_four_bits(kFormat)) {
        const __m512i low = _mm512_set1_epi8(15);
        PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
          codes[i + kGroups / 2] = _mm512_and_si512(_mm512_srli_epi16(codes[i], 4), low);
          codes[i] = _mm512_and_si512(codes[i], low);
        }
      }
      __m512 scale = _mm512_setzero_ps(), least = _mm512_setzero_ps();
      if (kFormat != Format::kInt8) {
        constexpr int kScalesAhead = kAhead / code_bytes(kFormat) * scale_count(kFormat);
        _mm_prefetch(reinterpret_cast<const char*>(weights.block_scales(at, b) + kScalesAhead), _MM_HINT_T0);
        scale = halves(weights.block_scales(at, b));
      }
      if (kFormat == Format::kQ4_1) least = halves(weights.block_scales(at, b) + kTile);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        __m512i whole = _mm512_setzero_si512(), other = _mm512_setzero_si512();
        if (middle(kFormat) != 0) whole = _mm512_set1_epi32(x[row].correction);
        PEAGLE_UNROLL for (int i = 0; i < kGroups; i += 2) {  // two chains: one waits for itself
          const std::int8_t* four = x[row].codes + i * kGroup;
          whole = _mm512_dpbusd_epi32(whole, codes[i], _mm512_set1_epi32(four_codes(four)));
          other = _mm512_dpbusd_epi32(other, codes[i + 1], _mm512_set1_epi32(four_codes(four + kGroup)));
        }
        __m512 value = _mm512_cvtepi32_ps(_mm512_add_epi32(whole, other));
        if (kFormat != Format::kInt8) value = _mm512_mul_ps(value, scale);
        sums[row] = _mm512_fmadd_ps(value, _mm512_set1_ps(x[row].scale), sums[row]);
        if (kFormat == Format::kQ4_1) {
          sums[row] = _mm512_fmadd_ps(least, _mm512_set1_ps(x[row].shift), sums[row]);
        }
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      if (kFormat == Format::kInt8) sums[row] = _mm512_mul_ps(sums[row], _mm512_loadu_ps(weights.row_scales(at)));
      const __mmask16 wanted = __mmask16(rows.columns >= kTile ? 0xffff : (1u << rows.columns) - 1);
      _mm512_mask_storeu_ps(rows.y + row * rows.stride, wanted, sums[row]);
    }
  }

 private:
  PEAGLE_AVX512_VNNI static __m512 halves(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
};

// Half a tile at a time.  Products of bytes are added in pairs of 16 bits: the sign of a code goes to what it meets, so
// that 2 * 128 * 127 fits; four bits fit eight times over.
template <Format kFormat, int kRows>
struct Avx2 {
  PEAGLE_AVX2 static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    half_tile(weights, at, rows, 0);
    half_tile(weights, at, rows, kTile / 2);
  }

 private:
  PEAGLE_AVX2 static void half_tile(const PackedWeights& weights, std::int64_t at, const Rows& rows, int from) {
    __m256 sums[kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[row] = _mm256_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      const std::uint8_t* packed = weights.block_codes(at, b) + from * kGroup;
      __m256i whole[kRows];
      if (has_four_bits(kFormat)) {
        sums_of_four_bits(packed, x, whole);
      } else {
        sums_of_eight_bits(packed, x, whole);
      }
      __m256 scale = _mm256_setzero_ps(), least = _mm256_setzero_ps();
      if (kFormat != Format::kInt8) scale = halves(weights.block_scales(at, b) + from);
      if (kFormat == Format::kQ4_1) least = halves(weights.block_scales(at, b) + kTile + from);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        __m256 value = _mm256_cvtepi32_ps(whole[row]);
        if (kFormat != Format::kInt8) value = _mm256_mul_ps(value, scale);
        sums[row] = _mm256_fmadd_ps(value, _mm256_set1_ps(x[row].scale), sums[row]);
        if (kFormat == Format::kQ4_1) {
          sums[row] = _mm256_fmadd_ps(least, _mm256_set1_ps(x[row].shift), sums[row]);
        }
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      if (kFormat == Format::kInt8) {
        sums[row] = _mm256_mul_ps(sums[row], _mm256_loadu_ps(weights.row_scales(at) + from));
      }
      float eight[kTile / 2];
      _mm256_storeu_ps(eight, sums[row]);
      store<kRows>(rows, row, eight, from, kTile / 2);
    }
  }

  PEAGLE_AVX2 static void sums_of_eight_bits(const std::uint8_t* packed, const RoundedRows::Block* x, __m256i* whole) {
    const __m256i ones = _mm256_set1_epi16(1), middles = _mm256_set1_epi8(-128);
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) whole[row] = _mm256_setzero_si256();
    PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
      const __m256i codes = _mm256_xor_si256(load(packed + i * kGroupBytes), middles);  // signed
      const __m256i sizes = _mm256_abs_epi8(codes);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256i four = _mm256_set1_epi32(four_codes(x[row].codes + i * kGroup));
        const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(four, codes));
        whole[row] = _mm256_add_epi32(whole[row], _mm256_madd_epi16(pairs, ones));
      }
    }
  }

  PEAGLE_AVX2 static void sums_of_four_bits(const std::uint8_t* packed, const RoundedRows::Block* x, __m256i* whole) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) whole[row] = _mm256_setzero_si256();
    PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
      const __m256i both = load(packed + i * kGroupBytes);
      const __m256i first = _mm256_and_si256(both, low), second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const std::int8_t* four = x[row].codes + i * kGroup;
        const __m256i pairs = _mm256_maddubs_epi16(first, _mm256_set1_epi32(four_codes(four)));
        const __m256i others = _mm256_maddubs_epi16(second, _mm256_set1_epi32(four_codes(four + kBlock / 2)));
        whole[row] = _mm256_add_epi16(whole[row], _mm256_add_epi16(pairs, others));
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      const __m256i correction = _mm256_set1_epi32(x[row].correction);
      whole[row] = _mm256_add_epi32(_mm256_madd_epi16(whole[row], ones), correction);
    }
  }

  PEAGLE_AVX2 static __m256i load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  PEAGLE_AVX2 static __m256 halves(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
};
#endif

#ifdef PEAGLE_AARCH64
// A quarter of a tile at a time, whose codes of a block lie in registers while each row meets them.
template <Format kFormat, int kRows>
struct DotProduct {
  PEAGLE_DOT_PRODUCT static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    for (int from = 0; from < kTile; from += kQuarter) quarter(weights, at, rows, from);
  }

 private:
  static constexpr int kQuarter = kTile / 4;

  PEAGLE_DOT_PRODUCT static void quarter(const PackedWeights& weights, std::int64_t at, const Rows& rows, int from) {
    float32x4_t sums[kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[row] = vdupq_n_f32(0);
    const RoundedRows::Block* x = rows.first;
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      int8x16_t codes[kGroups];
      load(weights.block_codes(at, b) + from * kGroup, codes);
      float32x4_t scale = vdupq_n_f32(0), least = vdupq_n_f32(0);
      if (kFormat != Format::kInt8) scale = halves(weights.block_scales(at, b) + from);
      if (kFormat == Format::kQ4_1) least = halves(weights.block_scales(at, b) + kTile + from);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const int8x16_t first = vld1q_s8(x[row].codes), second = vld1q_s8(x[row].codes + kBlock / 2);
        int32x4_t whole = vdupq_n_s32(kFormat == Format::kQ4_0 ? x[row].correction : 0), other = vdupq_n_s32(0);
        whole = vdotq_laneq_s32(whole, codes[0], first, 0);  // two chains: one waits for itself
        other = vdotq_laneq_s32(other, codes[1], first, 1);
        whole = vdotq_laneq_s32(whole, codes[2], first, 2);
        other = vdotq_laneq_s32(other, codes[3], first, 3);
        whole = vdotq_laneq_s32(whole, codes[4], second, 0);
        other = vdotq_laneq_s32(other, codes[5], second, 1);
        whole = vdotq_laneq_s32(whole, codes[6], second, 2);
        other = vdotq_laneq_s32(other, codes[7], second, 3);
        float32x4_t value = vcvtq_f32_s32(vaddq_s32(whole, other));
        if (kFormat != Format::kInt8) value = vmulq_f32(value, scale);
        sums[row] = vfmaq_n_f32(sums[row], value, x[row].scale);
        if (kFormat == Format::kQ4_1) sums[row] = vfmaq_n_f32(sums[row], least, x[row].shift);
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      if (kFormat == Format::kInt8) sums[row] = vmulq_f32(sums[row], vld1q_f32(weights.row_scales(at) + from));
      float four[kQuarter];
      vst1q_f32(four, sums[row]);
      store<kRows>(rows, row, four, from, kQuarter);
    }
  }

  // Signed: eight bits lose their middle here, four bits are small enough.
  PEAGLE_DOT_PRODUCT static void load(const std::uint8_t* packed, int8x16_t* codes) {
    if (has_four_bits(kFormat)) {
      PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
        const uint8x16_t both = vld1q_u8(packed + i * kGroupBytes);
        codes[i] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
        codes[i + kGroups / 2] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
      }
    } else {
      PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
        codes[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(packed + i * kGroupBytes), vdupq_n_u8(128)));
      }
    }
  }
  PEAGLE_DOT_PRODUCT static float32x4_t halves(const std::uint16_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
  }
};
#endif

using TileFunction = void (*)(const PackedWeights&, std::int64_t at, const Rows&);
using RoundFunction = void (*)(const float*, std::int64_t, int, RoundedRows::Block*, std::int64_t);
struct Form {
  int most;  // rows at once; what is left of eight goes as four and the rest
  RoundFunction round;
  TileFunction tile[kMostRows];  // by rows - 1

  // Multiplies rows first .. last - 1 with a tile; y of row r, of `columns` numbers, is at y + r * stride.
  void multiply(const PackedWeights& weights, std::int64_t at, int columns, const RoundedRows& rounded,
                std::int64_t first, std::int64_t last, float* y, std::int64_t stride) const {
    for (std::int64_t row = first; row < last;) {
      const std::int64_t left = std::min<std::int64_t>(last - row, kMostRows - row % kMostRows);
      const int together = left > most ? kMostRows / 2 : int(left);
      tile[together - 1](weights, at, {rounded.row(row), rounded.stride(row), weights.blocks, y + row * stride,
                                       stride, columns});
      row += together;
    }
  }
};

template <template <Format, int> class Path, Format kFormat>
Form form_of(int most, RoundFunction round) {
  return {most,
          round,
          {Path<kFormat, 1>::tile, Path<kFormat, 2>::tile, Path<kFormat, 3>::tile, Path<kFormat, 4>::tile,
           Path<kFormat, 5>::tile, Path<kFormat, 6>::tile, Path<kFormat, 7>::tile, Path<kFormat, 8>::tile}};
}

template <template <Format, int> class Path>
Form form_of(Format format, int most, RoundFunction round) {
  switch (format) {
    case Format::kInt8: return form_of<Path, Format::kInt8>(most, round);
    case Format::kQ8_0: return form_of<Path, Format::kQ8_0>(most, round);
    case Format::kQ4_0: return form_of<Path, Format::kQ4_0>(most, round);
    default: return form_of<Path, Format::kQ4_1>(most, round);
  }
}

inline Form form_of(Format format, Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) return form_of<Avx512Vnni>(format, 8, round_row_avx512);
  if (instructions == Instructions::kAvx2) return form_of<Avx2>(format, 6, round_row_avx2);
#endif
#ifdef PEAGLE_AARCH64
  if (instructions == Instructions::kDotProduct) return form_of<DotProduct>(format, 8, round_row);
#endif
  return form_of<Portable>(format, 8, round_row);
}

}  // namespace peagle
