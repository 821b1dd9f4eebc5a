// Products of quantized rows with one tile of a packed matrix, with AVX-VNNI: see tile_products.h.
//
// Most CPUs with AVX-VNNI lack AVX-512. vpdpbusd accumulates byte products directly in int32. Both halves of a tile are
// multiplied together, because broadcasting a row's groups of four codes takes the most instructions.

#include "avx2_products.h"

#ifdef PEAGLE_AVX_VNNI
namespace peagle {

template <Format kFormat, int kRows>
struct AvxVnni {
  static constexpr int kMaxRowsPerPass = 6;
  static constexpr RoundFunction kRound = Avx2<kFormat, kRows>::kRound;

  PEAGLE_AVX_VNNI static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    __m256 sums[kHalves][kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[0][row] = sums[1][row] = _mm256_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    Avx2Scales<kFormat> scales[kHalves] = {{weights, at, 0}, {weights, at, kTile / kHalves}};
    const std::uint8_t* next = weights.block_codes<kFormat>(at + 1, 0);  // past the last tile, only prefetched
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      Avx2Path::prefetch_next(next, b, rows);
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) scales[half].of_block(b);
      __m256i dots[kHalves][kRows];
      sums_of_codes(weights.block_codes<kFormat>(at, b), x, scales, dots);
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          Avx2Path::add_scaled(dots[half][row], x[row], scales[half], sums[half][row]);
        }
      }
    }
    Avx2Path::store_sums(weights, at, rows, sums);
  }

 private:
  using Avx2Path = Avx2<kFormat, kRows>;
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr int kHalves = Avx2Path::kHalves, kParts = kForm.parts();
  // Dependency chains per row and half: with few rows, two hide the latency.
  static constexpr int kChains = kRows < 3 ? 2 : 1;
  using Sums = __m256i[kChains][kHalves][kRows];

  PEAGLE_AVX_VNNI static void sums_of_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                            const Avx2Scales<kFormat>* scales, __m256i (*dots)[kRows]) {
    if constexpr (kParts > 1) {
      Sums parts[kParts];
      PEAGLE_UNROLL for (int part = 0; part < kParts; part++) {
        initialize(x, false, parts[part]);
        add_small_codes(packed, x, part == 0, part == 1, parts[part]);
      }
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          std::int32_t both;
          std::memcpy(&both, x[row].halves, sizeof both);
          __m256i sum = _mm256_madd_epi16(scales[half].middles, _mm256_set1_epi32(both));
          PEAGLE_UNROLL for (int part = 0; part < kParts; part++) {
            // each int32 contains the int16 step twice; sign-extend the upper one
            const __m256i steps = _mm256_srai_epi32(scales[half].steps[part], 16);
            sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(add_chains(parts[part], half, row), steps));
          }
          dots[half][row] = sum;
        }
      }
    } else {
      Sums sums;
      initialize(x, kForm.middle != 0, sums);
      if constexpr (kForm.bits == 8) {
        PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
          const std::uint8_t* codes = packed + i * kGroupBytes;
          add(Avx2Path::load(codes), Avx2Path::load(codes + kGroupBytes / kHalves), x, i, sums[i % kChains]);
        }
      } else {
        add_small_codes(packed, x, true, true, sums);
      }
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) dots[half][row] = add_chains(sums, half, row);
      }
    }
  }

  PEAGLE_AVX_VNNI static void initialize(const RoundedRows::Block* x, bool has_correction, Sums& sums) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        PEAGLE_UNROLL for (int chain = 0; chain < kChains; chain++) {
          const bool is_corrected = has_correction && chain == 0;
          sums[chain][half][row] = is_corrected ? _mm256_set1_epi32(x[row].correction) : _mm256_setzero_si256();
        }
      }
    }
  }

  PEAGLE_AVX_VNNI static __m256i add_chains(const Sums& sums, int half, int row) {
    __m256i sum = sums[0][half][row];
    PEAGLE_UNROLL for (int chain = 1; chain < kChains; chain++) sum = _mm256_add_epi32(sum, sums[chain][half][row]);
    return sum;
  }

  // For codes of fewer than 8 bits: adds the first half of a block's columns, the second half, or both.
  PEAGLE_AVX_VNNI static void add_small_codes(const std::uint8_t* packed, const RoundedRows::Block* x, bool first,
                                              bool second, Sums& sums) {
    typename Avx2Path::Decoder low(packed, kForm.middle), high(packed + kGroupBytes / kHalves, kForm.middle);
    PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
      low.next(i);
      high.next(i);
      if (first) add(low.first, high.first, x, i, sums[0]);
      if (second) add(low.second, high.second, x, i + kGroups / 2, sums[kChains - 1]);
    }
  }

  PEAGLE_AVX_VNNI static void add(__m256i low, __m256i high, const RoundedRows::Block* x, int group,
                                  __m256i (&sums)[kHalves][kRows]) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      const __m256i four = _mm256_set1_epi32(four_codes(x[row].codes + group * kGroup));
      sums[0][row] = _mm256_dpbusd_avx_epi32(sums[0][row], low, four);
      sums[1][row] = _mm256_dpbusd_avx_epi32(sums[1][row], high, four);
    }
  }
};

}  // namespace peagle
#endif
