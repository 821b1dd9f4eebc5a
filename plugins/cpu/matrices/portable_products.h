// Products of quantized rows with one tile of a packed matrix, in portable C++: see tile_products.h.
//
// One function serves all formats, to limit compile time: it unpacks a block through a function pointer, then
// multiplies.

#include "tile_rows.h"

namespace peagle {

template <int kParts>
void portable_tile(const PackedWeights& weights, std::int64_t at, const Rows& rows, int count) {
  constexpr int kPart = kBlock / kParts;
  const PackedFormat& format = record(weights.format);
  const bool has_row_scales = format.scales == Scales::kRows;
  const RowReader read = row_reader(weights.format);
  float sums[kMaxRows][kTile] = {};
  for (std::int64_t b = 0; b < rows.blocks; b++) {
    const RoundedRows::Block* x = rows.first + b * rows.step;
    std::int8_t numbers[kTile][kBlock];
    BlockScale scales[kTile];
    read(weights, at, b, 0, kTile, numbers, scales);
    for (int n = 0; n < kTile; n++) {
      const BlockScale scale = scales[n];
      for (int row = 0; row < count; row++) {
        std::int32_t whole = 0;
        for (int part = 0; part < kParts; part++) {
          std::int32_t sum = 0;
          for (int k = part * kPart; k < (part + 1) * kPart; k++) sum += numbers[n][k] * x[row].codes[k];
          whole += kParts > 1 ? sum * scale.steps[part] : sum;
        }
        const float value = has_row_scales ? float(whole) : float(whole) * scale.scale;
        sums[row][n] = __builtin_fmaf(value, x[row].scale, sums[row][n]);
        if (format.has_min) sums[row][n] = __builtin_fmaf(scale.minimum, x[row].shift, sums[row][n]);
      }
    }
  }
  for (int row = 0; row < count; row++) {
    for (int n = 0; has_row_scales && n < kTile; n++) sums[row][n] = sums[row][n] * weights.row_scales(at)[n];
    store(rows, row, sums[row], 0, kTile);
  }
}

template <int kParts, int kRows>
struct PortableRows {
  static constexpr int kMaxRowsPerPass = kMaxRows;
  static constexpr RoundFunction kRound = round_row_portable<kParts != 1>;

  static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    portable_tile<kParts>(weights, at, rows, kRows);
  }
};

template <Format kFormat, int kRows>
struct Portable : PortableRows<record(kFormat).parts(), kRows> {};

}  // namespace peagle
