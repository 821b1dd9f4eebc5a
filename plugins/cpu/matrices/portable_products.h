// Products of rounded rows with one tile of a packed matrix, on every machine: see tile_products.h.

#include "tile_rows.h"

namespace peagle {

template <Format kFormat>
void portable_tile(const PackedWeights& weights, std::int64_t at, const Rows& rows, int count) {
  constexpr PackedFormat kForm = record(kFormat);
  constexpr bool kOfRows = kForm.scales == Scales::kRows;
  constexpr int kParts = kForm.parts(), kPart = kBlock / kParts;
  float sums[kMostRows][kTile] = {};
  for (std::int64_t b = 0; b < rows.blocks; b++) {
    const RoundedRows::Block* x = rows.first + b * rows.step;
    for (int n = 0; n < kTile; n++) {
      std::int8_t numbers[kBlock];
      row_numbers<kFormat>(weights.block_codes<kFormat>(at, b), n, numbers);
      const BlockScale scale = block_scale<kFormat>(weights, at, b, n);
      for (int row = 0; row < count; row++) {
        std::int32_t whole = 0;
        for (int part = 0; part < kParts; part++) {
          std::int32_t sum = 0;
          for (int k = part * kPart; k < (part + 1) * kPart; k++) sum += numbers[k] * x[row].codes[k];
          whole += kParts > 1 ? sum * scale.steps[part] : sum;
        }
        const float value = kOfRows ? float(whole) : float(whole) * scale.scale;
        sums[row][n] = __builtin_fmaf(value, x[row].scale, sums[row][n]);
        if (kForm.has_least) sums[row][n] = __builtin_fmaf(scale.least, x[row].shift, sums[row][n]);
      }
    }
  }
  for (int row = 0; row < count; row++) {
    for (int n = 0; kOfRows && n < kTile; n++) sums[row][n] = sums[row][n] * weights.row_scales(at)[n];
    store(rows, row, sums[row], 0, kTile);
  }
}

template <Format kFormat, int kRows>
struct Portable {
  static constexpr int kMost = kMostRows;
  static constexpr RoundFunction kRound = round_row_portable<record(kFormat).parts() != 1>;

  static void tile(const PackedWeights& weights, std::int64_t at, const Rows& rows) {
    portable_tile<kFormat>(weights, at, rows, kRows);
  }
};

}  // namespace peagle
