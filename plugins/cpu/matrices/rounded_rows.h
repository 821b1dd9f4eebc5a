// Rows of float32 quantized to int8 in blocks of 32: the left operand of products with packed matrices.

#include "instructions.h"
#include "packed_weights.h"

namespace peagle {

constexpr int kMaxRows = 12;         // register blocking: rows that any path multiplies with a tile at once
constexpr std::int64_t kStrip = 48;  // cache blocking: rows that stay in a core's cache; a multiple of kMaxRows

// Quantized rows, in the scratch memory of a run. The rows of a group are interleaved block by block: block 0 of each
// row, then block 1 of each row, and so on, so products address all rows of a group with one register and constant
// offsets. A group has at most the rows of one pass, or of several if kMaxRows permits. Up to kStrip rows are split
// evenly, because 7 + 7 rows cost less than 12 + 2.
class RoundedRows {
 public:
  struct Block {
    std::int8_t codes[kBlock];
    float scale;              // max |x| / 127; NaN if the block has a NaN or infinity
    std::int32_t correction;  // -middle * sum(codes): compensates for the zero point of the weights
    float shift;              // scale * sum(codes): the factor of the weights' minimum
    std::int16_t halves[2];   // sums of the first 16 and the last 16 codes; only with kHalves
    // 48 bytes, so no group of four codes crosses a cache line
  };

  RoundedRows(std::int64_t rows, std::int64_t blocks, int rows_per_pass)
      : rows_(rows), blocks_(blocks), group_(group_size(rows, kMaxRows / rows_per_pass * rows_per_pass)) {}
  std::size_t bytes() const { return std::size_t(rows_ * blocks_) * sizeof(Block); }
  void use(void* memory) { first_ = static_cast<Block*>(memory); }

  // The first block of a row, and the distance in blocks to the row's next block.
  Block* row(std::int64_t at) const { return first_ + at / group_ * group_ * blocks_ + at % group_; }
  std::int64_t stride(std::int64_t at) const { return std::min(group_, rows_ - at / group_ * group_); }
  // The number of rows in the group from this row on.
  std::int64_t rows_left_in_group(std::int64_t at) const { return stride(at) - at % group_; }

 private:
  static std::int64_t group_size(std::int64_t rows, std::int64_t most) {
    const std::int64_t groups = std::max<std::int64_t>(1, (rows + most - 1) / most);
    return rows > kStrip ? most : std::max<std::int64_t>(1, (rows + groups - 1) / groups);
  }

  std::int64_t rows_, blocks_, group_;
  Block* first_ = nullptr;
};

constexpr float kNegligible = 7.888609052210118e-31f;  // 2^-100: blocks with only smaller magnitudes become zero
constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// Quantizes one block. Compilers vectorize the loops, and every instruction set gives the same bits.
template <bool kHalves>
__attribute__((always_inline)) inline void round_block(const float* __restrict x, int middle_code,
                                                       RoundedRows::Block* __restrict block) {
  std::uint32_t bits[kBlock], largest_bits = 0;
  std::memcpy(bits, x, sizeof bits);
  for (int i = 0; i < kBlock; i++) {  // the bits of magnitudes sort like the magnitudes, NaN last
    const std::uint32_t magnitude = bits[i] & 0x7fffffffu;
    largest_bits = largest_bits > magnitude ? largest_bits : magnitude;
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  if (largest_bits >= kInfinityBits || largest < kNegligible) {
    const float scale = largest_bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    *block = {{}, scale, 0, scale, {}};
    return;
  }
  const float inverse = 127.0f / largest, scale = largest / 127.0f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  std::int32_t sum = 0, rounded[kBlock];
  for (int i = 0; i < kBlock; i++) {
    const float shifted = x[i] * inverse + kRounder;
    std::int32_t shifted_bits;
    std::memcpy(&shifted_bits, &shifted, sizeof shifted);
    rounded[i] = shifted_bits - 0x4b400000;
    sum += rounded[i];
  }
  for (int i = 0; i < kBlock; i++) block->codes[i] = std::int8_t(rounded[i]);
  block->scale = scale;
  block->correction = -middle_code * sum;
  block->shift = scale * float(sum);
  if (kHalves) {
    std::int32_t first = 0;
    for (int i = 0; i < kBlock / 2; i++) first += rounded[i];
    block->halves[0] = std::int16_t(first);
    block->halves[1] = std::int16_t(sum - first);
  }
}

// Quantizes one row; `stride` is the distance between its blocks (RoundedRows::stride).
template <bool kHalves>
__attribute__((always_inline)) inline void round_row(const float* x, std::int64_t blocks, int middle_code,
                                                     RoundedRows::Block* block, std::int64_t stride) {
  for (std::int64_t b = 0; b < blocks; b++, block += stride) round_block<kHalves>(x + b * kBlock, middle_code, block);
}

template <bool kHalves>
void round_row_portable(const float* x, std::int64_t blocks, int middle_code, RoundedRows::Block* block,
                        std::int64_t stride) {
  round_row<kHalves>(x, blocks, middle_code, block, stride);
}
#ifdef PEAGLE_X86_64
template <bool kHalves>
PEAGLE_AVX512_VNNI void round_row_avx512(const float* x, std::int64_t blocks, int middle_code,
                                         RoundedRows::Block* block, std::int64_t stride) {
  round_row<kHalves>(x, blocks, middle_code, block, stride);
}
template <bool kHalves>
PEAGLE_AVX2 void round_row_avx2(const float* x, std::int64_t blocks, int middle_code, RoundedRows::Block* block,
                                std::int64_t stride) {
  round_row<kHalves>(x, blocks, middle_code, block, stride);
}
#endif

}  // namespace peagle
