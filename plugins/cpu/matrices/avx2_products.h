// Products of rounded rows with one tile of a packed matrix, by AVX2: see tile_products.h.
//
// Up to four rows at a time, whose sums fit into the registers: more rows go in several passes over the tile.  Both
// halves of the tile together, so that four codes of a row are repeated once for both.  Products of bytes are added in
// pairs of 16 bits, and as many groups of codes as fit there: four bits eight times, five bits four times.  Of eight
// bits the sign of a code goes to what it meets, so that 2 * 128 * 127 fits.

#include "tile_rows.h"

#ifdef PEAGLE_X86_64
namespace peagle {

constexpr int kScalesAhead = 1024;  // bytes of scales fetched early

// The scales of one block after the other, for eight rows of a tile from one on.
template <Format kFormat>
struct Avx2Scales {
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr int kHalves = 2 * kTile;  // bytes of a number of float16 for each row

  __m256 scale, least, d, minus_dmin;
  __m256i steps[2];  // of the halves of a block: for each row twice, of 16 bits
  __m256i middles;   // for each row -middle * steps, of 16 bits

  PEAGLE_AVX2 Avx2Scales(const PackedWeights& weights, std::int64_t at, int from)
      : next_(weights.tile_scales<kFormat>(at)), from_(from) {}

  PEAGLE_AVX2 void of_block(std::int64_t b) {
    if constexpr (kForm.scales == Scales::kBlocks) {
      if (from_ == 0) _mm_prefetch(reinterpret_cast<const char*>(next_ + kScalesAhead), _MM_HINT_T0);
      scale = halves(next_);
      if (kForm.has_least) least = halves(next_ + kHalves);
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
      least = _mm256_mul_ps(minus_dmin, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(next_ + kTile))));
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
  PEAGLE_AVX2 __m128i eight(const std::uint8_t* of_tile) const {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(of_tile + from_));
  }
  PEAGLE_AVX2 __m256 halves(const std::uint8_t* of_tile) const {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of_tile + 2 * from_)));
  }

  const std::uint8_t* next_;
  std::int64_t from_;
};

template <Format kFormat, int kRows>
struct Avx2 {
  static constexpr int kMost = 4;
  static constexpr RoundFunction kRound = round_row_avx2<record(kFormat).parts() != 1>;

  PEAGLE_AVX2 static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    __m256 sums[kHalves][kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[0][row] = sums[1][row] = _mm256_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    Avx2Scales<kFormat> scales[kHalves] = {{weights, at, 0}, {weights, at, kTile / kHalves}};
    const std::uint8_t* packed = weights.block_codes<kFormat>(at, 0);
    const std::uint8_t* next = weights.block_codes<kFormat>(at + 1, 0);  // behind the last tile, nothing is read
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step, packed += kForm.code_bytes()) {
      fetch(next, b, rows);
      if constexpr (kParts > 1) {
        PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
          __m256i whole[kRows];
          scales[half].of_block(b);
          sums_of_parts(packed + half * (kGroupBytes / kHalves), x, scales[half], whole);
          PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
            add_scaled(whole[row], x[row], scales[half], sums[half][row]);
          }
        }
      } else {
        __m256i whole[kHalves][kRows];
        if constexpr (kFit == 0) {
          sums_of_signed_codes(packed, x, whole);
        } else {
          sums_of_small_codes(packed, x, whole);
        }
        PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) scales[half].of_block(b);
        PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
          PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
            add_scaled(whole[half][row], x[row], scales[half], sums[half][row]);
          }
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

  static constexpr PackedFormat kForm = record(kFormat);

  // The codes of one pair of groups after the other: `first` of the first half of the columns, `second` of the other.
  // Values are raised by a number.
  struct Decoder {
    __m256i first, second, upper, values;
    const std::uint8_t* packed;

    PEAGLE_AVX2 Decoder(const std::uint8_t* from, int raised) : packed(from) {
      if constexpr (kForm.values != nullptr) {
        const __m128i given = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kForm.values));
        values = _mm256_broadcastsi128_si256(_mm_add_epi8(given, _mm_set1_epi8(char(raised))));
      }
    }
    PEAGLE_AVX2 void next(int i) {
      const __m256i low = _mm256_set1_epi8(15), both = load(packed + i * kGroupBytes);
      first = _mm256_and_si256(both, low);
      second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      if constexpr (kForm.upper_bits() > 0) {
        constexpr int kUpper = kForm.upper_bits(), kTogether = 4 / kUpper;
        const __m256i above = _mm256_set1_epi8(((1 << kUpper) - 1) << 4);
        upper = i % kTogether == 0 ? load(packed + (kGroups / 2 + i / kTogether) * kGroupBytes)
                                   : _mm256_srli_epi16(upper, kUpper);
        first = _mm256_or_si256(first, _mm256_and_si256(upper, above));
        second = _mm256_or_si256(second, _mm256_and_si256(_mm256_slli_epi16(upper, 4), above));
      }
      if constexpr (kForm.values != nullptr) {
        first = _mm256_shuffle_epi8(values, first);
        second = _mm256_shuffle_epi8(values, second);
      }
    }
  };

  // Brings a part of the next tile near for each block of this one.  Memory would rest while further passes are made
  // over a tile that is near: so the first two share the next one.  (GCC takes a function that only fetches for one
  // that does nothing, and leaves out its calls, unless it is inlined early.)
  __attribute__((always_inline)) static void fetch(const std::uint8_t* next, std::int64_t block, const Rows& rows) {
    if (rows.fetch == Fetch::kAll) {
      lines<kForm.bits>(next + block * kForm.code_bytes());
    } else if (rows.fetch != Fetch::kNone) {
      const std::int64_t at = rows.fetch == Fetch::kFirstHalf ? block : rows.blocks + block;
      lines<(kForm.bits + 1) / 2>(next + at * (kForm.code_bytes() / 2));
    }
  }
  PEAGLE_AVX2 static __m256i load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

 private:
  static constexpr bool kOfRows = kForm.scales == Scales::kRows;
  static constexpr int kHalves = 2, kParts = kForm.parts();
  static constexpr int kFit = 32767 / (2 * 127 * kForm.most());  // groups whose sums fit into 16 bits
  static constexpr bool kAllFit = kFit >= kGroups;
  static_assert(kFit == 0 || kFit >= 4 / kParts, "two groups of a part, or four, are added there");

  template <int kLines>
  __attribute__((always_inline)) static void lines(const std::uint8_t* from) {
    PEAGLE_UNROLL for (int i = 0; i < kLines; i++) {
      _mm_prefetch(reinterpret_cast<const char*>(from + i * kGroupBytes), _MM_HINT_T0);
    }
  }

  PEAGLE_AVX2 static void add_scaled(__m256i whole, const RoundedRows::Block& x, const Avx2Scales<kFormat>& scales,
                                     __m256& sum) {
    __m256 value = _mm256_cvtepi32_ps(whole);
    if (!kOfRows) value = _mm256_mul_ps(value, scales.scale);
    sum = _mm256_fmadd_ps(value, _mm256_set1_ps(x.scale), sum);
    if (kForm.has_least) sum = _mm256_fmadd_ps(scales.least, _mm256_set1_ps(x.shift), sum);
  }

  PEAGLE_AVX2 static __m256i repeated(const RoundedRows::Block& x, int group) {
    return _mm256_set1_epi32(four_codes(x.codes + group * kGroup));
  }

  PEAGLE_AVX2 static void sums_of_signed_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                               __m256i (*whole)[kRows]) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) whole[0][row] = whole[1][row] = _mm256_setzero_si256();
    if constexpr (kForm.bits == 8) {
      const __m256i middles = _mm256_set1_epi8(char(kForm.middle));
      PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
        const std::uint8_t* codes = packed + i * kGroupBytes;
        add_signed_codes(_mm256_xor_si256(load(codes), middles),
                         _mm256_xor_si256(load(codes + kGroupBytes / kHalves), middles), x, i, whole);
      }
    } else {
      Decoder low(packed, 0), high(packed + kGroupBytes / kHalves, 0);
      PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
        low.next(i);
        high.next(i);
        add_signed_codes(low.first, high.first, x, i, whole);
        add_signed_codes(low.second, high.second, x, i + kGroups / 2, whole);
      }
    }
  }

  PEAGLE_AVX2 static void add_signed_codes(__m256i low, __m256i high, const RoundedRows::Block* x, int group,
                                           __m256i (*whole)[kRows]) {
    const __m256i codes[kHalves] = {low, high}, sizes[kHalves] = {_mm256_abs_epi8(low), _mm256_abs_epi8(high)};
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      const __m256i four = repeated(x[row], group);
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        const __m256i pairs = _mm256_maddubs_epi16(sizes[half], _mm256_sign_epi8(four, codes[half]));
        whole[half][row] = in_order(_mm256_add_epi32(whole[half][row], _mm256_madd_epi16(pairs, ones())));
      }
    }
  }

  PEAGLE_AVX2 static void sums_of_small_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                              __m256i (*whole)[kRows]) {
    Decoder low(packed, kForm.middle), high(packed + kGroupBytes / kHalves, kForm.middle);
    __m256i narrow[kHalves][kRows];
    PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
      low.next(i);
      high.next(i);
      const bool begins = i == 0 || (!kAllFit && i == kGroups / 4);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256i first = repeated(x[row], i), second = repeated(x[row], i + kGroups / 2);
        PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
          const Decoder& codes = half == 0 ? low : high;
          __m256i& sum = narrow[half][row];
          if (begins && i > 0) whole[half][row] = widened_sum(sum);
          const __m256i pairs = _mm256_maddubs_epi16(codes.first, first);
          sum = begins ? pairs : in_order(_mm256_add_epi16(sum, pairs));
          sum = in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes.second, second)));
        }
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int half = 0; half < kHalves; half++) {
        __m256i sum = widened_sum(narrow[half][row]);
        if (!kAllFit) sum = _mm256_add_epi32(sum, whole[half][row]);
        if (kForm.middle != 0) sum = _mm256_add_epi32(sum, _mm256_set1_epi32(x[row].correction));
        whole[half][row] = sum;
      }
    }
  }

  // Of half a tile, with steps for each half of a block.
  PEAGLE_AVX2 static void sums_of_parts(const std::uint8_t* packed, const RoundedRows::Block* x,
                                        const Avx2Scales<kFormat>& scales, __m256i* whole) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      std::int32_t both;
      std::memcpy(&both, x[row].halves, sizeof both);
      whole[row] = _mm256_madd_epi16(scales.middles, _mm256_set1_epi32(both));
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
          const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(codes[part], repeated(x[row], group)),
                                                 _mm256_maddubs_epi16(others[part], repeated(x[row], group + 1)));
          whole[row] = in_order(_mm256_add_epi32(whole[row], _mm256_madd_epi16(pairs, scales.steps[part])));
        }
      }
    }
  }

  PEAGLE_AVX2 static __m256i ones() { return _mm256_set1_epi16(1); }
  PEAGLE_AVX2 static __m256i widened_sum(__m256i narrow) { return _mm256_madd_epi16(narrow, ones()); }
  // GCC turns a long sum into a tree, whose leaves do not fit into the registers, unless it cannot look into the sum.
  PEAGLE_AVX2 static __m256i in_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
  }
};

}  // namespace peagle
#endif
