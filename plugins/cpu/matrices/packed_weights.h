// Packed weight matrices, which kernels read in place. plugins/ops/quantized_linear/packed_weights.py packs them.
//
// A matrix [N, K] is split into tiles of 16 rows (the last one is padded with zeros), and each tile into blocks of 32
// columns. The codes of a block are stored as 8 groups of 4 columns x 16 rows: a 64-byte vector register holds 4
// columns of all 16 rows, which are multiplied with 4 broadcast elements of x.
//
//   codes   uint8 [tiles, blocks, 64 * bits]
//           8 bits: 8 groups of 64 bytes; code + 128
//           4 bits: 256 bytes; low nibbles are groups 0 to 3, high nibbles are groups 4 to 7
//           5 bits: as 4 bits, then 64 bytes with the fifth bits: bits 4 to 7 are those of groups 0 to 3, bits 0 to 3
//                those of groups 4 to 7
//           6 bits: as 4 bits, then 2 x 64 bytes with the upper two bits. First 64 bytes: bits 4-5 group 0, bits 6-7
//                group 1, bits 0-1 group 4, bits 2-3 group 5. Last 64 bytes: the same for groups 2, 3, 6 and 7
//   scales  see Scales in packed_formats.h

#include "elementary.h"
#include "packed_formats.h"
#include "tensor.h"

namespace peagle {

struct PackedWeights {
  Format format;
  std::int64_t rows, blocks, tiles;  // rows: without padding
  const std::uint8_t* codes;
  const void* scales;

  // Throws if the tensors do not have the layout above.
  PackedWeights(const std::string& format_name, std::int64_t num_rows, const Tensor& code_tensor,
                const Tensor& scale_tensor)
      : format(format_named(format_name)), rows(num_rows), blocks(0), tiles(0), codes(nullptr), scales(nullptr) {
    const PackedFormat& form = record(format);
    const Shape &c = code_tensor.shape, &s = scale_tensor.shape;
    if (c.rank != 3 || s.rank != 3) refuse("codes and scales must have 3 dimensions, not %d and %d", c.rank, s.rank);
    tiles = c.sizes[0];
    blocks = c.sizes[1];
    const int blocks_per_entry = form.blocks_per_entry();
    if (rows < 1 || blocks < 1 || tiles != (rows + kTile - 1) / kTile || c.sizes[2] != form.code_bytes() ||
        (blocks_per_entry > 0 && blocks % blocks_per_entry != 0)) {
      refuse("codes [%lld, %lld, %lld] do not match %lld rows of %s", static_cast<long long>(tiles),
             static_cast<long long>(blocks), static_cast<long long>(c.sizes[2]), static_cast<long long>(rows),
             form.name);
    }
    const std::int64_t entries = blocks_per_entry > 0 ? blocks / blocks_per_entry : 1;
    if (s.sizes[0] != tiles || s.sizes[1] != entries || s.sizes[2] != form.scale_numbers() ||
        scale_tensor.type != form.scale_type()) {
      refuse("scales [%lld, %lld, %lld] of type %d do not match %s codes [%lld, %lld, ..]",
             static_cast<long long>(s.sizes[0]), static_cast<long long>(s.sizes[1]),
             static_cast<long long>(s.sizes[2]), scale_tensor.type, form.name, static_cast<long long>(tiles),
             static_cast<long long>(blocks));
    }
    codes = code_tensor.data<const std::uint8_t>();
    scales = scale_tensor.address;
  }

  std::int64_t columns() const { return blocks * kBlock; }
  std::int64_t tile_bytes() const {
    const PackedFormat& form = record(format);
    return blocks * form.code_bytes() +
           (form.blocks_per_entry() > 0 ? blocks / form.blocks_per_entry() : 1) * form.scale_bytes();
  }
  template <Format kFormat>
  const std::uint8_t* block_codes(std::int64_t tile, std::int64_t block) const {
    return codes + (tile * blocks + block) * record(kFormat).code_bytes();
  }
  // The scales of a tile: contiguous entries.
  template <Format kFormat>
  const std::uint8_t* tile_scales(std::int64_t tile) const {
    constexpr PackedFormat kForm = record(kFormat);
    const std::int64_t entries = kForm.blocks_per_entry() > 0 ? blocks / std::max(kForm.blocks_per_entry(), 1) : 1;
    return static_cast<const std::uint8_t*>(scales) + tile * entries * kForm.scale_bytes();
  }
  const float* row_scales(std::int64_t tile) const { return static_cast<const float*>(scales) + tile * kTile; }
};

// Unpacks one row of a block: values, or codes minus their zero point.
template <Format kFormat>
void unpack_row(const std::uint8_t* block, int row, std::int8_t* numbers) {
  constexpr PackedFormat kForm = record(kFormat);
  constexpr int kHalf = kGroups / 2, kUpperBits = kForm.upper_bits(),
                kGroupsPerPlane = kUpperBits > 0 ? 4 / kUpperBits : 1;
  for (int group = 0; group < kGroups; group++) {
    const int pair = group % kHalf, shift = kUpperBits * (pair % kGroupsPerPlane) + (group < kHalf ? 4 : 0);
    for (int k = 0; k < kGroup; k++) {
      const std::uint8_t* at = block + row * kGroup + k;
      int code = kForm.bits == 8 ? at[group * kGroupBytes] : at[pair * kGroupBytes] >> (group < kHalf ? 0 : 4) & 15;
      if (kUpperBits > 0)
        code |= (at[(kHalf + pair / kGroupsPerPlane) * kGroupBytes] >> shift & ((1 << kUpperBits) - 1)) << 4;
      numbers[group * kGroup + k] = std::int8_t(kForm.values != nullptr ? (*kForm.values)[code] : code - kForm.middle);
    }
  }
}

inline float load_half(const std::uint8_t* at) {
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return widened(half);
}

// The scales of one row in one block: product = (steps[0] * first + steps[1] * second) * scale, where `first` and
// `second` are the integer sums of the block's parts. The step is 1 if a block has one part.
struct BlockScale {
  float scale;
  std::int32_t steps[2];
  float minimum;
};

template <Format kFormat>
BlockScale block_scale(const PackedWeights& weights, std::int64_t tile, std::int64_t block, int row) {
  constexpr PackedFormat kForm = record(kFormat);
  if constexpr (kForm.scales == Scales::kRows) {
    return {weights.row_scales(tile)[row], {1, 1}, 0.0f};
  } else {
    const std::uint8_t* entry =
        weights.tile_scales<kFormat>(tile) + block / kForm.blocks_per_entry() * kForm.scale_bytes();
    constexpr int kHalves = kTile * 2;  // bytes of one float16 per row of the tile
    const int offset = int(block % kSuperblock) * 2 * kTile + row;
    if constexpr (kForm.scales == Scales::kBlocks) {
      return {load_half(entry + 2 * row), {1, 1}, kForm.has_min ? load_half(entry + kHalves + 2 * row) : 0.0f};
    } else if constexpr (kForm.scales == Scales::kExponents) {
      const std::uint32_t bits = std::uint32_t(entry[row]) << 23;
      return {number_of(bits > 1u << 22 ? bits : 1u << 22) * 0.5f, {1, 1}, 0.0f};  // exponent 0 is subnormal
    } else if constexpr (kForm.scales == Scales::kSteps) {
      const std::uint8_t* steps = entry + 2 * kHalves + offset;
      const float d = load_half(entry + 2 * row), dmin = load_half(entry + kHalves + 2 * row);
      return {d * float(steps[0]), {1, 1}, -(dmin * float(steps[kTile]))};
    } else {
      const std::uint8_t* steps = entry + kHalves + offset;
      return {load_half(entry + 2 * row), {std::int8_t(steps[0]), std::int8_t(steps[kTile])}, 0.0f};
    }
  }
}

// Unpacks rows first .. last - 1 of a tile's block, with their scales.
template <Format kFormat>
void read_rows(const PackedWeights& weights, std::int64_t tile, std::int64_t block, int first, int last,
               std::int8_t (*numbers)[kBlock], BlockScale* scales) {
  const std::uint8_t* codes = weights.block_codes<kFormat>(tile, block);
  for (int row = first; row < last; row++) {
    unpack_row<kFormat>(codes, row, numbers[row - first]);
    scales[row - first] = block_scale<kFormat>(weights, tile, block, row);
  }
}
using RowReader = decltype(&read_rows<Format::kInt8>);

inline RowReader row_reader(Format format) {
  return with_format(format, [](auto tag) -> RowReader { return read_rows<decltype(tag)::format>; });
}

}  // namespace peagle
