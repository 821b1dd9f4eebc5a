// Products of quantized rows with one tile of a packed matrix, with AVX-512 VNNI: see tile_products.h.

#include "tile_rows.h"

#ifdef PEAGLE_X86_64
namespace peagle {

// Prefetch distance in codes: a pass reads each code once, from memory. Codes go to L2, which is faster than L1 on
// Intel Xeon and as fast on AMD EPYC.
constexpr int kPrefetchBytes = 8 << 10;

// Iterates over the scales of a tile's blocks.
template <Format kFormat>
struct Avx512Scales {
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr int kHalves = 2 * kTile;  // bytes of one float16 per row

  __m512 scale, minimum, d, minus_dmin;
  __m512 steps[2];   // of each half of a block
  __m512i middles;   // -middle * steps in int16, for both halves of a block

  PEAGLE_AVX512_VNNI Avx512Scales(const PackedWeights& weights, std::int64_t at)
      : next_(weights.tile_scales<kFormat>(at)) {}

  PEAGLE_AVX512_VNNI void of_block(std::int64_t b) {
    if constexpr (kForm.scales != Scales::kRows) {
      constexpr int kScalePrefetchBytes =
          kPrefetchBytes / kForm.code_bytes() * kForm.scale_bytes() / kForm.blocks_per_entry();
      _mm_prefetch(reinterpret_cast<const char*>(next_ + kScalePrefetchBytes), _MM_HINT_T1);
    }
    if constexpr (kForm.scales == Scales::kBlocks) {
      scale = halves(next_);
      if (kForm.has_min) minimum = halves(next_ + kHalves);
      next_ += kForm.scale_bytes();
    } else if constexpr (kForm.scales == Scales::kExponents) {
      const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(sixteen(next_)), 23);
      const __m512i normal = _mm512_max_epi32(bits, _mm512_set1_epi32(1 << 22));  // exponent 0 is subnormal
      scale = _mm512_mul_ps(_mm512_castsi512_ps(normal), _mm512_set1_ps(0.5f));
      next_ += kForm.scale_bytes();
    } else if constexpr (kForm.scales == Scales::kSteps) {
      if (b % kSuperblock == 0) {
        d = halves(next_);
        minus_dmin = _mm512_xor_ps(halves(next_ + kHalves), _mm512_set1_ps(-0.0f));
        next_ += 2 * kHalves;
      }
      scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen(next_))));
      minimum = _mm512_mul_ps(minus_dmin, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen(next_ + kTile))));
      next_ += 2 * kTile;
    } else if constexpr (kForm.scales == Scales::kHalfSteps) {
      if (b % kSuperblock == 0) {
        scale = halves(next_);
        next_ += kHalves;
      }
      const __m512i first = _mm512_cvtepi8_epi32(sixteen(next_)), second = _mm512_cvtepi8_epi32(sixteen(next_ + kTile));
      steps[0] = _mm512_cvtepi32_ps(first);
      steps[1] = _mm512_cvtepi32_ps(second);
      const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, first, _mm512_slli_epi32(second, 16));
      middles = _mm512_mullo_epi16(both, _mm512_set1_epi16(-kForm.middle));
      next_ += 2 * kTile;
    }
  }

 private:
  PEAGLE_AVX512_VNNI static __m128i sixteen(const std::uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  PEAGLE_AVX512_VNNI static __m512 halves(const std::uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }

  const std::uint8_t* next_;
};

// Returns sum + codes * x, where x are four codes for every row of the tile. The instruction itself broadcasts them: GCC
// 12 makes two instructions of the intrinsics, and passes over five or more rows then take 8 to 12% longer in L2.
PEAGLE_AVX512_VNNI inline __attribute__((always_inline)) __m512i add_products(__m512i sum, __m512i codes,
                                                                              const std::int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(codes), "m"(*reinterpret_cast<const std::int8_t(*)[kGroup]>(x)));
  return sum;
}

template <Format kFormat, int kRows>
struct Avx512Vnni {
  static constexpr int kMaxRowsPerPass = 12;
  static constexpr RoundFunction kRound = round_row_avx512<record(kFormat).parts() != 1>;

  PEAGLE_AVX512_VNNI static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    __m512 sums[kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[row] = _mm512_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    Avx512Scales<kFormat> scales(weights, at);
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      __m512i codes[kGroups];
      load(weights.block_codes<kFormat>(at, b), codes);
      scales.of_block(b);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        __m512 value = kForm.parts() > 1 ? sum_of_halves(codes, x[row], scales) : sum(codes, x[row]);
        if (!kHasRowScales) value = _mm512_mul_ps(value, scales.scale);
        sums[row] = _mm512_fmadd_ps(value, _mm512_set1_ps(x[row].scale), sums[row]);
        if (kForm.has_min) sums[row] = _mm512_fmadd_ps(scales.minimum, _mm512_set1_ps(x[row].shift), sums[row]);
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      if (kHasRowScales) sums[row] = _mm512_mul_ps(sums[row], _mm512_loadu_ps(weights.row_scales(at)));
      const __mmask16 mask = __mmask16(rows.columns >= kTile ? 0xffff : (1u << rows.columns) - 1);
      _mm512_mask_storeu_ps(rows.y + row * rows.stride, mask, sums[row]);
    }
  }

 private:
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr bool kHasRowScales = kForm.scales == Scales::kRows;

  PEAGLE_AVX512_VNNI static void load(const std::uint8_t* packed, __m512i* codes) {
    constexpr int kUpperBits = kForm.upper_bits(), kGroupsPerPlane = kUpperBits > 0 ? 4 / kUpperBits : 1;
    __m512i planes[kForm.bits];
    PEAGLE_UNROLL for (int i = 0; i < kForm.bits; i++) {
      _mm_prefetch(reinterpret_cast<const char*>(packed + i * kGroupBytes + kPrefetchBytes), _MM_HINT_T1);
      planes[i] = _mm512_loadu_si512(packed + i * kGroupBytes);
    }
    if constexpr (kForm.bits == 8) {
      PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
        codes[i] = planes[i];
        asm("" : "+v"(codes[i]));  // stays in a register: compilers would load it again for every row
      }
    } else {
      const __m512i low = _mm512_set1_epi8(15), above = _mm512_set1_epi8(((1 << kUpperBits) - 1) << 4);
      __m512i upper = _mm512_setzero_si512();
      PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
        codes[i] = _mm512_and_si512(planes[i], low);
        codes[i + kGroups / 2] = _mm512_and_si512(_mm512_srli_epi16(planes[i], 4), low);
        if constexpr (kUpperBits > 0) {
          constexpr int kJoin = 0xf8;  // first | (second & third)
          upper = i % kGroupsPerPlane == 0 ? planes[kGroups / 2 + i / kGroupsPerPlane]
                                           : _mm512_srli_epi16(upper, kUpperBits);
          codes[i] = _mm512_ternarylogic_epi32(codes[i], upper, above, kJoin);
          codes[i + kGroups / 2] =
              _mm512_ternarylogic_epi32(codes[i + kGroups / 2], _mm512_slli_epi16(upper, 4), above, kJoin);
        }
      }
      if constexpr (kForm.values != nullptr) {
        const __m128i given = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kForm.values));
        const __m128i raised = _mm_add_epi8(given, _mm_set1_epi8(char(kForm.middle)));
        const __m512i values = _mm512_broadcast_i32x4(raised);
        PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) codes[i] = _mm512_shuffle_epi8(values, codes[i]);
      }
    }
  }

  PEAGLE_AVX512_VNNI static __m512 sum(const __m512i* codes, const RoundedRows::Block& x) {
    __m512i total = kForm.middle != 0 ? _mm512_set1_epi32(x.correction) : _mm512_setzero_si512();
    PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) total = add_products(total, codes[i], x.codes + i * kGroup);
    return _mm512_cvtepi32_ps(total);
  }

  // Adds in float32, which is exact: no intermediate value exceeds 24 bits. The result is never -0, because the first
  // term is not.
  PEAGLE_AVX512_VNNI static __m512 sum_of_halves(const __m512i* codes, const RoundedRows::Block& x,
                                                 const Avx512Scales<kFormat>& scales) {
    __m512i first = _mm512_setzero_si512(), second = _mm512_setzero_si512();
    PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
      first = add_products(first, codes[i], x.codes + i * kGroup);
      second = add_products(second, codes[i + kGroups / 2], x.codes + i * kGroup + kBlock / 2);
    }
    std::int32_t both;
    std::memcpy(&both, x.halves, sizeof both);
    const __m512i middles = _mm512_dpwssd_epi32(_mm512_setzero_si512(), scales.middles, _mm512_set1_epi32(both));
    const __m512 partial = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), scales.steps[0], _mm512_cvtepi32_ps(middles));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), scales.steps[1], partial);
  }
};

}  // namespace peagle
#endif
