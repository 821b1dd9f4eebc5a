// The arguments and helpers that the tile kernels of all instruction sets share (tile_products.h).

#include "instructions.h"
#include "intrinsics.h"
#include "packed_weights.h"
#include "rounded_rows.h"

namespace peagle {

// Which part of the next tile's codes to prefetch.
enum class Fetch { kAll, kFirstHalf, kSecondHalf, kNone };

// Quantized rows, and the output y [rows, columns], with `stride` elements between rows.
struct Rows {
  const RoundedRows::Block* first;  // block b of a row is first[b * step + row]
  std::int64_t step, blocks;
  float* y;
  std::int64_t stride;
  int columns;
  Fetch fetch;
};

using RoundFunction = void (*)(const float*, std::int64_t, int, RoundedRows::Block*, std::int64_t);

inline void store(const Rows& rows, int row, const float* sums, int from, int count) {
  const int left = rows.columns - from < count ? rows.columns - from : count;
  if (left > 0) std::memcpy(rows.y + row * rows.stride + from, sums, std::size_t(left) * sizeof(float));
}

inline std::int32_t four_codes(const std::int8_t* x) {
  std::int32_t four;
  std::memcpy(&four, x, sizeof four);
  return four;
}

}  // namespace peagle
