// Products of rounded rows with one tile of a packed matrix, by AVX-VNNI: see tile_products.h.
//
// Most processors that have it lack AVX-512.  Products of bytes are added in 32 bits at once.  Both halves of a tile are
// multiplied together: what takes the most instructions is to repeat four codes of a row for all rows of the tile.

#include "avx2_products.h"

#ifdef PEAGLE_AVX_VNNI
namespace peagle {

template <Format kFormat, int kRows>
struct AvxVnni {
  static constexpr int kMost = 6;
  static constexpr RoundFunction kRound = Avx2<kFormat, kRows>::kRound;

  PEAGLE_AVX_VNNI static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    __m256 sums[kHalves][kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[0][row] = sums[1][row] = _mm256_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    Avx2Scales<kFormat> scales[kHalves] = {{weights, at, 0}, {weights, at, kTile / kHalves}};
    const std::uint8_t* next = weights.block_codes<kFormat>(at + 1, 0);  // behind the last tile, nothing is read
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      OfAvx2::fetch(next, b, rows);
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) scales[half].of_block(b);
      __m256i whole[kHalves][kRows];
      sums_of_codes(weights.block_codes<kFormat>(at, b), x, scales, whole);
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        const Avx2Scales<kFormat>& scaled = scales[half];
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          __m256 value = _mm256_cvtepi32_ps(whole[half][row]), &sum = sums[half][row];
          if (!kOfRows) value = _mm256_mul_ps(value, scaled.scale);
          sum = _mm256_fmadd_ps(value, _mm256_set1_ps(x[row].scale), sum);
          if (kForm.has_least) sum = _mm256_fmadd_ps(scaled.least, _mm256_set1_ps(x[row].shift), sum);
        }
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      float every[kTile];
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        const int from = half * kTile / kHalves;
        __m256& sum = sums[half][row];
        if (kOfRows) sum = _mm256_mul_ps(sum, _mm256_loadu_ps(weights.row_scales(at) + from));
        _mm256_storeu_ps(every + from, sum);
      }
      store(rows, row, every, 0, kTile);
    }
  }

 private:
  using OfAvx2 = Avx2<kFormat, kRows>;
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr bool kOfRows = kForm.scales == Scales::kRows;
  static constexpr int kHalves = 2, kParts = kForm.parts();
  // Sums of a row and half that are made side by side: one waits for itself.
  static constexpr int kChains = kRows < 3 ? 2 : 1;
  using Sums = __m256i[kChains][kHalves][kRows];

  PEAGLE_AVX_VNNI static void sums_of_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                            const Avx2Scales<kFormat>* scales, __m256i (*whole)[kRows]) {
    if constexpr (kParts > 1) {
      Sums parts[kParts];
      PEAGLE_UNROLL for (int part = 0; part < kParts; part++) {
        begin(x, false, parts[part]);
        add_small_codes(packed, x, part == 0, part == 1, parts[part]);
      }
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          std::int32_t both;
          std::memcpy(&both, x[row].halves, sizeof both);
          __m256i sum = _mm256_madd_epi16(scales[half].middles, _mm256_set1_epi32(both));
          PEAGLE_UNROLL for (int part = 0; part < kParts; part++) {
            // 32 bits hold a step of 16 bits twice: the upper one, with its sign
            const __m256i steps = _mm256_srai_epi32(scales[half].steps[part], 16);
            sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(joined(parts[part], half, row), steps));
          }
          whole[half][row] = sum;
        }
      }
    } else {
      Sums sums;
      begin(x, kForm.middle != 0, sums);
      if constexpr (kForm.bits == 8) {
        PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
          const std::uint8_t* codes = packed + i * kGroupBytes;
          add(OfAvx2::load(codes), OfAvx2::load(codes + kGroupBytes / kHalves), x, i, sums[i % kChains]);
        }
      } else {
        add_small_codes(packed, x, true, true, sums);
      }
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) whole[half][row] = joined(sums, half, row);
      }
    }
  }

  PEAGLE_AVX_VNNI static void begin(const RoundedRows::Block* x, bool corrects, Sums& sums) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        PEAGLE_UNROLL for (int chain = 0; chain < kChains; chain++) {
          const bool has_it = corrects && chain == 0;
          sums[chain][half][row] = has_it ? _mm256_set1_epi32(x[row].correction) : _mm256_setzero_si256();
        }
      }
    }
  }

  PEAGLE_AVX_VNNI static __m256i joined(const Sums& sums, int half, int row) {
    __m256i sum = sums[0][half][row];
    PEAGLE_UNROLL for (int chain = 1; chain < kChains; chain++) sum = _mm256_add_epi32(sum, sums[chain][half][row]);
    return sum;
  }

  // Of codes of fewer than eight bits, those of the first columns, of the others, or all.
  PEAGLE_AVX_VNNI static void add_small_codes(const std::uint8_t* packed, const RoundedRows::Block* x, bool first,
                                              bool second, Sums& sums) {
    typename OfAvx2::Decoder low(packed, kForm.middle), high(packed + kGroupBytes / kHalves, kForm.middle);
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
