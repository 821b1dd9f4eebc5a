// Products of quantized rows with one tile of a packed matrix, with ARM dot product instructions: see tile_products.h.

#include "tile_rows.h"

#ifdef PEAGLE_AARCH64
namespace peagle {

// Iterates over the scales of a tile's blocks, for the four rows from `from` on.
template <Format kFormat>
struct DotProductScales {
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr int kHalves = 2 * kTile;  // bytes of one float16 per row

  float32x4_t scale, minimum, d, minus_dmin;
  int32x4_t steps[2];  // of each half of a block

  DotProductScales(const PackedWeights& weights, std::int64_t at, int from)
      : next_(weights.tile_scales<kFormat>(at)), from_(from) {}

  PEAGLE_DOT_PRODUCT void of_block(std::int64_t b) {
    if constexpr (kForm.scales == Scales::kBlocks) {
      scale = halves(next_);
      if (kForm.has_min) minimum = halves(next_ + kHalves);
      next_ += kForm.scale_bytes();
    } else if constexpr (kForm.scales == Scales::kExponents) {
      const uint32x4_t bits = vshlq_n_u32(four(next_), 23);
      const uint32x4_t normal = vmaxq_u32(bits, vdupq_n_u32(1 << 22));  // exponent 0 is subnormal
      scale = vmulq_n_f32(vreinterpretq_f32_u32(normal), 0.5f);
      next_ += kForm.scale_bytes();
    } else if constexpr (kForm.scales == Scales::kSteps) {
      if (b % kSuperblock == 0) {
        d = halves(next_);
        minus_dmin = vnegq_f32(halves(next_ + kHalves));
        next_ += 2 * kHalves;
      }
      scale = vmulq_f32(d, vcvtq_f32_u32(four(next_)));
      minimum = vmulq_f32(minus_dmin, vcvtq_f32_u32(four(next_ + kTile)));
      next_ += 2 * kTile;
    } else if constexpr (kForm.scales == Scales::kHalfSteps) {
      if (b % kSuperblock == 0) {
        scale = halves(next_);
        next_ += kHalves;
      }
      steps[0] = signed_four(next_);
      steps[1] = signed_four(next_ + kTile);
      next_ += 2 * kTile;
    }
  }

 private:
  PEAGLE_DOT_PRODUCT uint8x8_t bytes(const std::uint8_t* of_tile) const {
    std::uint32_t word;
    std::memcpy(&word, of_tile + from_, sizeof word);
    return vreinterpret_u8_u32(vdup_n_u32(word));
  }
  PEAGLE_DOT_PRODUCT uint32x4_t four(const std::uint8_t* of_tile) const {
    return vmovl_u16(vget_low_u16(vmovl_u8(bytes(of_tile))));
  }
  PEAGLE_DOT_PRODUCT int32x4_t signed_four(const std::uint8_t* of_tile) const {
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes(of_tile)))));
  }
  PEAGLE_DOT_PRODUCT float32x4_t halves(const std::uint8_t* of_tile) const {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(of_tile + 2 * from_)));
  }

  const std::uint8_t* next_;
  std::int64_t from_;
};

// Processes a quarter of a tile (four rows) at a time. The codes of a block stay in registers for all rows of x.
template <Format kFormat, int kRows>
struct DotProduct {
  static constexpr int kMaxRowsPerPass = 8;
  static constexpr RoundFunction kRound = round_row_portable<record(kFormat).parts() != 1>;

  PEAGLE_DOT_PRODUCT static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    for (int from = 0; from < kTile; from += kQuarter) quarter(weights, at, rows, from);
  }

 private:
  static constexpr PackedFormat kForm = record(kFormat);
  static constexpr bool kHasRowScales = kForm.scales == Scales::kRows;
  static constexpr int kQuarter = kTile / 4;
  // True if codes are used unsigned, and the rows' corrections subtract the zero point; otherwise `load` subtracts it.
  static constexpr bool kCorrected =
      kForm.middle != 0 && kForm.bits < 8 && kForm.values == nullptr && kForm.parts() == 1;

  PEAGLE_DOT_PRODUCT static void quarter(const PackedWeights& weights, std::int64_t at, const Rows& rows, int from) {
    float32x4_t sums[kRows];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) sums[row] = vdupq_n_f32(0);
    const RoundedRows::Block* x = rows.first;
    DotProductScales<kFormat> scales(weights, at, from);
    for (std::int64_t b = 0; b < rows.blocks; b++, x += rows.step) {
      int8x16_t codes[kGroups];
      load(weights.block_codes<kFormat>(at, b) + from * kGroup, codes);
      scales.of_block(b);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const int8x16_t first = vld1q_s8(x[row].codes), second = vld1q_s8(x[row].codes + kBlock / 2);
        int32x4_t sum;
        if constexpr (kForm.parts() > 1) {
          const int32x4_t zero = vdupq_n_s32(0);
          sum = vmulq_s32(sum_of_half(zero, codes, first), scales.steps[0]);
          sum = vmlaq_s32(sum, sum_of_half(zero, codes + kGroups / 2, second), scales.steps[1]);
        } else {
          int32x4_t second_chain = vdupq_n_s32(0);
          sum = vdupq_n_s32(kCorrected ? x[row].correction : 0);
          sum = vdotq_laneq_s32(sum, codes[0], first, 0);  // two dependency chains hide the latency
          second_chain = vdotq_laneq_s32(second_chain, codes[1], first, 1);
          sum = vdotq_laneq_s32(sum, codes[2], first, 2);
          second_chain = vdotq_laneq_s32(second_chain, codes[3], first, 3);
          sum = vdotq_laneq_s32(sum, codes[4], second, 0);
          second_chain = vdotq_laneq_s32(second_chain, codes[5], second, 1);
          sum = vdotq_laneq_s32(sum, codes[6], second, 2);
          second_chain = vdotq_laneq_s32(second_chain, codes[7], second, 3);
          sum = vaddq_s32(sum, second_chain);
        }
        float32x4_t value = vcvtq_f32_s32(sum);
        if (!kHasRowScales) value = vmulq_f32(value, scales.scale);
        sums[row] = vfmaq_n_f32(sums[row], value, x[row].scale);
        if (kForm.has_min) sums[row] = vfmaq_n_f32(sums[row], scales.minimum, x[row].shift);
      }
    }
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      if (kHasRowScales) sums[row] = vmulq_f32(sums[row], vld1q_f32(weights.row_scales(at) + from));
      float four[kQuarter];
      vst1q_f32(four, sums[row]);
      store(rows, row, four, from, kQuarter);
    }
  }

  PEAGLE_DOT_PRODUCT static int32x4_t sum_of_half(int32x4_t sum, const int8x16_t* codes, int8x16_t x) {
    sum = vdotq_laneq_s32(sum, codes[0], x, 0);
    sum = vdotq_laneq_s32(sum, codes[1], x, 1);
    sum = vdotq_laneq_s32(sum, codes[2], x, 2);
    return vdotq_laneq_s32(sum, codes[3], x, 3);
  }

  // Unpacks to int8. Subtracts the zero point of 8-bit codes; smaller codes fit in int8 without.
  PEAGLE_DOT_PRODUCT static void load(const std::uint8_t* packed, int8x16_t* codes) {
    if constexpr (kForm.bits == 8) {
      PEAGLE_UNROLL for (int i = 0; i < kGroups; i++) {
        codes[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(packed + i * kGroupBytes), vdupq_n_u8(kForm.middle)));
      }
    } else {
      constexpr int kUpperBits = kForm.upper_bits(), kGroupsPerPlane = kUpperBits > 0 ? 4 / kUpperBits : 1;
      const uint8x16_t above = vdupq_n_u8(((1 << kUpperBits) - 1) << 4);
      uint8x16_t upper = vdupq_n_u8(0);
      PEAGLE_UNROLL for (int i = 0; i < kGroups / 2; i++) {
        const uint8x16_t both = vld1q_u8(packed + i * kGroupBytes);
        uint8x16_t pair[2] = {vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8(both, 4)};
        if constexpr (kUpperBits > 0) {
          upper = i % kGroupsPerPlane == 0 ? vld1q_u8(packed + (kGroups / 2 + i / kGroupsPerPlane) * kGroupBytes)
                                     : vshrq_n_u8(upper, kUpperBits);
          pair[0] = vorrq_u8(pair[0], vandq_u8(upper, above));
          pair[1] = vorrq_u8(pair[1], vandq_u8(vshlq_n_u8(upper, 4), above));
        }
        PEAGLE_UNROLL for (int half = 0; half < 2; half++) {
          int8x16_t& sum = codes[i + half * kGroups / 2];
          sum = vreinterpretq_s8_u8(pair[half]);
          if constexpr (kForm.values != nullptr) sum = vqtbl1q_s8(vld1q_s8(*kForm.values), pair[half]);
          if (kForm.parts() > 1) sum = vsubq_s8(sum, vdupq_n_s8(kForm.middle));
        }
      }
    }
  }
};

}  // namespace peagle
#endif
