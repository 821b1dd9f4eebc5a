// Products of quantized rows with one tile of a packed matrix, with AVX2: see tile_products.h.
//
// Up to four rows are multiplied at a time, because their sums fit in the registers; more rows take several passes over
// the tile. Both halves of the tile are processed together, so a row's group of four codes is broadcast once for both.
// vpmaddubsw adds pairs of byte products in int16. Several groups are accumulated in int16 before they are widened: all
// eight groups for 4-bit codes, four for 5-bit codes. For 8-bit codes, the sign of the weight is moved to the other
// factor, so a pair is at most 2 * 128 * 127, which fits.

#include "tile_rows.h"

#ifdef PEAGLE_X86_64
namespace peagle {

constexpr int kScalePrefetchBytes = 1024;  // prefetch distance in scales

// Iterates over the scales of a tile's blocks, for the eight rows from `from` on.
template <Format kFormat>
struct Avx2Scales {
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr int kHalves = 2 * kTile;  // bytes of one float16 per row

  __m256 scale, minimum, d, minus_dmin;
  __m256i steps[2];  // of each half of a block, in int16, twice per row
  __m256i middles;   // -middle * steps in int16, for both halves of a block

  PEAGLE_AVX2 Avx2Scales(const PackedWeights& weights, std::int64_t at, int from)
      : next_(weights.tile_scales<kFormat>(at)), from_(from) {}

  PEAGLE_AVX2 void of_block(std::int64_t b) {
    if constexpr (kForm.scales == Scales::kBlocks) {
      if (from_ == 0) _mm_prefetch(reinterpret_cast<const char*>(next_ + kScalePrefetchBytes), _MM_HINT_T0);
      scale = halves(next_);
      if (kForm.has_min) minimum = halves(next_ + kHalves);
      next_ += kForm.scale_bytes();
    } else if constexpr (kForm.scales == Scales::kExponents) {
      const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight(next_)), 23);
      const __m256i normal = _mm256_max_epi32(bits, _mm256_set1_epi32(1 << 22));  // exponent 0 is subnormal
      scale = _mm256_mul_ps(_mm256_castsi256_ps(normal), _mm256_set1_ps(0.5f));
      next_ += kForm.scale_bytes();
    } else if constexpr (kForm.scales == Scales::kSteps) {
      if (b % kSuperblock == 0) {
        d = halves(next_);
        minus_dmin = _mm256_xor_ps(halves(next_ + kHalves), _mm256_set1_ps(-0.0f));
        next_ += 2 * kHalves;
      }
      scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(next_))));
      minimum = _mm256_mul_ps(minus_dmin, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(next_ + kTile))));
      next_ += 2 * kTile;
    } else if constexpr (kForm.scales == Scales::kHalfSteps) {
      if (b % kSuperblock == 0) {
        scale = halves(next_);
        next_ += kHalves;
      }
      const __m128i first = eight(next_), second = eight(next_ + kTile);
      steps[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, first));
      steps[1] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(second, second));
      const __m256i both = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, second));
      middles = _mm256_mullo_epi16(both, _mm256_set1_epi16(-kForm.middle));
      next_ += 2 * kTile;
    }
  }

 private:
  PEAGLE_AVX2 __m128i eight(const std::uint8_t* entry) const {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(entry + from_));
  }
  PEAGLE_AVX2 __m256 halves(const std::uint8_t* entry) const {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entry + 2 * from_)));
  }

  const std::uint8_t* next_;
  std::int64_t from_;
};

template <Format kFormat, int kRows>
struct Avx2 {
  static constexpr int kMaxRowsPerPass = 4;
  static constexpr RoundFunction kRound = round_row_avx2<record(kFormat).parts() != 1>;

  PEAGLE_AVX2 static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    __m256 sums[kHalves][kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[0][row] = sums[1][row] = _mm256_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    Avx2Scales<kFormat> scales[kHalves] = {{weights, at, 0}, {weights, at, kTile / kHalves}};
    const std::uint8_t* packed = weights.block_codes<kFormat>(at, 0);
    const std::uint8_t* next = weights.block_codes<kFormat>(at + 1, 0);  // past the last tile, only prefetched
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step, packed += kForm.code_bytes()) {
      prefetch_next(next, b, rows);
      if constexpr (kParts > 1) {
        PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
          __m256i dots[kRows];
          scales[half].of_block(b);
          sums_of_parts(packed + half * (kGroupBytes / kHalves), x, scales[half], dots);
          PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
            add_scaled(dots[row], x[row], scales[half], sums[half][row]);
          }
        }
      } else {
        __m256i dots[kHalves][kRows];
        if constexpr (kGroupsPerInt16 == 0) {
          sums_of_signed_codes(packed, x, dots);
        } else {
          sums_of_small_codes(packed, x, dots);
        }
        PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) scales[half].of_block(b);
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
            add_scaled(dots[half][row], x[row], scales[half], sums[half][row]);
          }
        }
      }
    }
    store_sums(weights, at, rows, sums);
  }

  static constexpr PackedFormat kForm = record(kFormat);

  // Iterates over pairs of groups: `first` has codes of the first half of a block's columns, `second` of the second
  // half. For formats with a table of values, these are the values plus `offset`.
  struct Decoder {
    __m256i first, second, upper, values;
    const std::uint8_t* packed;

    PEAGLE_AVX2 Decoder(const std::uint8_t* from, int offset) : packed(from) {
      if constexpr (kForm.values != nullptr) {
        const __m128i given = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kForm.values));
        values = _mm256_broadcastsi128_si256(_mm_add_epi8(given, _mm_set1_epi8(char(offset))));
      }
    }
    PEAGLE_AVX2 void next(int i) {
      const __m256i low = _mm256_set1_epi8(15), both = load(packed + i * kGroupBytes);
      first = _mm256_and_si256(both, low);
      second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      if constexpr (kForm.upper_bits() > 0) {
        constexpr int kUpperBits = kForm.upper_bits(), kGroupsPerPlane = 4 / kUpperBits;
        const __m256i above = _mm256_set1_epi8(((1 << kUpperBits) - 1) << 4);
        upper = i % kGroupsPerPlane == 0 ? load(packed + (kGroups / 2 + i / kGroupsPerPlane) * kGroupBytes)
                                         : _mm256_srli_epi16(upper, kUpperBits);
        first = _mm256_or_si256(first, _mm256_and_si256(upper, above));
        second = _mm256_or_si256(second, _mm256_and_si256(_mm256_slli_epi16(upper, 4), above));
      }
      if constexpr (kForm.values != nullptr) {
        first = _mm256_shuffle_epi8(values, first);
        second = _mm256_shuffle_epi8(values, second);
      }
    }
  };

  // Prefetches a part of the next tile for each block of this one. Repeated passes over a cached tile would leave
  // memory idle, so the first two passes share the next tile. (Unless it is inlined early, GCC considers a function
  // that only prefetches to have no effect, and removes calls to it.)
  __attribute__((always_inline)) static void prefetch_next(const std::uint8_t* next, std::int64_t block,
                                                           const Rows& rows) {
    if (rows.fetch == Fetch::kAll) {
      prefetch_lines<kForm.bits>(next + block * kForm.code_bytes());
    } else if (rows.fetch != Fetch::kNone) {
      const std::int64_t at = rows.fetch == Fetch::kFirstHalf ? block : rows.blocks + block;
      prefetch_lines<(kForm.bits + 1) / 2>(next + at * (kForm.code_bytes() / 2));
    }
  }
  PEAGLE_AVX2 static __m256i load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  static constexpr int kHalves = 2;
  // Applies the scales of one row in one block to its integer dot products, and adds the result to `sum`.
  PEAGLE_AVX2 static void add_scaled(__m256i dots, const RoundedRows::Block& x, const Avx2Scales<kFormat>& scales,
                                     __m256& sum) {
    __m256 value = _mm256_cvtepi32_ps(dots);
    if (!kHasRowScales) value = _mm256_mul_ps(value, scales.scale);
    sum = _mm256_fmadd_ps(value, _mm256_set1_ps(x.scale), sum);
    if (kForm.has_min) sum = _mm256_fmadd_ps(scales.minimum, _mm256_set1_ps(x.shift), sum);
  }
  PEAGLE_AVX2 static void store_sums(const PackedWeights& weights, std::int64_t at, const Rows& rows,
                                     __m256 (*sums)[kRows]) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      float row_sums[kTile];
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        const int from = half * kTile / kHalves;
        __m256& sum = sums[half][row];
        if (kHasRowScales) sum = _mm256_mul_ps(sum, _mm256_loadu_ps(weights.row_scales(at) + from));
        _mm256_storeu_ps(row_sums + from, sum);
      }
      store(rows, row, row_sums, 0, kTile);
    }
  }

 private:
  static constexpr bool kHasRowScales = kForm.scales == Scales::kRows;
  static constexpr int kParts = kForm.parts();
  static constexpr int kGroupsPerInt16 = 32767 / (2 * 127 * kForm.max_code());  // groups whose sums fit in int16
  static constexpr bool kAllGroupsFit = kGroupsPerInt16 >= kGroups;
  static_assert(kGroupsPerInt16 == 0 || kGroupsPerInt16 >= 4 / kParts,
                "two groups of a part, or four, are added in int16");

  template <int kLines>
  __attribute__((always_inline)) static void prefetch_lines(const std::uint8_t* from) {
    PEAGLE_UNROLL for (int i = 0; i < kLines; i++) {
      _mm_prefetch(reinterpret_cast<const char*>(from + i * kGroupBytes), _MM_HINT_T0);
    }
  }

  PEAGLE_AVX2 static __m256i broadcast_group(const RoundedRows::Block& x, int group) {
    return _mm256_set1_epi32(four_codes(x.codes + group * kGroup));
  }

  PEAGLE_AVX2 static void sums_of_signed_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                               __m256i (*dots)[kRows]) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) dots[0][row] = dots[1][row] = _mm256_setzero_si256();
    if constexpr (kForm.bits == 8) {
      const __m256i middles = _mm256_set1_epi8(char(kForm.middle));
      PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
        const std::uint8_t* codes = packed + i * kGroupBytes;
        add_signed_codes(_mm256_xor_si256(load(codes), middles),
                         _mm256_xor_si256(load(codes + kGroupBytes / kHalves), middles), x, i, dots);
      }
    } else {
      Decoder low(packed, 0), high(packed + kGroupBytes / kHalves, 0);
      PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
        low.next(i);
        high.next(i);
        add_signed_codes(low.first, high.first, x, i, dots);
        add_signed_codes(low.second, high.second, x, i + kGroups / 2, dots);
      }
    }
  }

  PEAGLE_AVX2 static void add_signed_codes(__m256i low, __m256i high, const RoundedRows::Block* x, int group,
                                           __m256i (*dots)[kRows]) {
    const __m256i codes[kHalves] = {low, high}, magnitudes[kHalves] = {_mm256_abs_epi8(low), _mm256_abs_epi8(high)};
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      const __m256i four = broadcast_group(x[row], group);
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes[half], _mm256_sign_epi8(four, codes[half]));
        dots[half][row] = in_order(_mm256_add_epi32(dots[half][row], _mm256_madd_epi16(pairs, ones())));
      }
    }
  }

  PEAGLE_AVX2 static void sums_of_small_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                              __m256i (*dots)[kRows]) {
    Decoder low(packed, kForm.middle), high(packed + kGroupBytes / kHalves, kForm.middle);
    __m256i sums16[kHalves][kRows];
    PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
      low.next(i);
      high.next(i);
      const bool starts_sum = i == 0 || (!kAllGroupsFit && i == kGroups / 4);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256i first = broadcast_group(x[row], i), second = broadcast_group(x[row], i + kGroups / 2);
        PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
          const Decoder& codes = half == 0 ? low : high;
          __m256i& sum = sums16[half][row];
          if (starts_sum && i > 0) dots[half][row] = widen_sum(sum);
          const __m256i pairs = _mm256_maddubs_epi16(codes.first, first);
          sum = starts_sum ? pairs : in_order(_mm256_add_epi16(sum, pairs));
          sum = in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes.second, second)));
        }
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        __m256i sum = widen_sum(sums16[half][row]);
        if (!kAllGroupsFit) sum = _mm256_add_epi32(sum, dots[half][row]);
        if (kForm.middle != 0) sum = _mm256_add_epi32(sum, _mm256_set1_epi32(x[row].correction));
        dots[half][row] = sum;
      }
    }
  }

  // Computes the sums of half a tile, with a step for each half of a block.
  PEAGLE_AVX2 static void sums_of_parts(const std::uint8_t* packed, const RoundedRows::Block* x,
                                        const Avx2Scales<kFormat>& scales, __m256i* dots) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      std::int32_t both;
      std::memcpy(&both, x[row].halves, sizeof both);
      dots[row] = _mm256_madd_epi16(scales.middles, _mm256_set1_epi32(both));
    }
    Decoder decoder(packed, kForm.middle);
    PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i += 2) {
      decoder.next(i);
      const __m256i codes[kParts] = {decoder.first, decoder.second};
      decoder.next(i + 1);
      const __m256i others[kParts] = {decoder.first, decoder.second};
      PEAGLE_UNROLL for (int part = 0; part < kParts; part++) {
        const int group = i + part * (kGroups / 2);
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          const __m256i pairs =
              _mm256_add_epi16(_mm256_maddubs_epi16(codes[part], broadcast_group(x[row], group)),
                               _mm256_maddubs_epi16(others[part], broadcast_group(x[row], group + 1)));
          dots[row] = in_order(_mm256_add_epi32(dots[row], _mm256_madd_epi16(pairs, scales.steps[part])));
        }
      }
    }
  }

  PEAGLE_AVX2 static __m256i ones() { return _mm256_set1_epi16(1); }
  PEAGLE_AVX2 static __m256i widen_sum(__m256i sums16) { return _mm256_madd_epi16(sums16, ones()); }
  // Hides the sum from GCC, which would otherwise rearrange a long sum into a tree that needs too many registers.
  PEAGLE_AVX2 static __m256i in_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
  }
};

}  // namespace peagle
#endif
