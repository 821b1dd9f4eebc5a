// Rows of float32, rounded to int8 with a scale for every 32 numbers: the input of products with packed matrices.

#include "instructions.h"
#include "packed_weights.h"

namespace peagle {

constexpr int kMostRows = 8;  // that are multiplied with a tile while it lies in registers

// Rows of codes with one scale for every 32, kept for one run.  They lie as products read them: of eight rows the first
// block, then their second one, so that one address and constants lead to all of them.
class RoundedRows {
 public:
  struct Block {
    std::int8_t codes[kBlock];
    float scale;              // largest magnitude / 127; NaN where a number of the block is not finite
    std::int32_t correction;  // -middle * sum of the codes, which a sum over codes above their middle begins with
    float shift;              // scale * sum of the codes, which a least value is multiplied with
    std::int16_t halves[2];   // the sums of the first 16 codes and of the others, if they were asked for
    // 48 bytes: no four codes lie in two cache lines
  };

  RoundedRows(std::int64_t rows, std::int64_t blocks) : rows_(rows), blocks_(blocks) {}
  std::size_t bytes() const { return std::size_t(rows_ * blocks_) * sizeof(Block); }
  void use(void* memory) { first_ = static_cast<Block*>(memory); }

  // The first block of a row, and how many blocks on the next one of the same row is.
  Block* row(std::int64_t at) const { return first_ + at / kMostRows * kMostRows * blocks_ + at % kMostRows; }
  std::int64_t stride(std::int64_t at) const {
    return std::min<std::int64_t>(kMostRows, rows_ - at / kMostRows * kMostRows);
  }

 private:
  std::int64_t rows_, blocks_;
  Block* first_ = nullptr;
};

constexpr float kNegligible = 7.888609052210118e-31f;  // 2^-100: blocks without a larger number are zeros
constexpr std::uint32_t kInfinity = 0x7f800000u;

// One block, in operations that every compiler turns into vectors, and that are the same in each of them.
template <bool kHalves>
__attribute__((always_inline)) inline void round_block(const float* __restrict x, int middle_code,
                                                       RoundedRows::Block* __restrict block) {
  std::uint32_t bits[kBlock], largest_bits = 0;
  std::memcpy(bits, x, sizeof bits);
  for (int i = 0; i < kBlock; i++) {  // magnitudes order as their bits do, NaN last
    const std::uint32_t magnitude = bits[i] & 0x7fffffffu;
    largest_bits = largest_bits > magnitude ? largest_bits : magnitude;
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  if (largest_bits >= kInfinity || largest < kNegligible) {
    const float scale = largest_bits >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    *block = {{}, scale, 0, scale, {}};
    return;
  }
  const float inverse = 127.0f / largest, scale = largest / 127.0f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number, ties to even
  std::int32_t sum = 0, whole[kBlock];
  for (int i = 0; i < kBlock; i++) {
    const float shifted = x[i] * inverse + kRounder;
    std::int32_t shifted_bits;
    std::memcpy(&shifted_bits, &shifted, sizeof shifted);
    whole[i] = shifted_bits - 0x4b400000;
    sum += whole[i];
  }
  for (int i = 0; i < kBlock; i++) block->codes[i] = std::int8_t(whole[i]);
  block->scale = scale;
  block->correction = -middle_code * sum;
  block->shift = scale * float(sum);
  if (kHalves) {
    std::int32_t first = 0;
    for (int i = 0; i < kBlock / 2; i++) first += whole[i];
    block->halves[0] = std::int16_t(first);
    block->halves[1] = std::int16_t(sum - first);
  }
}

// The blocks of one row; `stride` is from one to the next (RoundedRows::stride).
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
