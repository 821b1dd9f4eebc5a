// Weight matrices as kernels read them, in place: packed by plugins/ops/quantized_linear/packed_weights.py.
//
// A matrix [N, K] is cut into tiles of 16 rows (the last is filled up with zeros), a tile into blocks of 32 columns.  The
// codes of a block lie in groups of four columns, for each group the 16 rows one behind the other, so that a vector
// register holds four columns of every row, and four numbers of what is multiplied meet them all.
//
//   codes   uint8 [tiles, blocks, 512]    eight bits: a group behind the other, code + 128
//           uint8 [tiles, blocks, 256]    four bits: the low halves are groups 0 to 3, the high halves 4 to 7
//   scales  float32 [tiles, 1, 16]        int8: one scale for a row
//           float16 [tiles, blocks, 16]   q8_0, q4_0: one for a block of a row; q4_0 stands for (code - 8) * scale
//           float16 [tiles, blocks, 32]   q4_1: 16 scales, then 16 least values, code * scale + least

#include "elementary.h"
#include "tensor.h"

namespace peagle {

enum class Format { kInt8, kQ8_0, kQ4_0, kQ4_1 };
constexpr const char* kFormatNames[] = {"int8", "q8_0", "q4_0", "q4_1"};

constexpr int kTile = 16, kBlock = 32, kGroup = 4, kGroups = kBlock / kGroup;
constexpr int kGroupBytes = kTile * kGroup;

constexpr bool has_four_bits(Format format) { return format == Format::kQ4_0 || format == Format::kQ4_1; }
constexpr int code_bytes(Format format) { return kTile * kBlock / (has_four_bits(format) ? 2 : 1); }
constexpr int scale_count(Format format) { return format == Format::kQ4_1 ? 2 * kTile : kTile; }
// What is taken off a code before it is multiplied; the least value of q4_1 does that in its place.
constexpr int middle(Format format) { return format == Format::kQ4_1 ? 0 : has_four_bits(format) ? 8 : 128; }

struct PackedWeights {
  Format format;
  std::int64_t rows, blocks, tiles;  // rows as asked for, not filled up
  const std::uint8_t* codes;
  const void* scales;

  // Refuses tensors that are not of the form above.
  PackedWeights(const std::string& format_name, std::int64_t rows_asked, const Tensor& code_tensor,
                const Tensor& scale_tensor)
      : format(Format::kInt8), rows(rows_asked), blocks(0), tiles(0), codes(nullptr), scales(nullptr) {
    int found = 0;
    while (found < 4 && format_name != kFormatNames[found]) found++;
    if (found == 4) refuse("format is '%s', not one of int8, q8_0, q4_0, q4_1", format_name.c_str());
    format = Format(found);
    const Shape &c = code_tensor.shape, &s = scale_tensor.shape;
    if (c.rank != 3 || s.rank != 3) refuse("codes and scales must have 3 dimensions, not %d and %d", c.rank, s.rank);
    tiles = c.sizes[0];
    blocks = c.sizes[1];
    if (rows < 1 || blocks < 1 || tiles != (rows + kTile - 1) / kTile || c.sizes[2] != code_bytes(format)) {
      refuse("codes [%lld, %lld, %lld] are not %lld rows of %s", static_cast<long long>(tiles),
             static_cast<long long>(blocks), static_cast<long long>(c.sizes[2]), static_cast<long long>(rows),
             kFormatNames[found]);
    }
    const std::int64_t scaled = format == Format::kInt8 ? 1 : blocks;
    const int type = format == Format::kInt8 ? ort::kFloat32 : ort::kFloat16;
    if (s.sizes[0] != tiles || s.sizes[1] != scaled || s.sizes[2] != scale_count(format) || scale_tensor.type != type) {
      refuse("scales [%lld, %lld, %lld] of type %d are not those of %s codes [%lld, %lld, ..]",
             static_cast<long long>(s.sizes[0]), static_cast<long long>(s.sizes[1]),
             static_cast<long long>(s.sizes[2]), scale_tensor.type, kFormatNames[found], static_cast<long long>(tiles),
             static_cast<long long>(blocks));
    }
    codes = code_tensor.data<const std::uint8_t>();
    scales = scale_tensor.address;
  }

  std::int64_t columns() const { return blocks * kBlock; }
  std::int64_t tile_bytes() const { return blocks * (code_bytes(format) + 2 * scale_count(format)); }
  const std::uint8_t* block_codes(std::int64_t tile, std::int64_t block) const {
    return codes + (tile * blocks + block) * code_bytes(format);
  }
  const std::uint16_t* block_scales(std::int64_t tile, std::int64_t block) const {
    return static_cast<const std::uint16_t*>(scales) + (tile * blocks + block) * scale_count(format);
  }
  const float* row_scales(std::int64_t tile) const { return static_cast<const float*>(scales) + tile * kTile; }

  // The code of a row of the tile in one of the block's columns, without its middle.
  int code(const std::uint8_t* block, int row, int column) const {
    const int group = column / kGroup, at = row * kGroup + column % kGroup;
    if (!has_four_bits(format)) return block[group * kGroupBytes + at] - middle(format);
    const int both = block[group % (kGroups / 2) * kGroupBytes + at];
    return (group < kGroups / 2 ? both & 15 : both >> 4) - middle(format);
  }
};

}  // namespace peagle
