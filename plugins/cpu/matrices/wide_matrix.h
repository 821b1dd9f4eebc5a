// A packed float32 matrix, which kernels read in place. plugins/ops/wide_linear/packed_matrix.py packs it.
//
// A matrix [N, K] is split into tiles of 16 rows (the last one is padded with zeros): float32 [tiles, K, 16].

#include "packed_weights.h"
#include "tensor.h"

namespace peagle {

struct WideMatrix {
  std::int64_t rows, columns, tiles;  // rows: without padding
  const float* numbers;

  // Throws if the tensor does not have the layout above.
  WideMatrix(std::int64_t num_rows, const Tensor& tensor)
      : rows(num_rows), columns(0), tiles(0), numbers(tensor.data<const float>()) {
    const Shape& s = tensor.shape;
    if (s.rank != 3 || tensor.type != ort::kFloat32) {
      refuse("matrix must be float32 with 3 dimensions, not type %d with %d", tensor.type, s.rank);
    }
    tiles = s.sizes[0];
    columns = s.sizes[1];
    if (rows < 1 || columns < 1 || tiles != (rows + kTile - 1) / kTile || s.sizes[2] != kTile) {
      refuse("matrix [%lld, %lld, %lld] does not have %lld rows in tiles of %d", static_cast<long long>(tiles),
             static_cast<long long>(columns), static_cast<long long>(s.sizes[2]), static_cast<long long>(rows), kTile);
    }
  }

  std::int64_t tile_bytes() const { return columns * kTile * std::int64_t(sizeof(float)); }
  const float* tile(std::int64_t at) const { return numbers + at * columns * kTile; }
};

}  // namespace peagle
