// Weight matrices as kernels read them, in place: packed by plugins/ops/quantized_linear/packed_weights.py.
//
// A matrix [N, K] is cut into tiles of 16 rows (the last is filled up with zeros), a tile into blocks of 32 columns.
// The codes of a block lie in groups of four columns, for each group the 16 rows one behind the other, so that a vector
// register holds four columns of every row, and four numbers of what is multiplied meet them all.
//
//   codes   uint8 [tiles, blocks, 64 * bits]
//           eight bits: a group behind the other, code + 128
//           four bits: 256 bytes, the low halves are groups 0 to 3, the high halves 4 to 7
//           five: then 64 bytes, whose bits 4 to 7 are the fifth bits of groups 0 to 3, and bits 0 to 3 those of 4 to 7
//           six: then 128 bytes: the first 64 are of groups 0, 1, 4 and 5, bits 4 and 5 of group 0, 6 and 7 of group 1,
//                0 and 1 of group 4, 2 and 3 of group 5; the rest likewise of groups 2, 3, 6 and 7
//   scales  as packed_formats.h says

#include "elementary.h"
#include "packed_formats.h"
#include "tensor.h"

namespace peagle {

struct PackedWeights {
  Format format;
  std::int64_t rows, blocks, tiles;  // rows as asked for, not filled up
  const std::uint8_t* codes;
  const void* scales;

  // Refuses tensors that are not of the form above.
  PackedWeights(const std::string& format_name, std::int64_t rows_asked, const Tensor& code_tensor,
                const Tensor& scale_tensor)
      : format(format_named(format_name)), rows(rows_asked), blocks(0), tiles(0), codes(nullptr), scales(nullptr) {
    const PackedFormat& form = record(format);
    const Shape &c = code_tensor.shape, &s = scale_tensor.shape;
    if (c.rank != 3 || s.rank != 3) refuse("codes and scales must have 3 dimensions, not %d and %d", c.rank, s.rank);
    tiles = c.sizes[0];
    blocks = c.sizes[1];
    const int shared = form.shared();
    if (rows < 1 || blocks < 1 || tiles != (rows + kTile - 1) / kTile || c.sizes[2] != form.code_bytes() ||
        (shared > 0 && blocks % shared != 0)) {
      refuse("codes [%lld, %lld, %lld] are not %lld rows of %s", static_cast<long long>(tiles),
             static_cast<long long>(blocks), static_cast<long long>(c.sizes[2]), static_cast<long long>(rows),
             form.name);
    }
    const std::int64_t entries = shared > 0 ? blocks / shared : 1;
    if (s.sizes[0] != tiles || s.sizes[1] != entries || s.sizes[2] != form.scale_numbers() ||
        scale_tensor.type != form.scale_type()) {
      refuse("scales [%lld, %lld, %lld] of type %d are not those of %s codes [%lld, %lld, ..]",
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
    return blocks * form.code_bytes() + (form.shared() > 0 ? blocks / form.shared() : 1) * form.scale_bytes();
  }
  template <Format kFormat>
  const std::uint8_t* block_codes(std::int64_t tile, std::int64_t block) const {
    return codes + (tile * blocks + block) * record(kFormat).code_bytes();
  }
  // The scales of a tile: one entry behind the other.
  template <Format kFormat>
  const std::uint8_t* tile_scales(std::int64_t tile) const {
    constexpr PackedFormat kForm = record(kFormat);
    const std::int64_t entries = kForm.shared() > 0 ? blocks / std::max(kForm.shared(), 1) : 1;
    return static_cast<const std::uint8_t*>(scales) + tile * entries * kForm.scale_bytes();
  }
  const float* row_scales(std::int64_t tile) const { return static_cast<const float*>(scales) + tile * kTile; }
};

// The numbers of a row of the tile in one of its blocks: codes without their middle, or what they stand for.
template <Format kFormat>
void row_numbers(const std::uint8_t* block, int row, std::int8_t* numbers) {
  constexpr PackedFormat kForm = record(kFormat);
  constexpr int kHalf = kGroups / 2, kUpper = kForm.upper_bits(), kTogether = kUpper > 0 ? 4 / kUpper : 1;
  for (int group = 0; group < kGroups; group++) {
    const int pair = group % kHalf, place = kUpper * (pair % kTogether) + (group < kHalf ? 4 : 0);
    for (int k = 0; k < kGroup; k++) {
      const std::uint8_t* at = block + row * kGroup + k;
      int code = kForm.bits == 8 ? at[group * kGroupBytes] : at[pair * kGroupBytes] >> (group < kHalf ? 0 : 4) & 15;
      if (kUpper > 0) code |= (at[(kHalf + pair / kTogether) * kGroupBytes] >> place & ((1 << kUpper) - 1)) << 4;
      numbers[group * kGroup + k] = std::int8_t(kForm.values != nullptr ? (*kForm.values)[code] : code - kForm.middle);
    }
  }
}

inline float half_at(const std::uint8_t* at) {
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return widened(half);
}

// What a row's sums in one block are multiplied with: value = (steps[0] * first + steps[1] * second) * scale, where a
// block of one part has a step of 1.
struct BlockScale {
  float scale;
  std::int32_t steps[2];
  float least;
};

template <Format kFormat>
BlockScale block_scale(const PackedWeights& weights, std::int64_t tile, std::int64_t block, int row) {
  constexpr PackedFormat kForm = record(kFormat);
  if constexpr (kForm.scales == Scales::kRows) {
    return {weights.row_scales(tile)[row], {1, 1}, 0.0f};
  } else {
    const std::uint8_t* entry = weights.tile_scales<kFormat>(tile) + block / kForm.shared() * kForm.scale_bytes();
    constexpr int kHalves = kTile * 2;  // bytes of the numbers of float16 of a tile
    const int within = int(block % kSuperblock) * 2 * kTile + row;
    if constexpr (kForm.scales == Scales::kBlocks) {
      return {half_at(entry + 2 * row), {1, 1}, kForm.has_least ? half_at(entry + kHalves + 2 * row) : 0.0f};
    } else if constexpr (kForm.scales == Scales::kExponents) {
      const std::uint32_t bits = std::uint32_t(entry[row]) << 23;
      return {number_of(bits > 1u << 22 ? bits : 1u << 22) * 0.5f, {1, 1}, 0.0f};  // exponent 0 is subnormal
    } else if constexpr (kForm.scales == Scales::kSteps) {
      const std::uint8_t* steps = entry + 2 * kHalves + within;
      const float d = half_at(entry + 2 * row), dmin = half_at(entry + kHalves + 2 * row);
      return {d * float(steps[0]), {1, 1}, -(dmin * float(steps[kTile]))};
    } else {
      const std::uint8_t* steps = entry + kHalves + within;
      return {half_at(entry + 2 * row), {std::int8_t(steps[0]), std::int8_t(steps[kTile])}, 0.0f};
    }
  }
}

// Both, of rows first .. last - 1 of the tile.
template <Format kFormat>
void read_rows(const PackedWeights& weights, std::int64_t tile, std::int64_t block, int first, int last,
               std::int8_t (*numbers)[kBlock], BlockScale* scales) {
  const std::uint8_t* codes = weights.block_codes<kFormat>(tile, block);
  for (int row = first; row < last; row++) {
    row_numbers<kFormat>(codes, row, numbers[row - first]);
    scales[row - first] = block_scale<kFormat>(weights, tile, block, row);
  }
}
using RowReader = decltype(&read_rows<Format::kInt8>);

inline RowReader row_reader(Format format) {
  return with_format(format, [](auto tag) -> RowReader { return read_rows<decltype(tag)::format>; });
}

}  // namespace peagle
