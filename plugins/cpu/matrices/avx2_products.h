// Products of rounded rows with one tile of a packed matrix, by AVX2: see tile_products.h.
//
// Half a tile at a time.  Products of bytes are added in pairs of 16 bits, and as many groups of codes as fit there:
// four bits eight times, five bits four times.  Of eight bits the sign of a code goes to what it meets, so that
// 2 * 128 * 127 fits.

#include "tile_rows.h"

#ifdef PEAGLE_X86_64
namespace peagle {

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
  static constexpr int kMost = 6;
  static constexpr RoundFunction kRound = round_row_avx2<record(kFormat).parts() != 1>;

  PEAGLE_AVX2 static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    half_tile(weights, at, rows, 0);
    half_tile(weights, at, rows, kTile / 2);
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

  // Memory would rest while the second half of a tile is read, which is near: so both halves, a half of a block at a
  // time, have the next tile brought near.
  PEAGLE_AVX2 static void fetch(const std::uint8_t* codes) {
    PEAGLE_UNROLL for (int i = 0; i < (kForm.bits + 1) / 2; i++) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + i * kGroupBytes), _MM_HINT_T1);
    }
  }
  PEAGLE_AVX2 static __m256i load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

 private:
  static constexpr bool kOfRows = kForm.scales == Scales::kRows;
  static constexpr int kParts = kForm.parts();
  static constexpr int kFit = 32767 / (2 * 127 * kForm.most());  // groups whose sums fit into 16 bits
  // Pairs of groups, one of either half of the columns, that are added there.
  static constexpr int kPairs = kFit >= 4 * 2 / kParts ? 4 : kFit >= 2 * 2 / kParts ? 2 : 1;

  PEAGLE_AVX2 static void half_tile(const PackedWeights& weights, std::int64_t at, const Rows& rows, int from) {
    __m256 sums[kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[row] = _mm256_setzero_ps();
    const RoundedRows::Block* x = rows.first;
    Avx2Scales<kFormat> scales(weights, at, from);
    const std::uint8_t* next = weights.block_codes<kFormat>(at + 1, 0);  // behind the last tile, nothing is read
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      const std::uint8_t* packed = weights.block_codes<kFormat>(at, b) + from * kGroup;
      fetch(next + (from == 0 ? b : rows.blocks + b) * (kForm.code_bytes() / 2));
      __m256i whole[kRows];
      if constexpr (kParts > 1) scales.of_block(b);
      if constexpr (kFit == 0) {
        sums_of_signed_codes(packed, x, whole);
      } else {
        sums_of_small_codes(packed, x, scales, whole);
      }
      if constexpr (kParts == 1) scales.of_block(b);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        __m256 value = _mm256_cvtepi32_ps(whole[row]);
        if (!kOfRows) value = _mm256_mul_ps(value, scales.scale);
        sums[row] = _mm256_fmadd_ps(value, _mm256_set1_ps(x[row].scale), sums[row]);
        if (kForm.has_least) sums[row] = _mm256_fmadd_ps(scales.least, _mm256_set1_ps(x[row].shift), sums[row]);
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      if (kOfRows) sums[row] = _mm256_mul_ps(sums[row], _mm256_loadu_ps(weights.row_scales(at) + from));
      float eight[kTile / 2];
      _mm256_storeu_ps(eight, sums[row]);
      store(rows, row, eight, from, kTile / 2);
    }
  }

  PEAGLE_AVX2 static void sums_of_signed_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                               __m256i* whole) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) whole[row] = _mm256_setzero_si256();
    if constexpr (kForm.bits == 8) {
      const __m256i middles = _mm256_set1_epi8(char(kForm.middle));
      PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
        add_signed_codes(_mm256_xor_si256(load(packed + i * kGroupBytes), middles), x, i, whole);
      }
    } else {
      Decoder decoder(packed, 0);
      PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
        decoder.next(i);
        add_signed_codes(decoder.first, x, i, whole);
        add_signed_codes(decoder.second, x, i + kGroups / 2, whole);
      }
    }
  }

  PEAGLE_AVX2 static void add_signed_codes(__m256i codes, const RoundedRows::Block* x, int group, __m256i* whole) {
    const __m256i sizes = _mm256_abs_epi8(codes);
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      const __m256i four = _mm256_set1_epi32(four_codes(x[row].codes + group * kGroup));
      const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(four, codes));
      whole[row] = _mm256_add_epi32(whole[row], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }

  PEAGLE_AVX2 static void sums_of_small_codes(const std::uint8_t* packed, const RoundedRows::Block* x,
                                              const Avx2Scales<kFormat>& scales, __m256i* whole) {
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      if (kParts > 1) {
        std::int32_t both;
        std::memcpy(&both, x[row].halves, sizeof both);
        whole[row] = _mm256_madd_epi16(scales.middles, _mm256_set1_epi32(both));
      } else {
        whole[row] = kForm.middle != 0 ? _mm256_set1_epi32(x[row].correction) : _mm256_setzero_si256();
      }
    }
    Decoder decoder(packed, kForm.middle);
    __m256i narrow[kParts][kRows];
    PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
      decoder.next(i);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const std::int8_t* four = x[row].codes + i * kGroup;
        __m256i pairs[2] = {_mm256_maddubs_epi16(decoder.first, _mm256_set1_epi32(four_codes(four))),
                            _mm256_maddubs_epi16(decoder.second, _mm256_set1_epi32(four_codes(four + kBlock / 2)))};
        if (kParts == 1) pairs[0] = _mm256_add_epi16(pairs[0], pairs[1]);
        PEAGLE_UNROLL for (int part = 0; part < kParts; part++) {
          __m256i& sum = narrow[part][row];
          sum = i % kPairs == 0 ? pairs[part] : _mm256_add_epi16(sum, pairs[part]);
          if (i % kPairs < kPairs - 1) continue;
          const __m256i steps = kParts > 1 ? scales.steps[part] : _mm256_set1_epi16(1);
          whole[row] = _mm256_add_epi32(whole[row], _mm256_madd_epi16(sum, steps));
        }
      }
    }
  }
};

}  // namespace peagle
#endif
